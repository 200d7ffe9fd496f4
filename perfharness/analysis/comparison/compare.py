"""Compare two versions: ratios of launch means with intervals, and verdicts at a given rate of false alarms.

The unit is the launch, with one number each, because batches of one launch are not independent. Values are compared as
logarithms, whose differences are ratios. docs/internals/statistics.md has the measured error rates.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from math import exp, inf, isfinite, log1p, sqrt
from typing import Literal

import numpy as np
from pydantic import Field

from perfharness.analysis.statistics import ALPHA, student_t
from perfharness.model.base import Record
from perfharness.model.columns import Float64, Int64

MIN_EFFECT = 0.02
"""Smallest relative difference that counts."""

ENOUGH_POWER = 0.8
"""Power at which `launches_needed` is computed."""

MOST_LAUNCHES = 1000
"""Largest number of launches to recommend."""

LARGEST_LOGARITHM = 700.0

MAX_ORDER_SHARE = 0.25
"""Launches count as interleaved up to this R squared of side against position."""


class Reason(str, Enum):
    """Reason for `undecided` or `not-comparable`."""

    ONE_LAUNCH = "one-launch"
    TOO_WIDE = "too-wide"
    ZERO = "zero"
    MISSING = "missing"
    TOO_FEW_FOR_DRIFT = "too-few-for-drift"


Direction = Literal["up", "down", "same", "undecided", "not-comparable"]


@dataclass(frozen=True)
class Pair:
    """One figure of both sides: a value per launch, none negative; `…_at`: positions among all launches, if known."""

    base: Float64
    new: Float64
    base_at: Int64 | None = None
    new_at: Int64 | None = None


class Rule(Record, use_attribute_docstrings=True):
    """Thresholds of a comparison."""

    alpha: float = Field(default=ALPHA, gt=0, lt=0.5)
    """highest rate of false alarms, over all rows together"""

    min_effect: float = Field(default=MIN_EFFECT, ge=0)
    """smallest relative difference that counts"""

    spread: float | None = Field(default=None, gt=0)
    """relative standard deviation between launches, given by the user; null: estimated from the data alone"""


@dataclass(frozen=True)
class Interval:
    """A confidence interval of a ratio."""

    low: float
    high: float
    confidence: float


@dataclass(frozen=True)
class Judgement:
    """The verdict on a pair.

    `ratio`: new over base, of geometric means. `interval`: for this pair alone. `judged_by`: corrected for the number
    of pairs, like both p-values (None if not tested). `threshold`: the relative difference to exceed.
    `launches_needed`: per side, to probably reach a verdict; None if decided or above `MOST_LAUNCHES`.
    """

    direction: Direction
    ratio: float | None = None
    interval: Interval | None = None
    judged_by: Interval | None = None
    threshold: float | None = None
    p_different: float | None = None
    p_same: float | None = None
    reason: Reason | None = None
    launches_needed: int | None = None
    allows_drift: bool = False


def compare(pairs: Sequence[Pair], rule: Rule) -> list[Judgement]:
    """Judge all pairs together: `up` or `down` if the interval lies beyond the threshold, `same` if within it (two
    one-sided tests).

    Holm's procedure bounds both error rates over all pairs by `alpha`: calling any equal pair different, and calling
    any different pair the same.
    """
    estimates = [_estimate(pair, rule) for pair in pairs]
    tested = [one for one in estimates if isinstance(one, _Estimate)]
    different = holm([one.p_different() for one in tested])
    same = holm([one.p_same() for one in tested])
    levels = [rule.alpha / max(len(tested) - sum(p <= rule.alpha for p in found), 1) for found in (different, same)]
    judgements = iter(
        _judge(one, rule, (p_different, p_same), levels)
        for one, p_different, p_same in zip(tested, different, same, strict=True)
    )
    return [next(judgements) if isinstance(one, _Estimate) else one for one in estimates]


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for multiple tests (Holm 1979); compare them with the error rate directly."""
    count, highest = len(p_values), 0.0
    adjusted = [0.0] * count
    for step, place in enumerate(sorted(range(count), key=lambda place: p_values[place])):
        highest = max(highest, min(1.0, (count - step) * p_values[place]))
        adjusted[place] = highest
    return adjusted


def order_share(base_at: Int64, new_at: Int64) -> float:
    """R squared of side against position: 0 for interleaved launches, 0.75 or more for one side after the other."""
    places: Float64 = np.concatenate([base_at, new_at]).astype(np.float64)
    total = float(((places - places.mean()) ** 2).sum())
    between = sum(len(part) * (float(part.mean()) - float(places.mean())) ** 2 for part in (base_at, new_at))
    return between / total if total else 0.0


@dataclass(frozen=True)
class _Estimate:
    """A difference of logarithms: of the means, and adjusted for a trend over the launches (`tested`; else the same).
    Both must lie beyond, or within, the threshold, and the interval covers both.
    """

    difference: float
    tested: float
    error: float
    freedom: float
    margin: float
    launches: float
    """Per side; the harmonic mean if the sides differ."""

    allows_drift: bool = False

    def p_different(self) -> float:
        """p-value of "the difference is at most the margin", two-sided."""
        above = self._tail(self.tested - self.margin) if self.difference > self.margin else 1.0
        below = self._tail(-self.margin - self.tested) if self.difference < -self.margin else 1.0
        return min(1.0, 2 * min(above, below))

    def p_same(self) -> float:
        """p-value of "the difference is at least the margin" (two one-sided tests)."""
        if abs(self.difference) > self.margin:
            return 1.0
        return max(self._tail(self.margin - self.tested), self._tail(self.tested + self.margin))

    def _tail(self, distance: float) -> float:
        """Probability of an estimate at least this far on the wrong side."""
        if self.error == 0:
            return 0.0 if distance > 0 else 1.0
        from scipy.special import ndtr, stdtr  # takes longer to import than most commands to run

        beyond = -distance / self.error
        return float(stdtr(self.freedom, beyond) if isfinite(self.freedom) else ndtr(beyond))

    def interval(self, confidence: float) -> Interval:
        """Confidence interval of the ratio."""
        half = self.error * student_t(self.freedom, 0.5 + confidence / 2) if self.error else 0.0
        low, high = min(self.tested - half, self.difference), max(self.tested + half, self.difference)
        return Interval(_exp(low), _exp(high), confidence)

    def launches_needed(self, levels: Sequence[float]) -> int | None:
        """Launches per side that probably decide it, if the estimate and the spread are right."""
        beyond = abs(self.difference) - self.margin
        tail = levels[0] / 2 if beyond > 0 else levels[1]
        lost = 3 if self.allows_drift else 2

        def decides(number: int) -> bool:
            freedom = 2 * number - lost
            width = student_t(freedom, 1 - tail) + student_t(freedom, ENOUGH_POWER)
            return width * self.error * sqrt(self.launches / number) < abs(beyond)

        numbers = range(max(int(self.launches) + 1, lost), MOST_LAUNCHES + 1)
        first = bisect_left(numbers, True, key=decides)
        return numbers[first] if first < len(numbers) else None


def _estimate(pair: Pair, rule: Rule) -> _Estimate | Judgement:
    sides = [np.asarray(side, dtype=np.float64) for side in (pair.base, pair.new)]
    if any(len(side) == 0 or not np.isfinite(side).all() or (side < 0).any() for side in sides):
        return Judgement("not-comparable", reason=Reason.MISSING)
    if any((side == 0).any() for side in sides):
        return Judgement("not-comparable", reason=Reason.ZERO)
    base, new = (np.log(side) for side in sides)
    difference = float(new.mean() - base.mean())
    undecided = Judgement("undecided", _exp(difference), threshold=rule.min_effect)
    floor = 0.0 if rule.spread is None else log1p(rule.spread)
    if not floor and min(len(base), len(new)) < 2:
        return replace(undecided, reason=Reason.ONE_LAUNCH)
    launches = 2 / (1 / len(base) + 1 / len(new))
    error, freedom = _welch(base, new, floor)
    found = _Estimate(difference, difference, error, freedom, log1p(rule.min_effect), launches)
    at = (pair.base_at, pair.new_at)
    if at[0] is None or at[1] is None or min(len(base), len(new)) < 2 or order_share(at[0], at[1]) <= MAX_ORDER_SHARE:
        return found
    if len(base) + len(new) <= 3:
        return replace(undecided, reason=Reason.TOO_FEW_FOR_DRIFT)
    tested, error, freedom = _beside_a_trend(base, new, at[0], at[1])
    error = max(error, floor * sqrt(2 / launches))
    return _Estimate(difference, tested, error, freedom, found.margin, launches, allows_drift=True)


def _welch(base: Float64, new: Float64, floor: float = 0.0) -> tuple[float, float]:
    """Standard error of the difference of means, and Welch's degrees of freedom (infinite for a stated spread).

    The side with fewer launches gets at least the pooled variance. Its own is sometimes small by chance, which would
    give two to seven times as many false alarms.
    """
    freedom = [len(side) - 1 for side in (base, new)]
    variances = [float(side.var(ddof=1)) if len(side) > 1 else 0.0 for side in (base, new)]
    if min(freedom) > 0 and freedom[0] != freedom[1]:
        fewer = int(freedom[1] < freedom[0])
        variances[fewer] = max(variances[fewer], float(np.average(variances, weights=freedom)))
    error = weight = 0.0
    for seen, one in zip(variances, freedom, strict=True):
        error += max(seen, floor**2) / (one + 1)
        if seen >= floor**2 and one > 0:
            weight += (seen / (one + 1)) ** 2 / one
    return sqrt(error), error**2 / weight if weight > 0 else inf


def _beside_a_trend(base: Float64, new: Float64, base_at: Int64, new_at: Int64) -> tuple[float, float, float]:
    """Difference of the sides adjusted for a linear trend over the launches, its standard error, degrees of freedom.

    Residuals are pooled. If the side with fewer launches varies more, the error is scaled by Welch's error over the
    pooled one, and Welch's degrees of freedom apply.
    """
    places = np.argsort(np.argsort(np.concatenate([base_at, new_at]))).astype(np.float64)
    side = np.r_[np.zeros(len(base)), np.ones(len(new))]
    model = np.column_stack([np.ones(len(side)), side, places - places.mean()])
    values = np.concatenate([base, new])
    fitted, *_ = np.linalg.lstsq(model, values, rcond=None)
    freedom = len(values) - 3
    variance = float(((values - model @ fitted) ** 2).sum()) / freedom
    error = sqrt(variance * float(np.linalg.inv(model.T @ model)[1, 1]))
    pooled = sum(float(part.var(ddof=1)) * (len(part) - 1) for part in (base, new)) / (len(values) - 2)
    pooled *= 1 / len(base) + 1 / len(new)
    of_means, its_freedom = _welch(base, new)
    if len(base) == len(new) or of_means**2 <= pooled:
        return float(fitted[1]), error, float(freedom)
    return float(fitted[1]), error * of_means / sqrt(pooled), min(freedom, its_freedom)


def _judge(one: _Estimate, rule: Rule, adjusted: tuple[float, float], levels: Sequence[float]) -> Judgement:
    direction: Direction = "undecided"
    if adjusted[0] <= rule.alpha:
        direction = "up" if one.difference > 0 else "down"
    elif adjusted[1] <= rule.alpha:
        direction = "same"
    undecided = direction == "undecided"
    return Judgement(
        direction,
        ratio=_exp(one.difference),
        interval=one.interval(1 - rule.alpha),
        judged_by=one.interval(1 - 2 * levels[1] if direction == "same" else 1 - levels[0]),
        threshold=_exp(one.margin) - 1,
        p_different=adjusted[0],
        p_same=adjusted[1],
        reason=Reason.TOO_WIDE if undecided else None,
        launches_needed=one.launches_needed(levels) if undecided else None,
        allows_drift=one.allows_drift,
    )


def geometric_mean(values: Float64) -> float | None:
    """The geometric mean; the arithmetic mean if any value is 0; None if a value is missing."""
    if len(values) == 0 or not np.isfinite(values).all():
        return None
    return _exp(float(np.log(values).mean())) if (values > 0).all() else float(values.mean())


def relative_spread(values: Float64) -> float | None:
    """Relative standard deviation between launches; None for fewer than two, or if any value is 0."""
    if len(values) < 2 or not (np.isfinite(values) & (values > 0)).all():
        return None
    return _exp(float(np.log(values).std(ddof=1))) - 1


def _exp(value: float) -> float:
    """Return exp(value), clipped to stay finite for JSON."""
    return exp(min(max(value, -LARGEST_LOGARITHM), LARGEST_LOGARITHM))
