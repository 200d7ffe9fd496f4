"""A run's telemetry: one picture per GPU, one of the host, with the stages of the processes above.

Drawn from the files of a run folder, so old runs can be drawn too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

from perfharness.analysis.activity import ProcessActivity
from perfharness.analysis.bench_names import in_groups
from perfharness.analysis.telemetry_lines import (
    NS_PER_S,
    Spans,
    core_load,
    line_points,
    rate_of,
    stage_shares,
    stage_spans,
    storage_rate,
    throttle_spans,
    warmup_spans,
)
from perfharness.model.telemetry import HOST, SampleLog, Series, process_subject
from perfharness.render.charts.drawing import (
    GREY,
    LIGHT_GREY,
    PALETTE,
    YELLOW,
    Picture,
    Row,
    Sheet,
    Specification,
    column,
    draw,
    layered,
    line_rows,
    message,
    require_charts,
    unit,
    wrapped,
)
from perfharness.runs.run import SampledRun, read_telemetry

PAGE = "telemetry"
WIDTH, HEIGHT = 900, 105
COLORS = tuple(GREY if color == YELLOW else color for color in PALETTE)
MAX_LINES = len(COLORS)
"""Processes with a line of their own."""

MAX_SHADED = 60
"""Up to this number of stages each is shaded behind the lines; the top panel shows all."""

SAMPLES = "power_sample_mw"
GIB = float(1 << 30)
WARMUP = "#f0e9dd"
HOLDS, RATE = "step-after", "step-before"
"""A sensor's value holds until the next one; a rate applies to the time before it."""


@dataclass(frozen=True, eq=False)
class Line:
    """One line of a panel; `reason`: why it has no readings."""

    label: str
    color: str
    series: Series | None
    reason: str = ""
    scale: float = 1.0
    dash: tuple[int, int] = (1, 0)


@dataclass(frozen=True)
class Panel:
    """One quantity over time."""

    label: str
    lines: Sequence[Line]
    top: float | None = None
    from_zero: bool = True
    step: str = HOLDS


def draw_run(folder: Path) -> list[Path]:
    """Draw the telemetry of a run folder; the files that were written.

    Raises `ToolNotFoundError` without what draws charts, `ResultError` where there is no readable telemetry.
    """
    require_charts()
    return draw(telemetry_pictures(read_telemetry(folder)), folder, PAGE)


def telemetry_pictures(run: SampledRun) -> list[Picture]:
    """One picture per whole GPU, one of the host."""
    log, activities, title = run.log, run.activities, run.title
    on_gpu = {record.name: record.gpu_uuid for record in log.subjects("process") if record.name is not None}
    parents = {record.subject: record.parent_uuid for record in log.subjects("mig")}
    pictures = []
    for gpu in log.subjects("gpu"):
        names = [name for name, uuid in on_gpu.items() if uuid is not None and parents.get(uuid, uuid) == gpu.subject]
        own = {name: activities[name] for name in names if name in activities}
        mig = [uuid for uuid, parent in parents.items() if parent == gpu.subject]
        view = _View(f"telemetry_gpu_{gpu.gpu_index}", log, own)
        view.panels(_gpu_panels(log, gpu.subject, names, mig))
        view.throttling(throttle_spans(log.get(gpu.subject, "clock_event_reasons"), view.zero_ns))
        pictures.append(view.picture(f"GPU {gpu.gpu_index} {gpu.name or ''}  {title}"))
    view = _View("telemetry_host", log, activities)
    view.panels(_host_panels(log, list(on_gpu)))
    view.cores()
    if len(on_gpu) > MAX_LINES:
        view.notes.append(f"{len(on_gpu) - MAX_LINES} of {len(on_gpu)} processes have no line")
    return [*pictures, view.picture(f"host  {title}")]


def _line(
    log: SampleLog,
    subject: str,
    metric: str,
    label: str,
    color: str,
    scale: float = 1.0,
    of: Callable[[Series], Series] = lambda series: series,
    dash: tuple[int, int] = (1, 0),
) -> Line:
    series = log.get(subject, metric)
    return Line(label, color, None if series is None else of(series), _why(log, subject, metric), scale, dash)


def _lines(log: SampleLog, subjects: Mapping[str, str], metric: str, *how: Any) -> list[Line]:
    """A line of one metric for each subject, which are given by label."""
    return [
        _line(log, subject, metric, label, COLORS[place % len(COLORS)], *how)
        for place, (label, subject) in enumerate(subjects.items())
    ]


def _gpu_panels(log: SampleLog, gpu: str, processes: Sequence[str], mig: Sequence[str]) -> list[Panel]:
    line = partial(_line, log, gpu)
    owners = {name: process_subject(name) for name in processes[:MAX_LINES]}
    memory = [line("memory_used_bytes", "GPU", PALETTE[7], 1 / GIB)]
    memory += _lines(log, {f"MIG {place}": uuid for place, uuid in enumerate(mig)}, "memory_used_bytes", 1 / GIB)
    memory += _lines(log, owners, "process_memory_bytes", 1 / GIB)
    power = [
        line("power_instant_mw", "instantaneous", PALETTE[0], 1e-3),
        line("power_average_mw", "averaged", PALETTE[1], 1e-3),
        line("power_limit_mw", "limit", PALETTE[5], 1e-3, dash=(5, 3)),
    ]
    samples = log.get(gpu, SAMPLES)
    if samples is not None and samples.is_read.any():
        power.insert(0, line(SAMPLES, "driver's samples", "#bbbbbb", 1e-3))
    use = [line("gpu_utilization_percent", "GPU", PALETTE[0]), line("memory_utilization_percent", "memory", PALETTE[1])]
    return [
        Panel("utilisation (%)", use, top=100),
        Panel("memory (GiB)", memory),
        Panel("SM clock (MHz)", [line("sm_clock_mhz", "SM", PALETTE[0])]),
        Panel("power (W)", power),
        Panel("temperature (°C)", [line("temperature_c", "GPU", PALETTE[5])], from_zero=False),
    ]


def _host_panels(log: SampleLog, processes: Sequence[str]) -> list[Panel]:
    owners = {name: process_subject(name) for name in processes[:MAX_LINES]}
    busy = _line(log, HOST, "cpu_percent", "busy", PALETTE[7])
    waiting = _line(log, HOST, "io_wait_percent", "I/O wait", PALETTE[1])
    return [
        Panel("CPU (% of all cores)", [busy, waiting], top=100, step=RATE),
        Panel("CPU (100 % a core)", _lines(log, owners, "cpu_percent"), step=RATE),
        Panel("resident (GiB)", _lines(log, owners, "rss_bytes", 1 / GIB)),
        Panel("context switches (1/s)", _lines(log, owners, "context_switches", 1.0, rate_of), step=RATE),
        Panel("read + written (MB/s)", [Line("machine", PALETTE[7], storage_rate(log), scale=1e-6)], step=RATE),
    ]


def _why(log: SampleLog, subject: str, metric: str) -> str:
    """The most common reason for missing readings of a metric."""
    reasons = [failure for failure in log.meta.failures if (failure.subject, failure.metric) == (subject, metric)]
    return max(reasons, key=lambda failure: failure.count).reason if reasons else ""


class _View(Sheet):
    """Panels over one time axis, the stages on top; legends are next to the data."""

    def __init__(self, name: str, log: SampleLog, activities: Mapping[str, ProcessActivity]) -> None:
        super().__init__(name)
        self.log, self.activities = log, list(activities.values())
        times = [  # the driver's buffer of power samples begins before the sampler
            series.time_unix_ns for (_, metric), series in log.series.items() if len(series) and metric != SAMPLES
        ]
        self.begin_ns = min((int(own.min()) for own in times), default=0)
        self.end_ns = max((int(own.max()) for own in times), default=1)
        self.zero_ns = min((int(own.batch_start_ns.min()) for own in self.activities), default=self.begin_ns)
        self.charts: list[Specification] = []
        self.stage_colors: dict[str, str] = {}
        self._behind: list[Specification] = []
        if self.activities:
            self._stages()

    def picture(self, title: str) -> Picture:
        """All panels, one below the other."""
        if not self.charts:
            self.charts.append(message("nothing was read", WIDTH, HEIGHT))
        began = datetime.fromtimestamp(self.zero_ns / NS_PER_S, timezone.utc)
        first = ", the first batch" if self.activities else ""
        clock = f"seconds since {began:%Y-%m-%d %H:%M:%S} UTC{first}"
        axis = self.chart("axis", [], width=WIDTH, height=1).mark_rule().encode(x=self._x(clock))
        return self.made(column([*self.charts, unit(axis)]), title)

    def panels(self, panels: Sequence[Panel]) -> None:
        """Panels with readings; notes name those without, and why."""
        for panel in panels:
            drawn = {
                line: line.series.between(self.begin_ns, self.end_ns)
                for line in panel.lines
                if line.series is not None and line.series.is_read.any()
            }
            for reason, labels in in_groups((line.reason, line.label) for line in panel.lines if line not in drawn):
                self.notes.append(f"{panel.label}: not read of {', '.join(labels)}{f' ({reason})' if reason else ''}")
            if drawn:
                self.charts.append(self._panel(panel, drawn))

    def throttling(self, reasons: Sequence[Spans]) -> None:
        """A row for each reason that lowered the clocks."""
        alt = self.alt
        if not reasons:
            return
        labels = {one.name: wrapped(f"clocks lowered: {one.name}, {one.share:.1%} of readings", 60) for one in reasons}
        rows = [{**row, "reason": labels[row["name"]]} for row in _span_rows(reasons)]
        chart = (
            self.chart("throttling", rows, width=WIDTH, height=18 * len(reasons))
            .mark_bar(color=PALETTE[5], height=12, clip=True)
            .encode(
                x=self._x(),
                x2="until:Q",
                y=alt.Y("reason:N", title=None, sort=list(labels.values()), axis=alt.Axis(orient="right")),
                tooltip=["reason:N", "seconds:Q", "until:Q"],
            )
        )
        self.charts.append(unit(chart))

    def cores(self) -> None:
        """One row per core: dark is busy."""
        alt = self.alt
        if (load := core_load(self.log, self.zero_ns)) is None:
            return
        rows: list[Row] = [
            {"core": core, "seconds": start, "until": end, "busy": busy}
            for core, values in zip(load.cores, load.percent.tolist(), strict=True)
            for start, end, busy in zip(load.edges_s[:-1].tolist(), load.edges_s[1:].tolist(), values, strict=True)
        ]
        labels = len(load.cores) <= 16
        chart = (
            self.chart("cores", rows, width=WIDTH, height=max(HEIGHT, min(250, 3 * len(load.cores))))
            .mark_rect(clip=True)
            .encode(
                x=self._x(),
                x2="until:Q",
                y=alt.Y("core:O", sort=load.cores, title="core", axis=alt.Axis(labels=labels, ticks=labels)),
                color=alt.Color(
                    "busy:Q", scale=alt.Scale(scheme="cividis", reverse=True, domain=[0, 100]), title="busy (%)"
                ),
                tooltip=["core:O", "seconds:Q", "busy:Q"],
            )
        )
        self.charts.append(unit(chart))

    def _panel(self, panel: Panel, lines: Mapping[Line, Series]) -> Specification:
        rows: list[Row] = []
        for line, series in lines.items():
            points = line_points(series, self.zero_ns, line.scale, is_rate=panel.step == RATE)
            rows += line_rows(wrapped(line.label), *points)
        y = self.quantity(panel.label.replace(" (", "\n(").split("\n"), panel.top, zero=panel.from_zero, tickCount=5)
        styles = {wrapped(line.label): (line.color, list(line.dash)) for line in lines}
        name = f"panel_{len(self.charts)}"
        chart = self.steps(name, rows, self._x(), y, styles, panel.step, width=WIDTH, height=HEIGHT)
        return layered([*self._behind, chart], WIDTH, HEIGHT)

    def _stages(self) -> None:
        """The share of each stage over time, and the shading behind all panels."""
        alt, own = self.alt, self.activities
        shares = stage_shares(own, self.begin_ns, self.end_ns, self.zero_ns)
        colors = [*PALETTE[: len(shares.names) - 1], LIGHT_GREY]
        if shares.is_rest:
            colors[-2] = GREY
        warmup = warmup_spans(own, self.zero_ns)
        self._shade(warmup)
        self.stage_colors = dict(zip(shares.names, colors, strict=True))
        starts = shares.start_s.tolist()
        rows = [
            {"seconds": start, "stage": wrapped(name), "percent": percent, "place": place}
            for place, (name, values) in enumerate(zip(shares.names, shares.percent, strict=True))
            if values.any()
            for start, percent in zip(starts, values.tolist(), strict=True)
        ]
        used = list(dict.fromkeys(row["stage"] for row in rows))
        legend = {**{wrapped(name): color for name, color in self.stage_colors.items() if wrapped(name) in used},
                  warmup.name: WARMUP}  # fmt: skip
        batches = sum(len(one.batch_start_ns) for one in own)
        of = ["(% of time)"] if len(own) == 1 else ["(% of time of", f"{len(own)} processes)"]
        area = (
            self.chart("stages", rows, width=WIDTH, height=1.3 * HEIGHT)
            .mark_area(interpolate="step-after", line=False)
            .encode(
                x=self._x(),
                y=alt.Y("percent:Q", stack="zero", title=["stages", *of], scale=alt.Scale(domainMin=0)),
                color=alt.Color("stage:N", title=f"{batches} batches", sort=list(legend),
                                scale=alt.Scale(domain=list(legend), range=list(legend.values()))),
                order="place:Q",
                tooltip=["stage:N", "seconds:Q", "percent:Q"],
            )
        )  # fmt: skip
        self.charts.append(layered([*self._behind, unit(area)], WIDTH, 1.3 * HEIGHT))
        self._shade_stages()

    def _shade(self, warmup: Spans) -> None:
        """Grey where only warm-up ran; dotted lines around the measured window of one process."""
        self._rectangles("warmup", [warmup], WARMUP)
        measured = [own.measured for own in self.activities if own.measured]
        if len(measured) == 1:
            edges: list[Row] = [{"seconds": (at - self.zero_ns) / NS_PER_S} for window in measured[0] for at in window]
            rules = self.chart("measured", edges).mark_rule(color=GREY, strokeDash=[2, 2])
            self._behind.append(unit(rules.encode(x=self._x())))

    def _shade_stages(self) -> None:
        """Shade few stages behind the lines, in their colours of the top panel."""
        spans = stage_spans(self.activities, self.zero_ns)
        if sum(len(one.start_s) for one in spans) > MAX_SHADED:
            return
        for place, color in enumerate(self.stage_colors.values()):
            own = [one for one in spans if self.stage_colors.get(one.name, GREY) == color]
            self._rectangles(f"stage_{place}", own, color, opacity=0.13)

    def _rectangles(self, name: str, spans: Sequence[Spans], color: str, opacity: float = 1.0) -> None:
        mark = self.chart(name, _span_rows(spans)).mark_rect(color=color, opacity=opacity)
        self._behind.append(unit(mark.encode(x=self._x(), x2="until:Q")))

    def _x(self, title: str | None = None) -> Any:
        alt = self.alt
        domain = [(self.begin_ns - self.zero_ns) / NS_PER_S, (self.end_ns - self.zero_ns) / NS_PER_S]
        shown = title is not None
        axis = alt.Axis(title=title, labels=shown, ticks=shown, grid=True)
        return alt.X("seconds:Q", scale=alt.Scale(domain=domain, nice=False), axis=axis)


def _span_rows(spans: Sequence[Spans]) -> list[Row]:
    return [
        {"name": one.name, "seconds": start, "until": end}
        for one in spans
        for start, end in zip(one.start_s, one.end_s, strict=True)
    ]
