"""The innermost range at each moment of a thread, as pieces of time."""

from __future__ import annotations

import numpy as np

from perfharness.analysis.timeline.busy import BusyLine, expand
from perfharness.analysis.timeline.intervals import NO_PARENT
from perfharness.model.trace import Int64, Integers

BEFORE, AFTER = np.iinfo(np.int64).min, np.iinfo(np.int64).max


class StackLine:
    """Which of nested ranges is the innermost, from moment to moment; -1 where none is open.

    Args:
        rows: the ranges of one thread and lane.
        start, end, parent, level: of all ranges; those of one line nest.
    """

    def __init__(self, rows: Int64, start: Int64, end: Int64, parent: Integers, level: Integers) -> None:
        rows = rows[end[rows] > start[rows]]
        depth = level[rows].astype(np.int64)
        time, is_start = np.r_[start[rows], end[rows]], np.repeat([True, False], len(rows))
        # At one moment ends come before starts, inner ends before outer ones, outer starts before inner ones.
        order = np.lexsort((np.r_[depth, -depth], is_start, time))
        inner = np.r_[rows, parent[rows]][order]
        self._edges = np.r_[BEFORE, time[order], AFTER]
        self._inner = np.r_[NO_PARENT, inner].astype(np.int64)

    def at(self, time: Int64) -> Int64:
        """The innermost range at each moment."""
        found: Int64 = self._inner[np.searchsorted(self._edges, time, side="right") - 1]
        return found

    def times_within(self, start: Int64, end: Int64, without: BusyLine | None = None) -> tuple[Int64, Int64, Int64]:
        """How long each range was the innermost inside of stretches: stretch, range (or -1) and nanoseconds.

        Args:
            start, end: of the stretches; those that are reversed are empty.
            without: time that does not count.
        """
        first = np.searchsorted(self._edges, start, side="right") - 1
        last = np.searchsorted(self._edges, end, side="left")
        piece, stretch = expand(first, np.where(end > start, last, first))
        begins = np.maximum(self._edges[piece], start[stretch])
        stops = np.minimum(self._edges[piece + 1], end[stretch])
        length = np.maximum(stops - begins, 0)
        if without is not None:
            length -= without.within(begins, stops)
        counts = length > 0
        return stretch[counts].astype(np.int64), self._inner[piece[counts]], length[counts]
