"""Stacked panels over one time axis, for telemetry and load tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfharness.analysis.metrics.telemetry_lines import Spans, line_points, throttle_spans
from perfharness.analysis.suites.bench_names import in_groups
from perfharness.model.telemetry import SampleLog, Series, process_subject
from perfharness.render.charts.drawing import (
    DASHED,
    GREY,
    NUMBERS,
    OWN,
    PALETTE,
    SOLID,
    YELLOW,
    Picture,
    Points,
    Row,
    Sheet,
    Styles,
    alt,
    colors,
    fields,
    message,
    wrapped,
)

WIDTH, HEIGHT = 800, 105
COLORS = tuple(GREY if color == YELLOW else color for color in PALETTE)
BLUE, ORANGE, RED, BLACK = PALETTE[0], PALETTE[1], PALETTE[5], PALETTE[7]
HOLDS, RATE = "step-after", "step-before"
"""Interpolation of sensor values, which hold until the next one, and of rates, which apply to the time before."""

SAMPLES = "power_sample_mw"
GIB = float(1 << 30)


class OverTime(Sheet):
    """Panels over the same seconds, with shades behind all of them."""

    def __init__(self, name: str, begin_s: float, end_s: float) -> None:
        super().__init__(name)
        self.begin_s, self.end_s = begin_s, end_s
        self.behind: list[Any] = []
        self.panels: list[Any] = []

    def x(self, field: str = "seconds", title: str | None = None) -> Any:
        """Time axis; it has labels only if it has a title."""
        scaled = alt.X(f"{field}:Q").title(title).scale(domain=[self.begin_s, self.end_s], nice=False)
        return scaled.axis(labels=title is not None, ticks=title is not None)

    def y(self, title: str, **scale: Any) -> Any:
        """Axis of `value`, with the title's unit in a second line."""
        axis = alt.Y("value:Q").title(title.replace(" (", "\n(").split("\n")).axis(format=NUMBERS, tickCount=4)
        return axis.scale(**(scale or {"zero": True}))

    def shade(self, name: str, rows: list[Row], opacity: float = 1.0) -> None:
        """Shade rows from `seconds` to `until` in `color`, behind the following panels."""
        chart = self.chart(name, rows).mark_rect(opacity=opacity, clip=True)
        fill = alt.Fill("color:N").scale(None).legend(None)
        self.behind.append(chart.encode(x=self.x(), x2="until:Q", fill=fill))

    def add(self, *layers: Any, height: float = HEIGHT) -> None:
        """Add a panel."""
        self.panels.append(alt.layer(*self.behind, *layers).properties(width=WIDTH, height=height))

    def add_lines(
        self,
        title: str,
        points: Mapping[str, Points],
        styles: Styles,
        step: str = HOLDS,
        height: float = HEIGHT,
        **scale: Any,
    ) -> None:
        """Add a panel of lines."""
        self.add(self.lines(title, points, styles, step).encode(x=self.x(), y=self.y(title, **scale)), height=height)

    def add_areas(self, title: str, points: Mapping[str, Points], of: Mapping[str, str], height: float) -> None:
        """Add a panel of stacked areas; `of` maps names to colours, in legend order."""
        chart = self.over_time(title, points).mark_area(interpolate=HOLDS, line=False)
        color = colors("line", of)
        self.add(chart.encode(x=self.x(), y=self.y(title).stack("zero"), color=color, order="place:Q"), height=height)

    def picture(self, clock: str, title: str) -> Picture:
        """Make a picture of all panels and the time axis."""
        axis = self.chart("axis", [], width=WIDTH, height=1).mark_rule().encode(x=self.x(title=clock))
        panels = self.panels or [message("nothing was read", WIDTH, HEIGHT)]
        return self.made(alt.vconcat(*panels, axis).resolve_scale(**OWN), title)


Read = Callable[[SampleLog, str, str], Series | None]


@dataclass(frozen=True)
class Line:
    """Line of a panel: a metric of a subject, taken from the log by `read`."""

    label: str
    color: str
    subject: str
    metric: str
    scale: float = 1.0
    dash: tuple[int, int] = SOLID
    read: Read = SampleLog.get


@dataclass(frozen=True)
class Readings:
    """Adds panels of a log's readings to a sheet whose seconds begin at `zero_ns`. All times are UTC."""

    sheet: OverTime
    log: SampleLog
    begin_ns: int
    end_ns: int
    zero_ns: int

    def add(self, label: str, lines: Sequence[Line], step: str = HOLDS, **scale: Any) -> None:
        """Add a panel of the lines with readings, and a note with the others and the most frequent reason."""
        drawn: dict[str, Points] = {}
        missing: list[tuple[str, str]] = []
        for line in lines:
            series = line.read(self.log, line.subject, line.metric)
            if series is not None and (inside := series.between(self.begin_ns, self.end_ns)).is_read.any():
                times, values = line_points(inside, self.zero_ns, line.scale)
                drawn[wrapped(line.label)] = times.tolist(), values.tolist()
                continue
            of = (line.subject, line.metric)
            failures = [one for one in self.log.meta.failures if (one.subject, one.metric) == of]
            reason = max(failures, key=lambda one: one.count).reason if failures else ""
            missing.append((f" ({reason})" if reason else "", line.label))
        for why, labels in in_groups(missing):
            self.sheet.notes.append(f"{label}: no readings of {', '.join(labels)}{why}")
        styles = {wrapped(line.label): (line.color, line.dash) for line in lines if wrapped(line.label) in drawn}
        if drawn:
            self.sheet.add_lines(label, drawn, styles, step, **scale)

    def of_each(
        self, subjects: Mapping[str, str], metric: str, scale: float = 1.0, read: Read = SampleLog.get
    ) -> list[Line]:
        """One line per subject, by label."""
        return [
            Line(label, COLORS[place % len(COLORS)], subject, metric, scale, read=read)
            for place, (label, subject) in enumerate(subjects.items())
        ]

    def add_gpu(self, gpu: str, name: str, processes: Sequence[str], mig: Sequence[str]) -> None:
        """Add the panels of a GPU, with the memory of processes and MIG instances."""
        owners = {one: process_subject(one) for one in processes}
        instances = {f"MIG {place}": uuid for place, uuid in enumerate(mig)}
        samples = self.log.get(gpu, SAMPLES)
        has_samples = samples is not None and samples.is_read.any()
        utilisation = [
            Line("GPU", BLUE, gpu, "gpu_utilization_percent"),
            Line("memory", ORANGE, gpu, "memory_utilization_percent"),
        ]
        memory = [
            Line("GPU", BLACK, gpu, "memory_used_bytes", 1 / GIB),
            *self.of_each(instances, "memory_used_bytes", 1 / GIB),
            *self.of_each(owners, "process_memory_bytes", 1 / GIB),
        ]
        power = [
            *([Line("driver's samples", "#bbbbbb", gpu, SAMPLES, 1e-3)] if has_samples else []),
            Line("instantaneous", BLUE, gpu, "power_instant_mw", 1e-3),
            Line("averaged", ORANGE, gpu, "power_average_mw", 1e-3),
            Line("limit", RED, gpu, "power_limit_mw", 1e-3, DASHED),
        ]
        self.add(f"{name}utilisation (%)", utilisation, domain=[0, 100])
        self.add(f"{name}memory (GiB)", memory)
        self.add(f"{name}SM clock (MHz)", [Line("SM", BLUE, gpu, "sm_clock_mhz")])
        self.add(f"{name}power (W)", power)
        self.add(f"{name}temperature (°C)", [Line("GPU", RED, gpu, "temperature_c")], zero=False)
        self._add_throttling(name, throttle_spans(self.log.get(gpu, "clock_event_reasons"), self.zero_ns))

    def _add_throttling(self, name: str, reasons: Sequence[Spans]) -> None:
        """Add one row per reason for lowered clocks."""
        labels = [f"{one.name}, {one.share:.1%} of readings" for one in reasons]
        rows: list[Row] = [
            {"reason": label, "seconds": max(start, self.sheet.begin_s), "until": min(end, self.sheet.end_s)}
            for one, label in zip(reasons, labels, strict=True)
            for start, end in zip(one.start_s, one.end_s, strict=True)
            if start <= self.sheet.end_s and end >= self.sheet.begin_s
        ]
        if not rows:
            return
        bars = self.sheet.chart(f"{name}throttling", rows).mark_bar(color=RED, height=12)
        y = alt.Y("reason:N").sort(labels).title(None).axis(orient="right", labelLimit=180)
        bars = bars.encode(x=self.sheet.x(), x2="until:Q", y=y, tooltip=fields("reason:N", "seconds:Q", "until:Q"))
        self.sheet.notes.append("red bars: GPU clocks were lowered")
        self.sheet.panels.append(bars.properties(width=WIDTH, height=18 * len(reasons)))
