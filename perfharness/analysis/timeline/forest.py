"""Ranges as forests, so that the ranges around a call are one chain, found by one search and a climb.

Push/pop ranges of a thread nest; start/end ranges may overlap. Those that do are split into lanes: of two ranges of
one lane, one holds the other, or they do not even touch. So every range lies in one lane, and every lane is a forest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfharness.analysis.timeline.grouping import rows_of_levels
from perfharness.analysis.timeline.intervals import (
    NO_PARENT,
    Nesting,
    is_outer_first,
    nest_in_order,
    outer_first,
    running_maximum_before,
)
from perfharness.model.trace import Int64, Integers, NvtxRanges


@dataclass(frozen=True)
class Line:
    """The ranges of one lane of one thread: positions `begin` to `stop` of the forest."""

    thread: int
    lane: int
    begin: int
    stop: int


@dataclass(frozen=True)
class Forest:
    """All ranges that may hold calls, in order of (thread, lane, start, -end).

    `row` is the range's index among the trace's ranges, None where the order is the same; `parent` is a position, or
    -1; `level` the depth below the root of its lane. Ranges that ended on another thread are in no line.
    """

    row: Integers | None
    start_ns: Int64
    end_ns: Int64
    parent: Integers
    level: Integers
    lines: tuple[Line, ...]

    def __len__(self) -> int:
        return len(self.start_ns)

    def innermost(self, line: Line, start_ns: Int64, end_ns: Int64) -> Integers:
        """Position of the innermost range of a line that holds each of these intervals, borders included; or -1."""
        at = np.searchsorted(self.start_ns[line.begin : line.stop], start_ns, side="right").astype(np.int32)
        at += line.begin - 1
        at[at < line.begin] = NO_PARENT
        climbing = np.flatnonzero((at >= 0) & (self.end_ns[at] < end_ns))
        while len(climbing):
            above = self.parent[at[climbing]]
            at[climbing] = above
            climbing = climbing[(above >= 0) & (self.end_ns[above] < end_ns[climbing])]
        return at

    def sum_up(self, values: Integers) -> Integers:
        """Each range's own value and those of all ranges inside it; in place."""
        for at in reversed(rows_of_levels(self.level)[1:]):
            np.add.at(values, self.parent[at], values[at])
        return values

    def to_rows(self, values: Integers, count: int) -> Integers:
        """A column of positions as one of the trace's `count` ranges, 0 for those in no line."""
        if self.row is None:
            return values
        column = np.zeros(count, dtype=values.dtype)
        column[self.row] = values
        return column


def build_forest(ranges: NvtxRanges) -> tuple[Forest, Nesting]:
    """The forest, and the nesting that users see: the parent is the tightest range around, overlapping or not."""
    count = len(ranges)
    row: Integers | None = None
    if ranges.crosses_threads.any():
        row = np.flatnonzero(~ranges.crosses_threads)
    start, end, thread = (_take(column, row) for column in (ranges.start_ns, ranges.end_ns, ranges.thread))
    if not is_outer_first(start, end, thread):
        order = outer_first(start, end, thread)
        row = order if row is None else row[order]
        start, end, thread = start[order], end[order], thread[order]
    nested = nest_in_order(start, end, thread)
    nesting = _nesting_of_rows(nested.parent, nested.level, row, count)
    begins = np.r_[0, np.flatnonzero(thread[1:] != thread[:-1]) + 1] if len(thread) else np.empty(0, dtype=np.int64)
    stops = [*begins[1:].tolist(), len(thread)] if len(thread) else []
    threads = thread[begins].tolist()
    if not nested.touching:
        lines = tuple(Line(t, 0, b, s) for t, b, s in zip(threads, begins.tolist(), stops, strict=True))
        return Forest(row, start, end, nested.parent, nested.level, lines), nesting
    parent, level = nested.parent.copy(), nested.level.astype(np.int32)
    lane = np.zeros(len(start), dtype=np.int32)
    for name, begin, stop in zip(threads, begins.tolist(), stops, strict=True):
        if name in nested.touching:
            part = slice(begin, stop)
            own_parent, level[part], lane[part] = split_lanes(start[part], end[part])
            parent[part] = np.where(own_parent >= 0, own_parent + begin, NO_PARENT)
    return _in_lines(row, start, end, thread, parent, level, lane), nesting


def _take(column: Int64, row: Integers | None) -> Int64:
    return column if row is None else column[row]


def _nesting_of_rows(parent: Integers, level: Integers, row: Integers | None, count: int) -> Nesting:
    if row is None:
        return Nesting(parent, level)
    parents, levels = np.full(count, NO_PARENT, dtype=np.int32), np.zeros(count, dtype=np.int32)
    parents[row] = np.where(parent >= 0, row[parent], NO_PARENT)
    levels[row] = level
    return Nesting(parents, levels)


def _in_lines(
    row: Integers | None, start: Int64, end: Int64, thread: Int64, parent: Integers, level: Integers, lane: Integers
) -> Forest:
    """Positions by lane within each thread."""
    order = np.lexsort((np.arange(len(start)), lane, thread))
    position = np.empty(len(order) + 1, dtype=np.int32)
    position[order] = np.arange(len(order))
    position[-1] = NO_PARENT
    thread, lane = thread[order], lane[order]
    begins = np.r_[0, np.flatnonzero((thread[1:] != thread[:-1]) | (lane[1:] != lane[:-1])) + 1].tolist()
    lines = tuple(
        Line(int(thread[begin]), int(lane[begin]), begin, stop)
        for begin, stop in zip(begins, [*begins[1:], len(order)], strict=True)
    )
    rows = order if row is None else row[order]
    return Forest(rows, start[order], end[order], position[parent[order]], level[order], lines)


def split_lanes(start: Int64, end: Int64) -> tuple[Integers, Integers, Integers]:
    """Parent, level and lane of intervals of one thread that overlap or touch; in order of (start, -end).

    Level by level, as `nest_in_order` does: among intervals with one owner, those that reach beyond all before them
    overlap only each other. Of k that overlap at a time, taking turns in k lanes keeps them apart; the first lane is
    the owner's own, the others begin forests of their own.
    """
    count = len(start)
    parent = np.full(count, NO_PARENT, dtype=np.int32)
    level = np.zeros(count, dtype=np.int32)
    lane = np.zeros(count, dtype=np.int32)
    lanes = 1
    remaining, owner = np.arange(count), np.full(count, NO_PARENT, dtype=np.int64)
    while len(remaining):
        reached = running_maximum_before(end[remaining], owner[remaining])
        outermost = end[remaining] > reached
        found, above = remaining[outermost], owner[remaining[outermost]]
        turn = _lane_numbers(start[found], end[found], above)
        own = (turn == 0) & (above >= 0)
        parent[found[own]] = above[own]
        level[found[own]] = level[above[own]] + 1
        lane[found] = np.where(above >= 0, lane[above], 0)
        # One lane more for each pair of an owner's lane and a turn that is not the first.
        others = np.flatnonzero(turn > 0)
        if len(others):
            pairs, number = np.unique(np.stack([lane[found[others]], turn[others]]), axis=1, return_inverse=True)
            lane[found[others]] = lanes + number.ravel()
            lanes += pairs.shape[1]
        last = np.maximum.accumulate(np.where(outermost, np.arange(len(remaining)), 0))
        owner[remaining[~outermost]] = remaining[last[~outermost]]
        remaining = remaining[~outermost]
    return parent, level, lane


def _lane_numbers(start: Int64, end: Int64, owner: Int64) -> Int64:
    """Whose turn: intervals of one owner, starts and ends both rising; of one turn no two touch."""
    fresh = np.r_[True, (owner[1:] != owner[:-1]) | (start[1:] > end[:-1])]
    group = np.cumsum(fresh) - 1
    begins = np.flatnonzero(fresh)
    position = np.arange(len(start)) - begins[group]
    # How many of the group reach the start of each: those before it whose end is not before its start.
    # Ranks for times, so that groups laid one behind the other stay within 64 bits.
    rank = np.unique(np.r_[start, end], return_inverse=True)[1].ravel()
    rank += np.r_[group, group] * len(rank)
    first_reaching = np.searchsorted(rank[len(start) :], rank[: len(start)], side="left")
    together = np.arange(len(start)) - first_reaching + 1
    return np.asarray(position % np.maximum.reduceat(together, begins)[group])
