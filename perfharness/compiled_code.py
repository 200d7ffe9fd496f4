"""Ranges inside code that torch.compile compiles.

The compiler traces a function by interpreting it. A range inside would split the compiled code (an
error with `fullgraph=True`). So a traced range is not recorded, but named in the results. Standard
library only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

tracing: Callable[[], bool] | None = None
"""Whether torch.compile traces the caller (a constant for it); None before PyTorch is found."""

ranges: set[str] = set()
"""Names of traced ranges."""


def find_tracing(*_module: object) -> None:
    """Set `tracing` if PyTorch is imported."""
    global tracing
    if (torch := sys.modules.get("torch")) is not None:
        tracing = getattr(getattr(torch, "compiler", None), "is_dynamo_compiling", None)


def is_traced() -> bool:
    """Whether torch.compile traces the caller, after `find_tracing`."""
    return tracing is not None and tracing()


def not_compiled(function: Any) -> Any:
    """Have torch.compile call a function instead of tracing it, with a constant result."""
    function._dynamo_marked_constant = True  # torch.compiler.assume_constant_result, without importing PyTorch
    return function


@not_compiled
def note_range(name: str) -> None:
    """Record the name of a traced range."""
    ranges.add(name)


class Unrecorded:
    """Replaces a range or batch block during tracing."""

    def __init__(self) -> None:
        self.batch_idx: int | None = None
        self.total_items: int | None = None
        self.delete_range = False

    def __enter__(self) -> Unrecorded:
        return self

    def __exit__(self, *error: object) -> None:
        pass
