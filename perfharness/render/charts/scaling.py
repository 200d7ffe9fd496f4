"""Scaling over processes: throughput with the ideal line, latency, efficiency, GPU busy and power."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from perfharness.render.charts.drawing import (
    DASHED,
    GREY,
    LIMIT,
    NUMBERS,
    OWN,
    PALETTE,
    SOLID,
    Picture,
    Row,
    Sheet,
    alt,
    colors,
    fields,
    message,
    numbers,
)
from perfharness.runs.series.model import WHOLE, Series

SCALING_PAGE = "scaling"
WIDTH, HEIGHT = 560, 150
IDEAL = "ideal"

Lines = Mapping[str, Sequence[float | None]]


def scaling_picture(series: Series) -> Picture:
    """Draw one panel per quantity over the number of processes."""
    sheet = Sheet("scaling")
    rows = sorted(series.rows, key=lambda row: row.num_processes)
    figures = [row.figures.get(WHOLE, {}) for row in rows]
    processes = [row.num_processes for row in rows]

    def values(name: str) -> list[float | None]:
        return [found.get(name) for found in figures]

    rates = values("items_per_second")
    first = next((rate / number for rate, number in zip(rates, processes, strict=True) if rate), None)
    has_gpus = any("gpu_busy_share" in found for found in figures)
    quantities: dict[str, Lines] = {
        "throughput (items/s)": {
            "measured": rates,
            IDEAL: [None if first is None else first * number for number in processes],
        },
        "latency of a batch (ms)": {"p50": values("latency_p50_ms"), "p99": values("latency_p99_ms")},
        "efficiency (throughput per process)": {"": values("efficiency")},
        "GPU busy (share of the time)": {"": values("gpu_busy_share")},
        "power of all GPUs (W)": {"": values("gpu_power_w")},
    }
    axis = alt.X("processes:Q").title("processes per GPU" if has_gpus else "processes")
    axis = axis.axis(values=processes, labelOverlap="greedy", format="d")
    x = axis.scale(zero=False, nice=False, padding=14, domain=[min(processes), max(processes)])
    sheet.notes.append("each point is one launch, without interval")
    panels: list[Any] = []
    for label, lines in quantities.items():
        known = {name: values for name, values in lines.items() if any(value is not None for value in values)}
        if known:
            panels.append(_panel(sheet, label, processes, known, x, [] if panels else _marks(sheet, series, x)))
        else:
            sheet.notes.append(f"{label}: not measured")
    sheet.notes += [f"{row.num_processes} processes: {row.reason}" for row in rows if row.status != "ok"]
    content = panels or [message("nothing was measured", WIDTH, HEIGHT)]
    return sheet.made(alt.vconcat(*content).resolve_scale(**OWN), Path(series.script).name)


def _panel(sheet: Sheet, label: str, processes: Sequence[int], lines: Lines, x: Any, marks: Sequence[Any]) -> Any:
    """Lines of one quantity, with gaps at missing points."""
    rows: list[Row] = [
        {"processes": number, "line": name, "value": value}
        for name, values in lines.items()
        for number, value in zip(processes, values, strict=True)
    ]
    of_line = {name: GREY if name == IDEAL else PALETTE[place] for place, name in enumerate(lines)}
    dashes = [DASHED if name == IDEAL else SOLID for name in lines]
    color = colors("line", of_line)
    chart = sheet.chart(label, rows).mark_line(point={"size": 45, "opacity": 1})
    chart = chart.encode(
        x=x,
        y=alt.Y("value:Q").title(label.replace(" (", "\n(").split("\n")).axis(format=NUMBERS, tickCount=5),
        color=color if len(lines) > 1 else color.legend(None),
        strokeDash=alt.StrokeDash("line:N").scale(domain=list(lines), range=dashes).legend(None),
        tooltip=[*fields("line:N", "processes:Q"), *numbers("value")],
    )
    return alt.layer(*marks, chart).properties(width=WIDTH, height=HEIGHT)


def _marks(sheet: Sheet, series: Series, x: Any) -> list[Any]:
    """Labelled vertical lines at the knee and at failed launches."""
    rows: list[Row] = [
        {"processes": row.num_processes, "text": "failed", "color": PALETTE[5]}
        for row in series.rows
        if row.status == "failed"
    ]
    if series.knee is not None:
        rows.append({"processes": series.knee, "text": "knee", "color": LIMIT})
    if not rows:
        return []
    chart = sheet.chart("marks", rows).encode(x=x, color=alt.Color("color:N").scale(None))
    text = chart.mark_text(align="left", dx=4, dy=6)
    return [chart.mark_rule(strokeDash=DASHED), text.encode(y=alt.value(0), text="text:N")]
