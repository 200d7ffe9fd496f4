"""Ranges inside code that torch.compile compiles.

The compiler traces a function by interpreting it. A range in it would split the compiled code in two (an error with
`fullgraph=True`), and compiled code is no longer what the range was around. So a range that is being traced makes
nothing, and is named in the results instead. Standard library only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

tracing: Callable[[], bool] | None = None
"""Whether torch.compile traces the caller, which it treats as a constant; None: PyTorch was not found yet."""

ranges: set[str] = set()
"""Names of the recorders' ranges that were traced."""

functions: set[str] = set()
"""`module:qualname` of annotated functions that were traced."""


def find_tracing() -> Callable[[], bool]:
    """`tracing`, or a function that says no as long as PyTorch is not imported."""
    global tracing
    torch = sys.modules.get("torch")
    if torch is None:
        return _never
    tracing = getattr(getattr(torch, "compiler", None), "is_dynamo_compiling", None)
    return tracing or _never


def note_range(name: str) -> None:
    """A range was traced."""
    ranges.add(name)


def note_function(name: str) -> None:
    """A call of an annotated function was traced."""
    functions.add(name)


# As torch.compiler.assume_constant_result, without importing PyTorch: called for real where a call of it is traced.
note_range._dynamo_marked_constant = True  # type: ignore[attr-defined]
note_function._dynamo_marked_constant = True  # type: ignore[attr-defined]


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


def _never() -> bool:
    return False
