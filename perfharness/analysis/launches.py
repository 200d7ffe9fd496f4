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

from perfharness.model.result import Float64

ERROR_RATE = 0.05
CONFIDENCE = 1 - ERROR_RATE
MIN_LAUNCHES = 2
"""One launch shows no spread between launches."""

FIRST_LOOK = 5
LOOK_GROWTH = 1.4
"""They are looked at when there are 5, and then each time that there are 1.4 times as many: 5, 7, 10, 14, 20, 28."""

SHARED_ERROR_RATES = {1: 0.05, 2: 0.0305, 3: 0.0217, 4: 0.0176, 5: 0.0143, 6: 0.0122, 7: 0.0108}
"""Of each of so many looks, so that all together miss in 5 % of the cases where launches are normal (Pocock, Group
sequential methods in the design and analysis of clinical trials, Biometrika 64, 1977; here for Student's t and these
looks, simulated by `scripts/repeat_coverage`)."""

MIN_FOR_AUTOCORRELATION = 20
LEAST_AUTOCORRELATION = 0.2
"""With less, batches are worth two thirds of independent ones at least."""

AUTOCORRELATION_ERROR = 0.01

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

    @property
    def relative_half_width(self) -> float | None:
        """Half of the interval's width over the mean."""
        if not self.mean or self.low is None or self.high is None:
            return None
        return (self.high - self.low) / 2 / self.mean


def mean_of_launches(values: Sequence[float | None], error_rate: float = ERROR_RATE) -> LaunchMean:
    """The mean over launches, with an interval that misses it at the given rate.

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
    from scipy.special import stdtrit  # takes longer to import than most commands to run

    std = float(known.std(ddof=1))
    half = float(stdtrit(len(known) - 1, 1 - error_rate / 2)) * std / sqrt(len(known))
    return LaunchMean(mean, mean - half, mean + half, std)


def looks(limit: int) -> list[int]:
    """After how many launches it is looked at whether there are enough; the last is the limit."""
    found, count = [], FIRST_LOOK
    while count < limit:
        found.append(count)
        count = round(LOOK_GROWTH * count)
    return [*found, limit]


def error_rate_of_a_look(limit: int) -> float:
    """How often an interval may miss at one look, so that all looks together miss no more often than they should.

    Who stops as soon as an interval is narrow takes more of those that are narrow by chance.
    """
    number = len(looks(limit))
    return SHARED_ERROR_RATES.get(number, ERROR_RATE / number)


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


def spread_levels(launches: Sequence[Sequence[Float64]]) -> SpreadLevels:
    """Of values by launch and process, one a batch."""
    processes = [[values for values in launch if len(values)] for launch in launches]
    processes = [launch for launch in processes if launch]
    batches = _pooled_deviation([values for launch in processes for values in launch])
    of_launches = _pooled_deviation([np.asarray([np.concatenate(launch).mean() for launch in processes])])
    counts = [sum(len(values) for values in launch) for launch in processes]
    return SpreadLevels(
        batches=batches,
        processes=_pooled_deviation([np.asarray([values.mean() for values in launch]) for launch in processes]),
        launches=of_launches,
        expected=None if batches is None else batches * sqrt(float(np.mean([1 / count for count in counts]))),
    )


def _pooled_deviation(groups: Sequence[Float64]) -> float | None:
    freedom = sum(len(values) - 1 for values in groups)
    if freedom < 1:
        return None
    return sqrt(sum(float(((values - values.mean()) ** 2).sum()) for values in groups if len(values)) / freedom)


@dataclass(frozen=True)
class Autocorrelation:
    """Of neighbouring batches, over all series.

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


def autocorrelation(series: Sequence[Float64]) -> Autocorrelation | None:
    """Of batches in their order, a series a process; None where all are shorter than `MIN_FOR_AUTOCORRELATION`.

    Ranks are correlated, which long batches do not decide, and which have a variance of nearly 1 / n and a mean of
    -1 / n where batches are independent (Bartels, Journal of the American Statistical Association 77, 1982).
    """
    from scipy import stats  # takes longer to import than most commands to run

    found, weights = [], []
    for values in series:
        if len(values) < MIN_FOR_AUTOCORRELATION or values.min() == values.max():
            continue
        ranks = stats.rankdata(values)
        ranks -= ranks.mean()
        found.append(float(ranks[1:] @ ranks[:-1] / (ranks @ ranks)) + 1 / len(values))
        weights.append(len(values))
    if not found:
        return None
    mean = float(np.average(found, weights=weights))
    p_value = float(stats.norm.sf(mean * sqrt(sum(weights))))
    kept = min(max(mean, 0.0), 0.999)
    return Autocorrelation(mean, (1 - kept) / (1 + kept), p_value)
