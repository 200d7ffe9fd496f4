"""Mean over several launches with its interval, and tests whether launches differ.

Batches of one process share its memory layout and clocks, so intervals use one value per launch, with Student's t.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from perfharness.analysis.statistics import student_interval

MIN_LAUNCHES = 2
"""A single launch shows no spread between launches."""

MIN_FOR_FIRST = 5
"""Fewest launches to compare the first one with the others."""


@dataclass(frozen=True)
class LaunchMean:
    """Mean over launches, its 95 % interval and sample standard deviation; missing values are None, with a reason."""

    mean: float | None
    low: float | None = None
    high: float | None = None
    std: float | None = None
    reason: str | None = None


def mean_of_launches(values: Sequence[float | None]) -> LaunchMean:
    """Average one value per launch; None stands for a launch without it."""
    known = np.asarray([value for value in values if value is not None], dtype=np.float64)
    if not len(values):
        return LaunchMean(None, reason="no launch was measured")
    if len(known) < len(values):
        return LaunchMean(None, reason=f"missing in {len(values) - len(known)} of {len(values)} launches")
    if len(known) < MIN_LAUNCHES:
        why = "one launch does not show how launches differ; measure more (--repeat)"
        return LaunchMean(float(known.mean()), reason=why)
    return LaunchMean(float(known.mean()), *student_interval(known), std=float(known.std(ddof=1)))


def first_launch_p_value(values: Sequence[float]) -> float | None:
    """p-value of the first launch under a prediction from the others (Student's t); None for too few launches, or if
    the others are identical.
    """
    if len(values) < MIN_FOR_FIRST:
        return None
    others = np.asarray(values[1:], dtype=np.float64)
    error = float(others.std(ddof=1)) * sqrt(1 + 1 / len(others))
    if error <= 0:
        return None
    from scipy.special import stdtr  # takes longer to import than most commands to run

    return 2 * float(stdtr(len(others) - 1, -abs(values[0] - float(others.mean())) / error))


def alike_p_value(readings: Sequence[Sequence[float]]) -> float | None:
    """p-value of equal launches: one-way ANOVA over the logarithms of their positive readings. None for a single
    launch, or if no launch has two readings.
    """
    groups = [np.log(np.asarray(one, dtype=np.float64)) for one in readings if len(one)]
    if len(groups) < 2 or all(len(one) < 2 for one in groups):
        return None
    if all(np.ptp(one) == 0 for one in groups):
        return float(len({float(one[0]) for one in groups}) == 1)
    from scipy.stats import f_oneway  # takes longer to import than most commands to run

    return float(f_oneway(*groups).pvalue)
