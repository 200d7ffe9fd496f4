"""Tables of the history: the list of runs, and a metric over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from perfharness.render.terminal.console import Column, print_table, say
from perfharness.render.text import NOT_MEASURED
from perfharness.runs.comparison.compared_figure import METRICS
from perfharness.runs.history import RULE, WINDOW, Row, Series, change_of

BARS = "▁▂▃▄▅▆▇█"
SHORT_COMMIT = 8


def print_runs(console: Console, runs: Sequence[Row]) -> None:
    """One row per run, the newest first."""
    names = ("id", "created", "kind", "script", "machine", "gpu", "commit", "exit", "folder")
    columns = [Column(name, is_text=name != "exit", is_whole=name == "id") for name in names]
    print_table(console, columns, [[_cell(run, name) for name in names] for run in runs])


def print_series(console: Console, series: Series) -> None:
    """One row per run, the oldest first; a sparkline; what changed."""
    metric, values = METRICS[series.metric], [float(point["value"]) for point in series.points]
    say(console, f"{series.stage or 'run'}, {metric.label} ({metric.unit})  {sparkline(values)}")
    names = ("id", "created", "commit", "value")
    columns = [Column(name, is_text=name != "value", is_whole=name == "id") for name in names]
    print_table(console, columns, [[_cell(point, name) for name in names] for point in series.points])
    say(console, _change_text(values))
    for count, why in (
        (series.failed, "ended with an error"),
        (series.others, "another script, machine or setup"),
    ):
        if count:
            say(console, f"runs left out: {count} ({why})")


def _change_text(values: Sequence[float]) -> str:
    found = change_of(values)
    if found is None:
        return f"change: not known; runs needed: {2 * WINDOW}, found: {len(values)}"
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
    low, high = min(values, default=0.0), max(values, default=0.0)
    if low == high:
        return BARS[0] * len(values)
    return "".join(BARS[round((value - low) / (high - low) * (len(BARS) - 1))] for value in values)


def _cell(row: Row, name: str) -> str:
    value = row[name]
    if name == "script" and value is None:
        value = row["model"]
    if value is None:
        return NOT_MEASURED
    if name == "commit":
        commit, _, changes = str(value).partition(" ")
        return commit[:SHORT_COMMIT] + ("+" if changes else "")
    if name == "folder" and not Path(value).exists():
        return f"{value} (gone)"
    if name == "created":
        return str(value)[:16].replace("T", " ")
    return f"{value:.5g}" if isinstance(value, float) else str(value)
