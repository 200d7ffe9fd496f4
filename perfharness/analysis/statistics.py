"""Summary statistics of batches, with null where there are too few values to mean anything."""

from __future__ import annotations

import numpy as np

from perfharness.model.result import Float64, Statistics

MIN_FOR_DEVIATION = 2
"""The sample standard deviation (n - 1) needs two values."""

PERCENTILES = {"p50": 50, "p90": 90, "p95": 95, "p99": 99}


def min_count(percentile: int) -> int:
    """Fewest values for which a percentile is more than the largest value: one must lie above it."""
    return 1 if percentile <= 50 else -(-100 // (100 - percentile))


def summarise(values: Float64) -> Statistics:
    """Statistics of the values; all null where one of them is NaN, that is, could not be measured.

    Percentiles interpolate linearly between the closest ranks (NumPy's default, type 7 of Hyndman and Fan 1996).
    """
    count = len(values)
    if count == 0 or np.isnan(values).any():
        return Statistics(count, None, None, None, None, None, None, None, None)
    found = np.percentile(values, list(PERCENTILES.values()))
    percentiles = {
        name: _figure(value) if count >= min_count(q) else None
        for (name, q), value in zip(PERCENTILES.items(), found, strict=True)
    }
    return Statistics(
        count=count,
        mean=_figure(values.mean()),
        std=_figure(values.std(ddof=1)) if count >= MIN_FOR_DEVIATION else None,
        min=_figure(values.min()),
        max=_figure(values.max()),
        **percentiles,
    )


def _figure(value: float) -> float:
    return round(float(value), 6)
