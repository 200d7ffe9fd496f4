"""Statistics of repeated iterations with 95 % intervals that allow for iterations that are alike because they are
neighbours.

Means: batch means (Schmeiser, Batch size effects in the analysis of simulation output, Operations Research 30, 1982:
10 to 30 batches), Student's t over blocks. Quantiles: order statistics (Le Boudec, Performance Evaluation of Computer
and Communication Systems, 2010, theorem 2.1), their ranks apart as far as the binomial says or, where that is more, as
the blocks' shares below the quantile scatter. When to stop: the relative width of the median's interval, as Hoefler and
Belli advise (Scientific Benchmarking of Parallel Computing Systems, SC 2015, rules 5 and 6, section 4.2.2).
"""

from __future__ import annotations

from math import comb, sqrt

import numpy as np

from perfharness.analysis.statistics import PERCENTILES, min_count, student_t
from perfharness.model.bench import Estimate, LatencyStats
from perfharness.model.result import Float64

BLOCK_COUNTS = (20, 10)
"""Blocks that are tried: the first count whose means are not alike in neighbouring blocks, else the last."""

MIN_FOR_INTERVAL = 6
"""Fewer values have no 95 % interval of the median: 2 / 2**5 is more than 5 %."""

MIN_BEYOND = 2.0
"""With less, how the blocks scatter is chance, and an interval found by luck is too narrow."""

ONE_SIDED_95 = 1.645
EXACT_UP_TO = 500
"""Above it the normal law with a correction for continuity stands for the binomial."""

DRIFT_PERCENT = 2.0
"""A change between first and last third that is worth a word."""


def latency_stats(
    milliseconds: Float64, warmup_iterations: int, *, stable: bool | None = None, pooled: bool = False
) -> LatencyStats | None:
    """All figures of the timed iterations, in their order; None where there are none.

    Args:
        milliseconds: of each iteration.
        stable: whether the median had settled; None where that was not asked for.
        pooled: of several loops that ran at once, one after the other; between those is no drift.
    """
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
        std=_figure(milliseconds.std(ddof=1)) if count > 1 else None,
        median=median,
        p50=median.value,
        p90=None if estimates["p90"] is None else estimates["p90"].value,
        p95=estimates["p95"],
        p99=estimates["p99"],
        min=_figure(milliseconds.min()),
        max=_figure(milliseconds.max()),
        stable=stable,
        drift_percent=None if pooled else drift_percent(milliseconds),
    )


def mean_estimate(values: Float64) -> Estimate:
    """Mean and its interval by batch means; values in the order in which they were measured."""
    mean = float(values.mean())
    half = _half_width(values)
    if half is None:
        return Estimate(value=_figure(mean))
    return Estimate(value=_figure(mean), low=_figure(mean - half), high=_figure(mean + half))


def quantile_estimate(values: Float64, quantile: float) -> Estimate | None:
    """A quantile (linear between the closest ranks) and its interval by order statistics.

    None where there are too few values for the quantile to be more than the largest one; without an interval where the
    ranks that it would need are not there.
    """
    count = len(values)
    if count < min_count(round(quantile * 100)):
        return None
    value = float(np.quantile(values, quantile))
    ranks = _ranks(values, value, quantile)
    if ranks is None:
        return Estimate(value=_figure(value))
    ordered = np.sort(values)
    return Estimate(value=_figure(value), low=_figure(ordered[ranks[0]]), high=_figure(ordered[ranks[1]]))


def relative_half_width_percent(values: Float64) -> float | None:
    """Half of the width of the median's interval, in percent of the median; None where there is no interval."""
    median = quantile_estimate(values, 0.5) if len(values) else None
    if median is None or median.low is None or median.high is None or median.value <= 0:
        return None
    return 100 * (median.high - median.low) / 2 / median.value


def is_settled(values: Float64, percent: float) -> bool:
    """Whether the median's interval is within so many percent on both sides, and no drift is seen."""
    half = relative_half_width_percent(values)
    return half is not None and half <= percent and drift_percent(values) is None


def drift_percent(values: Float64) -> float | None:
    """How much the median of the last third is above that of the first, in percent, where that is no chance.

    None where their intervals touch, where it is less than `DRIFT_PERCENT`, or where there are too few values.
    """
    third = len(values) // 3
    if third < MIN_FOR_INTERVAL:
        return None
    first, last = quantile_estimate(values[:third], 0.5), quantile_estimate(values[-third:], 0.5)
    if first is None or last is None or None in (first.low, first.high, last.low, last.high) or first.value <= 0:
        return None
    assert first.low is not None
    assert first.high is not None
    assert last.low is not None
    assert last.high is not None
    apart = last.low > first.high or last.high < first.low
    change = 100 * (last.value - first.value) / first.value
    return round(change, 3) if apart and abs(change) >= DRIFT_PERCENT else None


def autocorrelation(values: Float64, lag: int = 1) -> float | None:
    """How alike values are that are `lag` apart, -1 to 1; None where there are too few, or all are the same."""
    if len(values) < lag + 3:
        return None
    off = values - values.mean()
    power = float((off * off).sum())
    return float((off[lag:] * off[:-lag]).sum()) / power if power > 0 else None


def rate_estimate(latency: Estimate, items: float) -> Estimate:
    """Items per second, of the milliseconds that so many of them take together."""
    return Estimate(
        value=_figure(1e3 * items / latency.value),
        low=None if latency.high is None else _figure(1e3 * items / latency.high),
        high=None if latency.low is None or latency.low <= 0 else _figure(1e3 * items / latency.low),
    )


def _blocks(values: Float64) -> Float64:
    """Means of blocks of neighbours: as many as the first of `BLOCK_COUNTS` that leaves them unlike one another."""
    means = values.astype(np.float64)
    for count in BLOCK_COUNTS:
        length = len(values) // count
        if length < 2:
            continue
        means = values[len(values) - count * length :].reshape(count, length).mean(axis=1)
        alike = autocorrelation(means)
        if alike is None or alike < ONE_SIDED_95 / sqrt(count):
            break
    return means


def _half_width(values: Float64) -> float | None:
    """Half of the 95 % interval of the mean."""
    if len(values) < MIN_FOR_INTERVAL:
        return None
    means = _blocks(values)
    return student_t(len(means) - 1) * float(means.std(ddof=1)) / sqrt(len(means))


def _ranks(values: Float64, value: float, quantile: float) -> tuple[int, int] | None:
    """Places in the ordered values that enclose the quantile in 95 of 100 cases."""
    count = len(values)
    if count < MIN_FOR_INTERVAL:
        return None
    low, high = _binomial_ranks(count, quantile)
    if count >= 2 * BLOCK_COUNTS[-1]:  # of fewer there are no blocks, and the binomial is all that is known
        apart = _half_width((values <= value).astype(np.float64)) or 0.0
        low = min(low, int(np.floor(count * (quantile - apart))))
        high = max(high, int(np.ceil(count * (quantile + apart))))
    if _independent_beyond(values, quantile) < MIN_BEYOND:
        return None
    return (low, high) if low >= 0 and high < count else None


def _independent_beyond(values: Float64, quantile: float) -> float:
    """So many independent values beyond the quantile, on its thinner side, say as much as these do.

    By the factor (1 + r) / (1 - r) of a process whose neighbours are alike by r and that forgets the rest (Bartlett,
    1946), which for a share beyond a quantile is more than enough.
    """
    alike = max(0.0, autocorrelation(values) or 0.0)
    return len(values) * min(quantile, 1 - quantile) * (1 - alike) / (1 + alike)


def _binomial_ranks(count: int, quantile: float) -> tuple[int, int]:
    """From 0; -1 or `count` where no rank encloses."""
    if count > EXACT_UP_TO:
        half = 1.96 * sqrt(count * quantile * (1 - quantile)) + 0.5
        return int(np.floor(count * quantile - half)) - 1, int(np.ceil(count * quantile + half))
    below = np.cumsum([comb(count, k) * quantile**k * (1 - quantile) ** (count - k) for k in range(count + 1)])
    # P(x[low] > q) = P(at most `low` values below q) must be 2.5 % at most; likewise above.
    low = int(np.searchsorted(below, 0.025, side="right")) - 1
    high = int(np.searchsorted(below, 0.975, side="left"))
    return low, high


def _figure(value: float) -> float:
    return round(float(value), 9)
