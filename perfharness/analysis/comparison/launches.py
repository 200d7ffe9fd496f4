"""One number over several launches: their mean, and how far it may be from that of all launches to come.

The unit is the launch. Batches of one process share its memory layout, its clocks and its neighbours, and so do the
processes of one launch, so that their spread says nothing about the next launch: the interval is made of one value a
launch, with Student's t. `scripts/repeat_coverage` simulates how often it holds the truth, beside bootstraps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from perfharness.analysis.statistics import student_t
from perfharness.analysis.suites.latency import drift_percent
from perfharness.model.result import Float64

ERROR_RATE = 0.05
CONFIDENCE = 1 - ERROR_RATE
MIN_LAUNCHES = 2
"""One launch shows no spread between launches."""

MIN_FOR_AUTOCORRELATION = 20
LEAST_AUTOCORRELATION = 0.2
"""With less, batches are worth two thirds of independent ones at least."""

AUTOCORRELATION_ERROR = 0.01

FIRST_LAUNCH_ERROR = 0.01
"""How often a first launch that is like the others is taken for different."""

MIN_FOR_DRIFT = 5
"""Four launches in order are chance in one of twelve cases."""


@dataclass(frozen=True)
class LaunchMean:
    """Mean over launches and its interval; what is not known is None, with the reason.

    Args:
        std: sample standard deviation of the launches' values.
    """

    mean: float | None
    low: float | None = None
    high: float | None = None
    std: float | None = None
    reason: str | None = None


def mean_of_launches(values: Sequence[float | None]) -> LaunchMean:
    """The mean over launches, with its 95 % interval.

    Args:
        values: one a launch; None: that launch does not have it.
    """
    known = np.asarray([value for value in values if value is not None], dtype=np.float64)
    if not len(values):
        return LaunchMean(None, reason="no launch was measured")
    if len(known) < len(values):
        return LaunchMean(None, reason=f"{len(values) - len(known)} of {len(values)} launches do not have it")
    mean = float(known.mean())
    if len(known) < MIN_LAUNCHES:
        return LaunchMean(mean, reason="one launch does not show how launches differ; measure more (--repeat)")
    std = float(known.std(ddof=1))
    half = student_t(len(known) - 1) * std / sqrt(len(known))
    return LaunchMean(mean, mean - half, mean + half, std)


@dataclass(frozen=True)
class LaunchDrift:
    """Whether launches became slower or faster, one after the other.

    Args:
        tau: Kendall's, between the order of the launches and their values.
        p_value: exact up to 33 launches without ties, else of the normal law.
        per_launch: the median of all slopes between two launches (Theil and Sen).
    """

    tau: float
    p_value: float
    per_launch: float

    @property
    def is_drift(self) -> bool:
        """Whether it is more than chance, in 95 % of the cases."""
        return self.p_value < ERROR_RATE


def drift_of_launches(values: Sequence[float]) -> LaunchDrift | None:
    """Of launches in their order (Mann and Kendall's test); None where there are too few."""
    if len(values) < MIN_FOR_DRIFT:
        return None
    from scipy import stats  # takes longer to import than most commands to run

    found = stats.kendalltau(range(len(values)), values)
    if not np.isfinite(found.statistic):  # all alike
        return LaunchDrift(0.0, 1.0, 0.0)
    slope = stats.theilslopes(values)[0]
    return LaunchDrift(float(found.statistic), float(found.pvalue), float(slope))


def first_launch_p_value(values: Sequence[float]) -> float | None:
    """How probable it is that the first launch is as far from the others by chance (Student's t of a prediction).

    None where there are fewer than `MIN_FOR_DRIFT`, or the others are all alike.
    """
    if len(values) < MIN_FOR_DRIFT:
        return None
    others = np.asarray(values[1:], dtype=np.float64)
    error = float(others.std(ddof=1)) * sqrt(1 + 1 / len(others))
    if error <= 0:
        return None
    from scipy.special import stdtr  # takes longer to import than most commands to run

    return 2 * float(stdtr(len(others) - 1, -abs(values[0] - float(others.mean())) / error))


def alike_p_value(readings: Sequence[Sequence[float]]) -> float | None:
    """How probable it is that launches that are alike differ as much (Fisher's F of the logarithms, one way).

    Args:
        readings: positive, of each launch, one after the other.

    What two readings of one launch differ by is what a reading is not repeatable by. None where no launch has two, or
    there is one launch only.
    """
    groups = [np.log(np.asarray(one, dtype=np.float64)) for one in readings if len(one)]
    between = len(groups) - 1
    inside = sum(len(one) for one in groups) - len(groups)
    if between < 1 or inside < 1:
        return None
    overall = float(np.concatenate(groups).mean())
    explained = sum(len(one) * (float(one.mean()) - overall) ** 2 for one in groups) / between
    error = sum(_squares(one) for one in groups) / inside
    if error <= 0:
        return 1.0 if explained <= 0 else 0.0
    from scipy.special import fdtrc  # takes longer to import than most commands to run

    return float(fdtrc(between, inside, explained / error))


@dataclass(frozen=True)
class ProcessBatches:
    """What is kept of the batches of one process in one launch.

    Args:
        squares: sum of the squared differences from the mean.
        lag_one: rank correlation of neighbouring batches, less its mean where they are independent; None: too few.
        drift_percent: of the median of the last third against the first, where that is no chance.
    """

    count: int
    mean: float
    squares: float
    lag_one: float | None
    drift_percent: float | None

    @staticmethod
    def of(values: Float64) -> ProcessBatches:
        """Of at least one batch, in their order.

        Ranks are correlated, which long batches do not decide, and which have a variance of nearly 1 / n and a mean of
        -1 / n where batches are independent (Bartels, Journal of the American Statistical Association 77, 1982).
        """
        mean = float(values.mean())
        lag_one = None
        if len(values) >= MIN_FOR_AUTOCORRELATION and values.min() < values.max():
            from scipy.stats import rankdata  # takes longer to import than most commands to run

            ranks = rankdata(values)
            ranks -= ranks.mean()
            lag_one = float(ranks[1:] @ ranks[:-1] / (ranks @ ranks)) + 1 / len(values)
        return ProcessBatches(len(values), mean, float(((values - mean) ** 2).sum()), lag_one, drift_percent(values))


@dataclass(frozen=True)
class SpreadLevels:
    """How far a number spreads at each level, as sample standard deviations; None where there are too few.

    Args:
        batches: of one process, pooled.
        processes: their means in one launch, pooled.
        launches: their means.
        expected: of launches, were independent batches all that differs; what an interval of batches rests on.
    """

    batches: float | None
    processes: float | None
    launches: float | None
    expected: float | None


def spread_levels(launches: Sequence[Sequence[ProcessBatches]]) -> SpreadLevels:
    """Of the processes of each launch."""
    measured = [launch for launch in launches if launch]
    means = [np.asarray([process.mean for process in launch]) for launch in measured]
    counts = [np.asarray([process.count for process in launch]) for launch in measured]
    of_launches = np.asarray([np.average(one, weights=weights) for one, weights in zip(means, counts, strict=True)])
    batches = _deviation(
        sum(process.squares for launch in measured for process in launch),
        sum(process.count - 1 for launch in measured for process in launch),
    )
    return SpreadLevels(
        batches=batches,
        processes=_deviation(sum(_squares(one) for one in means), sum(len(one) - 1 for one in means)),
        launches=_deviation(_squares(of_launches), len(of_launches) - 1),
        expected=None if batches is None else batches * sqrt(float(np.mean([1 / one.sum() for one in counts]))),
    )


def _squares(values: Float64) -> float:
    return float(((values - values.mean()) ** 2).sum()) if len(values) else 0.0


def _deviation(squares: float, freedom: int) -> float | None:
    return None if freedom < 1 else sqrt(squares / freedom)


@dataclass(frozen=True)
class Autocorrelation:
    """Of neighbouring batches, over all processes.

    Args:
        mean: of the lag-one coefficients.
        worth: how many independent batches one batch is worth for a mean, were it a first-order process.
        p_value: that it is chance.
    """

    mean: float
    worth: float
    p_value: float

    @property
    def is_found(self) -> bool:
        """Whether it is more than chance, and matters."""
        return self.p_value < AUTOCORRELATION_ERROR and self.mean >= LEAST_AUTOCORRELATION


def autocorrelation(processes: Sequence[ProcessBatches]) -> Autocorrelation | None:
    """Of all processes with `MIN_FOR_AUTOCORRELATION` batches and more; None where there are none."""
    found = [(one.lag_one, one.count) for one in processes if one.lag_one is not None]
    if not found:
        return None
    from scipy.special import ndtr  # takes longer to import than most commands to run

    batches = sum(count for _, count in found)
    mean = sum(lag_one * count for lag_one, count in found) / batches
    p_value = float(ndtr(-mean * sqrt(batches)))
    kept = min(max(mean, 0.0), 0.999)
    return Autocorrelation(mean, (1 - kept) / (1 + kept), p_value)
