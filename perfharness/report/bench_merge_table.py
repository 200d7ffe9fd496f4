"""Several machines' results side by side on the terminal."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from perfharness.analysis.bench_figures import gives_wrong_answers, latency_of
from perfharness.model.bench_suite import BenchMergedResult, MergedCell
from perfharness.report.bench_table import (
    WIDTH,
    WRONG,
    first_line,
    in_significant_digits,
    short_cell,
    speedup_in_words,
)


def print_merged(console: Console, merged: BenchMergedResult) -> None:
    """One row a case, for each machine its median, items/s and speed-up against its own baseline."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("model", "backend/mode", "precision", "batch"):
        table.add_column(name, justify="right" if name == "batch" else "left")
    for run in merged.runs:
        table.add_column(escape(f"{run.name}\np50 ms"), justify="right")
        table.add_column("\nitems/s", justify="right")
        table.add_column("\nspeed-up", justify="right")
    for row in merged.rows:
        cells = [part for cell in row.cells for part in _parts(cell)]
        name = f"{row.backend.rpartition(':')[2]}/{row.mode}"
        table.add_row(*map(escape, (row.model, name, row.precision, str(row.batch_size), *cells)))
    wide = console if console.is_terminal else Console(file=console.file, width=max(console.width, WIDTH))
    wide.print(table)
    for run in merged.runs:
        device = ", ".join(run.machine.gpus) or run.machine.cpu or "?"
        line = f"{run.name}: {device}, {run.created}, speed-up against {short_cell(run.baseline or '?')} ({run.path})"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    for row in merged.rows:
        for cell in row.cells:
            if cell.reason is not None:
                name = f"{row.model} {row.backend}/{row.mode} {row.precision} batch {row.batch_size}"
                line = f"{cell.run}: {name}: {first_line(cell.reason)}"
                console.print(line, markup=False, highlight=False, soft_wrap=True)
    for difference in merged.differences:
        console.print(f"not the same: {difference}", markup=False, highlight=False, soft_wrap=True)


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
