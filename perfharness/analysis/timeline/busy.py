"""When something was at work: unions of intervals that answer "how much of this stretch" for columns of stretches."""

from __future__ import annotations

import numpy as np

from perfharness.analysis.timeline.grouping import group_rows, row_order
from perfharness.model.trace import Bool, Int64, Integers
from perfharness.trace.columns import narrow

BLOCK_ROWS = 1 << 16
"""Of a long column, so many are worked on at a time: what is made on the way stays in the processor's cache."""


def stretches(flags: Bool) -> tuple[Int64, Int64]:
    """Where neighbours that are true begin, and where they have ended: the position of the next one."""
    change = np.diff(np.concatenate([[0], flags.astype(np.int8), [0]]))
    return np.flatnonzero(change == 1), np.flatnonzero(change == -1)


class BusyLine:
    """The union of intervals on one line of time. Empty intervals count nothing."""

    def __init__(self, start: Int64, end: Int64) -> None:
        self.start, end = merge(start, end)
        self._before = np.zeros(len(end) + 1, dtype=np.int64)
        np.cumsum(end - self.start, out=self._before[1:])
        self._end_before = np.concatenate([[np.iinfo(np.int64).min], end])
        self.end = self._end_before[1:]

    @property
    def length(self) -> int:
        """Of the whole union."""
        return int(self._before[-1])

    def until(self, time: Int64) -> Int64:
        """Length of the union before each moment."""
        at = np.searchsorted(self.start, time, side="right")
        over = np.maximum(self._end_before[at], time)
        over -= time  # how far the last one that has begun reaches beyond the moment
        return np.asarray(self._before[at] - over, dtype=np.int64)

    def within(self, start: Int64, end: Int64) -> Int64:
        """Length of the union inside each stretch; 0 where it is empty or reversed."""
        lengths = np.empty(len(start), dtype=np.int64)
        for begin in range(0, len(start), BLOCK_ROWS):
            block = slice(begin, begin + BLOCK_ROWS)
            until_start = self.until(start[block])
            np.maximum(self.until(np.maximum(end[block], start[block])) - until_start, 0, out=lengths[block])
        return lengths


def merge(start: Int64, end: Int64) -> tuple[Int64, Int64]:
    """The union as intervals that neither overlap nor touch, in order; returned unchanged where that is already so."""
    if (end > start).all() and (start[1:] > end[:-1]).all():
        return start, end
    s, e = _in_order(start, end)
    if not len(s):
        return s, e
    reached = np.maximum.accumulate(e)
    begins = np.r_[True, s[1:] > reached[:-1]]
    return s[begins], reached[np.r_[begins[1:], True]]


def overlaps(start: Int64, end: Int64) -> tuple[Int64, Int64]:
    """Stretches in which at least two of the intervals lie, in order; they may touch."""
    s, e = _in_order(start, end)
    if len(s) < 2:
        return s[:0], e[:0]
    # Of the intervals over a moment, the one that began last begins after another that is not over.
    shared = np.minimum(e[1:], np.maximum.accumulate(e)[:-1])
    has = shared > s[1:]
    return s[1:][has], shared[has]


def _in_order(start: Int64, end: Int64) -> tuple[Int64, Int64]:
    """Those of the intervals that are not empty, in order of start."""
    keep = end > start
    if not keep.all():
        start, end = start[keep], end[keep]
    if (start[1:] >= start[:-1]).all():
        return start, end
    order = np.argsort(start, kind="stable")
    return start[order], end[order]


def expand(first: Int64, last: Int64) -> tuple[Integers, Integers]:
    """Members of slices `first[k]:last[k]`, one behind the other, and which slice each belongs to."""
    sizes = last - first
    question = np.repeat(np.arange(len(first), dtype=np.int32), sizes)
    offsets = np.cumsum(sizes) - sizes
    members = np.arange(len(question), dtype=np.int32)
    members += np.repeat((first - offsets).astype(np.int32), sizes)
    return members, question


class ThreadOrder:
    """Events of all threads on one line, a thread behind the other, so that what lies in a range is a slice. `order`
    sorts the events by thread and time; of those at one moment, the one with the larger `tie` comes first (an outer
    call).
    """

    def __init__(self, thread: Int64, time: Int64, tie: Int64 | None = None) -> None:
        groups = group_rows(thread)
        self._threads = np.sort(thread[groups.first])
        places = np.searchsorted(self._threads, thread[groups.first])
        number = narrow(places, np.int16)[groups.code]  # 16 bits are sorted fastest
        order = row_order(number, time, *(() if tie is None else (-tie,)))
        self.is_in_order = order is None
        self.order = np.arange(len(time), dtype=np.int32) if order is None else narrow(order)
        self._origin = int(time.min()) if len(time) else 0
        self._span = (int(time.max()) if len(time) else 0) - self._origin + 2
        self._line = (time if self.is_in_order else time[self.order]) - (self._origin - 1)
        if len(self._threads) > 1:
            self._line += number[self.order].astype(np.int64) * self._span

    def _position(self, rank: Int64, time: Int64) -> Int64:
        return np.asarray(rank * self._span + np.clip(time - self._origin, -1, self._span - 1) + 1, dtype=np.int64)

    def slices(self, thread: Int64, start: Int64, end: Int64) -> tuple[Int64, Int64]:
        """Slices of `order` with the events in `start <= time <= end` of each thread."""
        if not len(self._line):
            nothing = np.zeros(len(thread), dtype=np.int64)
            return nothing, nothing
        rank = np.minimum(np.searchsorted(self._threads, thread), len(self._threads) - 1)
        known = self._threads[rank] == thread
        first = np.searchsorted(self._line, self._position(rank, start), side="left")
        last = np.searchsorted(
            self._line, self._position(rank, np.minimum(end, self._origin + self._span - 2)), "right"
        )
        first = np.where(known, first, 0)
        return first, np.maximum(np.where(known, last, 0), first)
