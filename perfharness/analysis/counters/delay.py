"""How late a GPU's counters are: by what ran on the GPU itself.

A driver that refreshes its counters every 100 ms hands them out some time later (an H200, driver 580: 14 to 86 ms, the
same for all readings of a launch, another in the next; docs/guides/counters.md). The time at which a refresh is seen
says nothing about it, but the work does: a GPU counts only while something runs, so at the right delay each window is
explained by what ran in it, and at a wrong one it is not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfharness.analysis.counters.readings import GpmReadings
from perfharness.analysis.energy.kinds import BusyShares
from perfharness.model.result import Float64
from perfharness.model.telemetry import GPM_SHARES
from perfharness.model.trace import Int64

LATEST = 1.2
"""Of a window: so late may a reading be."""

COARSE_NS, FINE_NS = 5_000_000, 1_000_000
NOISE = 0.005
"""Of the peak: readings are not better than that."""

SAYS_SOMETHING = 0.02
"""Of the peak: a counter that never exceeds it has nothing to be explained."""

MOST_WINDOWS = 600
RULED_OUT = 3.841
"""Of twice the logarithm of a likelihood's ratio: 95 % of chi-squared with one degree of freedom (Wilks)."""


@dataclass(frozen=True)
class Delay:
    """How much later than what they are of readings seem to be, and how far that may be off (95 %)."""

    delay_ns: int
    error_ns: int


def find_delay(readings: GpmReadings, work: BusyShares) -> Delay:
    """The delay at which what ran explains the readings best; anything, where there is nothing to explain.

    Each counter's value in a window is taken for the sum of the classes' values, none negative, times their parts of
    the window; the likelihoods of all counters are averaged, since they err together.
    """
    window_ns = int(np.median(readings.end_ns - readings.start_ns)) if len(readings) else 0
    latest = int(LATEST * window_ns)
    near = np.flatnonzero(work.within(readings.start_ns - latest, readings.end_ns).sum(axis=0) > 0)
    near = near[np.unique(np.linspace(0, len(near) - 1, min(len(near), MOST_WINDOWS)).round().astype(np.int64))]
    start, end = readings.start_ns[near], readings.end_ns[near]
    values = [column[near] for name, column in readings.values.items() if name in GPM_SHARES]
    values = [column for column in values if not np.isnan(column).any() and column.max(initial=0.0) > SAYS_SOMETHING]
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
