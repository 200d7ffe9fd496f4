"""Locked is not held: what throttled the clocks and for how long, and which batches that touched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from perfharness.analysis.metrics.figures import Held, Window, held
from perfharness.analysis.metrics.results import ClockEventTime, ClockHold
from perfharness.analysis.statistics import weighted_quantile
from perfharness.analysis.timeline.busy import BusyLine
from perfharness.model.telemetry import CLOCK_EVENT_REASONS, Series, clock_event_names
from perfharness.model.trace import Bool, Int64

MAX_DROP = 0.05
"""A clock this much below its reference was not held."""

IDLE_BIT = 0x1
NS_PER_S = 1e9
MIN_READINGS = 10
"""Fewer readings of a clock do not have a first and a last tenth."""

LOW_CLOCK = "sm_clock_low"
LOW_MEMORY_CLOCK = "memory_clock_low"
"""What a batch is marked with where a clock fell and NVML gave no reason."""


SLOWS = {reason.name: reason.slows for reason in CLOCK_EVENT_REASONS}


def reasons_in(mask: int) -> list[tuple[str, bool]]:
    """The reasons in a mask, and whether each is throttling. One that is not known yet is."""
    return [(name, SLOWS.get(name, True)) for name in clock_event_names(mask)]


@dataclass(frozen=True)
class Throttling:
    """When the clocks of one GPU were throttled, UTC ns, by reason."""

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


def of_any(throttlings: Sequence[Throttling]) -> Throttling:
    """When the clocks of any of several GPUs were throttled."""
    if len(throttlings) == 1:
        return throttlings[0]
    lines: dict[str, list[BusyLine]] = {}
    for one in throttlings:
        for reason, line in one.lines.items():
            lines.setdefault(reason, []).append(line)
    return Throttling(
        {
            reason: BusyLine(np.concatenate([line.start for line in of]), np.concatenate([line.end for line in of]))
            for reason, of in lines.items()
        }
    )


def clock_events(reasons: Series | None, window: Window | None) -> list[ClockEventTime] | None:
    """How long each reason was given in a window; None where it was not read."""
    if reasons is None or window is None or not reasons.is_read.any():
        return None
    inside = _around_readings(held(reasons), reasons).within(window)
    seconds: dict[tuple[str, bool], float] = {}
    for mask, weight in zip(inside.value.astype(np.int64).tolist(), inside.weight.tolist(), strict=True):
        for key in reasons_in(mask):
            seconds[key] = seconds.get(key, 0.0) + weight / NS_PER_S
    return [ClockEventTime(name, round(length, 6), throttles) for (name, throttles), length in seconds.items()]


def _around_readings(steps: Held, series: Series) -> Held:
    """A state is sampled and not averaged: it began, on the average, half a reading before it was seen."""
    half = round(series.usual_ns / 2)
    return Held(steps.start_ns - half, steps.end_ns - half, steps.value)


def find_throttling(
    reasons: Series | None, sm_clock: Series | None, memory_clock: Series | None,
    requested_mhz: tuple[float | None, float | None] = (None, None), work: Window | None = None,
) -> Throttling:  # fmt: skip
    """All times in which the GPU was throttled: by NVML's reasons, and by the clocks read.

    Args:
        reasons: `clock_event_reasons`; None where the GPU does not report them.
        sm_clock, memory_clock: in MHz.
        requested_mhz: what they were locked to, SM and memory; None: not locked.
        work: the time in which processes ran, in which a reference is searched where nothing was requested.
    """
    found: dict[str, list[Held]] = {}
    idle = BusyLine(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
    if reasons is not None and reasons.is_read.any():
        steps = _around_readings(held(reasons), reasons)
        masks = steps.value.astype(np.int64)
        for mask in np.unique(masks).tolist():
            for reason in (name for name, throttles in reasons_in(mask) if throttles):
                found.setdefault(reason, []).append(steps.at(masks == mask))
        resting = steps.at((masks & IDLE_BIT) > 0)
        idle = BusyLine(resting.start_ns, resting.end_ns)
    for name, clock, request in zip(
        (LOW_CLOCK, LOW_MEMORY_CLOCK), (sm_clock, memory_clock), requested_mhz, strict=True
    ):
        if clock is None or not clock.is_read.any():
            continue
        low = _low(clock, idle, request if request is not None else reference_mhz(clock, work), work)
        if len(low.value):
            found[name] = [low]
    return Throttling(
        {
            name: BusyLine(np.concatenate([s.start_ns for s in steps]), np.concatenate([s.end_ns for s in steps]))
            for name, steps in sorted(found.items())
        }
    )


def reference_mhz(clock: Series, work: Window | None) -> float | None:
    """The clock that the GPU ran at when it could: that of the best tenth of the time in which processes ran."""
    inside = held(clock) if work is None else held(clock).within(work)
    return weighted_quantile(inside.value, inside.weight, 0.9) if len(inside.value) else None


def _low(clock: Series, idle: BusyLine, reference: float | None, window: Window | None) -> Held:
    """When the clock was too low while the GPU was not idle."""
    steps = held(clock) if window is None else held(clock).within(window)
    if reference is None:
        return steps.at(np.zeros(len(steps.value), dtype=np.bool_))
    rests = idle.within(steps.start_ns, steps.end_ns) >= (steps.end_ns - steps.start_ns) / 2
    return steps.at((steps.value < (1 - MAX_DROP) * reference) & ~rests)


def clock_hold(
    clock: Series | None, window: Window | None, throttling: Throttling, name: str, requested_mhz: float | None,
    work: Window | None,
) -> ClockHold:  # fmt: skip
    """Whether a clock was held over a window. `name` is what `find_throttling` calls it where it was not."""
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
    inside = held(clock).within(window)
    tenth = (window[1] - window[0]) // 10
    before = _typical(inside.within((window[0], window[0] + tenth)))
    after = _typical(inside.within((window[1] - tenth, window[1])))
    drop = None if not before or after is None else round(100 * (before - after) / before, 3)
    reference = requested_mhz if requested_mhz is not None else reference_mhz(clock, work or window)
    low_s = round(throttling.within(window).get(name, 0.0), 6)
    return ClockHold(reference, requested, before, after, drop, low_s, None)


def _typical(steps: Held) -> float | None:
    return weighted_quantile(steps.value, steps.weight, 0.5) if len(steps.value) else None
