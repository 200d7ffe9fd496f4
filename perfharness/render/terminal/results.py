"""Results for people: one table of stages, the throughput, and the findings."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from perfharness.analysis.stages.checks import CAPTURED
from perfharness.analysis.stages.entries import sums_of_ranges
from perfharness.model.findings import Severity
from perfharness.model.result import RESERVED_KEYS, Entries, Path, ProcessResult, Tree, path_text
from perfharness.render.terminal.advice import MOST_VALUABLE, limited_by, print_advice
from perfharness.render.terminal.console import Column, ms_text, print_table, say
from perfharness.render.terminal.machine import print_machine
from perfharness.render.terminal.ranks import print_ranks
from perfharness.render.text import NOT_MEASURED

LISTED_RANGES = 100
INDENT = "  "

COLUMNS = {
    "batches": ("cpu_time", "count", 3),
    "CPU": ("cpu_time", "mean", 0),
    "p50": ("cpu_time", "p50", 2),
    "p99": ("cpu_time", "p99", 5),
    "GPU": ("gpu_time", "mean", 1),
    "busy": ("gpu_busy_time", "mean", 6),
    "CPU/item": ("cpu_time_per_item", "mean", 4),
    "GPU/item": ("gpu_time_per_item", "mean", 7),
}
"""Heading -> number and figure of it, and its priority for removal on a narrow terminal, the largest first; means by
default. A column without any value is omitted."""

GPU_COLUMNS = frozenset({"GPU", "busy", "GPU/item"})


RANGE_TIMES = {"CPU": "cpu_time", "GPU": "gpu_time", "busy": "gpu_busy_time"}

LEAST_SHARE_OF_OTHERS = 0.05
"""Of the batch: a shorter stage that another recorder or a library made is in the JSON files only."""

MAX_ROWS = 200
"""Maximum of rows on a terminal."""


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


def row_names(paths: Sequence[Path]) -> list[str]:
    """A name for each row, indented below its nearest ancestor that has a row."""
    several = len({path[0] for path in paths}) > 1
    depth: dict[Path, int] = {}
    names = []
    for path in paths:
        above = next((length for length in range(len(path) - 1, 0, -1) if path[:length] in depth), 0)
        depth[path] = depth[path[:above]] + 1 if above else 0
        begin = above or (0 if several or len(path) == 1 else 1)
        names.append(INDENT * depth[path] + path_text(path[begin:]))
    return names


def print_result(
    console: Console,
    tree: Tree,
    results: Mapping[str, ProcessResult],
    *,
    has_gpu: bool | None = None,
    whole: bool = False,
) -> None:
    """The table of stages, or of ranges where no batch was measured, throughput where the tree has it, the machine,
    and what to do first.

    Args:
        results: of each process, for what limits its stages, and the table of ranges.
        has_gpu: whether there was a GPU whose zeros mean something; None: as `meta` says.
        whole: all advice, for a reader who gets the evidence as well.
    """
    rows = [row for row in stage_rows(tree["stats_minus_warmup"]) if row.statistics["cpu_time"]["count"]]
    rows = list(_without_short_ones(rows, {path for one in results.values() for path in one.of_others}))
    if has_gpu is None:
        has_gpu = bool(tree.get("meta", {}).get("environment", {}).get("gpus"))
    diagnoses = {name: one.diagnosis for name, one in results.items() if one.diagnosis is not None}
    if rows:
        _print_stages(console, rows[:MAX_ROWS], limited_by(diagnoses), has_gpu=has_gpu)
        if len(rows) > MAX_ROWS:
            say(console, f"{len(rows) - MAX_ROWS} more stages are in the JSON files")
    else:
        _print_ranges(console, [one.entries for one in results.values()], has_gpu=has_gpu)
    if tree.get("outside_batches"):
        _print_outside(console, tree["outside_batches"])
    if "throughput" in tree:
        say(console, _throughput_line(tree["throughput"]))
    for finding in tree.get("meta", {}).get("findings", ()):
        if finding["code"] == CAPTURED and finding["severity"] == Severity.NOTE:
            say(console, f"{finding['process']}: {finding['message']}" if finding["process"] else finding["message"])
    print_ranks(console, tree)
    print_machine(console, tree)
    print_advice(console, diagnoses, None if whole else MOST_VALUABLE)


def _without_short_ones(rows: Sequence[StageRow], of_others: Container[Path]) -> Iterator[StageRow]:
    """The rows without those of others that take less than 5 % of their batch."""
    batch_ms = 0.0
    for row in rows:
        times = row.statistics["cpu_time"]
        total_ms = (times["mean"] or 0.0) * times["count"]
        if "total_items" in row.statistics:
            batch_ms = total_ms
        if row.path not in of_others or total_ms >= LEAST_SHARE_OF_OTHERS * batch_ms:
            yield row


def _print_stages(console: Console, rows: list[StageRow], limits: Mapping[Path, Text], *, has_gpu: bool) -> None:
    figures = [[row.statistics[key][figure] for key, figure, _ in COLUMNS.values()] for row in rows]
    shown = [
        place
        for place, heading in enumerate(COLUMNS)
        if any(line[place] is not None and (has_gpu or heading not in GPU_COLUMNS or line[place]) for line in figures)
    ]
    gpu = (
        " (GPU: projected, busy: union of operations)" if any(list(COLUMNS)[at] in GPU_COLUMNS for at in shown) else ""
    )
    say(console, f"ms per batch, without warm-up{gpu}")
    headings = list(COLUMNS.items())
    columns = [Column("stage", is_text=True), *(Column(headings[at][0], drop=headings[at][1][2]) for at in shown)]
    names = row_names([row.path for row in rows])
    cells: list[list[str | Text]] = [
        [name, *(_cell(line[at]) for at in shown)] for name, line in zip(names, figures, strict=True)
    ]
    if limits:
        columns.append(Column("limited by", is_text=True, is_whole=True))
        cells = [[*line, limits.get(row.path, NOT_MEASURED)] for line, row in zip(cells, rows, strict=True)]
    print_table(console, columns, cells)


def _print_outside(console: Console, stages: list[Tree]) -> None:
    """Print stages outside of batches."""
    say(console, "outside of batches, ms per occurrence")
    columns = [
        Column("stage", is_text=True), Column("count"), Column("CPU"), Column("p50", drop=2), Column("total"),
        Column("GPU", drop=1),
    ]  # fmt: skip
    names = row_names([tuple(stage["path"]) for stage in stages[:MAX_ROWS]])
    rows = [
        [
            name, str(stage["count"]), *(_cell(stage["cpu_time"][key]) for key in ("mean", "p50", "total")),
            _cell(stage["gpu_time"]["mean"]),
        ]
        for name, stage in zip(names, stages, strict=False)
    ]  # fmt: skip
    print_table(console, columns, rows)


def _cell(figure: float | None) -> str:
    return NOT_MEASURED if figure is None else str(figure) if isinstance(figure, int) else ms_text(figure)


def _print_ranges(console: Console, entries: Sequence[Entries], *, has_gpu: bool) -> None:
    """Print every range of a run without batches: count, sum and mean of its times."""
    ranges = sums_of_ranges(entries)
    if not ranges:
        return
    shown = [
        heading
        for heading, key in RANGE_TIMES.items()
        if heading == "CPU" or any(has_gpu or sums[key] for sums in ranges.values() if sums[key] is not None)
    ]
    say(console, "ms per range, all processes together, with warm-up")
    columns = [Column("range", is_text=True), Column("count")]
    for heading in shown:
        columns += [
            Column(f"{heading} total", drop=1 + (heading != "CPU")),
            Column(f"{heading} mean", drop=heading != "CPU"),
        ]
    rows = []
    for name, sums in zip(row_names(list(ranges)), ranges.values(), strict=True):
        count = sums["count"] or 0
        cells = [name, f"{count:.0f}"]
        for heading in shown:
            total = sums[RANGE_TIMES[heading]]
            cells += [_cell(total), _cell(None if total is None or not count else total / count)]
        rows.append(cells)
    print_table(console, columns, rows[:LISTED_RANGES])
    if len(rows) > LISTED_RANGES:
        say(console, f"{len(rows) - LISTED_RANGES} more ranges; for all: perfharness export --table ranges")


def _throughput_line(throughput: Tree) -> str:
    if throughput["items_per_second"] is None:
        return f"Throughput not measured: {throughput['reason']}"
    line = (
        f"Throughput: {throughput['items_per_second']:.3f} items/s "
        f"({throughput['items']:.4g} items in {throughput['window_ms']:.1f} ms of steady state)"
    )
    achieved = throughput.get("concurrency")
    if achieved is None or achieved["processes"] < 2:
        return line
    return (
        f"{line}; on average {achieved['mean_processes']:.2f} of {achieved['processes']} processes in a batch, "
        f"all of them {100 * achieved['all_processes_share']:.0f} % of the time"
    )
