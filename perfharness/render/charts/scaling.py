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
from perfharness.runs.series.model import WHOLE, Series

SCALING_PAGE = "scaling"
WIDTH, HEIGHT = 360, 240
IDEAL = "ideal"
RATE = "items_per_second"
NO_INTERVALS = "no intervals: each point is one launch"


def scaling_picture(series: Series) -> Picture:
    """`scaling`: one panel per measured quantity."""
    rows = sorted(series.rows, key=lambda row: row.num_processes)
    figures = [row.figures.get(WHOLE, {}) for row in rows]

    def values(name: str) -> list[float | None]:
        return [found.get(name) for found in figures]

    has_gpus = any("gpu_busy_share" in found for found in figures)
    numbers = [row.num_processes for row in rows]
    panels = _Panels(numbers, "processes per GPU" if has_gpus else "processes")
    base = next((rate / number for rate, number in zip(values(RATE), numbers, strict=True) if rate), None)
    ideal = [None if base is None else base * number for number in numbers]
    panels.add("throughput (items/s)", {"measured": values(RATE), IDEAL: ideal}, _marks(series))
    panels.add("latency of a batch (ms)", {"p50": values("latency_p50_ms"), "p99": values("latency_p99_ms")})
    panels.add("throughput per process, of the first's", {"": values("efficiency")})
    panels.add("GPU busy, of the time", {"": values("gpu_busy_share")}, top=1.0)
    panels.add("power of all GPUs (W)", {"": values("gpu_power_w")})
    panels.notes += [f"{row.num_processes} processes: {row.reason}" for row in rows if row.status != "ok"]
    content = panels.charts or [message("nothing was measured", 2 * WIDTH, HEIGHT)]
    return panels.made(grid(content, 2), Path(series.script).name)


def _marks(series: Series) -> list[Row]:
    """Labelled vertical lines: the knee, and failed launches."""
    marks: list[Row] = [
        {"processes": row.num_processes, "text": "failed", "color": PALETTE[5]}
        for row in series.rows
        if row.status == "failed"
    ]
    if series.knee is not None:
        marks.append({"processes": series.knee, "text": "knee", "color": LIMIT})
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
