"""Nesting of intervals, and the innermost one at a time, on columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfharness.analysis.timeline.grouping import distinct, row_order
from perfharness.model.columns import Int64, Integers

NO_PARENT = -1

MAX_LEVELS = 100
"""Deeper intervals are put on this level."""


@dataclass(frozen=True)
class Nesting:
    """`parent[i]`: index of the interval around i, or -1; `level[i]`: number of intervals around it."""

    parent: Integers
    level: Integers


def nest(start: Int64, end: Int64, group: Integers) -> Nesting:
    """Find the tightest interval of the same group around each interval, borders included; of equal ones, the earlier
    row is the outer one. Intervals of a group may overlap (start/end ranges). Same rule as nsys's
    `nvtx_gpu_proj_trace`.
    """
    order = row_order(group, start, -end)
    if order is not None:
        start, end, group = start[order], end[order], group[order]
    count = len(start)
    parent, level = np.full(count, NO_PARENT, dtype=np.int32), np.zeros(count, dtype=np.int16)
    overlapping: set[int] = set()
    remaining = np.arange(count, dtype=np.int32)
    partition = group
    for depth in range(MAX_LEVELS):
        # Ordered by start, an interval that ends after all before it lies in none of them.
        ends = end[remaining]
        before = running_maximum_before(ends, partition)
        is_outer = ends > before
        overlaps = is_outer & (start[remaining] < before)
        overlapping.update(distinct(group[remaining[overlaps]]))
        level[remaining[is_outer]] = depth
        last_outer = np.maximum.accumulate(np.where(is_outer, np.arange(len(remaining), dtype=np.int32), 0))
        partition = remaining[last_outer[~is_outer]]
        remaining = remaining[~is_outer]
        parent[remaining] = partition
        if not len(remaining):
            break
    level[remaining] = MAX_LEVELS
    for value in overlapping:
        members = np.flatnonzero(group == value)
        parent[members], level[members] = _nest_overlapping(start, end, members)
    if order is None:
        return Nesting(parent, level)
    parents, levels = np.empty_like(parent), np.empty_like(level)
    parents[order], levels[order] = np.append(order, NO_PARENT)[parent], level
    return Nesting(parents, levels)


def running_maximum_before(values: Int64, partition: Integers) -> Int64:
    """Largest value before each position within its run of equal `partition`; the smallest int64 at the run's start."""
    lowest = np.iinfo(np.int64).min
    if not len(values):
        return values
    first = np.r_[True, partition[1:] != partition[:-1]]
    run = np.cumsum(first)
    origin = int(values.min())
    span = int(values.max()) - origin + 1
    if span * (int(run[-1]) + 1) >= 1 << 62:
        # Concatenated runs would exceed 64 bits, so use ranks instead of times.
        in_order, ranks = np.unique(values, return_inverse=True)
        before = running_maximum_before(ranks.ravel().astype(np.int64), partition)
        return np.where(before == lowest, lowest, in_order[np.maximum(before, 0)])
    shift = run * span - origin
    before = np.empty(len(values), dtype=np.int64)
    np.subtract(np.maximum.accumulate(values[:-1] + shift[:-1]), shift[1:], out=before[1:])
    before[first] = lowest
    return before


def _nest_overlapping(start: Int64, end: Int64, members: Int64) -> tuple[Int64, Int64]:
    """`nest` for one group with overlapping intervals, one by one; `members` are ordered by start."""
    parents, levels = np.full(len(members), NO_PARENT, dtype=np.int64), np.zeros(len(members), dtype=np.int64)
    s, e = start[members], end[members]
    open_ones: Int64 = np.empty(0, dtype=np.int64)
    for i in range(len(members)):
        open_ones = open_ones[e[open_ones] >= s[i]]
        containing = open_ones[e[open_ones] >= e[i]]
        if len(containing):
            lengths = e[containing] - s[containing]
            tightest = containing[len(lengths) - 1 - np.argmin(lengths[::-1])]  # of equal ones the last to begin
            parents[i], levels[i] = members[tightest], min(levels[tightest] + 1, MAX_LEVELS)
        open_ones = np.append(open_ones, i)
    return parents, levels


def innermost_at(start: Int64, end: Int64, parent: Integers, first: Int64, last: Int64) -> Int64:
    """Innermost of nested intervals (ordered by start) around each interval from `first` to `last` (may be equal), or
    -1. `parent`: position of the interval around each.
    """
    at = np.asarray(np.searchsorted(start, first, side="right") - 1, dtype=np.int64)
    end = np.append(end, np.iinfo(np.int64).max)  # for position -1
    while len(climbing := np.flatnonzero(end[at] < last)):
        at[climbing] = parent[at[climbing]]
    return at
