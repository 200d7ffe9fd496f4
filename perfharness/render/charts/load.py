"""Charts of a load test: all that changed over time on one axis, distributions, and percentiles over rates."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from perfharness.analysis.metrics.telemetry_lines import line_points, throttle_spans
from perfharness.model.load import LoadFigure, LoadResult, PhaseResult
from perfharness.model.telemetry import SampleLog, Series
from perfharness.model.units import NS_PER_S
from perfharness.render.charts.drawing import (
    GREY,
    LIMIT,
    LINE_PALETTE,
    NUMBERS,
    PALETTE,
    Picture,
    Row,
    Sheet,
    Specification,
    column,
    layered,
    line_rows,
    unit,
    wrapped,
)
from perfharness.render.text import percentile_label, safe_line
from perfharness.runs.report.model import LoadBins, LoadCurve, LoadReport

WIDTH, HEIGHT = 720, 105
WARMUP, BAND, OTHER_BAND = "#efe3cb", "#e3eaf2", "#f3f5f8"
PERCENTILE_COLORS = {
    "p50": PALETTE[0], "p90": PALETTE[4], "p95": PALETTE[4], "p99": PALETTE[1], "p99_9": PALETTE[5], "max": GREY,
}  # fmt: skip
MAX_KINDS = len(LINE_PALETTE) - 1
"""Kinds of errors with a colour of their own."""

WIDE_SPREAD = 20
"""Largest over smallest value from which an axis is logarithmic."""

MB = 1e6
MEGABYTES = "memory (MB)"


def over_time_picture(name: str, load: LoadReport, log: SampleLog | None) -> Picture:
    """Latency, rates, requests in flight, errors, memory, clocks: one axis, phases shaded."""
    view = _TimeView(name, load)
    view.phases()
    view.latency()
    view.rates()
    view.in_flight()
    view.errors()
    view.lateness()
    view.memory()
    if log is not None and load.start_ns is not None:
        view.gpus(log, load.start_ns)
    return view.picture()


class _TimeView(Sheet):
    """Panels over one time axis."""

    def __init__(self, name: str, load: LoadReport) -> None:
        super().__init__(name)
        self.load = load
        self.end_s = max((one.end_s for one in load.moments), default=max(load.result.duration_s, 1e-3))
        self.charts: list[Specification] = []
        self._behind: list[Specification] = []

    def picture(self) -> Picture:
        """All panels, one below the other."""
        axis = (
            self.chart("axis", [], width=WIDTH, height=1).mark_rule().encode(x=self._x("seconds since the load began"))
        )
        return self.made(column([*self.charts, unit(axis)]), "Over time")

    def phases(self) -> None:
        """A strip with the names of the phases; its colours are behind all panels."""
        alt = self.alt
        rows: list[Row] = []
        for place, phase in enumerate(self.load.result.phases):
            end = phase.start_s + phase.duration_s
            kind = "excluded as warm-up" if phase.is_warmup else ("phase", "next phase")[place % 2]
            share = phase.duration_s / self.end_s
            shown = textwrap.shorten(safe_line(phase.name), max(int(share * WIDTH / 6.5), 1), placeholder="…")
            label = "" if shown == "…" else shown
            rows.append({
                "seconds": phase.start_s, "until": end, "middle": (phase.start_s + end) / 2, "kind": kind,
                "phase": safe_line(phase.name), "label": label, "load": rate_text(phase),
            })  # fmt: skip
        colors = {"excluded as warm-up": WARMUP, "phase": BAND, "next phase": OTHER_BAND}
        is_shaded = any(phase.is_warmup for phase in self.load.result.phases)
        tooltip = ["phase:N", "load:N", "seconds:Q", "until:Q"]
        color = self.colors("kind", colors, legend=is_shaded, values=["excluded as warm-up"])
        strip = self.chart("phases", rows).mark_rect(stroke="white")
        bands = unit(strip.encode(x=self._x(), x2="until:Q", color=color, tooltip=tooltip))
        texts = self.chart("phases", rows).mark_text(fontSize=10, color="black", clip=True)
        names = unit(texts.encode(x=alt.X("middle:Q", scale=self._scale()), text="label:N"))
        self.charts.append(layered([bands, names], WIDTH, 18))
        for kind, shade in colors.items():
            own = [row for row in rows if row["kind"] == kind]
            if own:
                mark = self.chart(kind.replace(" ", "_"), own).mark_rect(opacity=0.55, color=shade)
                self._behind.append(unit(mark.encode(x=self._x(), x2="until:Q")))

    def latency(self) -> None:
        """Percentiles of the latency; p50 and maximum of the windows where the files of windows are not there."""
        curves = [curve for curve in self.load.curves if curve.time == "latency"]
        if not curves:
            if self.load.curves_reason is not None:
                self.notes.append(f"no percentiles over time: {self.load.curves_reason}")
            return
        self._percentiles("latency", ["latency (ms)"], curves, self._objective())
        missing = [percentile_label(one) for one in ("p99", "p99_9") if one not in {curve.of for curve in curves}]
        if missing:
            self.notes.append(
                f"{' and '.join(missing)} of the latency: nowhere enough answers, of which 10 are beyond it"
            )
        self.notes.append(
            "a percentile is over as many seconds as it needs for 10 values beyond it; gaps: too few, or requests "
            "without an answer in time"
        )

    def lateness(self) -> None:
        """What the generator itself was late."""
        curves = [curve for curve in self.load.curves if curve.time == "lateness"]
        if curves:
            self._percentiles("lateness", ["generator", "late (ms)"], curves, None)

    def _objective(self) -> float | None:
        objective = self.load.result.objective
        return None if objective is None else objective.latency_ms

    def _percentiles(
        self, name: str, title: Sequence[str], curves: Sequence[LoadCurve], objective: float | None
    ) -> None:
        alt = self.alt
        values = [point.ms for curve in curves for point in curve.points if point.ms]
        if not values:
            return
        is_log = max(values) > WIDE_SPREAD * min(values)
        rows: list[Row] = []
        for curve in curves:
            label = percentile_label(curve.of)
            last = None
            for point in curve.points:
                if last is not None and last.phase != point.phase:
                    rows.append({"seconds": last.end_s, "value": None, "line": label})
                shown = None if is_log and not point.ms else point.ms
                rows.append({"seconds": point.start_s, "value": shown, "line": label})
                rows.append({"seconds": point.end_s, "value": shown, "line": label})
                last = point
        styles = {percentile_label(one.of): (PERCENTILE_COLORS[one.of], (1, 0)) for one in curves}
        layers = list(self._behind)
        if objective is not None:
            styles["objective"] = (LIMIT, (4, 3))
            rows += [{"seconds": at, "value": objective, "line": "objective"} for at in (0.0, self.end_s)]
        scale = alt.Scale(type="log", nice=False) if is_log else alt.Scale(zero=True)
        axis = alt.Axis(format=NUMBERS, tickCount=4)
        y = alt.Y("value:Q", title=list(title), scale=scale, axis=axis)
        layers.append(self.steps(name, rows, self._x(), y, styles, "linear"))
        self.charts.append(layered(layers, WIDTH, 1.5 * HEIGHT if name == "latency" else 0.8 * HEIGHT))

    def rates(self) -> None:
        """Requests a second: what the profile asks for, what was due, what was answered without error."""
        asked: list[Row] = []
        for phase in self.load.result.phases:
            if phase.asked_rate is not None:
                ends = (phase.start_s, phase.start_s + phase.duration_s)
                asked += [{"seconds": at, "value": phase.asked_rate, "line": "asked, mean of the phase"} for at in ends]
                asked.append({"seconds": ends[1], "value": None, "line": "asked, mean of the phase"})
        rows = list(asked)
        for line, field in (("due", "due"), ("answered", "answered"), ("without error", "ok")):
            rows += self._moments(line, [getattr(one, field) for one in self.load.moments])
        styles = {
            **({"asked, mean of the phase": (LIMIT, (4, 3))} if asked else {}),
            "due": (PALETTE[1], (1, 0)), "answered": (PALETTE[0], (1, 0)), "without error": (PALETTE[2], (1, 0)),
        }  # fmt: skip
        self._panel("rates", ["requests", "a second"], rows, styles, "step-after")

    def in_flight(self) -> None:
        """Requests that were due and not answered, and those of them whose service had not begun."""
        lines = {
            "most in flight": ([one.in_flight_max for one in self.load.moments], PALETTE[0]),
            "most in the queue": ([one.queue_max for one in self.load.moments], PALETTE[1]),
        }
        known = {name: one for name, one in lines.items() if any(level is not None for level in one[0])}
        if len(known) < len(lines):
            missing = " and ".join(name for name in lines if name not in known)
            self.notes.append(f"{missing}: not known ({self.load.result.levels_reason or 'not recorded'})")
        if not known:
            return
        rows = [row for name, (levels, _) in known.items() for row in self._moments(name, levels)]
        styles = {name: (color, (1, 0)) for name, (_, color) in known.items()}
        self._panel("in_flight", ["requests", "at a time"], rows, styles, "step-after")

    def errors(self) -> None:
        """Kinds over time, stacked, and the first of each."""
        alt, result = self.alt, self.load.result
        if not result.errors:
            return
        kinds = [one.kind for one in result.errors]
        own = kinds if len(kinds) <= MAX_KINDS else kinds[: MAX_KINDS - 1]
        labels = {kind: wrapped(safe_line(kind)) if kind in own else "others" for kind in kinds}
        rows: list[Row] = []
        for moment in self.load.moments:
            below = 0.0
            for kind in labels:
                rate = moment.errors.get(kind, 0.0)
                if rate:
                    rows.append({
                        "seconds": moment.start_s, "until": moment.end_s, "kind": labels[kind], "rate": rate,
                        "below": below, "value": below + rate,
                    })  # fmt: skip
                below += rate
        firsts: list[Row] = [
            {
                "seconds": one.first.at_s, "kind": labels[one.kind], "request": one.first.request,
                "message": safe_line(one.first.message or ""),
            }
            for one in result.errors
            if one.first is not None
        ]  # fmt: skip
        domain = list(dict.fromkeys(labels.values()))
        colors = [PALETTE[5], *(color for color in LINE_PALETTE if color != PALETTE[5])][: len(domain)]
        color = self.colors("kind", dict(zip(domain, colors, strict=True)))
        bars = self.chart("errors", rows).mark_rect(clip=True)
        y = self.quantity(["errors", "a second"], tickCount=4)
        tooltip = ["kind:N", "seconds:Q", alt.Tooltip("rate:Q", title="a second")]
        stacked = bars.encode(x=self._x(), x2="until:Q", y=y, y2="below:Q", color=color, tooltip=tooltip)
        marks = self.chart("first_errors", firsts).mark_point(
            shape="triangle-down", filled=True, size=70, opacity=1, stroke="black", strokeWidth=1
        )
        tip = ["kind:N", "seconds:Q", "request:Q", "message:N"]
        first = marks.encode(x=self._x(), y=alt.value(5), color=color, tooltip=tip)
        self.charts.append(layered([*self._behind, unit(stacked), unit(first)], WIDTH, 0.8 * HEIGHT))
        self.notes.append("triangles: the first error of each kind")

    def memory(self) -> None:
        """Of the processes of the target, with the slope of a leak."""
        values = [one.rss_mb for one in self.load.moments]
        if all(value is None for value in values):
            self.notes.append("memory of the process was not read")
            return
        rows = self._moments("resident", values)
        styles: dict[str, tuple[str, Sequence[int]]] = {"resident": (PALETTE[7], (1, 0))}
        leak = self._leak()
        if leak is not None:
            label, ends = leak
            styles[label] = (PALETTE[5], (5, 3))
            rows += [{"seconds": at, "value": value, "line": label} for at, value in ends]
        self._panel("memory", ["process", MEGABYTES], rows, styles, "linear", zero=leak is None)

    def _leak(self) -> tuple[str, list[tuple[float, float]]] | None:
        """The line of a leak over what was judged, after the first third of its phase; of one process only."""
        sustained = self.load.result.sustained
        own = [one for one in sustained.memory if one.of.startswith("process")] if sustained else []
        if sustained is None or len(own) != 1 or own[0].verdict != "leaks":
            return None
        slope, begin_mb = own[0].slope_mb_per_s.value, own[0].first_mb
        phase = next((one for one in self.load.result.phases if one.name == sustained.phase), None)
        if slope is None or begin_mb is None or phase is None:
            return None
        start, end = phase.start_s + phase.duration_s / 3, phase.start_s + phase.duration_s
        return f"leaks {slope:.3g} MB/s", [(start, begin_mb), (end, begin_mb + slope * (end - start))]

    def gpus(self, log: SampleLog, start_ns: int) -> None:
        """Memory, clocks and throttling of each GPU that was sampled."""
        for record in log.subjects("gpu"):
            name = f"GPU {record.gpu_index}"
            for metric, label, color, scale in (
                ("memory_used_bytes", MEGABYTES, PALETTE[3], 1 / MB),
                ("sm_clock_mhz", "SM clock (MHz)", PALETTE[0], 1.0),
                ("power_instant_mw", "power (W)", PALETTE[1], 1e-3),
            ):
                series = log.get(record.subject, metric)
                if series is None or not len(series) or not series.is_read.any():
                    self.notes.append(f"{name}: {label} was not read")
                    continue
                zero_ns = _unix_zero(series, start_ns)
                inside = series.between(zero_ns, zero_ns + int(self.end_s * NS_PER_S))
                if not len(inside):
                    self.notes.append(f"{name}: {label} was not read during the load")
                    continue
                rows = line_rows(name, *line_points(inside, zero_ns, scale))
                key = f"gpu_{record.gpu_index}_{metric}"
                title = [name, label]
                self._panel(key, title, rows, {name: (color, (1, 0))}, "step-after", zero=metric != "sm_clock_mhz")
            self._throttling(name, log.get(record.subject, "clock_event_reasons"), start_ns, record.gpu_index)

    def _throttling(self, name: str, reasons: Series | None, start_ns: int, index: int | None) -> None:
        if reasons is None or not len(reasons):
            self.notes.append(f"{name}: it does not report what lowers its clocks")
            return
        spans = throttle_spans(reasons, _unix_zero(reasons, start_ns))
        rows: list[Row] = [
            {"reason": one.name, "seconds": max(start, 0.0), "until": min(end, self.end_s)}
            for one in spans
            for start, end in zip(one.start_s, one.end_s, strict=True)
            if end > 0 and start < self.end_s
        ]
        if not rows:
            self.notes.append(f"{name}: nothing lowered its clocks")
            return
        alt = self.alt
        y = alt.Y("reason:N", title=[name, "throttled by"], axis=alt.Axis(orient="right", titleAnchor="start"))
        bars = self.chart(f"throttled_{index}", rows).mark_bar(color=PALETTE[5], height=10, clip=True)
        shown = unit(bars.encode(x=self._x(), x2="until:Q", y=y, tooltip=["reason:N", "seconds:Q", "until:Q"]))
        self.charts.append({**shown, "width": WIDTH, "height": 18 * len({row["reason"] for row in rows})})

    def _moments(self, line: str, values: Sequence[float | None]) -> list[Row]:
        """Steps; each phase begins anew."""
        rows: list[Row] = []
        last = None
        for moment, value in zip(self.load.moments, values, strict=True):
            if last is not None and last.phase != moment.phase:
                rows.append({"seconds": last.end_s, "value": rows[-1]["value"], "line": line})
                rows.append({"seconds": last.end_s, "value": None, "line": line})
            rows.append({"seconds": moment.start_s, "value": value, "line": line})
            last = moment
        if last is not None:
            rows.append({"seconds": last.end_s, "value": rows[-1]["value"], "line": line})
        return rows

    def _panel(
        self,
        name: str,
        title: Sequence[str],
        rows: list[Row],
        styles: Mapping[str, tuple[str, Sequence[int]]],
        interpolate: str,
        *,
        zero: bool = True,
    ) -> None:
        y = self.quantity(title, zero=zero, tickCount=4)
        chart = self.steps(name, rows, self._x(), y, styles, interpolate)
        self.charts.append(layered([*self._behind, chart], WIDTH, HEIGHT))

    def _scale(self) -> Any:
        return self.alt.Scale(domain=[0, self.end_s], nice=False)

    def _x(self, title: str | None = None) -> Any:
        shown = title is not None
        axis = self.alt.Axis(title=title, labels=shown, ticks=shown, grid=True)
        return self.alt.X("seconds:Q", scale=self._scale(), axis=axis)


def _unix_zero(series: Series, start_ns: int) -> int:
    """The begin of the load in UTC, which is the monotonic clock moved by one constant."""
    return start_ns + int(series.time_unix_ns[0] - series.time_monotonic_ns[0])


def rate_text(phase: PhaseResult) -> str:
    """What a phase asks for."""
    if phase.asked_rate is None:
        return f"closed loop, {phase.concurrency} at a time"
    return f"{phase.asked_rate:,.4g} requests a second"


def bins_picture(name: str, bins: LoadBins, objective_ms: float | None) -> Picture:
    """How many answers of a phase took how long."""
    sheet = Sheet(name)
    alt = sheet.alt
    rows: list[Row] = [
        {"from": low, "to": high, "requests": count, "zero": 0}
        for low, high, count in zip(bins.edges_ms, bins.edges_ms[1:], bins.counts, strict=False)
        if count
    ]
    domain = [bins.edges_ms[0], bins.edges_ms[-1]]
    scale = alt.Scale(type="log", domain=domain, nice=False)  # on which bins of equal ratio are equally wide
    chart = sheet.chart("bins", rows).mark_rect(color=PALETTE[0], stroke="white", strokeWidth=0.3, clip=True)
    x = alt.X("from:Q", title="latency (ms)", scale=scale, axis=alt.Axis(grid=False, tickCount=5, format=NUMBERS))
    encoded = chart.encode(
        x=x,
        x2="to:Q",
        y=alt.Y("requests:Q", title="answers", axis=alt.Axis(tickCount=4, tickMinStep=1)),
        y2="zero:Q",
        tooltip=[alt.Tooltip("from:Q", format=",.4~g"), alt.Tooltip("to:Q", format=",.4~g"), "requests:Q"],
    )
    layers = [unit(encoded)]
    if objective_ms is not None and domain[0] < objective_ms < domain[1]:
        rule = sheet.chart("objective", [{"from": objective_ms}]).mark_rule(color=LIMIT, strokeDash=[4, 3])
        layers.append(unit(rule.encode(x=x)))
        sheet.notes.append(f"dashed: the objective, {objective_ms:,.4g} ms")
    return sheet.made(layered(layers, 260, 110), safe_line(bins.phase))


def rates_picture(name: str, result: LoadResult) -> Picture | None:
    """Percentiles of the phases over the rates that they asked for; None where there are no two rates."""
    phases = [one for one in result.phases if not one.is_warmup and one.asked_rate is not None]
    if len({round(one.asked_rate or 0.0, 6) for one in phases}) < 2:
        return None
    rows: list[Row] = []
    for phase in phases:
        for of in ("p50", "p95", "p99", "p99_9"):
            figure: LoadFigure = getattr(phase.latency, of)
            if figure.value is not None:
                rows.append({
                    "rate": phase.asked_rate, "ms": figure.value, "low": figure.low, "high": figure.high,
                    "line": percentile_label(of), "phase": safe_line(phase.name),
                })  # fmt: skip
    if not rows:
        return None
    used = [of for of in ("p50", "p95", "p99", "p99_9") if any(row["line"] == percentile_label(of) for row in rows)]
    colors = {percentile_label(of): PERCENTILE_COLORS[of] for of in used}
    objective = None if result.objective is None else result.objective.latency_ms
    return _over_rates(Sheet(name), rows, colors, objective, "Latency over the rate that was asked for", "line")


def _over_rates(
    sheet: Sheet,
    rows: list[Row],
    colors: Mapping[str, str],
    objective_ms: float | None,
    title: str,
    joined_by: str | None,
) -> Picture:
    """Points with their intervals over rates; `joined_by`: the field whose equal ones a line joins."""
    alt = sheet.alt
    rates, values = [row["rate"] for row in rows], [row["ms"] for row in rows if row["ms"]]
    limits = [] if objective_ms is None else [objective_ms]
    is_log = bool(values) and max([*values, *limits]) > WIDE_SPREAD * min([*values, *limits])
    room = max((max(rates) - min(rates)) * 0.04, 1e-3 * max(rates), 1e-9)
    x_scale = alt.Scale(domain=[max(0.0, min(rates) - room), max(rates) + room], nice=False, zero=False)
    x = alt.X("rate:Q", title="requests a second that were asked for", scale=x_scale, axis=alt.Axis(tickCount=8))
    y_scale = alt.Scale(type="log", nice=True) if is_log else alt.Scale(zero=True)
    y = alt.Y("ms:Q", title="latency (ms)", scale=y_scale, axis=alt.Axis(format=NUMBERS, tickCount=6))
    color = sheet.colors("line", colors)
    with_ends = [row for row in rows if row["low"] is not None and row["high"] is not None]
    layers: list[Specification] = []
    if objective_ms is not None:
        ends: list[Row] = [{"ms": objective_ms}]
        rule = sheet.chart("objective", ends).mark_rule(color=LIMIT, strokeDash=[4, 3])
        layers.append(unit(rule.encode(y=y)))
        sheet.notes.append(f"dashed: the objective, {objective_ms:,.4g} ms")
    if joined_by is not None:
        lines = sheet.chart("lines", rows).mark_line(strokeWidth=1.4)
        layers.append(unit(lines.encode(x=x, y=y, color=color)))
    if with_ends:
        bars = sheet.chart("intervals", with_ends).mark_rule(strokeWidth=2, opacity=0.6)
        low = alt.Y("low:Q", title="latency (ms)", scale=y_scale)
        layers.append(unit(bars.encode(x=x, y=low, y2="high:Q", color=color)))
        sheet.notes.append("vertical lines: 95 % intervals")
    tooltip = [
        "line:N",
        "phase:N",
        "rate:Q",
        *(alt.Tooltip(f"{one}:Q", format=",.4~g") for one in ("ms", "low", "high")),
    ]
    points = sheet.chart("points", rows).mark_point(filled=True, size=55, opacity=1)
    layers.append(unit(points.encode(x=x, y=y, color=color, tooltip=tooltip)))
    return sheet.made(layered(layers, WIDTH, 220), title)
