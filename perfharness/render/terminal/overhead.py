"""What tracing costs, as a table."""

from __future__ import annotations

from rich.console import Console

from perfharness.model.result import path_of
from perfharness.render.terminal.console import Column, print_table, say
from perfharness.render.terminal.series import over_launches_text
from perfharness.render.text import NOT_MEASURED
from perfharness.render.views.names import row_names
from perfharness.render.views.stages import MAX_ROWS
from perfharness.runs.series.overhead import Overhead, OverheadRow

RUN_LABELS = {"items_per_second": "items/s", "duration_s": "process, s", "cpu_s": "CPU time of processes, s"}
SENTENCES = {
    "fine": "tracing costs less than 10 %: the traced times can be taken",
    "warn": "tracing costs more than 10 %: take the untraced times",
    "distrust": "tracing costs more than 20 %: do not trust the traced times, nor what they say limits a stage",
    "undecided": "whether tracing costs more than 10 % is not known: take the untraced times",
}


def print_overhead(console: Console, overhead: Overhead) -> None:
    """Print the untraced times, what tracing adds, and the grade of each stage and of all."""
    tracer = f" by {overhead.tracer.kind}" if overhead.tracer else ""
    say(
        console,
        f"ms of host time per batch, without warm-up: mean of launches ± half of its 95 % interval; traced{tracer}",
    )
    paths = list(overhead.stages)[:MAX_ROWS]
    names = row_names([path_of(path) for path in paths])
    rows = [
        _cells(name, overhead.stages[path], overhead.medians.get(path)) for name, path in zip(names, paths, strict=True)
    ]
    rows += [_cells(RUN_LABELS.get(name, name), row, graded=False) for name, row in overhead.run.items()]
    columns = [
        Column("stage", is_text=True),
        Column("untraced"),
        Column("traced", drop=1),
        Column("overhead"),
        Column("95 %", drop=2),
        Column("of medians", drop=3),
        Column("grade", is_text=True, is_whole=True),
    ]
    print_table(console, columns, rows)
    if len(overhead.stages) > MAX_ROWS:
        say(console, f"and {len(overhead.stages) - MAX_ROWS} more stages; all are in the JSON file")
    for path, latency in overhead.latency.items():
        texts = [
            f"{name.removeprefix('cpu_time_')} {over_launches_text(one)}"
            for name, one in latency.items()
            if "_p" in name
        ]
        if texts:
            say(console, f"Untraced latency of {path}, ms: {', '.join(texts)}")
    say(console, f"{overhead.grade}: {SENTENCES[overhead.grade]}")
    for reason in dict.fromkeys(row.reason for row in overhead.stages.values() if row.reason):
        say(console, f"undecided where {reason}")
    needed = max((row.launches_needed or 0 for row in overhead.stages.values()), default=0)
    if needed:
        say(console, f"--repeat {needed} would probably decide it")


def _cells(name: str, row: OverheadRow, median: OverheadRow | None = None, *, graded: bool = True) -> list[str]:
    interval = NOT_MEASURED if row.low is None or row.high is None else f"{row.low:+.1%} … {row.high:+.1%}"
    return [
        name,
        over_launches_text(row.untraced),
        over_launches_text(row.traced),
        _share(row),
        interval,
        _share(median) if graded else "",
        row.grade if graded else "",
    ]


def _share(row: OverheadRow | None) -> str:
    return NOT_MEASURED if row is None or row.overhead is None else f"{row.overhead:+.1%}"
