"""What throttled the clocks, for how long and in which batches; whether a clock was held."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from perfharness.analysis.metrics.figures import Held, Window, held
from perfharness.analysis.metrics.results import ClockEventTime, ClockHold
from perfharness.analysis.timeline.busy import BusyLine
from perfharness.model.telemetry import CLOCK_EVENT_REASONS, SampleLog, Series, clock_event_names
from perfharness.model.trace import Bool, Int64
from perfharness.model.units import NS_PER_S

MAX_DROP = 0.05
"""A clock this much below its reference was not held."""

MIN_READINGS = 10
"""Fewer readings of a clock do not have a first and a last tenth."""

IDLE_BIT = 0x1
LOW_CLOCK, LOW_MEMORY_CLOCK = "sm_clock_low", "memory_clock_low"
"""Reasons where a clock fell and NVML gave none."""

SLOWS = {reason.name: reason.slows for reason in CLOCK_EVENT_REASONS}


@dataclass(frozen=True)
class RequestedClocks:
    """What a GPU's clocks were locked to, MHz; None: not locked, or not known."""

    sm_mhz: float | None = None
    memory_mhz: float | None = None

    def each(self) -> Iterator[tuple[str, str, float | None]]:
        """The reason where it is too low, its metric and the request of each clock."""
        yield LOW_CLOCK, "sm_clock_mhz", self.sm_mhz
        yield LOW_MEMORY_CLOCK, "memory_clock_mhz", self.memory_mhz


@dataclass(frozen=True)
class Throttling:
    """When the clocks of a GPU, or of any of several, were throttled, UTC ns, by reason."""

    lines: dict[str, BusyLine] = field(default_factory=dict)

    def touched(self, start_ns: Int64, end_ns: Int64) -> dict[str, Bool]:
        """By reason, which stretches of time it touched; only reasons that touched any."""
        during = {reason: line.within(start_ns, end_ns) > 0 for reason, line in self.lines.items()}
        return {reason: touched for reason, touched in during.items() if touched.any()}

    def within(self, window: Window) -> dict[str, float]:
        """By reason, seconds in a window."""
        start, end = np.asarray([window[0]]), np.asarray([window[1]])
        seconds = {reason: float(line.within(start, end)[0]) / NS_PER_S for reason, line in self.lines.items()}
        return {reason: length for reason, length in seconds.items() if length > 0}


def _joined(parts: Iterable[tuple[str, Int64, Int64]]) -> Throttling:
    """All stretches of each reason together."""
    found: dict[str, list[tuple[Int64, Int64]]] = {}
    for reason, start, end in parts:
        found.setdefault(reason, []).append((start, end))
    lines = {reason: [np.concatenate(side) for side in zip(*found[reason], strict=True)] for reason in sorted(found)}
    return Throttling({reason: BusyLine(start, end) for reason, (start, end) in lines.items()})


def of_any(throttlings: Sequence[Throttling]) -> Throttling:
    """When the clocks of any of several GPUs were throttled."""
    return _joined((reason, line.start, line.end) for one in throttlings for reason, line in one.lines.items())


def throttling_known(log: SampleLog, uuid: str) -> bool:
    """Whether the GPU reports anything that shows throttling."""
    seen = (log.get(uuid, metric) for metric in ("clock_event_reasons", "sm_clock_mhz"))
    return any(series is not None and bool(series.is_read.any()) for series in seen)


def throttling_of(log: SampleLog, uuid: str, requested: RequestedClocks, work: Window | None) -> Throttling:
    """All times in which a GPU (the whole GPU, of a MIG instance) was throttled: by NVML's reasons, and by the clocks.
    `work`: when processes ran, for a reference where nothing was requested.
    """
    parts = []
    nothing = np.empty(0, dtype=np.int64)
    idle = BusyLine(nothing, nothing)
    reasons = log.get(uuid, "clock_event_reasons")
    if reasons is not None and reasons.is_read.any():
        steps = _states(reasons)
        masks = steps.value.astype(np.int64)
        for mask in np.unique(masks).tolist():
            given = steps.at(masks == mask)
            parts += [(name, given.start_ns, given.end_ns) for name in clock_event_names(mask) if SLOWS.get(name, True)]
        resting = steps.at((masks & IDLE_BIT) > 0)
        idle = BusyLine(resting.start_ns, resting.end_ns)
    for name, metric, request in requested.each():
        clock = log.get(uuid, metric)
        if clock is not None and clock.is_read.any():
            steps = held(clock) if work is None else held(clock).within(work)
            rests = idle.within(steps.start_ns, steps.end_ns) >= (steps.end_ns - steps.start_ns) / 2
            least = (1 - MAX_DROP) * (request or reference_mhz(clock, work) or 0.0)
            low = steps.at((steps.value < least) & ~rests)
            parts += [(name, low.start_ns, low.end_ns)] if len(low.value) else []
    return _joined(parts)


def clock_events(reasons: Series | None, window: Window | None) -> list[ClockEventTime] | None:
    """How long each reason was given in a window; None where it was not read. An unknown reason throttles."""
    if reasons is None or window is None or not reasons.is_read.any():
        return None
    inside = _states(reasons).within(window)
    seconds: dict[str, float] = {}
    for mask, weight in zip(inside.value.astype(np.int64).tolist(), inside.weight.tolist(), strict=True):
        for name in clock_event_names(mask):
            seconds[name] = seconds.get(name, 0.0) + weight / NS_PER_S
    return [ClockEventTime(name, round(length, 6), SLOWS.get(name, True)) for name, length in seconds.items()]


def _states(series: Series) -> Held:
    """A state is sampled, not averaged: it began, on average, half a reading before it was seen."""
    steps, half = held(series), round(series.usual_ns / 2)
    return Held(steps.start_ns - half, steps.end_ns - half, steps.value)


def reference_mhz(clock: Series, work: Window | None) -> float | None:
    """The clock in the best tenth of the time in which processes ran."""
    return (held(clock) if work is None else held(clock).within(work)).quantile(0.9)


def clock_hold(
    clock: Series | None,
    window: Window | None,
    low_s: float,
    requested_mhz: float | None,
    work: Window | None,
) -> ClockHold:
    """Whether a clock was held over a window, in which it was too low for `low_s`."""
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
