"""What is typical: the median over batches like the slow one, and which difference is no more than the usual spread."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from perfharness.analysis.statistics import student_t
from perfharness.analysis.timeline.grouping import group_rows
from perfharness.model.result import Float64
from perfharness.model.trace import Int64

MIN_ALIKE = 10
"""Of batches with the same items, input and phase; with fewer, the comparison is with less similar ones."""
MIN_TYPICAL = 5
"""With fewer other batches there is no typical one."""
MAX_TYPICAL = 2_000
"""More batches are not needed for a median; so many are drawn."""
SEED = 17

FALSE_ALARM = 0.05
"""Chance that any part of any of the batches exceeds its usual spread, if it has an exponential tail (times have: they
cannot be much shorter than usual, and now and then are much longer). The slowest of many batches is chosen for its
size, so the limit rises with their number."""
NORMAL_QUARTILE = 0.6745
"""Of a normal distribution: its median absolute deviation, in standard deviations."""


@dataclass(frozen=True)
class Alike:
    """The batches that one is compared with: rows of the stage table, of how many, and what they have in common."""

    rows: Int64
    of: int
    names: list[str]


class Groups:
    """Finds the batches of a loop that are like one of them.

    Args:
        rows: of the batches.
        columns: what batches may have in common, by name: a number for each, and what it is called.
    """

    def __init__(self, rows: Int64, columns: Mapping[str, tuple[Int64, list[str]]]) -> None:
        self._rows = rows
        self._levels = [tuple(columns), ("items",) if "items" in columns else (), ()]
        self._columns = columns
        self._drawn: dict[tuple[tuple[str, ...], int], Int64] = {}
        self._codes = {
            level: group_rows(*(columns[name][0] for name in level)).code if level else np.zeros(len(rows), np.int64)
            for level in dict.fromkeys(self._levels)
        }

    def alike(self, place: int) -> Alike | None:
        """Those like the batch at a place of `rows`, without it; None: there are not enough."""
        for level in dict.fromkeys(self._levels):
            code = self._codes[level]
            others = int((code == code[place]).sum()) - 1
            if others >= (MIN_ALIKE if level else MIN_TYPICAL):
                key = level, int(code[place])
                if key not in self._drawn:
                    self._drawn[key] = _drawn(np.flatnonzero(code == code[place]))
                chosen = self._drawn[key]
                names = [self._columns[name][1][place] for name in level]
                return Alike(self._rows[chosen[chosen != place]], others, [name for name in names if name])
        return None


def _drawn(places: Int64) -> Int64:
    if len(places) <= MAX_TYPICAL + 1:
        return places
    return np.sort(np.random.default_rng(SEED).choice(places, MAX_TYPICAL, replace=False))


def limit_in_spreads(typical: int, of: int, tests: int) -> float:
    """How many standard deviations are still usual.

    Args:
        typical: batches that the spread was found from.
        of: batches among which the slow one is.
        tests: parts of each.
    """
    chance = FALSE_ALARM / (max(of, 1) * max(tests, 1))
    tail = NORMAL_QUARTILE / math.log(2) * math.log(0.5 / chance)  # half of the values lie above the median
    tail *= 1 + 1 / math.sqrt(max(typical, 1))  # the spread is an estimate, too
    return max(tail, -student_t(typical - 1, chance))


def spread(values: Float64) -> Float64:
    """A standard deviation of each column that outliers do not enlarge: by the median absolute deviation, or, where the
    larger values lie further from the median (a part that most batches have not), by the upper quartile.
    """
    middle = np.median(values, axis=0)
    deviation = np.median(np.abs(values - middle), axis=0)
    upper = np.quantile(values, 0.75, axis=0) - middle
    return np.asarray(np.maximum(deviation, upper) / NORMAL_QUARTILE, dtype=np.float64)
