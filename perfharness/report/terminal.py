"""Results for people: one table of stages, the throughput, and what was found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from perfharness.model.findings import Finding, Severity
from perfharness.model.result import RESERVED_KEYS, Tree
from perfharness.report.machine_lines import print_machine
from perfharness.report.stage_names import row_names

SEVERITY_STYLE = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "dim"}
NOT_MEASURED = "-"

COLUMNS = {
    "batches": ("cpu_time", "count"),
    "CPU": ("cpu_time", "mean"),
    "p50": ("cpu_time", "p50"),
    "p99": ("cpu_time", "p99"),
    "GPU": ("gpu_time", "mean"),
    "busy": ("gpu_busy_time", "mean"),
    "CPU/item": ("cpu_time_per_item", "mean"),
    "GPU/item": ("gpu_time_per_item", "mean"),
}
"""Heading -> number and figure of it; means where nothing else is said. A column without any value is left out."""


MAX_ROWS = 200
"""More stages than this are no help on a terminal."""


@dataclass(frozen=True)
class StageRow:
    """One stage of a batch: statistics by key, as in `stats_minus_warmup`."""

    path: tuple[str, ...]
    statistics: Tree


def stage_rows(stats_minus_warmup: Tree, path: tuple[str, ...] = ()) -> Iterator[StageRow]:
    """All stages of a statistics tree, a parent before its children."""
    if path and "cpu_time" in stats_minus_warmup:
        yield StageRow(path, stats_minus_warmup)
    for name, below in stats_minus_warmup.items():
        if not path or name not in RESERVED_KEYS:
            yield from stage_rows(below, (*path, name))


def print_result(console: Console, tree: Tree, findings: Iterable[Finding]) -> None:
    """The table of stages, throughput where the tree has it, and findings."""
    rows = [row for row in stage_rows(tree["stats_minus_warmup"]) if row.statistics["cpu_time"]["count"]]
    if rows:
        console.print("ms per batch, without warm-up (GPU: projected, busy: union of operations)", highlight=False)
        console.print(_table(rows[:MAX_ROWS]))
        if len(rows) > MAX_ROWS:
            console.print(f"and {len(rows) - MAX_ROWS} more stages; all are in the JSON files", highlight=False)
    if "throughput" in tree:
        console.print(_throughput_line(tree["throughput"]))
    print_machine(console, tree)
    print_findings(console, findings)


def print_findings(console: Console, findings: Iterable[Finding]) -> None:
    """Errors and warnings, a line each, with the cure; notes stay in the files."""
    for finding in findings:
        if finding.severity == Severity.NOTE:
            continue
        style = SEVERITY_STYLE[finding.severity]
        console.print(f"[{style}]{finding.severity.value}[/] {escape(_sentence(finding))}", soft_wrap=True)


def _sentence(finding: Finding) -> str:
    """Where, what, and what to do; a message that quotes a program's output ends in lines of its own."""
    text = (f"{finding.process}: " if finding.process else "") + finding.message
    if not finding.cure:
        return text
    if "\n" in text:
        return f"{text}\n  {finding.cure}"
    return f"{text}{'' if text.endswith('.') else ';'} {finding.cure}"


def _table(rows: list[StageRow]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    cells = [_cells(row.statistics) for row in rows]
    shown = [column for column in range(len(COLUMNS)) if any(line[column] != NOT_MEASURED for line in cells)]
    table.add_column("stage", no_wrap=True)
    for column in shown:
        table.add_column(list(COLUMNS)[column], justify="right", no_wrap=True)
    for name, line in zip(row_names([row.path for row in rows]), cells, strict=True):
        table.add_row(escape(name), *(line[column] for column in shown))
    return table


def _cells(statistics: Tree) -> list[str]:
    figures = [statistics[key][figure] for key, figure in COLUMNS.values()]
    return [
        NOT_MEASURED if figure is None else str(figure) if isinstance(figure, int) else f"{figure:.3f}"
        for figure in figures
    ]


def _throughput_line(throughput: Tree) -> str:
    if throughput["items_per_second"] is None:
        return f"Throughput: not measured ({escape(throughput['reason'])})"
    line = (
        f"Throughput: {throughput['items_per_second']:.3f} items/s "
        f"({throughput['items']:.4g} items in {throughput['window_ms']:.1f} ms, all processes in steady state)"
    )
    achieved = throughput.get("concurrency")
    if achieved is None or achieved["processes"] < 2:
        return line
    return (
        f"{line}; {achieved['mean_processes']:.2f} of {achieved['processes']} processes inside a batch on average, "
        f"all of them {achieved['all_processes_share']:.0%} of the time"
    )
