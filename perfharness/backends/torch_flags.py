"""PyTorch's global settings, as one session needs them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from typing import Any, ClassVar

from perfharness.backends.base import BackendOptions

COMPILED_SHAPES = 1024
"""Shapes of one model that may be compiled; after eight PyTorch would go on uncompiled, and say so only in a log."""


class TorchFlags:
    """What one session sets. Several may be open: the one that works last has its own in place.

    `apply` is called before each step of a round, so it does nothing but look where nothing has changed hands. What was
    there before comes back when the one that has its own in place is closed.
    """

    _before: ClassVar[dict[str, Any]] = {}
    _open: ClassVar[list[TorchFlags]] = []
    _in_place: ClassVar[TorchFlags | None] = None

    def __init__(self, torch: Any, options: BackendOptions) -> None:
        self._torch = torch
        tf32 = options.precision == "tf32"
        self._wanted: dict[str, Any] = {}
        if options.mode.startswith("compile"):
            self._wanted["recompile_limit"] = COMPILED_SHAPES
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

    def apply(self) -> None:
        """Put them in place."""
        if TorchFlags._in_place is self:
            return
        if TorchFlags._in_place is not None:
            TorchFlags._in_place._set(TorchFlags._before)
        for name, (read, _) in self._access.items():
            TorchFlags._before.setdefault(name, read())
        if self not in TorchFlags._open:
            TorchFlags._open.append(self)
        self._set(self._wanted)
        TorchFlags._in_place = self

    def restore(self) -> None:
        """Bring back what was there before, once no session is open."""
        if self not in TorchFlags._open:
            return
        TorchFlags._open.remove(self)
        if TorchFlags._in_place is self:
            self._set(TorchFlags._before)
            TorchFlags._in_place = None
        if not TorchFlags._open:
            TorchFlags._before.clear()

    def told(self) -> dict[str, str]:
        """Those that change speed or numbers, as text."""
        words = {True: "on", False: "off"}
        told = {
            name: words[value] if isinstance(value, bool) else str(value)
            for name, value in self._wanted.items()
            if name != "recompile_limit"
        }
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

    def of_compiler(name: str) -> Access:
        config = torch._dynamo.config  # loaded here only: it takes seconds
        return attribute(config, name if hasattr(config, name) else "cache_size_limit")  # its name before 2.6

    made: dict[str, Callable[[], Access]] = {
        "num_threads": lambda: (torch.get_num_threads, torch.set_num_threads),
        "float32_matmul_precision": lambda: (
            torch.get_float32_matmul_precision,
            _quiet(torch.set_float32_matmul_precision),
        ),
        "cudnn.allow_tf32": lambda: _both_quiet(attribute(torch.backends.cudnn, "allow_tf32")),
        "cudnn.benchmark": lambda: attribute(torch.backends.cudnn, "benchmark"),
        "memory_fraction": lambda: (lambda: 1.0, torch.cuda.set_per_process_memory_fraction),
        "recompile_limit": lambda: of_compiler("recompile_limit"),
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
