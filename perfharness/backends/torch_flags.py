"""PyTorch's global settings, as one session needs them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from perfharness.backends.base import BackendOptions

COMPILED_SHAPES = 1024
"""Shapes of one model that may be compiled; after eight PyTorch would go on uncompiled, and say so only in a log."""

COMPILE_LIMITS = (
    ("recompile_limit", "cache_size_limit"),
    ("accumulated_recompile_limit", "accumulated_cache_size_limit"),
)
"""Settings of the compiler for that, and their names before PyTorch 2.6. They are of one thread."""


@contextmanager
def many_shapes(torch: Any) -> Iterator[None]:
    """Whatever is compiled inside, in this thread, is compiled."""
    config = torch._dynamo.config  # loaded here only: it takes seconds
    names = [new if hasattr(config, new) else old for new, old in COMPILE_LIMITS]
    with config.patch({name: COMPILED_SHAPES for name in names if hasattr(config, name)}):
        yield


class TorchFlags:
    """What one session sets. Several may be open: the one that works last has its own in place.

    `apply` is called before each step of a round, so it does nothing but look where nothing has changed hands. Sessions
    that want the same share it: they may work in turns or in threads at once, and nothing is set. Those that want
    different things cannot be in threads at once. What was there before comes back when the last is closed of those
    whose settings are in place.
    """

    _before: ClassVar[dict[str, Any]] = {}
    _open: ClassVar[list[TorchFlags]] = []
    _in_place: ClassVar[TorchFlags | None] = None

    def __init__(self, torch: Any, options: BackendOptions) -> None:
        self._torch = torch
        tf32 = options.precision == "tf32"
        self._wanted: dict[str, Any] = {}
        if options.threads is not None:
            self._wanted["num_threads"] = options.threads
        if options.device == "cuda":
            self._wanted |= {
                "float32_matmul_precision": "high" if tf32 else "highest",
                "cudnn.allow_tf32": tf32,
                "cudnn.benchmark": options.extra.get("cudnn_benchmark") == "on",
            }
            if options.memory_limit_bytes is not None:
                self._wanted["memory_fraction"] = self._fraction(options.memory_limit_bytes)
        self._access = accesses(torch, self._wanted)
        self._is_open = False

    def apply(self) -> None:
        """Put them in place."""
        now = TorchFlags._in_place
        if self._is_open and now is not None and now._wanted is self._wanted:
            return
        if not self._is_open:
            self._is_open = True
            self._wanted = next((one._wanted for one in TorchFlags._open if one._wanted == self._wanted), self._wanted)
            TorchFlags._open.append(self)
        if now is not None:
            if now._wanted is self._wanted:
                return
            now._set(TorchFlags._before)
        for name, (read, _) in self._access.items():
            TorchFlags._before.setdefault(name, read())
        self._set(self._wanted)
        TorchFlags._in_place = self

    def restore(self) -> None:
        """Bring back what was there before, once no session is open that wants the same."""
        if not self._is_open:
            return
        self._is_open = False
        TorchFlags._open.remove(self)
        if TorchFlags._in_place is self:
            TorchFlags._in_place = next((one for one in TorchFlags._open if one._wanted is self._wanted), None)
            if TorchFlags._in_place is None:
                self._set(TorchFlags._before)
        if not TorchFlags._open:
            TorchFlags._before.clear()

    def told(self) -> dict[str, str]:
        """Those that change speed or numbers, as text."""
        words = {True: "on", False: "off"}
        told = {name: words[value] if isinstance(value, bool) else str(value) for name, value in self._wanted.items()}
        return told | ({} if "num_threads" in told else {"num_threads": str(self._torch.get_num_threads())})

    def _set(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            if name in self._access:
                self._access[name][1](value)

    def _fraction(self, limit_bytes: int) -> float:
        """Of the GPU's memory."""
        total = self._torch.cuda.get_device_properties(self._torch.cuda.current_device()).total_memory
        return float(min(1.0, limit_bytes / total))


Access = tuple[Callable[[], Any], Callable[[Any], None]]


def accesses(torch: Any, names: Collection[str]) -> dict[str, Access]:
    """Name -> how the setting is read and set; those that this version of PyTorch has."""

    def attribute(owner: Any, name: str) -> Access:
        return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)

    made: dict[str, Callable[[], Access]] = {
        "num_threads": lambda: (torch.get_num_threads, torch.set_num_threads),
        "float32_matmul_precision": lambda: (
            torch.get_float32_matmul_precision,
            _quiet(torch.set_float32_matmul_precision),
        ),
        "cudnn.allow_tf32": lambda: _both_quiet(attribute(torch.backends.cudnn, "allow_tf32")),
        "cudnn.benchmark": lambda: attribute(torch.backends.cudnn, "benchmark"),
        "memory_fraction": lambda: (lambda: 1.0, torch.cuda.set_per_process_memory_fraction),
    }
    return {name: made[name]() for name in names}


def _quiet(function: Callable[..., Any]) -> Callable[..., Any]:
    """Without the warnings that the setting will have another name one day."""

    def called(*given: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return function(*given)

    return called


def _both_quiet(access: Access) -> Access:
    return _quiet(access[0]), _quiet(access[1])
