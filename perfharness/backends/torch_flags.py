"""Process-wide settings of PyTorch."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from perfharness.backends.base import BackendOptions
from perfharness.errors import BackendError

COMPILED_SHAPES = 1024
"""Limit of compiled shapes per model; beyond its default of eight PyTorch continues uncompiled, and only logs it."""

COMPILE_LIMITS = (
    ("recompile_limit", "cache_size_limit"),
    ("accumulated_recompile_limit", "accumulated_cache_size_limit"),
)
"""Compiler settings for that limit, with their names before PyTorch 2.6. They are per thread."""


@contextmanager
def many_shapes(torch: Any) -> Iterator[None]:
    """Raise the limit of compiled shapes inside, in this thread."""
    config = torch._dynamo.config  # imported late: it takes seconds
    names = [new if hasattr(config, new) else old for new, old in COMPILE_LIMITS]
    with config.patch({name: COMPILED_SHAPES for name in names if hasattr(config, name)}):
        yield


class ProcessSettings:
    """PyTorch's settings for one session: set once for the whole process, and not restored.

    Raises `BackendError` where an open session needs others.
    """

    _open: ClassVar[list[dict[str, Any]]] = []

    def __init__(self, torch: Any, options: BackendOptions) -> None:
        self._torch = torch
        self._wanted: dict[str, Any] = {}
        if options.threads is not None:
            self._wanted["num_threads"] = options.threads
        if options.device == "cuda":
            tf32 = options.precision == "tf32"
            self._wanted |= {
                "float32_matmul_precision": "high" if tf32 else "highest",
                "cudnn.allow_tf32": tf32,
                "cudnn.benchmark": options.extra.get("cudnn_benchmark") == "on",
            }
        other = next((one for one in self._open if one != self._wanted), None)
        if other is not None:
            raise BackendError(
                f"a session that is open in this process has set PyTorch to {other}, and this one wants "
                f"{self._wanted}; use a process of its own"
            )
        self._set()
        self._open.append(self._wanted)

    def close(self) -> None:
        """End the session's use of the settings."""
        if self._wanted in self._open:
            self._open.remove(self._wanted)

    def described(self) -> dict[str, str]:
        """Settings that change speed or numbers, as text."""
        texts = {True: "on", False: "off"}
        found = {name: texts[value] if isinstance(value, bool) else str(value) for name, value in self._wanted.items()}
        return {"num_threads": str(self._torch.get_num_threads()), **found}

    def _set(self) -> None:
        torch, wanted = self._torch, self._wanted
        if "num_threads" in wanted:
            torch.set_num_threads(wanted["num_threads"])
        if "cudnn.benchmark" in wanted:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # names of settings may change
                torch.set_float32_matmul_precision(wanted["float32_matmul_precision"])
                torch.backends.cudnn.allow_tf32 = wanted["cudnn.allow_tf32"]
            torch.backends.cudnn.benchmark = wanted["cudnn.benchmark"]
