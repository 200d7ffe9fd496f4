"""How late a GPU's counters are: by what ran on the GPU itself.

A driver that refreshes its counters every 100 ms hands them out some time later. On an H200 (driver 580) the counters
are taken in a rhythm of their own, exactly 100 ms, and a refresh hands out the last of them: 0 to 100 ms late, and
since refreshes are a little further apart than that (100.14 ms where they are looked for each millisecond), ever later,
by 1.4 ms a second (docs/guides/counters.md). Elsewhere the delay may be a constant. The time at which a refresh is seen
does not tell, but the work does: a GPU counts only while something runs, so at the right place each window is explained
by what ran in it, and at a wrong one it is not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from perfharness.analysis.counters.readings import SAYS_SOMETHING, GpmReadings, joined, some_of
from perfharness.analysis.energy.kinds import BusyShares
from perfharness.model.result import Float64
from perfharness.model.telemetry import GPM_SHARES
from perfharness.model.trace import Bool, Int64

LATEST = 1.2
"""Of a window: so late may a reading be."""

COARSE_NS, FINE_NS, FINEST_NS = 5_000_000, 1_000_000, 250_000
NOISE = 0.005
"""Of the peak: readings are not better than that."""

RULED_OUT = 3.841
"""Of twice the logarithm of a likelihood's ratio: 95 % of chi-squared with one degree of freedom (Wilks)."""

WHOLE_NS = 1_000_000
"""A rhythm is a whole number of these."""

NOT_THE_LENGTH = 0.3
"""Of the period: where the time between two refreshes is that far off the windows of the rhythm between them, one of
the refreshes was seen too late to say which window it handed out."""

STRETCH = 300
"""Windows whose rhythm is taken for exact; the next ones may be off it by a little, as two oscillators are."""


@dataclass(frozen=True)
class Delay:
    """How much later than what they are of readings seem to be, and how far that may be off (95 %)."""

    delay_ns: int
    error_ns: int


@dataclass(frozen=True)
class Rhythm:
    """Windows that end at `phase_ns` and whole periods after it, and how far that may be off (95 %)."""

    period_ns: int
    phase_ns: int
    error_ns: int

    def windows(self, readings: GpmReadings) -> tuple[Int64, Int64, Bool]:
        """Starts and ends of what the readings are of, the last windows that were over; and where that is sure."""
        first = (readings.start_ns - self.phase_ns) // self.period_ns
        last = (readings.end_ns - self.phase_ns) // self.period_ns
        length = readings.end_ns - readings.start_ns
        off = np.abs(length - (last - first) * self.period_ns)
        sure = (last > first) & (off <= NOT_THE_LENGTH * self.period_ns)
        return self.phase_ns + first * self.period_ns, self.phase_ns + last * self.period_ns, sure


def placed(readings: GpmReadings, work: BusyShares) -> GpmReadings:
    """Readings at the times that they are of: in a rhythm of the GPU's, or all late by the same; as the work has it.

    Where neither is ruled out, the error holds both.
    """
    delay = find_delay(readings, work)
    late = readings.moved(-delay.delay_ns, delay.error_ns)
    in_rhythm, before = [], None
    for stretch in np.array_split(np.arange(len(readings)), max(len(readings) // STRETCH, 1)):
        which = np.zeros(len(readings), dtype=np.bool_)
        which[stretch] = True
        part = readings.select(which)
        rhythm = find_rhythm(part, work, before)
        if rhythm is None:
            return late
        start, end, sure = rhythm.windows(part)
        in_rhythm.append((replace(part, start_ns=start, end_ns=end).select(sure), part.select(sure), rhythm))
        before = rhythm
    found = joined([part for part, _, _ in in_rhythm])
    seen = joined([part for _, part, _ in in_rhythm]).moved(-delay.delay_ns)
    near = _near(work, found)
    better = _likeness(work, seen.select(near)) - _likeness(work, found.select(near))
    if better < 0:
        return late
    # The ends are the rhythm's, whenever they were seen.
    error_ns = max(rhythm.error_ns for _, _, rhythm in in_rhythm)
    if better <= RULED_OUT and near.any():
        error_ns = max(error_ns, delay.error_ns, int(np.abs(seen.end_ns - found.end_ns)[near].max()))
    return replace(found, edge_error_ns=error_ns)


def find_rhythm(readings: GpmReadings, work: BusyShares, near: Rhythm | None = None) -> Rhythm | None:
    """The rhythm that explains the readings best, near the one before; None where there is nothing to go by."""
    if near is None and not len(readings):
        return None
    period = near.period_ns if near else _whole(float(np.median(readings.end_ns - readings.start_ns)))
    if not period:
        return None
    used = readings.select(_near(work, readings))
    if not _telling(used):
        return near

    def misfit(phase: int) -> float:
        start, end, sure = Rhythm(period, phase, 0).windows(used)
        if sure.mean() < 0.5:
            return np.inf
        # As many windows for each phase, or those with fewer would seem the better.
        values = [column[sure] for column in _telling(used)]
        return _misfit(work, start[sure], end[sure], values) / float(sure.mean())

    tried = {phase: misfit(phase) for phase in _around(near, period)}
    for step, reach in ((FINE_NS, COARSE_NS), (FINEST_NS, FINE_NS)):
        best = min(sorted(tried), key=tried.__getitem__)
        tried |= {each: misfit(each) for each in range(best - reach, best + reach + 1, step) if each not in tried}
    best = min(sorted(tried), key=tried.__getitem__)
    if not np.isfinite(tried[best]):
        return None
    likely = [phase for phase, each in tried.items() if each <= tried[best] + RULED_OUT]
    return Rhythm(period, best, max(best - min(likely), max(likely) - best, FINEST_NS))


def _around(near: Rhythm | None, period: int) -> range:
    if near is None:
        return range(0, period, COARSE_NS)
    return range(near.phase_ns - COARSE_NS, near.phase_ns + COARSE_NS + 1, FINE_NS)


def _whole(length_ns: float) -> int:
    return round(length_ns / WHOLE_NS) * WHOLE_NS


def find_delay(readings: GpmReadings, work: BusyShares) -> Delay:
    """The delay at which what ran explains the readings best; anything, where there is nothing to explain.

    Each counter's value in a window is taken for the sum of the classes' values, none negative, times their parts of
    the window; the likelihoods of all counters are averaged, since they err together.
    """
    window_ns = int(np.median(readings.end_ns - readings.start_ns)) if len(readings) else 0
    latest = int(LATEST * window_ns)
    used = readings.select(_near(work, readings))
    start, end, values = used.start_ns, used.end_ns, _telling(used)
    if not values:
        return Delay(latest // 2, latest // 2)
    misfit = {by: _misfit(work, start - by, end - by, values) for by in range(0, latest + 1, COARSE_NS)}
    best = min(misfit, key=misfit.__getitem__)
    for by in range(max(best - COARSE_NS, 0), best + COARSE_NS + 1, FINE_NS):
        if by not in misfit:
            misfit[by] = _misfit(work, start - by, end - by, values)
    found = min(sorted(misfit), key=misfit.__getitem__)
    likely = [by for by, each in misfit.items() if each <= misfit[found] + RULED_OUT]
    return Delay(found, max(found - min(likely), max(likely) - found, FINE_NS))


def _near(work: BusyShares, readings: GpmReadings) -> Bool:
    """Windows in or shortly before which something ran; of many, some."""
    found = np.zeros(len(readings), dtype=np.bool_)
    if not len(readings):
        return found
    latest = int(LATEST * float(np.median(readings.end_ns - readings.start_ns)))
    near = np.flatnonzero(work.within(readings.start_ns - latest, readings.end_ns).sum(axis=0) > 0)
    found[some_of(near)] = True
    return found


def _telling(readings: GpmReadings) -> list[Float64]:
    """The counters that were read throughout and have something to be explained."""
    values = [column for name, column in readings.values.items() if name in GPM_SHARES]
    return [column for column in values if not np.isnan(column).any() and column.max(initial=0.0) > SAYS_SOMETHING]


def _likeness(work: BusyShares, readings: GpmReadings) -> float:
    """The misfit of readings where they are; 0 where there is nothing to explain."""
    values = _telling(readings)
    return _misfit(work, readings.start_ns, readings.end_ns, values) if values else 0.0


def _misfit(work: BusyShares, start_ns: Int64, end_ns: Int64, values: list[Float64]) -> float:
    """Minus twice the logarithm of the likelihood, averaged over the counters."""
    share = work.within(start_ns, end_ns).T / ((end_ns - start_ns)[:, None] / 1e9)
    share = share[:, share.any(axis=0)]
    found = []
    for value in values:
        left = _unexplained(share, value) if share.size else float(value @ value)
        found.append(len(value) * np.log(left / len(value) + NOISE**2))
    return float(np.mean(found))


def _unexplained(share: Float64, value: Float64) -> float:
    """What is left of the sum of squares."""
    from scipy.optimize import nnls  # half a second, which only traces with readings are worth

    try:
        return float(nnls(share, value, maxiter=30 * share.shape[1])[1]) ** 2
    except RuntimeError:  # it went round in circles, as it does now and then where columns are nearly the same
        return float(((share @ np.linalg.lstsq(share, value, rcond=None)[0] - value) ** 2).sum())
