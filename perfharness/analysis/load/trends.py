"""Whether something changes over a run: memory that grows, latencies and rates of the last third against the first.

Memory: the time after the first third is cut into blocks, whose lowest values are what stays allocated; the growth is
the mean of the differences between neighbouring blocks, with Student's interval. Differences are independent of each
other even where memory wanders at random, and a step of a cache that fills is one large difference, which widens the
interval until it holds 0. A leak grows in the second half of that time too, at no less than half of the speed of the
first: a pool that fills up slows down. `scripts/load_calibration --memory` simulates how often that is right.
"""

from __future__ import annotations

from math import exp, hypot, log, sqrt

import numpy as np

from perfharness.analysis.load.proportions import (
    ALPHA,
    BATCHES,
    Float64,
    Latencies,
    WindowedCounts,
    batch_variance,
)
from perfharness.analysis.statistics import student_quantile
from perfharness.model.load_judgement import Drift, DriftVerdict, LoadFigure, MemoryTrend

MB = 1e6
BLOCKS = 20
LEAST_READINGS = 30
"""Over a run; a third of them is not judged."""

SETTLING = 1 / 3
"""Of the run, in which caches and pools fill."""

SLOWING = 0.5
"""A slope in the second half below so much of that in the first is one that ends."""

TOLERANCE_MB_PER_S = 1 / 60
"""1 MB a minute, 1.4 GB a day."""

DRIFT_TOLERANCE = 0.05


def memory_trend(
    of: str, time_s: Float64, memory_bytes: Float64, answers_per_s: float | None = None,
    tolerance_mb_per_s: float = TOLERANCE_MB_PER_S,
) -> MemoryTrend:  # fmt: skip
    """Whether memory leaks, of readings in order of time; NaN: it was not read."""
    read = ~np.isnan(memory_bytes)
    at, used = time_s[read], memory_bytes[read] / MB
    if len(used) < LEAST_READINGS:
        why = f"it was read {len(used)} times; {LEAST_READINGS} are needed"
        return MemoryTrend(of=of, verdict="cannot-tell", tolerance_mb_per_s=tolerance_mb_per_s, reason=why)
    begin, end = at[0] + SETTLING * (at[-1] - at[0]), at[-1]
    judged = at >= begin
    at, used = at[judged], used[judged]
    middle = (begin + end) / 2
    slope = _growth(at, used)
    early, late = _growth(at[at < middle], used[at < middle]), _growth(at[at >= middle], used[at >= middle])
    blocks = _blocks(used)
    found = MemoryTrend(
        of=of,
        verdict="cannot-tell",
        slope_mb_per_s=slope,
        tolerance_mb_per_s=tolerance_mb_per_s,
        first_mb=float(blocks[0]),
        last_mb=float(blocks[-1]),
    )
    if slope.value is None or slope.low is None or slope.high is None:
        return found.model_copy(update={"reason": slope.reason})
    if slope.high <= tolerance_mb_per_s:
        return found.model_copy(update={"verdict": "does-not-leak"})
    if slope.low <= 0:
        return found.model_copy(update={"reason": "its slope may be 0, and may be above the tolerance; measure longer"})
    if late.low is None or early.value is None or late.value is None or late.low <= 0:
        return found.model_copy(update={"reason": "it grew, and it is not certain that it still does; measure longer"})
    if late.value < SLOWING * early.value:
        return found.model_copy(update={"reason": "it grows ever more slowly, as what fills up does; measure longer"})
    per_request = slope.value * MB / answers_per_s if answers_per_s else None
    return found.model_copy(update={"verdict": "leaks", "per_request_bytes": per_request})


def _blocks(used: Float64) -> Float64:
    """Lowest value of each block: what a request takes and gives back is no growth."""
    edges = np.arange(min(BLOCKS, len(used))) * len(used) // min(BLOCKS, len(used))
    return np.asarray(np.minimum.reduceat(used, edges))


def _growth(at: Float64, used: Float64) -> LoadFigure:
    """A second, with its interval; readings evenly spaced in time."""
    if len(used) < LEAST_READINGS // 3:
        return LoadFigure(reason=f"it was read {len(used)} times in that part")
    steps = np.diff(_blocks(used))
    block_s = float(at[-1] - at[0]) / (len(at) - 1) * len(at) / (len(steps) + 1)
    mean = float(steps.mean())
    half = student_quantile(1 - ALPHA / 2, len(steps) - 1) * float(steps.std(ddof=1)) / sqrt(len(steps))
    return LoadFigure(value=mean / block_s, low=(mean - half) / block_s, high=(mean + half) / block_s)


def grows(levels: Float64) -> bool | None:
    """Whether a level, as of a queue, rose through both halves of a time beyond chance; None: cannot tell."""
    if len(levels) < LEAST_READINGS:
        return None
    at = np.arange(len(levels), dtype=np.float64)
    middle = len(levels) // 2
    parts = [_growth(at, levels), _growth(at[:middle], levels[:middle]), _growth(at[middle:], levels[middle:])]
    if all(one.low is not None and one.low > 0 for one in parts):
        return True
    return False if parts[0].low is not None and parts[0].low <= 0 else None


def latency_drift(counts: WindowedCounts, percent: float, tolerance: float = DRIFT_TOLERANCE) -> Drift:
    """A percentile of the last third of the windows against the first, in ms."""
    third = counts.windows // 3
    first = Latencies(counts.part(0, third)).percentile(percent)
    last = Latencies(counts.part(counts.windows - third, counts.windows)).percentile(percent)
    return drift_of(f"latency.p{percent:g}", "ms", first, last, tolerance)


def drift_of(of: str, unit: str, first: LoadFigure, last: LoadFigure, tolerance: float = DRIFT_TOLERANCE) -> Drift:
    """Two estimates that are independent of each other, and what their ratio says.

    The interval of the ratio is recovered from both (Zou and Donner, Construction of confidence limits about effect
    measures, Statistics in Medicine 27, 2008), of the logarithms.
    """
    ratio = _ratio(first, last)
    verdict: DriftVerdict = "cannot-tell"
    reason = ratio.reason
    if ratio.low is not None and ratio.high is not None:
        if ratio.low > 1 + tolerance:
            verdict = "rises"
        elif ratio.high < 1 - tolerance:
            verdict = "falls"
        elif ratio.low >= 1 - tolerance and ratio.high <= 1 + tolerance:
            verdict = "steady"
        else:
            reason = "its interval holds changes within and beyond the tolerance; measure longer"
    return Drift(
        of=of, verdict=verdict, first=first, last=last, unit=unit, ratio=ratio, tolerance=tolerance, reason=reason
    )


def _ratio(first: LoadFigure, last: LoadFigure) -> LoadFigure:
    if first.value is None or last.value is None:
        return LoadFigure(reason=first.reason or last.reason)
    if first.value <= 0:
        return LoadFigure(reason="it was 0 in the first third, which has no ratio")
    value = last.value / first.value
    ends = (first.low, first.high, last.low, last.high)
    if any(end is None for end in ends):
        return LoadFigure(value=value, reason=first.reason or last.reason or "one of the thirds has no interval")
    first_low, first_high, last_low, last_high = (float(end or 0.0) for end in ends)
    if min(first_low, last_low, last.value) <= 0:
        return LoadFigure(value=value, reason="one of the thirds may be 0")
    below = hypot(log(last.value / last_low), log(first_high / first.value))
    above = hypot(log(last_high / last.value), log(first.value / first_low))
    return LoadFigure(value=value, low=value * exp(-below), high=value * exp(above))


def rate_drift(of: str, unit: str, counts: Float64, over: Float64, tolerance: float = DRIFT_TOLERANCE) -> Drift:
    """Counts over something (requests, seconds) by window: the ratio in the last third against the first."""
    third = len(counts) // 3
    first = ratio_estimate(counts[:third], over[:third])
    last = ratio_estimate(counts[len(counts) - third :], over[len(over) - third :])
    drift = drift_of(of, unit, first, last, tolerance)
    if first.value == 0 and last.low is not None and last.low > 0:  # which has no ratio
        return drift.model_copy(update={"verdict": "rises"})
    return drift


def ratio_estimate(counts: Float64, over: Float64) -> LoadFigure:
    """Sum over sum of windows that depend on their neighbours, with the interval of batch means."""
    total = float(over.sum())
    if total <= 0:
        return LoadFigure(reason="there is none of it")
    value = float(counts.sum()) / total
    variance = batch_variance(counts - value * over, over)
    if isinstance(variance, str):
        return LoadFigure(value=value, reason=variance)
    half = student_quantile(1 - ALPHA / 2, BATCHES[0] - 1) * sqrt(variance) / total
    return LoadFigure(value=value, low=max(value - half, 0.0), high=value + half)
