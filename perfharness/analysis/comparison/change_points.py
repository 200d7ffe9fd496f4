"""Where a series of numbers steps to another level, at a stated rate of false alarms.

Binary segmentation with a permutation test: in the ranks of the numbers, the largest standardised difference between
the points before and after any place is compared with those of the same ranks in random order. Where it is rarely as
large, the series is cut there, and both parts are tested at half the rate. Nothing is assumed of the distribution but
that points of one level could have come in any order: a drift, or a machine that is fast for days, is a change to it.
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
    place, p_value = largest_step(series[begin:end], least)
    if p_value > alpha:
        return
    yield begin + place, p_value
    yield from _steps(series, begin, begin + place, alpha / 2, least)
    yield from _steps(series, begin + place, end, alpha / 2, least)


def largest_step(values: Float64, least: int = LEAST) -> tuple[int, float]:
    """The place of the largest step, and how often the same numbers in any order have one as large."""
    ranks = stats.rankdata(values) - (len(values) + 1) / 2
    sizes = _step_sizes(ranks[np.newaxis], least)[0]
    largest = sizes.max()
    maxima = _largest_by_chance(tuple(np.sort(ranks).tolist()), least)
    as_large = len(maxima) - int(np.searchsorted(maxima, largest * (1 - 1e-9)))
    is_exact = len(values) <= EXACT_UP_TO
    p_value = as_large / len(maxima) if is_exact else (1 + as_large) / (1 + len(maxima))
    return least + int(sizes.argmax()), p_value


def least_rate(count: int, least: int = LEAST) -> float:
    """The rate at which so many points show the clearest step there can be; 1 where there can be none."""
    return 1.0 if count < 2 * least else largest_step(np.arange(count, dtype=np.float64), least)[1]


@functools.lru_cache(maxsize=256)
def _largest_by_chance(ranks: tuple[float, ...], least: int) -> Float64:
    """The largest step of the ranks in every order, or in random ones; in rising order."""
    if len(ranks) <= EXACT_UP_TO:
        orders = np.array(list(itertools.permutations(ranks)))
        return np.sort(_step_sizes(orders, least).max(axis=1))
    drawn = np.random.default_rng(SEED)
    rows = max(1, AT_ONCE // len(ranks))
    found = []
    for begin in range(0, PERMUTATIONS, rows):
        orders = drawn.permuted(np.tile(ranks, (min(rows, PERMUTATIONS - begin), 1)), axis=1)
        found.append(_step_sizes(orders, least).max(axis=1))
    return np.sort(np.concatenate(found))


def _step_sizes(ranks: Float64, least: int) -> Float64:
    """Standardised differences of the means before and after each place, one row an order."""
    count = ranks.shape[1]
    before = np.arange(least, count - least + 1)
    sums = np.abs(np.cumsum(ranks, axis=1)[:, before - 1])  # the sum of all centred ranks is 0
    return np.asarray(sums / np.sqrt(before * (count - before) / count), dtype=np.float64)


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
