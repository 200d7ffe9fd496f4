"""Where a series of numbers steps to another level, at a stated rate of false alarms.

Binary segmentation with a permutation test: in the ranks of the numbers, the largest standardised difference between
the points before and after any place, or between those inside and outside of any two, is compared with those of the
same ranks in random order. Where it is rarely as large, the series is cut there, and the parts are tested at their
shares of the rate. Two places at a time find a level that comes back, of whose steps each hides the other (circular
binary segmentation: Olshen, Venkatraman, Lucito and Wigler, Biostatistics 5, 2004). Nothing is assumed of the
distribution but that points of one level could have come in any order: a drift, or a machine that is fast for days, is
a change to it.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

Float64 = npt.NDArray[np.float64]

ALPHA = 0.01
"""Rate of false alarms over a whole series of one level."""

LEAST = 3
"""Points of the shortest level: fewer may be outliers."""

PERMUTATIONS = 9_999
EXACT_UP_TO = 8
"""So many points have few enough orders (40,320) to take them all."""

SEED = 20_260_101
"""The same numbers give the same answer."""

SHARE_OF_RETURNS = 0.2
"""Of the rate, what levels that come back may take: the less, the more of the single steps are found."""

LEAST_OF_RETURNS = 6
"""Times the points of the shortest level: fewer points cannot show a level that comes back at a share of 1 %."""

LENGTH_STEP = 0.1
"""Levels that come back are looked for in lengths so far apart, relative: all of them would take too long."""

AT_ONCE = 1_000_000
"""Numbers that are permuted at once."""


@dataclass(frozen=True)
class ChangePoint:
    """A step.

    Args:
        place: of the first point of the new level, from 0.
        p_value: how often points of one level show as large a step somewhere.
        before, after: medians of the levels on both sides.
    """

    place: int
    p_value: float
    before: float
    after: float

    @property
    def ratio(self) -> float | None:
        """After over before; None: before is 0."""
        return self.after / self.before if self.before else None


def change_points(
    values: Sequence[float] | Float64, alpha: float = ALPHA, min_effect: float = 0.0, least: int = LEAST
) -> list[ChangePoint]:
    """The steps of a series, in order.

    Args:
        alpha: rate at which a series of one level, in any order, has a step.
        min_effect: relative differences of the levels that count; steps that are smaller are left out.
        least: points of the shortest level.
    """
    series = np.asarray(values, dtype=np.float64)
    found = sorted(_steps(series, 0, len(series), alpha, least))
    while True:
        steps = _with_levels(series, found)
        smallest = min(steps, key=_size, default=None)
        if smallest is None or _size(smallest) >= min_effect:
            return steps
        found = [step for step in found if step[0] != smallest.place]


def _size(step: ChangePoint) -> float:
    """The relative difference of the levels."""
    ratio = step.ratio
    return math.inf if ratio is None or ratio <= 0 else abs(ratio - 1)


def _with_levels(series: Float64, found: Sequence[tuple[int, float]]) -> list[ChangePoint]:
    ends = [0, *(place for place, _ in found), len(series)]
    levels = [float(np.median(series[begin:end])) for begin, end in itertools.pairwise(ends) if end > begin]
    return [
        ChangePoint(place, p_value, levels[number], levels[number + 1]) for number, (place, p_value) in enumerate(found)
    ]


def _steps(series: Float64, begin: int, end: int, alpha: float, least: int) -> Iterator[tuple[int, float]]:
    if end - begin < 2 * least:
        return
    places, p_value = largest_step(series[begin:end], least)
    if p_value > alpha:
        return
    yield from ((begin + place, p_value) for place in places)
    ends = [begin, *(begin + place for place in places), end]
    for first, last in itertools.pairwise(ends):
        yield from _steps(series, first, last, alpha / len(ends[1:]), least)


def largest_step(values: Float64, least: int = LEAST) -> tuple[tuple[int, ...], float]:
    """The place of the largest step, or the two of the clearest level that comes back, where that is clearer; and how
    often the same numbers in any order have one as clear.
    """
    ranks = stats.rankdata(values) - (len(values) + 1) / 2
    sums, (of_steps, of_returns) = _sums(ranks[np.newaxis]), _by_chance(tuple(np.sort(ranks).tolist()), least)
    sizes = _step_sizes(sums, least)[0]
    step = (least + int(sizes.argmax()),)
    p_value = _share(of_steps, float(sizes.max()))
    if not len(of_returns):
        return step, p_value
    length, inside = max(_returns(sums, least), key=lambda found: float(found[1].max()))
    p_returns = _share(of_returns, float(inside.max())) / SHARE_OF_RETURNS
    p_value /= 1 - SHARE_OF_RETURNS
    first = least + int(inside[0].argmax())
    return (step, min(p_value, 1.0)) if p_value <= p_returns else ((first, first + length), min(p_returns, 1.0))


def least_rate(count: int, least: int = LEAST) -> float:
    """The rate at which so many points show the clearest step there can be; 1 where there can be none."""
    return 1.0 if count < 2 * least else largest_step(np.arange(count, dtype=np.float64), least)[1]


def _share(maxima: Float64, largest: float) -> float:
    """How many of these, in rising order, are as large; where not all orders were taken, with the one that was seen."""
    as_large = len(maxima) - int(np.searchsorted(maxima, largest * (1 - 1e-9)))
    return as_large / len(maxima) if len(maxima) != PERMUTATIONS else (1 + as_large) / (1 + len(maxima))


@functools.lru_cache(maxsize=256)
def _by_chance(ranks: tuple[float, ...], least: int) -> tuple[Float64, Float64]:
    """The largest step of the ranks and the largest level that comes back, in every order or in random ones; each in
    rising order. The second is empty where there are too few points.
    """
    if len(ranks) <= EXACT_UP_TO:
        found = [_largest(np.array(list(itertools.permutations(ranks))), least)]
    else:
        drawn = np.random.default_rng(SEED)
        rows = max(1, AT_ONCE // len(ranks))
        found = [
            _largest(drawn.permuted(np.tile(ranks, (min(rows, PERMUTATIONS - begin), 1)), axis=1), least)
            for begin in range(0, PERMUTATIONS, rows)
        ]
    of_steps, of_returns = (np.sort(np.concatenate(part)) for part in zip(*found, strict=True))
    return of_steps, of_returns


def _largest(ranks: Float64, least: int) -> tuple[Float64, Float64]:
    """Of each row."""
    sums = _sums(ranks)
    of_returns = np.zeros(len(ranks) if ranks.shape[1] >= LEAST_OF_RETURNS * least else 0)
    for _, sizes in _returns(sums, least) if len(of_returns) else ():
        of_returns = np.maximum(of_returns, sizes.max(axis=1))
    return _step_sizes(sums, least).max(axis=1), of_returns


def _sums(ranks: Float64) -> Float64:
    """Of the points before each place, from none to all; one row an order."""
    return np.pad(np.cumsum(ranks, axis=1), ((0, 0), (1, 0)))


def _step_sizes(sums: Float64, least: int) -> Float64:
    """Standardised differences of the means before and after each place, one row an order."""
    count = sums.shape[1] - 1
    before = np.arange(least, count - least + 1)
    sizes = np.abs(sums[:, before])  # the sum of all centred ranks is 0
    return np.asarray(sizes / np.sqrt(before * (count - before) / count), dtype=np.float64)


def _returns(sums: Float64, least: int) -> Iterator[tuple[int, Float64]]:
    """Lengths of a level between two of another one; and the standardised differences of the means in it and outside,
    for each place at which it may begin, one row an order.
    """
    count, length = sums.shape[1] - 1, least
    while length <= count - 2 * least:
        inside = sums[:, least + length : count - least + 1] - sums[:, least : count - least - length + 1]
        yield length, np.abs(inside) / np.sqrt(length * (count - length) / count)
        length += max(1, int(LENGTH_STEP * length))


def is_autocorrelated(values: Sequence[float] | Float64, places: Sequence[int] = (), alpha: float = ALPHA) -> bool:
    """Whether points are like the one before them beyond chance, once the levels between steps are taken out.

    Then the order of the points is not random, and steps that are found may be a drift.
    """
    series, ends = np.asarray(values, dtype=np.float64), [0, *places, len(values)]
    parts = [stats.rankdata(series[begin:end]) for begin, end in itertools.pairwise(ends)]
    centred = np.concatenate([part - part.mean() for part in parts]) if parts else series
    if len(centred) < 2 * LEAST or not centred.any():
        return False
    drawn = np.random.default_rng(SEED)
    seen = _lagged(centred[np.newaxis])[0]
    orders = drawn.permuted(np.tile(centred, (PERMUTATIONS // 5, 1)), axis=1)
    as_large = int((_lagged(orders) >= seen - math.ulp(abs(seen))).sum())
    return (1 + as_large) / (1 + len(orders)) <= alpha


def _lagged(rows: Float64) -> Float64:
    return np.asarray((rows[:, 1:] * rows[:, :-1]).sum(axis=1), dtype=np.float64)
