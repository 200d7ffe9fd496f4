"""GPU times of ranges from operations that pass by in order of start.

Of each range no more is kept than its first start, its last end and its busy time so far: what an operation adds to
the union is the part of it behind the last end.
"""

from __future__ import annotations

import numpy as np

from perfharness.analysis.forest import Forest
from perfharness.analysis.intervals import running_maximum_before
from perfharness.model.trace import Int64, Integers

NEVER = np.iinfo(np.int64)


class BusyTimes:
    """Columns by position in a forest: `first_ns`, `last_ns`, `busy_ns`; they count where `last_ns` is not the least
    number. Feed blocks in order of start.
    """

    def __init__(self, forest: Forest) -> None:
        self._parent, self._level = forest.parent, forest.level
        self.first_ns = np.full(len(forest), NEVER.max, dtype=np.int64)
        self.last_ns = np.full(len(forest), NEVER.min, dtype=np.int64)
        self.busy_ns = np.zeros(len(forest), dtype=np.int64)
        self._reached = int(NEVER.min)

    def add(self, position: Integers, start: Int64, end: Int64) -> None:
        """Operations in order of start, each with the innermost range that it belongs to; not -1."""
        if not len(position):
            return
        running = np.maximum.accumulate(end)
        is_serial = int(start[0]) >= self._reached and bool((start[1:] >= running[:-1]).all())
        self._reached = max(self._reached, int(running[-1]))
        if is_serial:
            self._add_serial(position, start, end)
        else:
            self._add_overlapping(position, start, end)

    def _add_serial(self, position: Integers, start: Int64, end: Int64) -> None:
        """No operation overlaps another, so their lengths add up, for the ranges around them too."""
        busy = end - start
        while len(position):
            if not (position[1:] >= position[:-1]).all():
                order = np.argsort(position, kind="stable")
                position, busy, start, end = position[order], busy[order], start[order], end[order]
            runs = np.flatnonzero(np.r_[True, position[1:] != position[:-1]])
            position = position[runs]
            busy = np.add.reduceat(busy, runs)
            start, end = np.minimum.reduceat(start, runs), np.maximum.reduceat(end, runs)
            self.busy_ns[position] += busy
            self._widen(position, start, end)
            position = self._parent[position]
            if (position < 0).any():
                inside = position >= 0
                position, busy, start, end = position[inside], busy[inside], start[inside], end[inside]

    def _add_overlapping(self, position: Integers, start: Int64, end: Int64) -> None:
        """Depth by depth, so that a range sees all its operations, those of the ranges inside it too, in order."""
        position = position.copy()
        for depth in range(int(self._level[position].max()), -1, -1):
            at = np.flatnonzero((self._level[position] == depth) & (position >= 0))
            p = position[at]
            position[at] = self._parent[p]
            if not (p[1:] >= p[:-1]).all():
                order = np.argsort(p, kind="stable")
                at, p = at[order], p[order]
            s, e = start[at], end[at]
            is_first = np.r_[True, p[1:] != p[:-1]]
            runs = np.flatnonzero(is_first)
            own = p[runs]
            run = np.cumsum(is_first) - 1
            reached = np.maximum(running_maximum_before(e, run), self.last_ns[own][run])
            self.busy_ns[own] += np.add.reduceat(np.maximum(e - np.maximum(s, reached), 0), runs)
            self._widen(own, np.minimum.reduceat(s, runs), np.maximum.reduceat(e, runs))

    def _widen(self, position: Integers, first: Int64, last: Int64) -> None:
        self.first_ns[position] = np.minimum(self.first_ns[position], first)
        self.last_ns[position] = np.maximum(self.last_ns[position], last)


def sum_up(forest: Forest, values: Integers) -> Integers:
    """Each range's own value and those of all ranges inside it; in place."""
    for at in forest.by_depth():
        above = forest.parent[at]
        runs = np.flatnonzero(np.r_[True, above[1:] != above[:-1]])
        values[above[runs]] += np.add.reduceat(values[at], runs)
    return values
