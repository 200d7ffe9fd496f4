"""Charts of a load test: panels over time, distributions, percentiles over rates."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from perfharness.load.report import thinned
from perfharness.model.load import LoadResult, LoadWindow, PhaseResult
from perfharness.model.machines import gpu_name
from perfharness.model.telemetry import SampleLog
from perfharness.model.units import NS_PER_S
from perfharness.render.charts.drawing import (
    DASHED,
    GREY,
    LIMIT,
    LINE_PALETTE,
    NUMBERS,
    PALETTE,
    SOLID,
    WARMUP,
    WIDE_RANGE,
    Picture,
    Points,
    Row,
    Sheet,
    alt,
    colors,
    fields,
    numbers,
    wrapped,
)
from perfharness.render.charts.over_time import BLACK, BLUE, GIB, HEIGHT, ORANGE, WIDTH, OverTime, Readings
from perfharness.render.text import percentile_label, safe_line
from perfharness.runs.report.model import LoadBins, LoadPoint, LoadReport

PHASES = ("#e3eaf2", "#f3f5f8")

PERCENTILE_COLORS = {
    "p50": PALETTE[0],
    "p90": PALETTE[4],
    "p95": PALETTE[4],
    "p99": PALETTE[1],
    "p99_9": PALETTE[5],
    "max": GREY,
}
ERRORS = (PALETTE[5], *(color for color in LINE_PALETTE if color != PALETTE[5]))

CHARACTERS = 46
"""Characters for the names of all phases on a narrow page."""

MB_PER_GIB = GIB / 1e6


def over_time_picture(name: str, load: LoadReport, log: SampleLog | None) -> Picture:
    """Draw latency, rates, requests in flight, errors, memory and GPUs over time, with shaded phases."""
    result, windows = load.result, list(thinned(load.result.windows))
    end_s = max((one.end_s for one in windows), default=max(result.duration_s, 1e-3))
    sheet = OverTime(name, 0.0, end_s)
    _add_phases(sheet, result)
    _add_percentiles(sheet, "latency (ms)", load, "latency")
    if load.curves_reason is not None:
        sheet.notes.append(f"no percentiles over time: {load.curves_reason}")
    _add_rates(sheet, result, windows)
    levels = {
        "most in flight": _steps(windows, [one.in_flight_max for one in windows]),
        "most in the queue": _steps(windows, [one.queue_max for one in windows]),
    }
    why = result.levels_reason or "not recorded"
    _add_known(sheet, "requests (at a time)", levels, (BLUE, ORANGE), why)
    if result.errors:
        _add_errors(sheet, result, windows)
    _add_percentiles(sheet, "generator late (ms)", load, "lateness")
    memory = {"resident": _steps(windows, [None if one.rss_mb is None else one.rss_mb / MB_PER_GIB for one in windows])}
    _add_known(sheet, "memory of the process (GiB)", memory, (BLACK,), "not read")
    if log is not None and load.start_ns is not None:
        _add_gpus(sheet, log, load.start_ns)
    return sheet.picture("seconds since the load began", "Over time")


def _add_phases(sheet: OverTime, result: LoadResult) -> None:
    """Add a strip with the names of the phases, and shade them behind all panels."""
    rows: list[Row] = []
    for place, phase in enumerate(result.phases):
        room = int(phase.duration_s / sheet.end_s * CHARACTERS)
        label = textwrap.shorten(safe_line(phase.name), max(room, 1), placeholder="…")
        rows.append({
            "seconds": phase.start_s,
            "middle": phase.start_s + phase.duration_s / 2,
            "until": phase.start_s + phase.duration_s,
            "color": WARMUP if phase.is_warmup else PHASES[place % 2],
            "phase": safe_line(phase.name),
            "label": "" if label == "…" else label,
            "load": rate_text(phase),
        })  # fmt: skip
    sheet.shade("phases", rows, opacity=0.55)
    text = sheet.chart("phases", rows).mark_text(fontSize=10, clip=True)
    tooltip = fields("phase:N", "load:N", "seconds:Q", "until:Q")
    sheet.add(text.encode(x=sheet.x("middle"), text="label:N", tooltip=tooltip), height=18)
    if any(phase.is_warmup for phase in result.phases):
        sheet.notes.append("sand-coloured: dropped as warm-up")


def _add_percentiles(sheet: OverTime, title: str, load: LoadReport, time: str) -> None:
    curves = {percentile_label(curve.of): curve for curve in load.curves if curve.time == time}
    values = [point.ms for curve in curves.values() for point in curve.points if point.ms]
    if not values:
        return
    is_log, is_latency = max(values) > WIDE_RANGE * min(values), time == "latency"
    points = {
        label: _steps(curve.points, [point.ms or (None if is_log else point.ms) for point in curve.points])
        for label, curve in curves.items()
    }
    styles = {label: (PERCENTILE_COLORS[curve.of], SOLID) for label, curve in curves.items()}
    if is_latency and load.result.objective is not None:
        points["objective"] = [sheet.begin_s, sheet.end_s], [load.result.objective.latency_ms] * 2
        styles["objective"] = LIMIT, DASHED
    scale = {"type": "log", "nice": False} if is_log else {}
    sheet.add_lines(title, points, styles, "linear", height=1.5 * HEIGHT if is_latency else 0.8 * HEIGHT, **scale)
    if is_latency:
        if missing := [label for label in ("p99", "p99.9") if label not in curves]:
            sheet.notes.append(f"{' and '.join(missing)} latency: too few answers (10 above the percentile are needed)")
        sheet.notes.append(
            "Each point covers enough time for 10 values above the percentile on average. "
            "Gaps: too few answers, or timeouts."
        )


def _add_rates(sheet: OverTime, result: LoadResult, windows: Sequence[LoadWindow]) -> None:
    asked = [phase for phase in result.phases if phase.asked_rate is not None]
    ends = [(phase.start_s, phase.start_s + phase.duration_s) for phase in asked]
    points: dict[str, Points] = {
        "asked, mean of the phase": (
            [at for start, end in ends for at in (start, end, end)],
            [rate for phase in asked for rate in (phase.asked_rate, phase.asked_rate, None)],
        ),
        "due": _rates(windows, lambda one: one.arrivals),
        "answered": _rates(windows, lambda one: one.completed),
        "without error": _rates(windows, lambda one: one.ok),
    }
    styles = {"due": (ORANGE, SOLID), "answered": (BLUE, SOLID), "without error": (PALETTE[2], SOLID)}
    if asked:
        styles = {"asked, mean of the phase": (LIMIT, DASHED), **styles}
    sheet.add_lines("requests (per second)", {name: points[name] for name in styles}, styles)


def _rates(windows: Sequence[LoadWindow], count: Callable[[LoadWindow], int]) -> Points:
    return _steps(windows, [_per_second(one, count(one)) for one in windows])


def _per_second(window: LoadWindow, count: int) -> float:
    return count / max(window.end_s - window.start_s, 1e-9)


def _add_known(sheet: OverTime, title: str, points: Mapping[str, Points], palette: Sequence[str], reason: str) -> None:
    """Add the lines with values, and a note with the others."""
    known = {name: one for name, one in points.items() if any(value is not None for value in one[1])}
    if missing := [name for name in points if name not in known]:
        sheet.notes.append(f"{title}: {' and '.join(missing)} not known ({reason})")
    if known:
        styles = {name: (color, SOLID) for name, color in zip(points, palette, strict=True) if name in known}
        sheet.add_lines(title, known, styles)


def _add_errors(sheet: OverTime, result: LoadResult, windows: Sequence[LoadWindow]) -> None:
    """Add the stacked rate of each kind of error; rare kinds are joined."""
    kinds = [one.kind for one in result.errors]
    own = kinds if len(kinds) <= len(ERRORS) else kinds[: len(ERRORS) - 1]
    groups = {wrapped(safe_line(kind)): [kind] for kind in own}
    if rest := kinds[len(own) :]:
        groups["others"] = rest
    seconds = [*(one.start_s for one in windows), sheet.end_s]
    points: dict[str, Points] = {
        name: (seconds, [*(_per_second(one, sum(one.errors.get(kind, 0) for kind in group)) for one in windows), 0.0])
        for name, group in groups.items()
    }
    sheet.add_areas("errors (per second)", points, dict(zip(points, ERRORS, strict=False)), 0.8 * HEIGHT)


def _add_gpus(sheet: OverTime, log: SampleLog, start_ns: int) -> None:
    """Add the panels of each GPU; `start_ns` is the start of the load on the monotonic clock."""
    series = next((one for one in log.series.values() if len(one)), None)
    if series is None:
        return
    zero_ns = start_ns + int(series.time_unix_ns[0] - series.time_monotonic_ns[0])
    readings = Readings(sheet, log, zero_ns, zero_ns + int(sheet.end_s * NS_PER_S), zero_ns)
    for record in log.subjects("gpu"):
        readings.add_gpu(record.subject, f"{gpu_name(record.gpu_index, record.subject)} ", [], [])


def _steps(parts: Sequence[LoadWindow | LoadPoint], values: Sequence[float | None]) -> Points:
    """One step per part of a phase, with gaps between phases."""
    seconds: list[float] = []
    found: list[float | None] = []
    for place, (part, value) in enumerate(zip(parts, values, strict=True)):
        if place and parts[place - 1].phase != part.phase:
            seconds.append(part.start_s)
            found.append(None)
        seconds += [part.start_s, part.end_s]
        found += [value, value]
    return seconds, found


def rate_text(phase: PhaseResult) -> str:
    """Requested load of a phase."""
    if phase.asked_rate is None:
        return f"closed loop, {phase.concurrency} at a time"
    return f"{phase.asked_rate:,.4g} requests per second"


def bins_picture(name: str, bins: LoadBins, objective_ms: float | None) -> Picture:
    """Draw a histogram of the latencies of a phase."""
    sheet = Sheet(name)
    rows: list[Row] = [
        {"from": low, "to": high, "requests": count, "zero": 0}
        for low, high, count in zip(bins.edges_ms, bins.edges_ms[1:], bins.counts, strict=False)
        if count
    ]
    domain = [bins.edges_ms[0], bins.edges_ms[-1]]
    x = alt.X("from:Q").title("latency (ms)").axis(grid=False, tickCount=5, format=NUMBERS)
    x = x.scale(type="log", domain=domain, nice=False)  # the bins have equal ratios
    bars = sheet.chart("bins", rows).mark_rect(color=PALETTE[0], stroke="white", strokeWidth=0.3, clip=True)
    y = alt.Y("requests:Q").title("answers").axis(tickCount=4, tickMinStep=1)
    layers = [bars.encode(x=x, x2="to:Q", y=y, y2="zero:Q", tooltip=[*numbers("from", "to"), *fields("requests:Q")])]
    if objective_ms is not None and domain[0] < objective_ms < domain[1]:
        rule = sheet.chart("objective", [{"from": objective_ms}]).mark_rule(color=LIMIT, strokeDash=DASHED)
        layers.append(rule.encode(x=x))
        sheet.notes.append(f"dashed: the objective, {objective_ms:,.4g} ms")
    return sheet.made(alt.layer(*layers).properties(width=260, height=110), safe_line(bins.phase))


def rates_picture(name: str, result: LoadResult) -> Picture | None:
    """Draw percentiles over requested rates, with intervals; None for fewer than two rates."""
    phases = [one for one in result.phases if not one.is_warmup and one.asked_rate is not None]
    palette = {percentile_label(of): PERCENTILE_COLORS[of] for of in ("p50", "p95", "p99", "p99_9")}
    rows: list[Row] = [
        {
            "rate": phase.asked_rate,
            "phase": safe_line(phase.name),
            "line": label,
            **figure.model_dump(include={"low", "high"}),
            "ms": figure.value,
        }
        for phase in phases
        for label in palette
        if (figure := getattr(phase.latency, label.replace(".", "_"))).value is not None
    ]
    if not rows or len({round(one.asked_rate or 0.0, 6) for one in phases}) < 2:
        return None
    sheet = Sheet(name)
    used = {row["line"] for row in rows}
    color = colors("line", {label: color for label, color in palette.items() if label in used})
    limits = [] if result.objective is None else [result.objective.latency_ms]
    values = [*(row["ms"] for row in rows if row["ms"]), *limits]
    scale: dict[str, Any] = {"zero": True}
    if values and max(values) > WIDE_RANGE * min(values):
        scale = {"type": "log", "nice": True}
    x = alt.X("rate:Q").title("requested rate (requests per second)").axis(tickCount=8)
    x = x.scale(nice=False, zero=False, padding=14)

    def y(field: str) -> Any:
        return alt.Y(f"{field}:Q").title("latency (ms)").scale(**scale).axis(format=NUMBERS, tickCount=6)

    chart = sheet.chart("points", rows).encode(x=x, color=color)
    layers = [
        chart.mark_line().encode(y=y("ms")),
        chart.mark_rule(strokeWidth=2, opacity=0.6).encode(y=y("low"), y2="high:Q"),
        chart.mark_point(filled=True, size=55, opacity=1).encode(
            y=y("ms"), tooltip=[*fields("line:N", "phase:N", "rate:Q"), *numbers("ms", "low", "high")]
        ),
    ]
    sheet.notes.append("vertical lines: 95 % intervals")
    for limit in limits:
        rule = sheet.chart("objective", [{"ms": limit}]).mark_rule(color=LIMIT, strokeDash=DASHED)
        layers.append(rule.encode(y=y("ms")))
        sheet.notes.append(f"dashed: the objective, {limit:,.4g} ms")
    return sheet.made(alt.layer(*layers).properties(width=WIDTH, height=220), "Latency over the requested rate")
