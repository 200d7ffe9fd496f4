"""Sweeps over batch sizes on the terminal: the table of each cell, and its end."""

from __future__ import annotations

from rich.console import Console

from perfharness.analysis.suites.bench_figures import memory_of
from perfharness.analysis.suites.bench_names import CaseNames
from perfharness.bench.suite.table import CELL
from perfharness.model.bench import BenchCase, CaseResult, Estimate
from perfharness.model.bench_suite import CellSweep, SweepFile
from perfharness.render.terminal.bench import bytes_text, unsteady_lines
from perfharness.render.terminal.console import Column, print_table, say
from perfharness.render.text import NOT_MEASURED


def is_of(case: BenchCase, cell: CellSweep) -> bool:
    """Whether the case is of that cell."""
    if cell.case_ids or not cell.batch_sizes:
        return case.case_id in cell.case_ids
    return all(getattr(case, name) == getattr(cell, name) for name in CELL)


def case_of(cell: CellSweep) -> BenchCase:
    """A case of the cell, for its name."""
    return BenchCase(**{**vars(cell), "case_id": next(iter(cell.case_ids), ""), "batch_size": 1})


def end_text(cell: CellSweep) -> str:
    """The limit that ended it, and its batch size."""
    if cell.reason is not None:
        return cell.reason
    return (
        f"all batch sizes were measured, up to {max(cell.batch_sizes)}" if cell.batch_sizes else "nothing was measured"
    )


def print_sweep(console: Console, found: SweepFile) -> None:
    """Print one row per case, by cell and batch size, and below each cell its end."""
    names = CaseNames.of((case_of(cell) for cell in found.cells), with_model=False)
    columns = [Column(name) for name in ("batch", "p50 ms", "p95 ms", "p99 ms", "items/s", "memory", "J/item")]
    for cell in found.cells:
        name = f"{cell.model}, {names.cell(case_of(cell))}"
        mine = sorted((one for one in found.cases if is_of(one.case, cell)), key=lambda one: one.case.batch_size)
        if mine:
            say(console, name)
            print_table(console, [*columns, Column("", is_text=True, is_whole=True)], [_cells(case) for case in mine])
        for case in mine:
            for line in unsteady_lines(case):
                say(console, f"batch {case.case.batch_size}: {line}")
        say(console, end_text(cell) if mine else f"{name}: {end_text(cell)}")
    for remark in found.remarks:
        say(console, remark)


def _cells(case: CaseResult) -> list[str]:
    size = str(case.case.batch_size)
    if case.status != "ok":
        return [size, *[NOT_MEASURED] * 6, case.status]
    latency = [None if case.latency is None else getattr(case.latency, name) for name in ("median", "p95", "p99")]
    rates = [_with_interval(one) for one in (*latency, case.items_per_second)]
    return [size, *rates, bytes_text(memory_of(case)), _with_interval(case.energy_per_item_j), ""]


def _with_interval(figure: Estimate | None) -> str:
    """Four digits, or all before the point, and half the interval with one digit."""
    if figure is None:
        return NOT_MEASURED
    value = f"{figure.value:.0f}" if abs(figure.value) >= 1000 else f"{figure.value:.4g}"
    if figure.interval is None:
        return value
    low, high = figure.interval
    half = float(f"{(high - low) / 2:.1g}")
    return f"{value} ±{half:.0f}" if half >= 1 else f"{value} ±{half:g}"
