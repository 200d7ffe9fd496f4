"""Latency of repeated iterations, with the intervals of `analysis.statistics`.

Measuring stops by the relative width of the median's interval (Hoefler and Belli, Scientific Benchmarking of Parallel
Computing Systems, SC 2015, rules 5 and 6).
"""

from __future__ import annotations

import numpy as np

from perfharness.analysis.statistics import (
    MIN_VALUES,
    PERCENTILES,
    mean_interval,
    min_count,
    percentile_interval,
    trend,
)
from perfharness.model.bench import Estimate, LatencyStats
from perfharness.model.columns import Float64

BLOCKS = 20
"""Number of medians used to detect a drift."""

MIN_FOR_DRIFT = 18
DRIFT_ERROR = 0.01
DRIFT_PERCENT = 2.0
"""Smallest reported change from the first to the last third."""

DECIMALS = 9


def latency_stats(milliseconds: Float64, warmup_iterations: int, *, stable: bool | None = None) -> LatencyStats | None:
    """All figures of the iterations in order; None without any. `stable`: the median stabilised; None: not asked."""
    count = len(milliseconds)
    if not count:
        return None
    estimates = {name: quantile_estimate(milliseconds, q / 100) for name, q in PERCENTILES.items()}
    median = estimates["p50"]
    assert median is not None
    return LatencyStats(
        iterations=count,
        warmup_iterations=warmup_iterations,
        mean=mean_estimate(milliseconds),
        std=round(float(milliseconds.std(ddof=1)), DECIMALS) if count > 1 else None,
        median=median,
        p50=median.value,
        p90=estimates["p90"],
        p95=estimates["p95"],
        p99=estimates["p99"],
        min=round(float(milliseconds.min()), DECIMALS),
        max=round(float(milliseconds.max()), DECIMALS),
        stable=stable,
        drift_percent=drift_percent(milliseconds),
    )


def mean_estimate(values: Float64) -> Estimate:
    """Mean and interval of values in measured order."""
    return _estimate(float(values.mean()), mean_interval(values))


def quantile_estimate(values: Float64, quantile: float) -> Estimate | None:
    """A quantile (linear between the closest ranks) and its interval; None for too few values."""
    if len(values) < min_count(round(quantile * 100)):
        return None
    return _estimate(float(np.quantile(values, quantile)), percentile_interval(values, quantile))


def _estimate(value: float, interval: tuple[float, float] | str) -> Estimate:
    if isinstance(interval, str):
        return Estimate(value=round(value, DECIMALS), reason=interval)
    low, high = min(value, interval[0]), max(value, interval[1])
    return Estimate(value=round(value, DECIMALS), low=round(low, DECIMALS), high=round(high, DECIMALS))


def rate_estimate(latency: Estimate, items: float) -> Estimate:
    """Items per second, given the milliseconds for this many items."""
    rates = [
        None if ms is None or ms <= 0 else round(1e3 * items / ms, DECIMALS)
        for ms in (latency.value, latency.high, latency.low)
    ]
    assert rates[0] is not None, "time passes"
    return Estimate(value=rates[0], low=rates[1], high=rates[2], reason=latency.reason)


def is_stable(values: Float64, percent: float) -> bool:
    """Whether the median's interval is within ±`percent`, with enough values to see a drift, and none seen."""
    median = quantile_estimate(values, 0.5) if len(values) >= 3 * MIN_VALUES else None
    if median is None or median.interval is None or median.value <= 0 or drift_percent(values) is not None:
        return False
    return 100 * (median.interval[1] - median.interval[0]) / 2 / median.value <= percent


def drift_percent(values: Float64) -> float | None:
    """Change from the median of the first third to that of the last, in percent; None below `DRIFT_PERCENT`, or if the
    medians of 20 parts have no certain trend.
    """
    if len(values) < MIN_FOR_DRIFT:
        return None
    third = len(values) // 3
    first, last = float(np.median(values[:third])), float(np.median(values[-third:]))
    if first <= 0 or abs(last - first) * 100 < DRIFT_PERCENT * first:
        return None
    medians = [float(np.median(part)) for part in np.array_split(values, min(BLOCKS, len(values) // 3))]
    found = trend(medians, DRIFT_ERROR)
    return round(100 * (last - first) / first, 3) if found is not None and found.is_certain else None
