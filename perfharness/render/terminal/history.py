"""Tables of the history: the list of runs, and a metric over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from perfharness.model.text import NOT_MEASURED
from perfharness.render.terminal.console import Column, print_table, say
from perfharness.runs.comparison.compared_figure import METRICS
from perfharness.runs.history import RULE, WINDOW, Series, change_of

BARS = "▁▂▃▄▅▆▇█"
SHORT_COMMIT = 8


def print_runs(console: Console, runs: Sequence[Mapping[str, Any]]) -> None:
    """One row per run, the newest first."""
    columns = [
        Column("id", is_text=True, is_whole=True),
        Column("kind", is_text=True),
        Column("script or model", is_text=True),
        Column("machine", is_text=True, drop=3),
        Column("gpu", is_text=True, drop=2),
        Column("commit", is_text=True, drop=1),
        Column("exit"),
        Column("folder", is_text=True, drop=4),
    ]
    rows = [
        [
            run["id"],
            run["kind"],
            run["script"] or run["model"] or NOT_MEASURED,
            run["machine"] or NOT_MEASURED,
            run["gpu"] or NOT_MEASURED,
            _commit(run),
            str(run["exit"]),
            run["folder"] if Path(run["folder"]).exists() else f"{run['folder']} (gone)",
        ]
        for run in runs
    ]
    print_table(console, columns, rows)


def print_series(console: Console, series: Series) -> None:
    """One row per run, the oldest first; a sparkline; what changed."""
    metric, values = METRICS[series.metric], [float(point["value"]) for point in series.points]
    say(console, f"{series.stage or 'run'}, {metric.label} ({metric.unit})  {sparkline(values)}")
    columns = [
        Column("began (UTC)", is_text=True, is_whole=True),
        Column("id", is_text=True, is_whole=True, drop=2),
        Column("commit", is_text=True, drop=1),
        Column(series.metric),
    ]
    rows = [
        [point["created"][:16].replace("T", " "), point["id"], _commit(point), f"{value:.5g}"]
        for point, value in zip(series.points, values, strict=True)
    ]
    print_table(console, columns, rows)
    say(console, _change_text(values))
    for count, why in (
        (series.failed, "ended with an error"),
        (series.others, "have another script, machine or setup"),
    ):
        if count:
            say(console, f"{count} runs left out: they {why}")


def _change_text(values: Sequence[float]) -> str:
    found = change_of(values)
    if found is None:
        return f"{len(values)} runs: at least {2 * WINDOW} are needed to look for a change"
    before, after, has_changed = found
    share = f" by {after / before - 1:+.1%}" if before else ""
    return f"{f'changed{share}' if has_changed else 'no change'}: {before:.5g} → {after:.5g} ({RULE})"


def series_json(series: Series) -> dict[str, Any]:
    """The series and what changed, for `--format json`."""
    found = change_of([float(point["value"]) for point in series.points])
    names = ("median_before", "median_after", "has_changed")
    return {**asdict(series), "rule": RULE, "change": None if found is None else dict(zip(names, found, strict=True))}


def sparkline(values: Sequence[float]) -> str:
    """One bar per value, between the smallest and the largest."""
    low, high = min(values), max(values)
    if low == high:
        return BARS[0] * len(values)
    return "".join(BARS[round((value - low) / (high - low) * (len(BARS) - 1))] for value in values)


def _commit(run: Mapping[str, Any]) -> str:
    commit, _, changes = (run["commit"] or NOT_MEASURED).partition(" ")
    return commit[:SHORT_COMMIT] + "+" * bool(changes)
