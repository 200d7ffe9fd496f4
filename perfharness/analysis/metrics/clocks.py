"""Throttled clocks: reasons, durations and affected batches; and whether clocks were held."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from perfharness.analysis.metrics.figures import Held, held
from perfharness.analysis.metrics.results import ClockEventTime, ClockHold
from perfharness.analysis.timeline.busy import BusyLine, Window, union
from perfharness.model.columns import Bool, Int64
from perfharness.model.telemetry import CLOCK_EVENT_REASONS, SampleLog, Series, clock_event_names
from perfharness.model.units import NS_PER_S

MAX_DROP = 0.05
"""Relative drop below its reference from which on a clock was not held."""

MIN_READINGS = 10
"""Fewest readings of a clock to compare the first with the last tenth."""

IDLE_BIT = 0x1
LOW_CLOCK, LOW_MEMORY_CLOCK = "sm_clock_low", "memory_clock_low"
"""Reasons for a low clock if NVML gives none."""

SLOWS = {reason.name: reason.slows for reason in CLOCK_EVENT_REASONS}


@dataclass(frozen=True)
class RequestedClocks:
    """Locked clocks of a GPU, MHz; None if not locked or unknown."""

    sm_mhz: float | None = None
    memory_mhz: float | None = None

    def each(self) -> Iterator[tuple[str, str, float | None]]:
        """Yield the reason for a low clock, the metric and the request, per clock."""
        yield LOW_CLOCK, "sm_clock_mhz", self.sm_mhz
        yield LOW_MEMORY_CLOCK, "memory_clock_mhz", self.memory_mhz


@dataclass(frozen=True)
class Throttling:
    """Throttled times of one or several GPUs, UTC ns, by reason."""

    lines: dict[str, BusyLine] = field(default_factory=dict)

    def touched(self, start_ns: Int64, end_ns: Int64) -> dict[str, Bool]:
        """Mask, by reason, of the intervals it overlaps; without reasons that overlap none."""
        during = {reason: line.within(start_ns, end_ns) > 0 for reason, line in self.lines.items()}
        return {reason: touched for reason, touched in during.items() if touched.any()}

    def any_touched(self, start_ns: Int64, end_ns: Int64) -> Bool:
        """Mask of the intervals it overlaps."""
        lengths = [line.within(start_ns, end_ns) for line in self.lines.values()]
        found: Bool = np.any([np.zeros(len(start_ns)), *lengths], axis=0)
        return found

    def within(self, window: Window) -> dict[str, float]:
        """Seconds in a window, by reason."""
        start, end = np.asarray([window[0]]), np.asarray([window[1]])
        seconds = {reason: float(line.within(start, end)[0]) / NS_PER_S for reason, line in self.lines.items()}
        return {reason: length for reason, length in seconds.items() if length > 0}


def _joined(parts: Iterable[tuple[str, Int64, Int64]]) -> Throttling:
    """Join all intervals by reason."""
    found: dict[str, list[tuple[Int64, Int64]]] = {}
    for reason, start, end in parts:
        found.setdefault(reason, []).append((start, end))
    lines = {reason: [np.concatenate(side) for side in zip(*found[reason], strict=True)] for reason in sorted(found)}
    return Throttling({reason: BusyLine(start, end) for reason, (start, end) in lines.items()})


def of_any(throttlings: Sequence[Throttling]) -> Throttling:
    """Times in which the clocks of any of several GPUs were throttled."""
    return _joined((reason, line.start, line.end) for one in throttlings for reason, line in one.lines.items())


def throttling_known(log: SampleLog, uuid: str) -> bool:
    """Whether the GPU reports a metric that shows throttling."""
    seen = (log.get(uuid, metric) for metric in ("clock_event_reasons", "sm_clock_mhz"))
    return any(series is not None and bool(series.is_read.any()) for series in seen)


def throttling_of(log: SampleLog, uuid: str, requested: RequestedClocks, work: Window | None) -> Throttling:
    """All throttled times of a GPU (for a MIG instance, its whole GPU), by NVML's reasons and by low clocks. `work`:
    when processes ran, to derive a reference if no clock was requested.
    """
    parts, idle = [], BusyLine(*union([]))
    reasons = log.get(uuid, "clock_event_reasons")
    if reasons is not None and reasons.is_read.any():
        steps = _states(reasons)
        masks = steps.value.astype(np.int64)
        for mask in np.unique(masks).tolist():
            given = steps.select(masks == mask)
            parts += [(name, given.start_ns, given.end_ns) for name in clock_event_names(mask) if SLOWS.get(name, True)]
        resting = steps.select((masks & IDLE_BIT) > 0)
        idle = BusyLine(resting.start_ns, resting.end_ns)
    for name, metric, request in requested.each():
        clock = log.get(uuid, metric)
        if clock is not None and clock.is_read.any():
            steps = held(clock) if work is None else held(clock).within(work)
            rests = idle.within(steps.start_ns, steps.end_ns) >= (steps.end_ns - steps.start_ns) / 2
            least = (1 - MAX_DROP) * (request or reference_mhz(clock, work) or 0.0)
            low = steps.select((steps.value < least) & ~rests)
            parts += [(name, low.start_ns, low.end_ns)] if len(low.value) else []
    return _joined(parts)


def clock_events(reasons: Series | None, window: Window | None) -> list[ClockEventTime] | None:
    """Seconds of each reason in a window; None if not read. Unknown reasons count as throttling."""
    if reasons is None or window is None or not reasons.is_read.any():
        return None
    inside = _states(reasons).within(window)
    seconds: dict[str, float] = {}
    for mask, weight in zip(inside.value.astype(np.int64).tolist(), inside.weight.tolist(), strict=True):
        for name in clock_event_names(mask):
            seconds[name] = seconds.get(name, 0.0) + weight / NS_PER_S
    return [ClockEventTime(name, round(length, 6), SLOWS.get(name, True)) for name, length in seconds.items()]


def _states(series: Series) -> Held:
    """Shift sampled states half a reading earlier, their mean start."""
    steps, half = held(series), round(series.usual_ns / 2)
    return Held(steps.start_ns - half, steps.end_ns - half, steps.value)


def reference_mhz(clock: Series, work: Window | None) -> float | None:
    """The clock of the best tenth of the time in which processes ran."""
    return (held(clock) if work is None else held(clock).within(work)).quantile(0.9)


def clock_hold(
    clock: Series | None,
    window: Window | None,
    requested_mhz: float | None = None,
    *,
    work: Window | None,
    low_s: float = 0.0,
) -> ClockHold:
    """Judge whether a clock was held over a window in which it was too low for `low_s`."""
    requested = requested_mhz is not None
    reason = None
    if clock is None or not clock.is_read.any():
        reason = "the clock was not sampled"
    elif window is None:
        reason = "there is no measured window"
    elif len(clock.select(clock.is_read).between(*window)) < MIN_READINGS:
        reason = f"the clock was read fewer than {MIN_READINGS} times in the measured window"
    if clock is None or window is None or reason is not None:
        return ClockHold(requested_mhz, requested, None, None, None, None, reason)
    inside, tenth = held(clock).within(window), (window[1] - window[0]) // 10
    before = inside.within((window[0], window[0] + tenth)).quantile(0.5)
    after = inside.within((window[1] - tenth, window[1])).quantile(0.5)
    drop = None if not before or after is None else round(100 * (before - after) / before, 3)
    reference = requested_mhz if requested_mhz is not None else reference_mhz(clock, work or window)
    return ClockHold(reference, requested, before, after, drop, round(low_s, 6), None)
