"""The scaling curve: throughput with the ideal line, latency, efficiency, GPU busy and power."""

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
    colors,
    message,
    numbers,
)
from perfharness.runs.series.scaling import Scaling, busy_share, ideal_items_per_second, total_power_w

SCALING_PAGE = "scaling"
WIDTH, HEIGHT = 560, 150
IDEAL = "ideal"

Lines = Mapping[str, Sequence[float | None]]


def scaling_picture(scaling: Scaling) -> Picture:
    """`scaling`: one panel per quantity, over the number of processes."""
    import altair as alt

    sheet = Sheet("scaling")
    points = sorted(scaling.points, key=lambda point: point.row.num_processes)
    has_gpus = any(point.row.gpus for point in points)
    quantities: dict[str, Lines] = {
        "throughput (items/s)": {
            "measured": [point.row.items_per_second for point in points],
            IDEAL: ideal_items_per_second(scaling),
        },
        "latency of a batch (ms)": {
            "p50": [point.row.latency_p50_ms for point in points],
            "p99": [point.row.latency_p99_ms for point in points],
        },
        "efficiency (throughput per process)": {"": [point.efficiency for point in points]},
        "GPU busy (share of the time)": {"": [busy_share(point.row) for point in points]},
        "power of all GPUs (W)": {"": [total_power_w(point.row) for point in points]},
    }
    processes = [point.row.num_processes for point in points]
    axis = alt.X("processes:Q").title("processes per GPU" if has_gpus or scaling.num_gpus > 1 else "processes")
    axis = axis.axis(values=processes, labelOverlap="greedy", format="d")
    x = axis.scale(zero=False, nice=False, padding=14, domain=[min(processes), max(processes)])
    sheet.notes.append("no intervals: each point is one launch")
    panels: list[Any] = []
    for label, lines in quantities.items():
        known = {name: values for name, values in lines.items() if any(value is not None for value in values)}
        if known:
            marks = [] if panels else _marks(sheet, scaling, x)
            panels.append(_panel(sheet, label, processes, known, x, marks))
        else:
            sheet.notes.append(f"{label}: not measured")
    if not has_gpus:
        sheet.notes += sorted({point.row.gpus_reason for point in points if point.row.gpus_reason})
    sheet.notes += [
        f"{point.row.num_processes} processes: {point.row.reason or point.row.status.replace('_', ' ')}"
        for point in points
        if point.row.status != "ok"
    ]
    gpus = f", {scaling.num_gpus} GPU{'s' if scaling.num_gpus > 1 else ''}" if has_gpus else ""
    content = panels or [message("nothing was measured", WIDTH, HEIGHT)]
    return sheet.made(alt.vconcat(*content).resolve_scale(**OWN), f"{Path(scaling.script).name}{gpus}")


def _panel(sheet: Sheet, label: str, processes: Sequence[int], lines: Lines, x: Any, marks: Sequence[Any]) -> Any:
    """Lines of one quantity; points that were not measured are gaps."""
    import altair as alt

    rows: list[Row] = [
        {"processes": number, "line": name, "value": value}
        for name, values in lines.items()
        for number, value in zip(processes, values, strict=True)
    ]
    of_line = {name: GREY if name == IDEAL else PALETTE[place] for place, name in enumerate(lines)}
    dashes = [DASHED if name == IDEAL else SOLID for name in lines]
    color = colors("line", of_line)
    chart = (
        sheet.chart(label, rows)
        .mark_line(point={"size": 45, "opacity": 1})
        .encode(
            x=x,
            y=alt.Y("value:Q").title(label.replace(" (", "\n(").split("\n")).axis(format=NUMBERS, tickCount=5),
            color=color if len(lines) > 1 else color.legend(None),
            strokeDash=alt.StrokeDash("line:N").scale(domain=list(lines), range=dashes).legend(None),
            tooltip=["line:N", "processes:Q", *numbers("value")],
        )
    )
    return alt.layer(*marks, chart).properties(width=WIDTH, height=HEIGHT)


def _marks(sheet: Sheet, scaling: Scaling, x: Any) -> list[Any]:
    """Labelled vertical lines: the knee, and failed launches."""
    import altair as alt

    rows: list[Row] = [
        {"processes": point.row.num_processes, "text": "failed", "color": PALETTE[5]}
        for point in scaling.points
        if point.row.status == "failed"
    ]
    if scaling.knee.num_processes is not None:
        rows.append({"processes": scaling.knee.num_processes, "text": "knee", "color": LIMIT})
    if not rows:
        return []
    chart = sheet.chart("marks", rows).encode(x=x, color=alt.Color("color:N").scale(None))
    text = chart.mark_text(align="left", dx=4, dy=6)
    return [chart.mark_rule(strokeDash=DASHED), text.encode(y=alt.value(0), text="text:N")]
