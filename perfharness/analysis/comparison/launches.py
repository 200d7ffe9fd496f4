"""One number over several launches: their mean with its interval, and whether launches differ from each other.

Batches of one process share its memory layout, its clocks and its neighbours, so their spread says nothing about the
next launch: the interval is made of one value per launch, with Student's t.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from perfharness.analysis.statistics import student_interval

MIN_LAUNCHES = 2
"""One launch shows no spread between launches."""

MIN_FOR_FIRST = 5
"""Launches from which on the first is compared with the others."""


@dataclass(frozen=True)
class LaunchMean:
    """Mean over launches, its 95 % interval, and the sample standard deviation; what is not known is None, with the
    reason.
    """

    mean: float | None
    low: float | None = None
    high: float | None = None
    std: float | None = None
    reason: str | None = None


def mean_of_launches(values: Sequence[float | None]) -> LaunchMean:
    """The mean of one value per launch; None: that launch does not have it."""
    known = np.asarray([value for value in values if value is not None], dtype=np.float64)
    if not len(values):
        return LaunchMean(None, reason="no launch was measured")
    if len(known) < len(values):
        return LaunchMean(None, reason=f"{len(values) - len(known)} of {len(values)} launches do not have it")
    if len(known) < MIN_LAUNCHES:
        why = "one launch does not show how launches differ; measure more (--repeat)"
        return LaunchMean(float(known.mean()), reason=why)
    return LaunchMean(float(known.mean()), *student_interval(known), std=float(known.std(ddof=1)))


def first_launch_p_value(values: Sequence[float]) -> float | None:
    """How probable it is that the first launch is as far from the others by chance (Student's t of a prediction); None
    where there are too few, or the others are all alike.
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
    """How probable it is that launches that are alike differ as much (one-way analysis of variance of the logarithms of
    their positive readings); None where no launch has two, or there is one launch only.
    """
    groups = [np.log(np.asarray(one, dtype=np.float64)) for one in readings if len(one)]
    if len(groups) < 2 or all(len(one) < 2 for one in groups):
        return None
    if all(np.ptp(one) == 0 for one in groups):
        return float(len({float(one[0]) for one in groups}) == 1)
    from scipy.stats import f_oneway  # takes longer to import than most commands to run

    return float(f_oneway(*groups).pvalue)
