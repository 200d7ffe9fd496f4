"""Which of several ways to serve a load is to be taken: the cheapest of those that are not worse than the best.

All ways are compared with each other, so that it does no harm that the best one was picked by the same values (Holm's
procedure over all pairs). The launch is the unit, as in every comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np

from perfharness.analysis.comparison.verdicts import Interval, Judgement, Pair, Reason, Rule, compare, geometric_mean
from perfharness.model.result import Float64
from perfharness.model.trace import Int64

WORTH = 0.05
"""A difference below that is not worth another replica, which costs a whole one's memory."""

Standing = Literal["best", "same", "worse", "undecided", "not-measured"]


@dataclass(frozen=True)
class Contender:
    """One way to serve the load.

    Args:
        cost: the smaller, the cheaper; what is compared where two are equally good.
        values: one a launch; NaN where a launch does not have it.
        at: place of each launch in the order of all.
    """

    cost: tuple[int, ...]
    values: Float64
    at: Int64

    @property
    def mean(self) -> float | None:
        """The geometric mean; None: nothing was measured, or not in every launch."""
        return geometric_mean(self.values)


@dataclass(frozen=True)
class Placed:
    """A contender against the best one.

    Args:
        ratio: to the best one's figure.
        interval: of `ratio`, at 95 % of this pair alone.
        launches_needed: of each, which would probably decide it; None: decided, or not known.
    """

    standing: Standing
    ratio: float | None = None
    interval: Interval | None = None
    reason: str | None = None
    launches_needed: int | None = None


@dataclass(frozen=True)
class Choice:
    """The answer.

    Attributes:
        leader: place of the one with the best figure; None: nothing was measured.
        chosen: place of the cheapest of those that are proven to be as good; the leader itself where there is none.
        proven: whether each of the others is proven to be worse, or as good.
        places: of all contenders, in their order.
    """

    leader: int | None
    chosen: int | None
    proven: bool
    places: tuple[Placed, ...]


def choose(contenders: Sequence[Contender], *, more_is_better: bool) -> Choice:
    """Place all contenders, and choose one."""
    means = [one.mean for one in contenders]
    measured = [place for place, mean in enumerate(means) if mean is not None]
    if not measured:
        return Choice(None, None, False, tuple(_not_measured() for _ in contenders))
    sign = 1 if more_is_better else -1
    leader = max(measured, key=lambda place: (sign * (means[place] or 0.0), [-each for each in contenders[place].cost]))
    # The leader is the base of its pairs.
    pairs = list(combinations(sorted(measured, key=lambda place: place != leader), 2))
    judged = dict(
        zip(pairs, compare([_pair(contenders, *pair) for pair in pairs], Rule(min_effect=WORTH)), strict=True)
    )
    places = []
    for place in range(len(contenders)):
        if place not in measured:
            places.append(_not_measured())
        elif place == leader:
            places.append(Placed("best", 1.0))
        else:
            found = judged[leader, place]
            places.append(_placed(found, contenders[place], contenders[leader], more_is_better=more_is_better))
    as_good = [place for place, one in enumerate(places) if one.standing in ("best", "same")]
    chosen = min(as_good, key=lambda place: contenders[place].cost)
    others = [one for place, one in enumerate(places) if place != leader]
    proven = bool(others) and all(one.standing in ("same", "worse") for one in others)
    return Choice(leader, chosen, proven, tuple(places))


def _not_measured() -> Placed:
    return Placed("not-measured", reason="not every launch has it, or none was measured")


def _pair(contenders: Sequence[Contender], first: int, second: int) -> Pair:
    base, new = contenders[first], contenders[second]
    return Pair(base.values, new.values, base_at=base.at, new_at=new.at)


def _placed(found: Judgement, mine: Contender, best: Contender, *, more_is_better: bool) -> Placed:
    """Of a contender, by the judgement of its figure over the best one's."""
    if found.reason is Reason.ZERO:
        if more_is_better and not mine.values.any() and (best.values > 0).all() and len(mine.values) > 1:
            return Placed("worse", 0.0, reason="it is 0 in all launches")
        return Placed("undecided", reason="it is 0 in some launches")
    if found.direction == "same":
        return Placed("same", found.ratio, found.interval)
    if found.direction in ("up", "down") and (found.direction == "down") == more_is_better:
        return Placed("worse", found.ratio, found.interval)
    why = {
        Reason.ONE_LAUNCH: "one launch of each does not show how launches differ; measure more (--repeat)",
        Reason.TOO_WIDE: "the launches differ too much, or are too few",
        Reason.TOO_FEW_FOR_DRIFT: "too few launches to tell it from a machine that drifts",
    }
    reason = None if found.reason is None else why.get(found.reason)
    return Placed("undecided", found.ratio, found.interval, reason or "not told apart", found.launches_needed)


def without_nulls(values: Sequence[float | None]) -> Float64:
    """NaN for what is not known."""
    return np.array([np.nan if value is None else value for value in values], np.float64)
