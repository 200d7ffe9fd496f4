"""The scaling curve: throughput with the ideal line, latency, efficiency, GPU busy and power."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from perfharness.render.charts.drawing import (
    GREY,
    LIMIT,
    PALETTE,
    Picture,
    Row,
    Sheet,
    Specification,
    grid,
    layered,
    message,
    unit,
)
from perfharness.runs.series.scaling import Scaling, busy_share, ideal_items_per_second, total_power_w

SCALING_PAGE = "scaling"
WIDTH, HEIGHT = 360, 240
IDEAL = "ideal"
NO_INTERVALS = "no intervals: each point is one launch"


def scaling_picture(scaling: Scaling) -> Picture:
    """`scaling`: one panel per measured quantity."""
    points = sorted(scaling.points, key=lambda point: point.row.num_processes)
    numbers = [point.row.num_processes for point in points]
    has_gpus = any(point.row.gpus for point in points)
    per_gpu = has_gpus or scaling.num_gpus > 1
    panels = _Panels(numbers, "processes per GPU" if per_gpu else "processes")
    throughput = {"measured": [point.row.items_per_second for point in points], IDEAL: ideal_items_per_second(scaling)}
    panels.add("throughput (items/s)", throughput, _marks(scaling))
    latency = {
        "p50": [point.row.latency_p50_ms for point in points],
        "p99": [point.row.latency_p99_ms for point in points],
    }
    panels.add("latency of a batch (ms)", latency)
    panels.add("throughput per process, of the first's", {"": [point.efficiency for point in points]})
    panels.add("GPU busy, of the time", {"": [busy_share(point.row) for point in points]}, top=1.0)
    panels.add("power of all GPUs (W)", {"": [total_power_w(point.row) for point in points]})
    if not has_gpus:
        panels.notes += sorted({point.row.gpus_reason for point in points if point.row.gpus_reason})
    panels.notes += [
        f"{point.row.num_processes} processes: {point.row.reason or point.row.status.replace('_', ' ')}"
        for point in points
        if point.row.status != "ok"
    ]
    content = panels.charts or [message("nothing was measured", 2 * WIDTH, HEIGHT)]
    gpus = f", {scaling.num_gpus} GPU{'s' if scaling.num_gpus > 1 else ''}" if has_gpus else ""
    return panels.made(grid(content, 2), f"{Path(scaling.script).name}{gpus}")


def _marks(scaling: Scaling) -> list[Row]:
    """Labelled vertical lines: the knee, and failed launches."""
    marks: list[Row] = [
        {"processes": point.row.num_processes, "text": "failed", "color": PALETTE[5]}
        for point in scaling.points
        if point.row.status == "failed"
    ]
    if scaling.knee.num_processes is not None:
        marks.append({"processes": scaling.knee.num_processes, "text": "knee", "color": LIMIT})
    return marks


class _Panels(Sheet):
    """Quantities over the number of processes; those never measured have no panel and are named in a note."""

    def __init__(self, numbers: Sequence[int], label: str) -> None:
        super().__init__("scaling")
        alt, self.numbers = self.alt, numbers
        axis = alt.Axis(values=list(numbers), labelOverlap="greedy", format="d")
        scale = alt.Scale(zero=False, nice=False, padding=14, domain=[min(numbers), max(numbers)])
        self.x = alt.X("processes:Q", title=label, axis=axis, scale=scale)
        self.charts: list[Specification] = []
        self.notes.append(NO_INTERVALS)

    def add(
        self,
        label: str,
        lines: Mapping[str, Sequence[float | None]],
        marks: Sequence[Row] = (),
        top: float | None = None,
    ) -> None:
        """Add a panel; points that were not measured are gaps."""
        alt = self.alt
        rows: list[Row] = [
            {"processes": number, "line": name, "value": value}
            for name, values in lines.items()
            for number, value in zip(self.numbers, values, strict=True)
        ]
        if all(row["value"] is None for row in rows):
            self.notes.append(f"{label}: not measured")
            return
        names = [name for name, values in lines.items() if any(value is not None for value in values)]
        colors = [GREY if name == IDEAL else PALETTE[place] for place, name in enumerate(names)]
        y = self.quantity(label, top, tickCount=6)
        color = self.colors("line", dict(zip(names, colors, strict=True)), legend=len(names) > 1)
        layers = []
        for mark in marks:
            chart = self.chart(f"{mark['text']}_{mark['processes']}", [mark])
            rule = chart.mark_rule(color=mark["color"], strokeDash=[4, 3])
            is_last = mark["processes"] == max(self.numbers)
            side = {"align": "right", "dx": -4} if is_last else {"align": "left", "dx": 4}
            text = chart.mark_text(text=mark["text"], color=mark["color"], dy=6, **side)
            layers += [unit(rule.encode(x=self.x)), unit(text.encode(x=self.x, y=alt.value(0)))]
        measured = [row for row in rows if row["line"] != IDEAL]
        ideal = [row for row in rows if row["line"] == IDEAL]
        if ideal:
            line = self.chart("ideal", ideal).mark_line(strokeDash=[5, 3])
            layers.append(unit(line.encode(x=self.x, y=y, color=color)))
        line = self.chart(f"panel_{len(self.charts)}", measured).mark_line(point={"size": 45, "opacity": 1})
        layers.append(unit(line.encode(x=self.x, y=y, color=color, tooltip=["line:N", "processes:Q", "value:Q"])))
        self.charts.append(layered(layers, WIDTH, HEIGHT))
