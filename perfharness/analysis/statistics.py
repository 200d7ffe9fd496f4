"""Summary statistics of batches, with null where there are too few values to mean anything; Student's t."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from perfharness.model.result import Float64, Statistics
from perfharness.model.rounding import figure

MIN_FOR_DEVIATION = 2
"""The sample standard deviation (n - 1) needs two values."""

PERCENTILES = {"p50": 50, "p90": 90, "p95": 95, "p99": 99}


def min_count(percentile: int) -> int:
    """Fewest values for which a percentile is more than the largest value: one must lie above it."""
    return 1 if percentile <= 50 else -(-100 // (100 - percentile))


def summarise(values: Float64, mean: float | None = None) -> Statistics:
    """Statistics of the values; all null where one of them is NaN, that is, could not be measured.

    Percentiles interpolate linearly between the closest ranks (NumPy's default, type 7 of Hyndman and Fan 1996).

    Args:
        values: one a batch.
        mean: a mean that is not that of the values (per item it is a ratio of totals), NaN where it is not known; None:
            that of the values.
    """
    count = len(values)
    own_mean = figure(mean) if mean is not None and not np.isnan(mean) else None
    if count == 0 or np.isnan(values).any():
        return Statistics(count, own_mean, None, None, None, None, None, None, None)
    in_order = np.sort(values)
    same = float(in_order[0]) if in_order[0] == in_order[-1] else None
    if mean is None and same in (0.0, 1.0):  # most columns of most stages: no GPU work, once a batch
        known = {name: same if count >= min_count(q) else None for name, q in PERCENTILES.items()}
        return Statistics(count, same, 0.0 if count >= MIN_FOR_DEVIATION else None, same, max=same, **known)
    percentiles = {
        name: figure(_percentile(in_order, q)) if count >= min_count(q) else None for name, q in PERCENTILES.items()
    }
    return Statistics(
        count=count,
        mean=figure(values.mean()) if mean is None else own_mean,
        std=figure(values.std(ddof=1)) if count >= MIN_FOR_DEVIATION else None,
        min=figure(in_order[0]),
        max=figure(in_order[-1]),
        **percentiles,
    )


def _percentile(in_order: Float64, percentile: int) -> float:
    """As `np.percentile` has it to the last bit; that function takes longer than all else, and is called per stage."""
    position = (len(in_order) - 1) * (percentile / 100)
    below = int(position)
    low, high = float(in_order[below]), float(in_order[min(below + 1, len(in_order) - 1)])
    share = position - below
    return high - (high - low) * (1 - share) if share >= 0.5 else low + (high - low) * share


def weighted_quantile(value: Float64, weight: Float64, quantile: float) -> float:
    """The smallest value that is not exceeded for this part of the weight."""
    order = np.argsort(value, kind="stable")
    reached = np.cumsum(weight[order])
    at = int(np.searchsorted(reached, quantile * reached[-1] * (1 - 1e-12)))
    return float(value[order][min(at, len(value) - 1)])


def ratio_of_totals(values: Float64, items: Float64) -> float:
    """Sum of the values over the sum of the items; NaN where there are none, or one of either is not known."""
    total = float(items.sum())
    return float(values.sum()) / total if total > 0 else float("nan")


def student_t(freedom: int) -> float:
    """Half-width of the middle 95 % of Student's t, in standard errors; one degree of freedom at least."""
    return student_quantile(0.975, max(freedom, 1))


def student_quantile(share: float, freedom: float) -> float:
    """Below which this share of Student's t lies; with infinite degrees of freedom, of the normal distribution."""
    from scipy.special import ndtri, stdtrit  # takes longer to import than most commands to run

    return float(ndtri(share) if not math.isfinite(freedom) else stdtrit(freedom, share))


@dataclass(frozen=True)
class Slope:
    """A change per step, with its interval."""

    value: float
    low: float
    high: float


def trend(values: Float64) -> Slope:
    """The trend of values that are independent but for it (Theil and Sen)."""
    from scipy.stats import theilslopes  # takes longer to import than most commands to run

    found = theilslopes(values)
    return Slope(float(found.slope), float(found.low_slope), float(found.high_slope))
