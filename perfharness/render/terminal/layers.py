"""A comparison of two ONNX models, tensor by tensor, on the terminal."""

from __future__ import annotations

from perfharness.bench.accuracy.layers import LayerComparison, LayerRow
from perfharness.model.text import NOT_MEASURED
from perfharness.render.terminal.console import Column, Console, print_table, say

MAX_ROWS = 40
BEFORE, AFTER = 5, 15
"""Rows around the first one beyond the tolerance, where there are more."""


def print_layers(console: Console, found: LayerComparison, *, every: bool = False) -> None:
    """The verdict, and the tensors around it."""
    rows, begin = _shown_rows(found, every)
    columns = [
        Column("", is_text=True), Column("tensor", is_text=True), Column("operator", is_text=True, drop=4),
        Column("rel. error"), Column("cosine", drop=1), Column("max abs", drop=2), Column("max value", drop=3),
        Column("", is_text=True),
    ]  # fmt: skip
    cells = []
    for place, row in enumerate(rows, begin):
        mark = ">" if place == found.first_beyond else "*" if row.beyond else ""
        name = row.first if row.first == row.second else f"{row.first} / {row.second}"
        numbers = (
            _shown(row.relative_error),
            _shown(row.cosine, ".6f"),
            _shown(row.max_absolute),
            _shown(row.max_value),
        )
        cells.append([mark, name, row.op_type, *numbers, row.reason or ""])
    print_table(console, columns, cells)
    if len(rows) < len(found.rows):
        say(console, f"{len(rows)} of {len(found.rows)} tensors are shown; --all shows all, --json FILE writes them")
    say(console, f"{found.compared} tensors compared, matched by {found.aligned_by}, in {found.parts} parts")
    for name, only in ((found.first, found.only_first), (found.second, found.only_second)):
        if only:
            more = f" and {len(only) - 3} more" if len(only) > 3 else ""
            say(console, f"only in {name}: {', '.join(only[:3])}{more}")
    say(console, verdict(found))


def verdict(found: LayerComparison) -> str:
    """One sentence."""
    if found.first_beyond is None:
        errors = [row.relative_error for row in found.rows if row.relative_error is not None]
        if not errors:
            return "no tensor could be compared"
        return (
            f"no tensor is beyond the tolerance of {found.tolerance:g}; the largest relative error is {max(errors):.3g}"
        )
    row = found.rows[found.first_beyond]
    what = f"its relative error is {row.relative_error:.3g}" if row.relative_error is not None else row.reason
    return f"the first tensor beyond the tolerance of {found.tolerance:g} is {row.first} ({row.op_type}): {what}"


def _shown_rows(found: LayerComparison, every: bool) -> tuple[list[LayerRow], int]:
    if every or len(found.rows) <= MAX_ROWS:
        return found.rows, 0
    middle = found.first_beyond if found.first_beyond is not None else len(found.rows)
    begin = max(0, middle - BEFORE)
    return found.rows[begin : middle + AFTER], begin


def _shown(value: float | None, form: str = ".3g") -> str:
    return NOT_MEASURED if value is None else format(value, form)
