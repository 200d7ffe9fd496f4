"""Telemetry readings as chart lines: rates of counters, gaps, and thinning that keeps every extreme."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from perfharness.analysis.metrics.activity import ProcessActivity, shares_over_time
from perfharness.analysis.timeline.busy import merge, stretches
from perfharness.model.columns import Float64, Int64
from perfharness.model.telemetry import CLOCK_EVENT_REASONS, HOST, SampleLog, Series
from perfharness.model.units import NS_PER_S

GAP_PERIODS = 4.0
"""Gap, in usual reading intervals, that breaks a line."""

BINS = 400
"""Time steps of a chart: up to four points and the breaks of a line in each; one value for stages and cores."""

MAX_CELLS = 16_000
"""Cores times time steps."""

MAX_STAGES = 7
"""Stages with their own colour; the others are combined."""


@dataclass(frozen=True)
class Spans:
    """Intervals of one kind, s; `share` of the readings inside, 0 to 1."""

    name: str
    start_s: list[float]
    end_s: list[float]
    share: float = 1.0


@dataclass(frozen=True)
class StageShares:
    """`percent` (names, steps): share of the processes' time per stage, in the step from `start_s`; the last name is
    time outside of stages. `is_rest`: the name before it combines several stages.
    """

    names: list[str]
    start_s: Float64
    percent: Float64
    is_rest: bool


@dataclass(frozen=True)
class CoreLoad:
    """`percent` (cores, steps): mean of the readings in a step; NaN without readings."""

    cores: list[str]
    edges_s: Float64
    percent: Float64


def rate_of(counter: Series) -> Series:
    """Increase of a counter per second since the previous reading; the first gets the value of the second."""
    step = np.diff(counter.value) / (np.diff(counter.time_monotonic_ns) / NS_PER_S)
    return replace(counter, value=np.append(step[:1], step) if len(step) else np.full(len(counter), np.nan))


def storage_rate(log: SampleLog) -> Series | None:
    """Bytes per second read and written by the machine; None if not sampled."""
    read, written = log.get(HOST, "read_bytes"), log.get(HOST, "write_bytes")
    if read is None or written is None or len(read) != len(written):
        return None
    return rate_of(replace(read, value=read.value + written.value))


def line_points(series: Series, zero_unix_ns: int, scale: float = 1.0) -> tuple[Float64, Float64]:
    """Times (s since `zero_unix_ns`) and values of a line with few points; NaN breaks it at missing readings."""
    times, values = (series.time_unix_ns - zero_unix_ns) / NS_PER_S, series.value * scale
    if len(times) > 2:
        between = np.diff(times)
        usual = np.median(between)
        wide = np.flatnonzero(between > GAP_PERIODS * usual)
        times, values = np.insert(times, wide + 1, times[wide] + usual), np.insert(values, wide + 1, np.nan)
    if len(times) > 5 * BINS:
        kept = _thinned(times, values)
        times, values = times[kept], values[kept]
    return times, values


def _thinned(times: Float64, values: Float64) -> Int64:
    """Indices that draw the same line: first, last, smallest and largest per time step, and the breaks."""
    step = np.minimum(((times - times[0]) / (times[-1] - times[0]) * BINS).astype(np.int64), BINS - 1)
    first = np.flatnonzero(np.diff(step, prepend=-1))
    last = np.append(first[1:], len(times)) - 1
    broken = np.isnan(values)
    smallest = np.lexsort((np.where(broken, np.inf, values), step))[first]
    largest = np.lexsort((np.where(broken, -np.inf, values), step))[last]
    breaks = np.flatnonzero(broken & ~(np.append(False, broken[:-1]) & np.append(broken[1:], False)))
    return np.unique(np.concatenate([first, last, smallest, largest, breaks]))


def throttle_spans(reasons: Series | None, zero_unix_ns: int) -> list[Spans]:
    """Intervals of each reason that lowers the clocks, until the next reading; close ones are joined."""
    if reasons is None or not reasons.is_read.any():
        return []
    bits = np.where(reasons.is_read, reasons.value, 0).astype(np.int64)
    times = reasons.time_unix_ns - zero_unix_ns
    near = (times[-1] - times[0]) // (4 * BINS)
    found = []
    for reason in CLOCK_EVENT_REASONS:
        active = (bits & reason.bit) != 0
        if reason.slows and active.any():
            first, after = stretches(active)
            start, end = merge(times[first], times[np.minimum(after, len(times) - 1)] + near)
            found.append(_spans(reason.name, start, end - near, float(active.mean())))
    return found


def core_load(log: SampleLog, zero_unix_ns: int) -> CoreLoad | None:
    """CPU use of every core over time; None if not sampled."""
    found = {record.subject: log.get(record.subject, "cpu_percent") for record in log.subjects("core")}
    cores = {subject: series for subject, series in found.items() if series is not None and len(series) > 1}
    if not cores:
        return None
    times = next(iter(cores.values())).time_unix_ns - zero_unix_ns
    steps = min(len(times), BINS, max(1, MAX_CELLS // len(cores)))
    step_of = np.arange(len(times)) * steps // len(times)
    middles = (times[1:] + times[:-1]) / 2
    percent = np.full((len(cores), steps), np.nan)
    for row, series in enumerate(cores.values()):
        read = series.select(series.is_read)
        step = step_of[np.searchsorted(middles, read.time_unix_ns - zero_unix_ns)]
        count = np.bincount(step, minlength=steps)
        percent[row, count > 0] = np.bincount(step, read.value, steps)[count > 0] / count[count > 0]
    last = np.flatnonzero(np.diff(step_of, append=steps))
    edges = np.append(2 * times[0] - times[1], times[last]) / NS_PER_S  # a reading covers the time before it
    return CoreLoad([subject.removeprefix("core:") for subject in cores], edges, percent)


def warmup_spans(activities: list[ProcessActivity], zero_unix_ns: int) -> Spans:
    """Warm-up times outside of measured windows."""
    windows = np.asarray([window for own in activities for window in own.warmup], dtype=np.int64).reshape(-1, 2)
    return _spans("warm-up batches", *merge(*(windows - zero_unix_ns).T))


def stage_spans(activities: list[ProcessActivity], zero_unix_ns: int) -> list[Spans]:
    """Every stage of every batch."""
    return [
        _spans(name, *(times[own.stage == code] - zero_unix_ns for times in (own.stage_start_ns, own.stage_end_ns)))
        for own in activities
        for code, name in enumerate(own.names)
    ]


def _spans(name: str, start_ns: Int64, end_ns: Int64, share: float = 1.0) -> Spans:
    return Spans(name, (start_ns / NS_PER_S).tolist(), (end_ns / NS_PER_S).tolist(), share)


def stage_shares(
    activities: list[ProcessActivity], begin_unix_ns: int, end_unix_ns: int, zero_unix_ns: int
) -> StageShares:
    """Share of each stage over time: the largest ones, the rest combined, and time outside of stages."""
    edges = np.linspace(begin_unix_ns - zero_unix_ns, end_unix_ns - zero_unix_ns, BINS + 1).astype(np.int64)
    found = shares_over_time(activities, edges + zero_unix_ns)
    names, share = list(found), np.stack(list(found.values()))
    is_rest = len(names) > MAX_STAGES + 1
    if is_rest:
        most = np.sort(np.argsort(-share[:-1].sum(axis=1), kind="stable")[:MAX_STAGES])
        rest = share[:-1].sum(axis=0) - share[most].sum(axis=0)
        others = f"{len(names) - 1 - MAX_STAGES} other stages"
        names = [*(names[position] for position in most), others, names[-1]]
        share = np.vstack([share[most], rest, share[-1]])
    return StageShares(names, edges[:-1] / NS_PER_S, share * 100, is_rest)
