"""Whether two versions differ: ratios of launch means with intervals, and verdicts at a stated rate of false alarms.

The launch is the unit: one number a launch, for batches of one launch repeat each other and not the next launch. All is
on the log scale, where a ratio is a difference. docs/internals/comparison.md has how often the verdicts are wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from math import exp, inf, isfinite, log1p, sqrt
from typing import Literal

import numpy as np

from perfharness.analysis.statistics import student_t
from perfharness.model.result import Float64
from perfharness.model.trace import Int64

ALPHA = 0.05
"""Rate of false alarms in a whole comparison."""

MIN_EFFECT = 0.02
"""Smallest relative difference that counts."""

ENOUGH_POWER = 0.8
"""How likely the number of launches that is named for an undecided row decides it, if its estimate is right."""

MOST_LAUNCHES = 1000
"""More are not worth naming."""

LARGEST_LOGARITHM = 700.0

MAX_ORDER_SHARE = 0.25
"""Sides count as interleaved where which side a launch is of explains no more of its place in the order (R squared)."""

MIN_ROUNDS = 7
"""From so many rounds on, the two launches of a round are compared with each other. With fewer, Student's t of so few
differences costs more than what the launches of a round have in common saves."""

MIN_FIRST = 2
"""Rounds that begin with either side: where the same one always came first, a drift would be in every difference."""


class Reason(str, Enum):
    """Why a pair has no verdict, or `undecided`."""

    ONE_LAUNCH = "one-launch"
    TOO_WIDE = "too-wide"
    ZERO = "zero"
    MISSING = "missing"
    TOO_FEW_FOR_DRIFT = "too-few-for-drift"


Direction = Literal["up", "down", "same", "undecided", "not-comparable"]


@dataclass(frozen=True)
class Pair:
    """One figure of both sides.

    Args:
        base: one value a launch, none of them negative.
        new: the same.
        base_at: place of each launch in the order of all launches of both sides; None: not known.
        new_at: the same.
    """

    base: Float64
    new: Float64
    base_at: Int64 | None = None
    new_at: Int64 | None = None


@dataclass(frozen=True)
class Rule:
    """What is taken as a difference.

    Args:
        alpha: rate of false alarms over all pairs together.
        min_effect: smallest relative difference that counts.
        spread: relative standard deviation between launches that is known from elsewhere: what is seen is not taken as
            less, and it stands for a side of one launch. None: not known.
    """

    alpha: float = ALPHA
    min_effect: float = MIN_EFFECT
    spread: float | None = None


@dataclass(frozen=True)
class Interval:
    """Of a ratio; `confidence` as a share."""

    low: float
    high: float
    confidence: float


@dataclass(frozen=True)
class Judgement:
    """What is said of a pair.

    Attributes:
        ratio: new over base, of geometric means over launches; None: not known.
        interval: of this pair alone, at 1 - alpha.
        judged_by: the interval that the verdict rests on, corrected for the number of pairs.
        threshold: the relative difference that had to be exceeded, both thresholds together.
        p_different: adjusted for the number of pairs; None: not tested.
        p_same: the same.
        launches_needed: launches a side that would probably decide it; None: decided, or more than a thousand.
        allows_drift: whether the interval allows for a machine that drifts.
        by_rounds: whether it is that of the differences within rounds.
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
    by_rounds: bool = False


def compare(pairs: Sequence[Pair], rule: Rule = Rule()) -> list[Judgement]:
    """Judge all pairs together.

    A pair is `up` or `down` where its interval lies beyond the threshold, `same` where its interval lies within it (two
    one-sided tests). Both are corrected by Holm's procedure over all pairs: the probability that any pair without a
    difference is called different is at most `alpha`, and so is that of any different pair being called the same.
    """
    estimates = [_estimate(pair, rule) for pair in pairs]
    tested = [one for one in estimates if isinstance(one, _Estimate)]
    different = [one.p_different() for one in tested]
    same = [one.p_same() for one in tested]
    is_different, alpha_different = holm(different, rule.alpha)
    is_same, alpha_same = holm(same, rule.alpha)
    adjusted_different, adjusted_same = holm_adjusted(different), holm_adjusted(same)
    judgements = iter(
        _judge(one, rule, is_different[place], alpha_different, is_same[place], alpha_same,
               adjusted_different[place], adjusted_same[place])
        for place, one in enumerate(tested)
    )  # fmt: skip
    return [next(judgements) if isinstance(one, _Estimate) else one for one in estimates]


def holm(p_values: Sequence[float], alpha: float) -> tuple[list[bool], float]:
    """Which hypotheses Holm's step-down procedure rejects, and the level that has the same result for each alone.

    With R of m rejected that level is alpha / (m - R): whatever is rejected lies below it, what is not lies above.
    """
    count, rejected = len(p_values), 0
    order = sorted(range(count), key=lambda place: p_values[place])
    while rejected < count and p_values[order[rejected]] <= alpha / (count - rejected):
        rejected += 1
    chosen = set(order[:rejected])
    return [place in chosen for place in range(count)], alpha / max(count - rejected, 1)


def holm_adjusted(p_values: Sequence[float]) -> list[float]:
    """p-values that are compared with alpha itself (Holm 1979)."""
    count, highest = len(p_values), 0.0
    adjusted = [0.0] * count
    for step, place in enumerate(sorted(range(count), key=lambda place: p_values[place])):
        highest = max(highest, min(1.0, (count - step) * p_values[place]))
        adjusted[place] = highest
    return adjusted


def order_share(base_at: Int64, new_at: Int64) -> float:
    """How much of the place in the order is explained by the side: 0 in turns, 0.75 and more one after the other."""
    places: Float64 = np.concatenate([base_at, new_at]).astype(np.float64)
    total = float(((places - places.mean()) ** 2).sum())
    if total == 0:
        return 0.0
    between = sum(len(part) * (float(part.mean()) - float(places.mean())) ** 2 for part in (base_at, new_at))
    return between / total


def are_rounds(base_at: Int64, new_at: Int64) -> bool:
    """Whether the launches were made in rounds of one of each side, in changing order, and in enough of them.

    It looks at nothing but the order, so it does not favour any result.
    """
    if len(base_at) != len(new_at) or len(base_at) < MIN_ROUNDS:
        return False
    base_first = np.sort(base_at) < np.sort(new_at)
    in_order = np.argsort(np.concatenate([base_at, new_at])).reshape(-1, 2) >= len(base_at)
    return bool((in_order.sum(axis=1) == 1).all() and MIN_FIRST <= base_first.sum() <= len(base_at) - MIN_FIRST)


def width_for_drift(base_at: Int64, new_at: Int64, confidence: float = 1 - ALPHA) -> float:
    """How many times as wide an interval is that allows for a drift, of sides that vary as much."""
    freedom = len(base_at) + len(new_at) - 2
    if freedom < 2:
        return inf
    tail = 0.5 + confidence / 2
    students = student_t(freedom - 1, tail) / student_t(freedom, tail)
    return students / sqrt(1 - order_share(base_at, new_at))


class Design(Enum):
    """How the error of a difference is known."""

    MEANS = "means"
    """two means, each of launches that vary by themselves (Welch)"""

    TREND = "trend"
    """beside a trend over all launches"""

    ROUNDS = "rounds"
    """of the differences within rounds"""

    def freedom(self, number: int) -> int:
        """Degrees of freedom with that number of launches a side that vary alike."""
        return number - 1 if self is Design.ROUNDS else 2 * number - (3 if self is Design.TREND else 2)


@dataclass(frozen=True)
class _Estimate:
    """A difference of logarithms; the law of what is tested is Student's.

    `difference` is that of the means. `tested` is the same, or beside a trend over the launches another one: then both
    have to be beyond the threshold, or within it, and the interval reaches to both.
    """

    difference: float
    tested: float
    error: float
    freedom: float
    margin: float
    launches: float
    """A side; of unequal sides the harmonic mean."""

    design: Design

    def p_different(self) -> float:
        """That the difference is no larger than the margin, in either direction; two-sided."""
        above = self._tail(self.tested - self.margin) if self.difference > self.margin else 1.0
        below = self._tail(-self.margin - self.tested) if self.difference < -self.margin else 1.0
        return min(1.0, 2 * min(above, below))

    def p_same(self) -> float:
        """That the difference is the margin or larger: two one-sided tests."""
        if abs(self.difference) > self.margin:
            return 1.0
        return max(self._tail(self.margin - self.tested), self._tail(self.tested + self.margin))

    def _tail(self, distance: float) -> float:
        """Probability of an estimate that is at least so far on the wrong side."""
        if self.error == 0:
            return 0.0 if distance > 0 else 1.0
        return _student_tail(distance / self.error, self.freedom)

    def interval(self, confidence: float) -> Interval:
        """Of the ratio."""
        half = self.error * student_t(self.freedom, 0.5 + confidence / 2) if self.error else 0.0
        low, high = min(self.tested - half, self.difference), max(self.tested + half, self.difference)
        return Interval(_exp(low), _exp(high), confidence)

    def launches_needed(self, alpha_different: float, alpha_same: float) -> int | None:
        """Launches a side with which it is probably decided, if the estimate and the spread are right."""
        beyond = abs(self.difference) - self.margin
        tail = alpha_different / 2 if beyond > 0 else alpha_same
        per_root = self.error * sqrt(self.launches)
        first = int(self.launches) + 1
        # The half-width falls with every launch more, so the smallest number is found by halving.
        numbers = range(max(first, 3 if self.design is Design.TREND else 2), MOST_LAUNCHES + 1)
        low, high = 0, len(numbers)
        while low < high:
            middle = (low + high) // 2
            number = numbers[middle]
            freedom = self.design.freedom(number)
            width = student_t(freedom, 1 - tail) + student_t(freedom, ENOUGH_POWER)
            if width * per_root / sqrt(number) < abs(beyond):
                high = middle
            else:
                low = middle + 1
        return numbers[low] if low < len(numbers) else None


def _estimate(pair: Pair, rule: Rule) -> _Estimate | Judgement:
    sides = [np.asarray(side, dtype=np.float64) for side in (pair.base, pair.new)]
    if any(len(side) == 0 or not np.isfinite(side).all() or (side < 0).any() for side in sides):
        return Judgement("not-comparable", reason=Reason.MISSING)
    if any((side == 0).any() for side in sides):
        return Judgement("not-comparable", reason=Reason.ZERO)
    base, new = (np.log(side) for side in sides)
    difference = float(new.mean() - base.mean())
    margin = log1p(rule.min_effect)
    floor = None if rule.spread is None else log1p(rule.spread)
    if floor is None and min(len(base), len(new)) < 2:
        return Judgement("undecided", ratio=_exp(difference), threshold=_exp(margin) - 1, reason=Reason.ONE_LAUNCH)
    launches = 2 / (1 / len(base) + 1 / len(new))
    if floor is None and pair.base_at is not None and pair.new_at is not None and are_rounds(pair.base_at, pair.new_at):
        differences = new[np.argsort(pair.new_at)] - base[np.argsort(pair.base_at)]
        error = float(differences.std(ddof=1)) / sqrt(len(differences))
        return _Estimate(difference, difference, error, len(differences) - 1, margin, launches, Design.ROUNDS)
    error, freedom = _welch(base, new, floor)
    found = _Estimate(difference, difference, error, freedom, margin, launches, Design.MEANS)
    if pair.base_at is None or pair.new_at is None:
        return found
    if min(len(base), len(new)) < 2 or order_share(pair.base_at, pair.new_at) <= MAX_ORDER_SHARE:
        return found
    if len(base) + len(new) <= 3:
        return Judgement("undecided", _exp(difference), threshold=_exp(margin) - 1, reason=Reason.TOO_FEW_FOR_DRIFT)
    tested, error, freedom = _less_trend(base, new, pair.base_at, pair.new_at)
    known = 0.0 if floor is None else floor * sqrt(2 / launches)
    return _Estimate(difference, tested, max(error, known), freedom, margin, launches, Design.TREND)


def _welch(base: Float64, new: Float64, floor: float | None) -> tuple[float, float]:
    """Standard error of the difference of means, and Welch's degrees of freedom; infinitely many of a stated spread."""
    error = weight = 0.0
    for side, seen in zip((base, new), _variances(base, new), strict=True):
        variance = max(seen, floor**2 if floor is not None else 0.0)
        error += variance / len(side)
        if variance == seen and len(side) > 1:
            weight += (variance / len(side)) ** 2 / (len(side) - 1)
    return sqrt(error), error**2 / weight if weight > 0 else inf


def _variances(base: Float64, new: Float64) -> tuple[float, float]:
    """Of the launches of each side; 0 of a single one.

    That of the side with fewer launches is at least the pooled one: three launches are alike by chance now and then,
    and then Welch's test takes the other side's freedom for both, with two to seven times as many false alarms.
    """
    seen = [float(side.var(ddof=1)) if len(side) > 1 else 0.0 for side in (base, new)]
    freedom = [len(side) - 1 for side in (base, new)]
    if min(freedom) > 0 and freedom[0] != freedom[1]:
        pooled = (seen[0] * freedom[0] + seen[1] * freedom[1]) / sum(freedom)
        fewer = int(freedom[1] < freedom[0])
        seen[fewer] = max(seen[fewer], pooled)
    return seen[0], seen[1]


def _less_trend(base: Float64, new: Float64, base_at: Int64, new_at: Int64) -> tuple[float, float, float]:
    """The difference of the sides, its standard error and degrees of freedom, beside a trend over the launches.

    The residuals are pooled. Where the side with fewer launches varies more, the error is larger by as much as that of
    the two means is than one of pooled variances, and has that one's freedom.
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
    of_means, its_freedom = _welch(base, new, None)
    if len(base) == len(new) or of_means**2 <= pooled:
        return float(fitted[1]), error, float(freedom)
    return float(fitted[1]), error * of_means / sqrt(pooled), min(freedom, its_freedom)


def _judge(
    one: _Estimate,
    rule: Rule,
    is_different: bool,
    alpha_different: float,
    is_same: bool,
    alpha_same: float,
    p_different: float,
    p_same: float,
) -> Judgement:
    direction: Direction = "undecided"
    if is_different:
        direction = "up" if one.difference > 0 else "down"
    elif is_same:
        direction = "same"
    confidence = 1 - 2 * alpha_same if direction == "same" else 1 - alpha_different
    undecided = direction == "undecided"
    return Judgement(
        direction,
        ratio=_exp(one.difference),
        interval=one.interval(1 - rule.alpha),
        judged_by=one.interval(confidence),
        threshold=_exp(one.margin) - 1,
        p_different=p_different,
        p_same=p_same,
        reason=Reason.TOO_WIDE if undecided else None,
        launches_needed=one.launches_needed(alpha_different, alpha_same) if undecided else None,
        allows_drift=one.design is Design.TREND,
        by_rounds=one.design is Design.ROUNDS,
    )


def geometric_mean(values: Float64) -> float | None:
    """The geometric mean, which the ratios are of; the arithmetic one where a value is 0; None where there are none."""
    if len(values) == 0 or not np.isfinite(values).all():
        return None
    return _exp(float(np.log(values).mean())) if (values > 0).all() else float(values.mean())


def relative_spread(values: Float64) -> float | None:
    """Standard deviation between launches, relative; None of fewer than two, or where a value is 0."""
    if len(values) < 2 or not (np.isfinite(values) & (values > 0)).all():
        return None
    return _exp(float(np.log(values).std(ddof=1))) - 1


def _exp(value: float) -> float:
    """Never infinite, which JSON has no word for."""
    return exp(min(max(value, -LARGEST_LOGARITHM), LARGEST_LOGARITHM))


def _student_tail(value: float, freedom: float) -> float:
    from scipy.special import ndtr, stdtr  # takes longer to import than most commands to run

    return float(ndtr(-value) if not isfinite(freedom) else stdtr(freedom, -value))
