"""Changes during a load test: memory, latency, throughput, errors, clocks; and the findings on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from perfharness.analysis.load.latency import Latencies
from perfharness.analysis.load.trend import LEAST_READINGS, MB, grows, latency_drift, memory_trend, rate_drift
from perfharness.analysis.metrics.clocks import clock_events, clock_hold
from perfharness.analysis.metrics.findings import NSYS_HOLDS
from perfharness.errors import ResultError
from perfharness.load.findings import has_own_shape, keeps_up
from perfharness.load.request import UNANSWERED
from perfharness.load.result import Line, Requests, of_phase
from perfharness.model.columns import Float64
from perfharness.model.findings import Finding, Severity
from perfharness.model.load import ClockChange, Drift, LoadResult, LoadWindow, MemoryTrend, PhaseResult, Sustained
from perfharness.model.nsys_schema import TRACE_NAME
from perfharness.model.telemetry import TELEMETRY_NAME, SampleLog, process_subject
from perfharness.telemetry.store import read_sample_log

DRIFTING = (50.0, 95.0, 99.0)
OWN_SHAPE = "the profile itself changes the rate"
QUEUE_GROWS = "the queue grew during the whole phase, and latency with it"


def judge_load(
    result: LoadResult, folder: Path, processes: Mapping[str, Sequence[Line]], requests: pa.Table
) -> LoadResult:
    """The result with `sustained` and its findings, for the longest measured phase.

    Args:
        processes: lines of each process, by its folder in the run folder.
    """
    places = [place for place, phase in enumerate(result.phases) if not phase.is_warmup]
    place = max(places, key=lambda one: result.phases[one].duration_s, default=None)
    if place is None:
        return result
    phase = result.phases[place]
    end_s = phase.start_s + phase.duration_s - 0.001  # later ones are of the wait for late answers
    windows = [one for one in result.windows if one.phase == phase.name and one.start_s < end_s]
    if len(windows) < LEAST_READINGS:
        return result
    lines = {
        folder / name: [line for line in found if line["kind"] == "window" and line["phase"] == place]
        for name, found in processes.items()
    }
    every = [line for found in lines.values() for line in found]
    span_ns = min(line["start_ns"] for line in every), max(line["end_ns"] for line in every)
    log = _telemetry(folder)
    sustained = Sustained(
        phase=phase.name,
        duration_s=phase.duration_s,
        memory=list(_memory(lines, log, span_ns, phase.achieved_rate, result.tracer)),
        clocks=[] if log is None else list(_clocks(log, span_ns)),
        **_drifts(phase, windows, of_phase(requests, phase.name), has_own_shape(phase, result)),
    )
    found = sustained_findings(sustained, phase.asked_rate, is_saturated=not keeps_up(phase, result))
    return result.model_copy(update={"sustained": sustained, "findings": [*result.findings, *found]})


def _telemetry(folder: Path) -> SampleLog | None:
    if not (folder / TELEMETRY_NAME).is_file():
        return None
    try:
        return read_sample_log(folder / TELEMETRY_NAME)
    except ResultError:  # reported by the analysis of the run
        return None


def _drifts(
    phase: PhaseResult, windows: Sequence[LoadWindow], requests: Requests, has_own_shape: bool
) -> dict[str, Any]:
    """Drifts of latency, throughput and errors, and whether the queue grows."""

    def column(name: str) -> Float64:
        return np.array([getattr(window, name) or 0 for window in windows], np.float64)

    def errors(kind: str) -> Float64:
        return np.array([window.errors.get(kind, 0) for window in windows], np.float64)

    times = Latencies.of(*requests.values("latency")[1:])
    latency = [latency_drift(times, percent) for percent in DRIFTING]
    if has_own_shape:
        latency = [one.model_copy(update={"verdict": "cannot-tell", "reason": OWN_SHAPE}) for one in latency]
    is_open = phase.loop == "open"
    queue_grows = grows(column("in_flight_max")) if is_open else None
    if queue_grows:
        latency = [one.model_copy(update={"reason": one.reason and QUEUE_GROWS}) for one in latency]
    over, unit = (
        (column("arrivals"), "of the arrivals") if is_open else (column("end_s") - column("start_s"), "per second")
    )
    # Unanswered requests are counted after the phase and its grace period, so they have no place in time.
    kinds = [kind for kind in phase.errors if kind != UNANSWERED and errors(kind).any()]
    return {
        "latency": latency,
        "throughput": rate_drift("throughput", unit, column("ok"), over),
        "errors": [rate_drift(f"errors.{kind}", "of the answers", errors(kind), column("completed")) for kind in kinds],
        "queue_grows": queue_grows,
    }


def _memory(
    processes: Mapping[Path, Sequence[Line]],
    log: SampleLog | None,
    span_ns: tuple[int, int],
    rate: float | None,
    tracer: str | None,
) -> Iterator[MemoryTrend]:
    """The host memory and GPU memory of each process."""
    each = None if rate is None else rate / len(processes)
    for folder, lines in processes.items():
        name = f"process {folder.name}" if len(processes) > 1 else "process"
        at = np.array([line["start_ns"] / 1e9 for line in lines])
        used = np.array([line["rss_bytes"] for line in lines], np.float64)  # NaN: not known
        trace, trace_bytes = folder / TRACE_NAME, 0
        if tracer == "nsys" and trace.is_file():
            trace_bytes = trace.stat().st_size
        yield _less_nsys_own(memory_trend(name, at, used, each), at, trace_bytes)
        series = None if log is None else log.get(process_subject(folder.name), "process_memory_bytes")
        if series is not None and series.is_read.any():
            begin, end = span_ns
            read = series.select((series.time_monotonic_ns >= begin) & (series.time_monotonic_ns <= end))
            yield memory_trend(f"gpu memory of {name}", read.time_monotonic_ns / 1e9, read.value, each)


def _less_nsys_own(trend: MemoryTrend, at_s: Float64, trace_bytes: int) -> MemoryTrend:
    """Exclude memory that nsys itself may hold in the process; it is not a leak of the target."""
    high = trend.slope_mb_per_s.high
    if trend.verdict != "leaks" or high is None or high * MB * float(np.ptp(at_s)) > NSYS_HOLDS * trace_bytes:
        return trend
    reason = "nsys holds its records in the process, which may explain this growth; use --tracer none to exclude it"
    return trend.model_copy(update={"verdict": "cannot-tell", "reason": reason, "per_request_bytes": None})


def _clocks(log: SampleLog, span_ns: tuple[int, int]) -> Iterator[ClockChange]:
    begin, end = span_ns
    for record in log.subjects("gpu"):
        clock = log.get(record.subject, "sm_clock_mhz")
        if clock is None or not len(clock):
            yield ClockChange(gpu=record.subject, reason="the clock was not sampled")
            continue
        offset = int(clock.time_unix_ns[0] - clock.time_monotonic_ns[0])
        window = begin + offset, end + offset
        hold = clock_hold(clock, window, work=window)
        events = clock_events(log.get(record.subject, "clock_event_reasons"), window)
        yield ClockChange(
            gpu=record.subject,
            first_mhz=hold.before_mhz,
            last_mhz=hold.after_mhz,
            drop_percent=hold.drop_percent,
            **_conditions(log, record.subject, begin, end),
            throttled_s=None if events is None else {one.reason: one.seconds for one in events if one.throttles},
            reason=hold.reason,
        )


def _conditions(log: SampleLog, gpu: str, begin_ns: int, end_ns: int) -> dict[str, float | None]:
    """Power, temperature and utilization in a time interval."""

    def read(metric: str, first: float = 0.0, last: float = 1.0) -> Float64:
        series = log.get(gpu, metric)
        if series is None:
            return np.empty(0)
        at = (series.time_monotonic_ns - begin_ns) / (end_ns - begin_ns)
        return series.value[series.is_read & (at >= first) & (at <= last)]

    def mean(values: Float64) -> float | None:
        return float(values.mean()) if len(values) else None

    power = read("power_instant_mw") / 1e3
    if not len(power):
        power = read("power_average_mw") / 1e3
    return {
        "power_w": mean(power),
        "power_max_w": float(power.max()) if len(power) else None,
        "temperature_first_c": mean(read("temperature_c", last=0.1)),
        "temperature_last_c": mean(read("temperature_c", first=0.9)),
        "busy_percent": mean(read("gpu_utilization_percent")),
    }


def sustained_findings(sustained: Sustained, asked_rate: float | None, *, is_saturated: bool) -> Iterator[Finding]:
    """Findings of a sustained run.

    Args:
        is_saturated: the target did not keep up; this has its own finding, and the drifts have the same cause.
    """
    for trend in sustained.memory:
        slope = trend.slope_mb_per_s
        if trend.verdict == "leaks" and slope.value is not None:
            each = "" if trend.per_request_bytes is None else f", {trend.per_request_bytes:,.0f} bytes per request"
            yield Finding(
                "load-memory-leaks",
                Severity.WARNING,
                f"Memory leaks ({trend.of}): it grew by {slope.value:.3g} MB/s ({slope.low:.3g} to {slope.high:.3g}) "
                f"after the first third of {sustained.phase}{each}.",
                "Look for data kept from each request: caches without a limit, lists, tensors with gradients.",
            )
    rises = next((drift for drift in sustained.latency if drift.verdict == "rises"), None)
    if rises is not None and not is_saturated and not sustained.queue_grows:
        yield Finding(
            "load-latency-rises",
            Severity.WARNING,
            f"The latency rose during {sustained.phase}: its {rises.of.removeprefix('latency.')} {_change(rises)}.",
            "Compare memory and clocks over the same time, and the slowest requests (analyze --slowest 5).",
        )
    if sustained.throughput is not None and sustained.throughput.verdict == "falls" and not is_saturated:
        yield Finding(
            "load-throughput-falls",
            Severity.WARNING,
            f"Fewer requests were answered without error over the course of {sustained.phase}: "
            f"{_change(sustained.throughput)}.",
            "Compare errors, memory and clocks over the same time.",
        )
    for drift in sustained.errors:
        if drift.verdict == "rises" and drift.first.value is not None and drift.last.value is not None:
            yield Finding(
                "load-errors",
                Severity.WARNING,
                f"Errors of the kind {drift.of.removeprefix('errors.')} rose from {drift.first.value:.2%} of the "
                f"answers in the first third of {sustained.phase} to {drift.last.value:.2%} in the last.",
            )
    if sustained.queue_grows and not is_saturated:
        asked = "" if asked_rate is None else f" of {asked_rate:.4g} requests/s"
        yield Finding(
            "load-queue-grows",
            Severity.WARNING,
            f"The queue grew during the whole phase {sustained.phase}: the target does not keep up with the "
            f"rate{asked}. Latencies depend on the duration.",
            "Use a lower rate.",
        )


def _change(drift: Drift) -> str:
    """A drift as text, with the interval of its ratio."""
    first, last, ratio = (one.value or 0.0 for one in (drift.first, drift.last, drift.ratio))
    low, high = (drift.ratio.low or 0.0) - 1, (drift.ratio.high or 0.0) - 1
    return (
        f"{first:.4g} {drift.unit} in the first third, {last:.4g} in the last ({ratio - 1:+.1%}, {low:+.1%} to "
        f"{high:+.1%})"
    )
