"""Detect changes over a run: growing memory; latencies and rates of the last third against the first.

Memory: the time after the first third is cut into blocks, and the lowest value of a block is what stays allocated. A
leak grows in the second half of that time at least half as fast as in the first; a pool that fills up slows down.
"""

from __future__ import annotations

from math import exp, hypot, log

import numpy as np

from perfharness.analysis.load.latency import Latencies, ratio_figure
from perfharness.analysis.statistics import growth
from perfharness.model.columns import Float64
from perfharness.model.load import Drift, DriftVerdict, LoadFigure, MemoryTrend

MB = 1e6
BLOCKS = 20
LEAST_READINGS = 30
"""Fewest readings over a run, or a third of it within a part."""

SETTLING = 1 / 3
"""Share of the run in which caches and pools fill up."""

SLOWING = 0.5
"""Ratio of the second half's slope to the first half's below which growth is ending."""

TOLERANCE_MB_PER_S = 1 / 60
"""1 MB per minute, 1.4 GB per day."""

DRIFT_TOLERANCE = 0.05


def memory_trend(
    of: str,
    time_s: Float64,
    memory_bytes: Float64,
    answers_per_s: float | None = None,
    tolerance_mb_per_s: float = TOLERANCE_MB_PER_S,
) -> MemoryTrend:
    """Judge whether memory leaks, from readings in time order; NaN for failed readings."""
    read = ~np.isnan(memory_bytes)
    at, used = time_s[read], memory_bytes[read] / MB
    found = MemoryTrend(of=of, verdict="cannot-tell", tolerance_mb_per_s=tolerance_mb_per_s)
    if len(used) < LEAST_READINGS:
        why = f"only {len(used)} readings; {LEAST_READINGS} are needed"
        return found.model_copy(update={"reason": why})
    begin = at[0] + SETTLING * (at[-1] - at[0])
    at, used = at[at >= begin], used[at >= begin]
    late = at >= (begin + at[-1]) / 2
    slope, first, second = _growth(at, used), _growth(at[~late], used[~late]), _growth(at[late], used[late])
    blocks = _blocks(used)
    shown = {"slope_mb_per_s": slope, "first_mb": float(blocks[0]), "last_mb": float(blocks[-1])}
    verdict, reason = _leaks(slope, first, second, tolerance_mb_per_s)
    per_request = None
    if verdict == "leaks" and answers_per_s and slope.value is not None:
        per_request = slope.value * MB / answers_per_s
    return found.model_copy(
        update={**shown, "verdict": verdict, "reason": reason, "per_request_bytes": per_request},
    )


def _leaks(whole: LoadFigure, first: LoadFigure, second: LoadFigure, tolerance: float) -> tuple[str, str | None]:
    if whole.low is None or whole.high is None:
        return "cannot-tell", whole.reason
    if whole.high <= tolerance:
        return "does-not-leak", None
    if whole.low <= 0:
        return "cannot-tell", "its slope may be 0 or above the tolerance; measure longer"
    if first.value is None or second.value is None or (second.low or 0.0) <= 0:
        return "cannot-tell", "it grew, but may have stopped; measure longer"
    if second.value < SLOWING * first.value:
        return "cannot-tell", "its growth slows down, like that of a pool that fills up; measure longer"
    return "leaks", None


def _blocks(used: Float64) -> Float64:
    """Lowest value per block, which ignores memory that a request takes and returns."""
    blocks = min(BLOCKS, len(used))
    return np.asarray(np.minimum.reduceat(used, np.arange(blocks) * len(used) // blocks))


def _growth(at: Float64, used: Float64) -> LoadFigure:
    """Growth per second with its interval, from readings evenly spaced in time."""
    if len(used) < LEAST_READINGS // 3:
        return LoadFigure(reason=f"only {len(used)} readings in that part")
    blocks = _blocks(used)
    block_s = float(at[-1] - at[0]) / (len(at) - 1) * len(at) / len(blocks)
    found = growth(blocks)
    return LoadFigure(value=found.value / block_s, low=found.low / block_s, high=found.high / block_s)


def grows(levels: Float64) -> bool | None:
    """Whether a level, such as a queue's, rose through both halves of a run beyond chance; None if undecided."""
    if len(levels) < LEAST_READINGS:
        return None
    middle = len(levels) // 2
    found = [growth(_blocks(part)).low > 0 for part in (levels, levels[:middle], levels[middle:])]
    if all(found):
        return True
    return None if found[0] else False


def latency_drift(times: Latencies, percent: float, tolerance: float = DRIFT_TOLERANCE) -> Drift:
    """Compare a percentile of the last third of the windows with the first third, in ms."""
    third = times.windows // 3
    first = times.part(0, third).percentile(percent)
    last = times.part(times.windows - third, times.windows).percentile(percent)
    return drift_of(f"latency.p{percent:g}", "ms", first, last, tolerance)


def rate_drift(of: str, unit: str, counts: Float64, over: Float64, tolerance: float = DRIFT_TOLERANCE) -> Drift:
    """Compare a rate (counts over requests or seconds, by window) in the last third with the first third."""
    third = len(counts) // 3
    first = ratio_figure(counts[:third], over[:third])
    last = ratio_figure(counts[len(counts) - third :], over[len(over) - third :])
    drift = drift_of(of, unit, first, last, tolerance)
    if first.value == 0 and last.low is not None and last.low > 0:  # no ratio exists
        return drift.model_copy(update={"verdict": "rises"})
    return drift


def drift_of(of: str, unit: str, first: LoadFigure, last: LoadFigure, tolerance: float = DRIFT_TOLERANCE) -> Drift:
    """Judge the ratio of two independent estimates."""
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
            reason = "its interval includes changes within and beyond the tolerance; measure longer"
    return Drift(
        of=of, verdict=verdict, first=first, last=last, unit=unit, ratio=ratio, tolerance=tolerance, reason=reason
    )


def _ratio(first: LoadFigure, last: LoadFigure) -> LoadFigure:
    """Last over first, with an interval recovered from both (Zou and Donner, Statistics in Medicine 27, 2008)."""
    if first.value is None or last.value is None:
        return LoadFigure(reason=first.reason or last.reason)
    if first.value <= 0:
        return LoadFigure(reason="it was 0 in the first third, so there is no ratio")
    value = last.value / first.value
    if first.low is None or first.high is None or last.low is None or last.high is None:
        return LoadFigure(value=value, reason=first.reason or last.reason or "one of the thirds has no interval")
    if min(first.low, last.low, last.value) <= 0:
        return LoadFigure(value=value, reason="one of the thirds may be 0")
    below = hypot(log(last.value / last.low), log(first.high / first.value))
    above = hypot(log(last.high / last.value), log(first.value / first.low))
    return LoadFigure(value=value, low=value * exp(-below), high=value * exp(above))
