"""Locked is not held: which reasons kept the clocks down and for how long, and which batches that touched."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfharness.analysis.metrics.figures import Held, Window, held, weighted_quantile
from perfharness.analysis.timeline import BusyLine
from perfharness.model.gpu_metrics import ClockEventTime, ClockHold
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
    """When what kept the clocks of one GPU down, UTC ns; ordered by reason, then time."""

    reasons: tuple[str, ...]
    spans: tuple[tuple[Int64, Int64], ...]

    def touched(self, start_ns: Int64, end_ns: Int64) -> dict[str, Bool]:
        """By reason, which stretches of time it touched; only reasons that touched any."""
        found = {}
        for reason, (start, end) in zip(self.reasons, self.spans, strict=True):
            during = BusyLine(start, end).within(start_ns, end_ns) > 0
            if during.any():
                found[reason] = during
        return found

    def within(self, window: Window) -> dict[str, float]:
        """By reason, seconds in a window."""
        seconds = {}
        for reason, (start, end) in zip(self.reasons, self.spans, strict=True):
            line = BusyLine(start, end)
            seconds[reason] = float(line.within(np.asarray([window[0]]), np.asarray([window[1]]))[0]) / NS_PER_S
        return {reason: length for reason, length in seconds.items() if length > 0}


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
    if len(series) < 2:
        return steps
    half = round(float(np.median(np.diff(series.time_unix_ns))) / 2)
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
    found: dict[str, list[tuple[int, int]]] = {}
    idle = BusyLine(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
    if reasons is not None and reasons.is_read.any():
        steps = _around_readings(held(reasons), reasons)
        masks = steps.value.astype(np.int64)
        for mask in np.unique(masks).tolist():
            at = masks == mask
            for reason, throttles in reasons_in(mask):
                if throttles:
                    pairs = zip(steps.start_ns[at].tolist(), steps.end_ns[at].tolist(), strict=True)
                    found.setdefault(reason, []).extend(pairs)
        resting = (masks & IDLE_BIT) > 0
        idle = BusyLine(steps.start_ns[resting], steps.end_ns[resting])
    for name, clock, request in zip(
        (LOW_CLOCK, LOW_MEMORY_CLOCK), (sm_clock, memory_clock), requested_mhz, strict=True
    ):
        if clock is None or not clock.is_read.any():
            continue
        low = _low(clock, idle, request if request is not None else reference_mhz(clock, work), work)
        if len(low.value):
            found[name] = list(zip(low.start_ns.tolist(), low.end_ns.tolist(), strict=True))
    spans = {name: np.asarray(pairs, dtype=np.int64).reshape(-1, 2) for name, pairs in sorted(found.items())}
    return Throttling(tuple(spans), tuple((both[:, 0], both[:, 1]) for both in spans.values()))


def reference_mhz(clock: Series, work: Window | None) -> float | None:
    """The clock that the GPU ran at when it could: that of the best tenth of the time in which processes ran."""
    inside = held(clock) if work is None else held(clock).within(work)
    return weighted_quantile(inside.value, inside.weight, 0.9) if len(inside.value) else None


def _low(clock: Series, idle: BusyLine, reference: float | None, window: Window | None) -> Held:
    """When the clock was too low while the GPU was not idle."""
    steps = held(clock) if window is None else held(clock).within(window)
    if reference is None:
        return Held(steps.start_ns[:0], steps.end_ns[:0], steps.value[:0])
    low = steps.value < (1 - MAX_DROP) * reference
    rests = idle.within(steps.start_ns, steps.end_ns) >= (steps.end_ns - steps.start_ns) / 2
    at = low & ~rests
    return Held(steps.start_ns[at], steps.end_ns[at], steps.value[at])


def clock_hold(
    clock: Series | None, window: Window | None, throttling: Throttling, name: str, requested_mhz: float | None,
    work: Window | None,
) -> ClockHold:  # fmt: skip
    """Whether a clock was held over a window. `name` is what `find_throttling` calls it where it was not."""
    is_requested = requested_mhz is not None

    def nothing(reason: str) -> ClockHold:
        return ClockHold(requested_mhz, is_requested, None, None, None, None, reason)

    if clock is None or not clock.is_read.any():
        return nothing("the clock was not sampled")
    if window is None:
        return nothing("there is no measured window")
    inside = held(clock).within(window)
    if len(clock.select(clock.is_read).between(*window)) < MIN_READINGS:
        return nothing(f"the clock was read fewer than {MIN_READINGS} times in the measured window")
    tenth = (window[1] - window[0]) // 10
    before = _typical(inside.within((window[0], window[0] + tenth)))
    after = _typical(inside.within((window[1] - tenth, window[1])))
    drop = None if not before or after is None else round(100 * (before - after) / before, 3)
    reference = requested_mhz if requested_mhz is not None else reference_mhz(clock, work or window)
    return ClockHold(
        reference, is_requested, before, after, drop, round(throttling.within(window).get(name, 0.0), 6), None
    )


def _typical(steps: Held) -> float | None:
    return weighted_quantile(steps.value, steps.weight, 0.5) if len(steps.value) else None
