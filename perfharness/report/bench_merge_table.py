"""Several runs' results side by side on the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from perfharness.analysis.bench_figures import gives_wrong_answers, latency_of
from perfharness.analysis.bench_names import in_groups, short_backend
from perfharness.model.bench_suite import BenchMergedResult, MergedCell, MergedRow
from perfharness.model.text import safe, safe_line
from perfharness.report.bench_table import WRONG
from perfharness.report.bench_words import (
    WIDTH,
    first_line,
    in_significant_digits,
    listed,
    short_cell,
    side_by_side,
    speedup_in_words,
)
from perfharness.report.console import Console as SafeConsole


def print_merged(console: Console, merged: BenchMergedResult) -> None:
    """One row a case, for each run its median, items/s and speed-up against its own baseline."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("model", "backend/mode", "precision", "batch"):
        table.add_column(name, justify="right" if name == "batch" else "left")
    for run in merged.runs:
        table.add_column(Text(safe(f"{run.name}\np50 ms")), justify="right")
        table.add_column("\nitems/s", justify="right")
        table.add_column("\nspeed-up", justify="right")
    for row in merged.rows:
        cells = [part for cell in row.cells for part in _parts(cell)]
        table.add_row(
            *(Text(safe_line(cell)) for cell in (row.model, _backend(row), row.precision, str(row.batch_size), *cells))
        )
    wide = console if console.is_terminal else SafeConsole(file=console.file, width=max(console.width, WIDTH))
    wide.print(table)
    console.print(side_by_side(merged), markup=False, highlight=False)
    for run in merged.runs:
        device = ", ".join(run.machine.gpus) or run.machine.cpu or "?"
        line = f"{run.name}: {device}, {run.created}, speed-up against {short_cell(run.baseline or '?')} ({run.path})"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    for line in _missing(merged):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    for difference in merged.differences:
        console.print(f"not the same: {difference}", markup=False, highlight=False, soft_wrap=True)


def _missing(merged: BenchMergedResult) -> Iterator[str]:
    """What a machine has no number for; the cases of one reason together."""
    missing = (
        ((cell.run, first_line(cell.reason)), (f"{row.model} {_backend(row)} {row.precision}", row.batch_size))
        for row in merged.rows
        for cell in row.cells
        if cell.reason is not None
    )
    for (run, reason), rows in in_groups(missing):
        cells = [f"{cell}, batch {', '.join(map(str, sizes))}" for cell, sizes in in_groups(rows)]
        if len(cells) == 1:
            yield f"{run}: {cells[0]}: {reason}"
        else:
            yield f"{run}: {len(rows)} cases: {reason}"
            yield from listed(cells)


def _backend(row: MergedRow) -> str:
    return " ".join(part for part in (f"{short_backend(row.backend)}/{row.mode}", row.device, row.variant) if part)


def _parts(cell: MergedCell) -> tuple[str, str, str]:
    result = cell.result
    if result is None or result.status != "ok":
        return "-", "-", "-"
    mark = WRONG if gives_wrong_answers(result) else ""
    return (
        in_significant_digits(latency_of(result, "p50")),
        mark + in_significant_digits(result.items_per_second),
        mark + speedup_in_words(cell.speedup),
    )
