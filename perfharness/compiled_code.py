"""Ranges inside code that torch.compile compiles.

The compiler traces a function by interpreting it. A range in it would split the compiled code in two (an error with
`fullgraph=True`), and compiled code is no longer what the range was around. So a range that is being traced makes
nothing, and is named in the results instead. Standard library only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

tracing: Callable[[], bool] | None = None
"""Whether torch.compile traces the caller, which it treats as a constant; None: PyTorch was not found yet."""

ranges: set[str] = set()
"""Names of the recorders' ranges that were traced."""


def find_tracing(*_module: object) -> None:
    """Set `tracing` once PyTorch is imported."""
    global tracing
    if (torch := sys.modules.get("torch")) is not None:
        tracing = getattr(getattr(torch, "compiler", None), "is_dynamo_compiling", None)


def is_traced() -> bool:
    """Whether torch.compile traces the caller; `find_tracing` was called."""
    return tracing is not None and tracing()


def not_compiled(function: Any) -> Any:
    """Have torch.compile call a function where a call of it is traced; what it returns is a constant."""
    function._dynamo_marked_constant = True  # as torch.compiler.assume_constant_result, without importing PyTorch
    return function


@not_compiled
def note_range(name: str) -> None:
    """A range was traced."""
    ranges.add(name)


class Unrecorded:
    """Takes the place of a range's or a batch's block while it is traced."""

    def __init__(self) -> None:
        self.batch_idx: int | None = None
        self.total_items: int | None = None
        self.delete_range = False

    def __enter__(self) -> Unrecorded:
        return self

    def __exit__(self, *error: object) -> None:
        pass
