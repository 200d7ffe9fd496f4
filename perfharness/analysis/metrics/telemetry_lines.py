"""Readings of telemetry as lines to be drawn: rates of counters, gaps, and few points that keep every extreme."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfharness.analysis.timeline.activity import ProcessActivity, shares_over_time
from perfharness.analysis.timeline.busy import merge, stretches
from perfharness.model.telemetry import CLOCK_EVENT_REASONS, HOST, Float64, SampleLog, Series
from perfharness.model.trace import Int64

NS_PER_S = 1e9
GAP_PERIODS = 4.0
"""Readings further apart than this many usual distances are not joined by a line."""

BINS = 400
"""Steps of time of a chart: a line keeps four points and its breaks in each; stages and cores have one value."""

MAX_CELLS = 16_000
"""Cores times steps of time."""

MAX_STAGES = 7
"""Stages with a colour of their own; the others are one."""


@dataclass(frozen=True)
class Spans:
    """Intervals of time of one kind, s; `share` of the readings that were inside, 0 to 1."""

    name: str
    start_s: list[float]
    end_s: list[float]
    share: float = 1.0


@dataclass(frozen=True)
class StageShares:
    """`percent` has shape (names, steps): of the processes' time in a step that began at `start_s`, that in a stage.

    The last name is what batches did outside of their stages; `is_rest`: the one before is several stages together.
    """

    names: list[str]
    start_s: Float64
    percent: Float64
    is_rest: bool


@dataclass(frozen=True)
class CoreLoad:
    """`percent` has shape (cores, steps), the mean of the readings in a step; NaN where there were none."""

    cores: list[str]
    edges_s: Float64
    percent: Float64


def rate_of(counter: Series) -> Series:
    """Increase per second of a counter since the reading before; the first has none."""
    step = np.diff(counter.value, prepend=np.nan) / (np.diff(counter.time_monotonic_ns, prepend=0) / NS_PER_S)
    return Series(counter.time_unix_ns, counter.time_monotonic_ns, step, counter.is_new, counter.read_ns)


def storage_rate(log: SampleLog) -> Series | None:
    """What the machine read and wrote together, bytes a second; None where that was not sampled."""
    read, written = log.get(HOST, "read_bytes"), log.get(HOST, "write_bytes")
    if read is None or written is None or len(read) != len(written):
        return None
    both = Series(read.time_unix_ns, read.time_monotonic_ns, read.value + written.value, read.is_new, read.read_ns)
    return rate_of(both)


def line_points(
    series: Series, zero_unix_ns: int, scale: float = 1.0, *, is_rate: bool = False
) -> tuple[Float64, Float64]:
    """Times (s since `zero_unix_ns`) and values of a line of steps, with gaps and few points; NaN breaks the line.

    Args:
        is_rate: a value is of the time before its reading; else it holds until the next.
    """
    times, values = with_gaps((series.time_unix_ns - zero_unix_ns) / NS_PER_S, series.value * scale)
    kept = thinned(times, values)
    return whole_steps(times[kept], values[kept], is_rate=is_rate)


def whole_steps(times: Float64, values: Float64, *, is_rate: bool) -> tuple[Float64, Float64]:
    """The same with a point where the step next to a gap ends, for a chart draws nothing between a point and NaN."""
    broken = np.isnan(values)
    if is_rate:
        after = np.flatnonzero(broken[:-1] & ~broken[1:]) + 1
        return np.insert(times, after, times[after - 1]), np.insert(values, after, values[after])
    first = np.flatnonzero(~broken[:-1] & broken[1:]) + 1
    return np.insert(times, first, times[first]), np.insert(values, first, values[first - 1])


def with_gaps(times: Float64, values: Float64) -> tuple[Float64, Float64]:
    """The same with a break where readings are missing; those that failed are NaN, which breaks a line too."""
    if len(times) < 3:
        return times, values
    between = np.diff(times)
    wide = np.flatnonzero(between > GAP_PERIODS * np.median(between))
    return (
        np.insert(times, wide + 1, times[wide] + np.median(between)),
        np.insert(values, wide + 1, np.nan),
    )


def thinned(times: Float64, values: Float64, bins: int = BINS) -> Int64:
    """Positions that draw the same line: first, last, smallest, largest of each step of time, and where it breaks."""
    if len(times) <= 5 * bins:
        return np.arange(len(times))
    step = np.minimum(((times - times[0]) / (times[-1] - times[0]) * bins).astype(np.int64), bins - 1)
    first = np.flatnonzero(np.diff(step, prepend=-1))
    last = np.append(first[1:], len(times)) - 1
    broken = np.isnan(values)
    smallest = np.lexsort((np.where(broken, np.inf, values), step))[first]
    largest = np.lexsort((np.where(broken, -np.inf, values), step))[last]
    breaks = np.flatnonzero(broken & ~(np.append(False, broken[:-1]) & np.append(broken[1:], False)))
    return np.unique(np.concatenate([first, last, smallest, largest, breaks]))


def throttle_spans(reasons: Series | None, zero_unix_ns: int) -> list[Spans]:
    """When each reason that lowers the clocks was given, up to the next reading; none where it never was.

    Stretches that no chart could separate are one; the shares are of the readings.
    """
    if reasons is None or not reasons.is_read.any():
        return []
    bits = np.where(reasons.is_read, reasons.value, 0).astype(np.int64)
    times = reasons.time_unix_ns - zero_unix_ns
    close = (times[-1] - times[0]) // (4 * BINS)
    found = []
    for reason in CLOCK_EVENT_REASONS:
        active = (bits & reason.bit) != 0
        if not reason.slows or not active.any():
            continue
        first, after = stretches(active)
        until = times[np.minimum(after, len(times) - 1)]
        starts, ends = merge(times[first], until + close)
        found.append(_spans(reason.name, starts, ends - close, float(active.mean())))
    return found


def core_load(log: SampleLog, zero_unix_ns: int) -> CoreLoad | None:
    """CPU time of every core over time; None where it was not sampled."""
    found = [
        (record.subject, series)
        for record in log.subjects("core")
        if (series := log.get(record.subject, "cpu_percent")) is not None and len(series) > 1
    ]
    if not found:
        return None
    times = found[0][1].time_unix_ns - zero_unix_ns
    steps = min(len(times), BINS, max(1, MAX_CELLS // len(found)))
    step_of = np.arange(len(times)) * steps // len(times)
    last = np.flatnonzero(np.diff(step_of, append=steps))
    middles = (times[1:] + times[:-1]) / 2
    rows = np.full((len(found), steps), np.nan)
    for position, (_, series) in enumerate(found):
        series = series.select(series.is_read)
        step = step_of[np.searchsorted(middles, series.time_unix_ns - zero_unix_ns)]
        count = np.bincount(step, minlength=steps)
        has = count > 0
        rows[position, has] = np.bincount(step, series.value, steps)[has] / count[has]
    edges = np.append(2 * times[0] - times[1], times[last]) / NS_PER_S  # a reading is of the time before it
    return CoreLoad([subject.removeprefix("core:") for subject, _ in found], edges, rows)


def warmup_spans(activities: list[ProcessActivity], zero_unix_ns: int) -> Spans:
    """Where all that ran was warm-up."""
    windows = np.asarray([window for own in activities for window in own.warmup], dtype=np.int64).reshape(-1, 2)
    return _spans("warm-up batches", *merge(*(windows - zero_unix_ns).T))


def stage_spans(activities: list[ProcessActivity], zero_unix_ns: int) -> list[Spans]:
    """Every stage of every batch."""
    return [
        _spans(
            name,
            own.stage_start_ns[own.stage == code] - zero_unix_ns,
            own.stage_end_ns[own.stage == code] - zero_unix_ns,
        )
        for own in activities
        for code, name in enumerate(own.names)
    ]


def _spans(name: str, start_ns: Int64, end_ns: Int64, share: float = 1.0) -> Spans:
    return Spans(name, (start_ns / NS_PER_S).tolist(), (end_ns / NS_PER_S).tolist(), share)


def stage_shares(
    activities: list[ProcessActivity], begin_unix_ns: int, end_unix_ns: int, zero_unix_ns: int
) -> StageShares:
    """The share of each stage over time: the most used ones, the others together, what was outside of stages."""
    edges = np.linspace(begin_unix_ns - zero_unix_ns, end_unix_ns - zero_unix_ns, BINS + 1).astype(np.int64)
    found = shares_over_time(activities, edges + zero_unix_ns)
    names, share = found.names, found.share
    is_rest = len(names) > MAX_STAGES + 1
    if is_rest:
        most = np.sort(np.argsort(-share[:-1].sum(axis=1), kind="stable")[:MAX_STAGES])
        rest = share[:-1].sum(axis=0) - share[most].sum(axis=0)
        others = f"{len(names) - 1 - MAX_STAGES} other stages"
        names = [*(names[position] for position in most), others, names[-1]]
        share = np.vstack([share[most], rest, share[-1]])
    return StageShares(names, edges[:-1] / NS_PER_S, share * 100, is_rest)
