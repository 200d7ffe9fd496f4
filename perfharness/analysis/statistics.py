"""Summary statistics of batches, with null where there are too few values to mean anything."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfharness.model.result import Statistics

MIN_FOR_DEVIATION = 2
"""The sample standard deviation (n - 1) needs two values."""

PERCENTILES = {"p50": 50, "p90": 90, "p95": 95, "p99": 99}


def min_count(percentile: int) -> int:
    """Fewest values for which a percentile is more than the largest value: one must lie above it."""
    return 1 if percentile <= 50 else -(-100 // (100 - percentile))


def summarise(values: Sequence[float | None]) -> Statistics:
    """Statistics of the values; all null where one of them could not be measured.

    Percentiles interpolate linearly between the closest ranks (NumPy's default, type 7 of Hyndman and Fan 1996).
    """
    count = len(values)
    measured = [value for value in values if value is not None]
    if count == 0 or len(measured) < count:
        return Statistics(count, None, None, None, None, None, None, None, None)
    array = np.asarray(measured, dtype=np.float64)
    percentiles = {
        name: round(float(np.percentile(array, q)), 6) if count >= min_count(q) else None
        for name, q in PERCENTILES.items()
    }
    return Statistics(
        count=count,
        mean=round(float(array.mean()), 6),
        std=round(float(array.std(ddof=1)), 6) if count >= MIN_FOR_DEVIATION else None,
        min=float(array.min()),
        max=float(array.max()),
        **percentiles,
    )
