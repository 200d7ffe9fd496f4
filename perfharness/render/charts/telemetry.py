"""A run's telemetry: one picture per GPU, one of the host, with the stages of the processes above.

Drawn from the files of a run folder, so old runs can be drawn too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from perfharness.analysis.metrics.activity import ProcessActivity
from perfharness.analysis.metrics.telemetry_lines import (
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
from perfharness.analysis.suites.bench_names import in_groups
from perfharness.model.telemetry import HOST, SampleLog, Series, process_subject
from perfharness.model.units import NS_PER_S
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
    layered,
    line_rows,
    message,
    unit,
    wrapped,
)
from perfharness.runs.run import SampledRun

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


Read = Callable[[SampleLog, str, str], Series | None]


@dataclass(frozen=True)
class Line:
    """One line of a panel: a metric of a subject, as `read` has it."""

    label: str
    color: str
    subject: str
    metric: str
    scale: float = 1.0
    dash: tuple[int, int] = (1, 0)
    read: Read = SampleLog.get


@dataclass(frozen=True)
class Panel:
    """One quantity over time."""

    label: str
    lines: Sequence[Line]
    top: float | None = None
    from_zero: bool = True
    step: str = HOLDS


def telemetry_pictures(run: SampledRun) -> list[Picture]:
    """One picture per whole GPU, one of the host."""
    log, activities, title = run.log, run.activities, run.title
    on_gpus = {record.name: record.given_gpus for record in log.subjects("process") if record.name is not None}
    parents = {record.subject: record.parent_uuid for record in log.subjects("mig")}
    pictures = []
    for gpu in log.subjects("gpu"):
        names = [
            name for name, uuids in on_gpus.items() if any((parents.get(uuid) or uuid) == gpu.subject for uuid in uuids)
        ]
        own = {name: activities[name] for name in names if name in activities}
        mig = [uuid for uuid, parent in parents.items() if parent == gpu.subject]
        view = _View(f"telemetry_gpu_{gpu.gpu_index}", log, own)
        view.panels(_gpu_panels(log, gpu.subject, names, mig))
        view.throttling(throttle_spans(log.get(gpu.subject, "clock_event_reasons"), view.zero_ns))
        pictures.append(view.picture(f"GPU {gpu.gpu_index} {gpu.name or ''}  {title}"))
    view = _View("telemetry_host", log, activities)
    view.panels(_host_panels(list(on_gpus)))
    view.cores()
    if len(on_gpus) > MAX_LINES:
        view.notes.append(f"{len(on_gpus) - MAX_LINES} of {len(on_gpus)} processes have no line")
    return [*pictures, view.picture(f"host  {title}")]


def _lines(subjects: Mapping[str, str], metric: str, scale: float = 1.0, read: Read = SampleLog.get) -> list[Line]:
    """A line of one metric for each subject, which are given by label."""
    return [
        Line(label, COLORS[place % len(COLORS)], subject, metric, scale, read=read)
        for place, (label, subject) in enumerate(subjects.items())
    ]


def _gpu_panels(log: SampleLog, gpu: str, processes: Sequence[str], mig: Sequence[str]) -> list[Panel]:
    blue, orange, red, black = PALETTE[0], PALETTE[1], PALETTE[5], PALETTE[7]
    owners = {name: process_subject(name) for name in processes[:MAX_LINES]}
    instances = {f"MIG {place}": uuid for place, uuid in enumerate(mig)}
    samples = log.get(gpu, SAMPLES)
    has_samples = samples is not None and samples.is_read.any()
    return [
        Panel("utilisation (%)", [Line("GPU", blue, gpu, "gpu_utilization_percent"),
                                  Line("memory", orange, gpu, "memory_utilization_percent")], top=100),
        Panel("memory (GiB)", [Line("GPU", black, gpu, "memory_used_bytes", 1 / GIB),
                               *_lines(instances, "memory_used_bytes", 1 / GIB),
                               *_lines(owners, "process_memory_bytes", 1 / GIB)]),
        Panel("SM clock (MHz)", [Line("SM", blue, gpu, "sm_clock_mhz")]),
        Panel("power (W)", [*([Line("driver's samples", "#bbbbbb", gpu, SAMPLES, 1e-3)] if has_samples else []),
                            Line("instantaneous", blue, gpu, "power_instant_mw", 1e-3),
                            Line("averaged", orange, gpu, "power_average_mw", 1e-3),
                            Line("limit", red, gpu, "power_limit_mw", 1e-3, dash=(5, 3))]),
        Panel("temperature (°C)", [Line("GPU", red, gpu, "temperature_c")], from_zero=False),
    ]  # fmt: skip


def _host_panels(processes: Sequence[str]) -> list[Panel]:
    owners = {name: process_subject(name) for name in processes[:MAX_LINES]}
    both = Line("machine", PALETTE[7], HOST, "read_bytes", 1e-6, read=lambda log, *_: storage_rate(log))
    return [
        Panel("CPU (% of all cores)", [Line("busy", PALETTE[7], HOST, "cpu_percent"),
                                       Line("I/O wait", PALETTE[1], HOST, "io_wait_percent"),
                                       Line("stolen", PALETTE[3], HOST, "steal_percent")], top=100, step=RATE),
        Panel("CPU (100 % a core)", _lines(owners, "cpu_percent"), step=RATE),
        Panel("resident (GiB)", _lines(owners, "rss_bytes", 1 / GIB)),
        Panel("context switches (1/s)", _lines(owners, "context_switches", read=_rate), step=RATE),
        Panel("read + written (MB/s)", [both], step=RATE),
    ]  # fmt: skip


def _rate(log: SampleLog, subject: str, metric: str) -> Series | None:
    counter = log.get(subject, metric)
    return None if counter is None else rate_of(counter)


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
        """Panels with readings; notes name lines without, and the most common reason."""
        for panel in panels:
            drawn: dict[Line, Series] = {}
            missing: list[tuple[str, str]] = []
            for line in panel.lines:
                series = line.read(self.log, line.subject, line.metric)
                if series is not None and series.is_read.any():
                    drawn[line] = series.between(self.begin_ns, self.end_ns)
                    continue
                of = (line.subject, line.metric)
                failures = [one for one in self.log.meta.failures if (one.subject, one.metric) == of]
                reason = max(failures, key=lambda one: one.count).reason if failures else ""
                missing.append((f" ({reason})" if reason else "", line.label))
            for why, labels in in_groups(missing):
                self.notes.append(f"{panel.label}: not read of {', '.join(labels)}{why}")
            if drawn:
                self.charts.append(self._panel(panel, drawn))

    def throttling(self, reasons: Sequence[Spans]) -> None:
        """A row for each reason that lowered the clocks."""
        alt = self.alt
        labels = {one.name: wrapped(f"clocks lowered: {one.name}, {one.share:.1%} of readings", 60) for one in reasons}
        rows = [{**row, "reason": labels[row["name"]]} for row in _span_rows(reasons)]
        if rows:
            chart = self.chart("throttling", rows, width=WIDTH, height=18 * len(reasons))
            y = alt.Y("reason:N", title=None, sort=list(labels.values()), axis=alt.Axis(orient="right"))
            bars = chart.mark_bar(color=PALETTE[5], height=12, clip=True)
            tooltip = ["reason:N", "seconds:Q", "until:Q"]
            self.charts.append(unit(bars.encode(x=self._x(), x2="until:Q", y=y, tooltip=tooltip)))

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
        chart = self.chart("cores", rows, width=WIDTH, height=max(HEIGHT, min(250, 3 * len(load.cores))))
        y = alt.Y("core:O", sort=load.cores, title="core", axis=alt.Axis(labels=labels, ticks=labels))
        scale = alt.Scale(scheme="cividis", reverse=True, domain=[0, 100])
        color, tooltip = alt.Color("busy:Q", scale=scale, title="busy (%)"), ["core:O", "seconds:Q", "busy:Q"]
        self.charts.append(
            unit(chart.mark_rect(clip=True).encode(x=self._x(), x2="until:Q", y=y, color=color, tooltip=tooltip))
        )

    def _panel(self, panel: Panel, lines: Mapping[Line, Series]) -> Specification:
        rows: list[Row] = []
        for line, series in lines.items():
            points = line_points(series, self.zero_ns, line.scale)
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
        self._rectangles("warmup", [warmup], WARMUP)
        measured = [one.measured for one in own if one.measured]
        if len(measured) == 1:  # dotted lines around the measured window of one process
            edges: list[Row] = [{"seconds": (at - self.zero_ns) / NS_PER_S} for window in measured[0] for at in window]
            rules = self.chart("measured", edges).mark_rule(color=GREY, strokeDash=[2, 2])
            self._behind.append(unit(rules.encode(x=self._x())))
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
        area = self.chart("stages", rows, width=WIDTH, height=1.3 * HEIGHT)
        y = alt.Y("percent:Q", stack="zero", title=["stages", *of], scale=alt.Scale(domainMin=0))
        scale = alt.Scale(domain=list(legend), range=list(legend.values()))
        color = alt.Color("stage:N", title=f"{batches} batches", sort=list(legend), scale=scale)
        tooltip = ["stage:N", "seconds:Q", "percent:Q"]
        area = area.mark_area(interpolate="step-after", line=False).encode(
            x=self._x(), y=y, color=color, order="place:Q", tooltip=tooltip
        )
        self.charts.append(layered([*self._behind, unit(area)], WIDTH, 1.3 * HEIGHT))
        self._shade_stages()

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
