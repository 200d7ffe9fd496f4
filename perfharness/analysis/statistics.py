"""Summaries and 95 % intervals, including values that depend on their neighbours.

Launches are independent (`student_interval`). Values of one loop or queue are not: their series is cut into batches,
and the variance of the mean is that of the batch means (Law, Simulation Modeling and Analysis, 9.5.3), the largest
over several numbers of batches, widened by Student's t. If even the batches would be dependent, the result is a
reason instead of an interval.

docs/internals/statistics.md shows how often the intervals cover the true value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, inf, isfinite, sqrt

import numpy as np

from perfharness.model.columns import Float64
from perfharness.model.result import Statistics
from perfharness.model.rounding import figure

PERCENTILES = {"p50": 50, "p90": 90, "p95": 95, "p99": 99}

ALPHA = 0.05
"""1 - confidence of all intervals."""

MEAN_BATCHES = (5, 10, 20)
"""Numbers of batches for a mean; five include slow changes, and rare long values of heavy tails."""

SHARE_BATCHES = (10, 20)
"""Numbers of batches for shares and percentiles, which rare long values do not decide."""

MIN_VALUES = 200
"""Fewest values to tell dependent from independent neighbours, and to show events of one in a hundred."""

MIN_INDEPENDENT = 30.0
"""Fewest independent values, by lag-one autocorrelation, in a series; with fewer, batches are dependent."""

MIN_BEYOND = 5.0
"""Fewest independent values beyond a percentile, on its thinner side."""

MILDER = 5.0
"""Ratio of values beyond the milder percentile, whose dependence is checked as well."""

MIN_FOR_TREND = 5
"""Four values are ascending or descending by chance in one of twelve cases."""

Interval = tuple[float, float]


def min_count(percentile: int) -> int:
    """Fewest values for which a percentile differs from the largest value."""
    return 1 if percentile <= 50 else -(-100 // (100 - percentile))


def summarise(values: Float64, mean: float | None = None) -> Statistics:
    """Statistics of values, one per batch; all null if any is NaN (not measured). Percentiles interpolate linearly
    between the closest ranks (type 7 of Hyndman and Fan 1996). `mean`: replaces the mean of the values (per item: a
    ratio of totals).
    """
    count = len(values)
    own_mean = figure(mean) if mean is not None and not np.isnan(mean) else None
    if count == 0 or np.isnan(values).any():
        return Statistics(count, own_mean, None, None, None, None, None, None, None)
    percentiles = np.percentile(values, list(PERCENTILES.values())).tolist()
    return Statistics(
        count=count,
        mean=figure(values.mean()) if mean is None else own_mean,
        std=figure(values.std(ddof=1)) if count > 1 else None,
        min=figure(values.min()),
        max=figure(values.max()),
        **{
            name: figure(value) if count >= min_count(q) else None
            for (name, q), value in zip(PERCENTILES.items(), percentiles, strict=True)
        },
    )


def weighted_quantile(value: Float64, weight: Float64, quantile: float) -> float:
    """Smallest value that is not exceeded for this share of the weight."""
    order = np.argsort(value, kind="stable")
    reached = np.cumsum(weight[order])
    at = int(np.searchsorted(reached, quantile * reached[-1] * (1 - 1e-12)))
    return float(value[order][min(at, len(value) - 1)])


def student_t(freedom: float, share: float = 1 - ALPHA / 2) -> float:
    """Quantile of Student's t, in standard errors; with infinite freedom, of the normal distribution."""
    from scipy.special import ndtri, stdtrit  # takes longer to import than most commands to run

    return float(stdtrit(max(freedom, 1), share) if isfinite(freedom) else ndtri(share))


def student_interval(values: Float64, alpha: float = ALPHA) -> Interval:
    """Confidence interval of the mean of at least two independent values, such as launches."""
    half = student_t(len(values) - 1, 1 - alpha / 2) * float(values.std(ddof=1)) / sqrt(len(values))
    return float(values.mean()) - half, float(values.mean()) + half


def mean_interval(values: Float64) -> Interval | str:
    """Interval of the mean of values in time order, by batch means; or the reason why there is none."""
    if len(values) < MIN_VALUES:
        return f"{len(values)} values are too few for an interval; measure at least {MIN_VALUES}"
    return ratio_interval(values, np.ones(len(values)))


def ratio_interval(values: Float64, counts: Float64, least: float = MIN_INDEPENDENT) -> Interval | str:
    """Interval of the sum of the values over that of the counts, both in time order; at least `least` parts."""
    total = float(counts.sum())
    ratio = float(values.sum()) / total
    variance = batch_variance(values - ratio * counts, MEAN_BATCHES, least)
    if isinstance(variance, str):
        return variance
    half = student_t(inf) * sqrt(variance) / total
    return ratio - half, ratio + half


def batch_variance(
    residuals: Float64, batches: Sequence[int] = SHARE_BATCHES, least: float = MIN_INDEPENDENT
) -> float | str:
    """Variance of the sum of residuals (with sum 0, in time order), widened so that 1.96 standard deviations give the
    interval of Student's t; or the reason why it is unknown.
    """
    count = len(residuals)
    if count < MIN_INDEPENDENT:
        return f"{count} parts in time are too few for an interval; measure at least {MIN_INDEPENDENT:.0f}"
    independent = count * _independence(residuals)
    if independent < least:
        return (
            f"neighbouring values depend on each other: {count} are worth {independent:.0f} independent values, but an "
            f"interval needs {least:.0f}; measure longer"
        )
    found = []
    for number in (one for one in batches if one <= count):
        sums = np.add.reduceat(residuals, np.arange(number) * count // number)
        wider = student_t(number - 1) / student_t(inf)
        found.append(wider**2 * float(sums @ sums) * number / (number - 1))
    return max(found)


def _independence(residuals: Float64) -> float:
    """Independent values per value (at most 1), by lag-one autocorrelation around a linear trend, which is part of the
    variance between batches.
    """
    count = len(residuals)
    position = np.arange(count) - (count - 1) / 2
    level = residuals - position * (position @ residuals) / (position @ position)
    power = float(level @ level)
    neighbours = float(level[1:] @ level[:-1]) / power + 1 / count if power > 0 else 0.0
    kept = min(max(neighbours, 0.0), 1.0)
    return (1 - kept) / (1 + kept)


def percentile_interval(values: Float64, share: float) -> Interval | str:
    """Interval of a percentile of values in time order, by order statistics; or the reason why there is none."""
    count = len(values)
    if count < MIN_VALUES:
        return f"{count} values are too few for an interval; measure at least {MIN_VALUES}"
    if isinstance(dependent := batch_variance(values - values.mean()), str):
        return dependent
    below = (values <= np.quantile(values, (share, milder(share)))[:, None]).astype(np.float64)
    ranks = ranks_around(count, share, [share_inflation(one, np.ones(count)) for one in below])
    if isinstance(ranks, str):
        return ranks
    in_order = np.sort(values)
    return float(in_order[ranks[0]]), float(in_order[ranks[1]])


def milder(share: float) -> float:
    """A percentile with more values beyond it. Its dependence is better known, and is used as a lower bound."""
    return max(0.5, 1 - MILDER * (1 - share))


def share_inflation(below: Float64, counts: Float64, least: float = MIN_INDEPENDENT) -> float | str:
    """Values per independent value, at least 1, for the share of values below a threshold. `below`, `counts`: per block
    in time; needs `least` independent blocks.
    """
    total = float(counts.sum())
    share = float(below.sum()) / total
    variance = batch_variance(below - share * counts, least=least)
    if isinstance(variance, str):
        return variance
    independent = total * share * (1 - share)
    return max(1.0, variance / independent) if independent > 0 else 1.0


def ranks_around(count: int, share: float, inflations: Sequence[float | str] = (1.0,)) -> tuple[int, int] | str:
    """Ranks (from 0) of ordered values that enclose a percentile in 95 % of cases; or the reason why there are none."""
    independent = count
    for inflation in inflations:
        if isinstance(inflation, str):
            return inflation
        independent = min(independent, int(count / inflation))
    low, high = _binomial_ranks(independent, share) if independent * min(share, 1 - share) >= MIN_BEYOND else (-1, 0)
    if low < 0 or high >= independent:
        return f"{count} values are worth {independent} independent values, too few for an interval of this percentile"
    return floor(low * count / independent), min(ceil((high + 1) * count / independent), count) - 1


def _binomial_ranks(count: int, share: float) -> tuple[int, int]:
    """Ranks for independent values; -1 or `count` if no rank encloses (Le Boudec, Performance Evaluation, 2.1)."""
    from scipy.special import bdtr  # takes longer to import than most commands to run

    reach = 6 * sqrt(count * share * (1 - share)) + 6
    first = max(floor(count * share - reach), 0)
    below = bdtr(np.arange(first, min(ceil(count * share + reach), count) + 1.0), count, share)
    low = first + int(np.searchsorted(below, ALPHA / 2, side="right")) - 1
    return low, first + int(np.searchsorted(below, 1 - ALPHA / 2, side="left"))


@dataclass(frozen=True)
class Slope:
    """A change per step, with its interval."""

    value: float
    low: float
    high: float

    @property
    def is_certain(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0


def trend(values: Sequence[float] | Float64, alpha: float = ALPHA) -> Slope | None:
    """Linear trend (Theil and Sen) of otherwise independent values; None for too few."""
    if len(values) < MIN_FOR_TREND:
        return None
    from scipy.stats import theilslopes  # takes longer to import than most commands to run

    found = theilslopes(values, alpha=1 - alpha)
    return Slope(float(found.slope), float(found.low_slope), float(found.high_slope))


def growth(levels: Float64) -> Slope:
    """Growth of a level that keeps its gains, such as memory: the mean step, with Student's interval. Steps are
    independent even if the level is a random walk; one large step widens the interval.
    """
    steps = np.diff(levels)
    return Slope(float(steps.mean()), *student_interval(steps))
