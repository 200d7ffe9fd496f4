"""Unions of intervals, and their length inside columns of other intervals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfharness.analysis.timeline.grouping import group_rows, row_order
from perfharness.model.columns import Bool, Int64, Integers
from perfharness.trace.columns import narrow

Window = tuple[int, int]
"""Start and end, ns."""

Spans = tuple[Int64, Int64]
"""Starts and ends, ns."""

BLOCK_ROWS = 1 << 16
"""Rows processed at a time, so that temporary arrays fit in the CPU's cache."""


def stretches(flags: Bool) -> tuple[Int64, Int64]:
    """Begin and end (exclusive) of each run of true values."""
    change = np.diff(np.concatenate([[0], flags.astype(np.int8), [0]]))
    return np.flatnonzero(change == 1), np.flatnonzero(change == -1)


class BusyLine:
    """Union of intervals on one time line. Empty intervals are ignored."""

    def __init__(self, start: Int64, end: Int64) -> None:
        self.start, end = merge(start, end)
        self._before = np.zeros(len(end) + 1, dtype=np.int64)
        np.cumsum(end - self.start, out=self._before[1:])
        self._end_before = np.concatenate([[np.iinfo(np.int64).min], end])
        self.end = self._end_before[1:]

    @property
    def length(self) -> int:
        """Total length of the union."""
        return int(self._before[-1])

    def until(self, time: Int64) -> Int64:
        """Length of the union before each time."""
        at = np.searchsorted(self.start, time, side="right")
        over = np.maximum(self._end_before[at], time)
        over -= time  # part of the last interval begun that lies after the time
        return np.asarray(self._before[at] - over, dtype=np.int64)

    def within(self, start: Int64, end: Int64) -> Int64:
        """Length of the union inside each interval; 0 for empty or reversed ones."""
        lengths = np.empty(len(start), dtype=np.int64)
        for begin in range(0, len(start), BLOCK_ROWS):
            block = slice(begin, begin + BLOCK_ROWS)
            until_start = self.until(start[block])
            np.maximum(self.until(np.maximum(end[block], start[block])) - until_start, 0, out=lengths[block])
        return lengths


def merge(start: Int64, end: Int64) -> tuple[Int64, Int64]:
    """Merge into ordered intervals that neither overlap nor touch; returned unchanged if they already are."""
    if (end > start).all() and (start[1:] > end[:-1]).all():
        return start, end
    s, e = _in_order(start, end)
    if not len(s):
        return s, e
    reached = np.maximum.accumulate(e)
    begins = np.r_[True, s[1:] > reached[:-1]]
    return s[begins], reached[np.r_[begins[1:], True]]


def union(parts: Sequence[Spans]) -> Spans:
    """Union of all intervals."""
    nothing = np.empty(0, dtype=np.int64)
    return merge(*(np.concatenate([nothing, *(part[side] for part in parts)]) for side in (0, 1)))


def overlaps(start: Int64, end: Int64) -> tuple[Int64, Int64]:
    """Ordered intervals covered by at least two of the given ones; they may touch."""
    s, e = _in_order(start, end)
    if len(s) < 2:
        return s[:0], e[:0]
    # If several intervals cover a time, the last one to begin starts inside another.
    shared = np.minimum(e[1:], np.maximum.accumulate(e)[:-1])
    has = shared > s[1:]
    return s[1:][has], shared[has]


def _in_order(start: Int64, end: Int64) -> tuple[Int64, Int64]:
    """Non-empty intervals, ordered by start."""
    keep = end > start
    if not keep.all():
        start, end = start[keep], end[keep]
    if (start[1:] >= start[:-1]).all():
        return start, end
    order = np.argsort(start, kind="stable")
    return start[order], end[order]


def expand(first: Int64, last: Int64) -> tuple[Integers, Integers]:
    """Members of the slices `first[k]:last[k]`, concatenated, and the slice of each."""
    sizes = last - first
    question = np.repeat(np.arange(len(first), dtype=np.int32), sizes)
    offsets = np.cumsum(sizes) - sizes
    members = np.arange(len(question), dtype=np.int32)
    members += np.repeat((first - offsets).astype(np.int32), sizes)
    return members, question


class ThreadOrder:
    """Events of all threads on one line, one thread after the other, so that the events in a range are a slice. `order`
    sorts by thread and time; at equal times, the larger `tie` comes first (an outer call).
    """

    def __init__(self, thread: Int64, time: Int64, tie: Int64 | None = None) -> None:
        groups = group_rows(thread)
        self._threads = np.sort(thread[groups.first])
        places = np.searchsorted(self._threads, thread[groups.first])
        number = narrow(places, np.int16)[groups.code]  # 16 bits sort fastest
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
        """Slices of `order` with the events of each thread in `start <= time <= end`."""
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
