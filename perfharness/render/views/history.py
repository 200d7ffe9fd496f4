"""History: earlier runs, and one metric over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from perfharness.model.result import path_of
from perfharness.render.blocks import Block, Column, Items, Paragraph, Span, Table
from perfharness.render.numbers import NOT_MEASURED, change
from perfharness.runs.figures import Figure
from perfharness.runs.history import RULE, WINDOW, Row, Series, change_of

BARS = "▁▂▃▄▅▆▇█"
SHORT_COMMIT = 8
RUN_COLUMNS = ("id", "created", "kind", "script", "machine", "gpu", "commit", "exit", "folder")
POINT_COLUMNS = ("id", "created", "commit", "value")
NUMBERS = ("exit", "value")


def runs_view(runs: Sequence[Row]) -> list[Block]:
    """One row per run, newest first."""
    return [_table("runs", RUN_COLUMNS, runs)]


def series_view(series: Series) -> list[Block]:
    """Change of a metric, then one row per run, oldest first."""
    metric, values = Figure(path_of(series.stage), series.metric).of, [float(point["value"]) for point in series.points]
    of = (
        f"{series.stage or 'run'}, {metric.label} ({metric.unit})" if metric.unit else f"{series.stage}, {metric.label}"
    )
    names = ("script", "machine", "setup")
    like = [", ".join(_cell(one, name) for name in names) for one in series.points[-1:]]
    left_out = {"ended with an error": series.failed, "another script, machine or setup": series.others}
    return [
        Paragraph((Span(of, "bold"), f"  {sparkline(values)}")),
        *(Paragraph(f"Runs like the newest: {one}") for one in like),
        Paragraph(_change_text(values)),
        _table("values", POINT_COLUMNS, series.points),
        Items([f"runs left out: {count} ({why})" for why, count in left_out.items() if count]),
    ]


def _change_text(values: Sequence[float]) -> str:
    found = change_of(values)
    if found is None:
        return f"Change not known: {len(values)} runs, at least {2 * WINDOW} are needed."
    before, after, has_changed = found
    share = f" by {change(after / before)}" if before else ""
    medians = f"median {after:.5g} in the last {WINDOW} runs, {before:.5g} in the {WINDOW} before"
    return f"{f'Changed{share}' if has_changed else 'No change proven'}: {medians}."


def series_json(series: Series) -> dict[str, Any]:
    """Series and change, for `--format json`."""
    found = change_of([float(point["value"]) for point in series.points])
    names = ("median_before", "median_after", "has_changed")
    return {**asdict(series), "rule": RULE, "change": None if found is None else dict(zip(names, found, strict=True))}


def sparkline(values: Sequence[float]) -> str:
    """One bar per value, from the smallest to the largest."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    if low == high:
        return BARS[0] * len(values)
    return "".join(BARS[round((value - low) / (high - low) * (len(BARS) - 1))] for value in values)


def _table(name: str, names: Sequence[str], rows: Sequence[Row]) -> Table:
    columns = [Column(one, "number" if one in NUMBERS else "text") for one in names]
    return Table(name, columns, [[_cell(row, one) for one in names] for row in rows])


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
