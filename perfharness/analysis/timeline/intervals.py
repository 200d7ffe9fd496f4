"""Which intervals enclose which, on columns."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from perfharness.model.trace import Int64, Integers

NO_PARENT = -1


VECTORIZED_LEVELS = 64
"""So many levels are found one by one, each in all intervals together; what is deeper, interval by interval."""


@dataclass(frozen=True)
class Nesting:
    """`parent[i]` is the index of the interval that encloses i (or -1), `level[i]` how many enclose it."""

    parent: Integers
    level: Integers


@dataclass(frozen=True)
class OrderedNesting:
    """A `Nesting` of intervals in order, and the groups in which intervals touch that do not enclose each other."""

    parent: Integers
    level: Integers
    touching: frozenset[int]


def nest(start: Int64, end: Int64, group: Int64) -> Nesting:
    """Who encloses whom. The parent is the tightest interval of the same group that contains it, borders included.

    Args:
        start: first moments, any order.
        end: last moments, `end >= start`.
        group: intervals nest only within equal values (a thread, a lane).

    Of equal intervals the earlier row is the outer one; a moment on the border of two belongs to either. Intervals that
    overlap without one holding the other (start/end ranges) are allowed. The rule is nsys's own
    (`nvtx_gpu_proj_trace`).
    """
    if is_outer_first(start, end, group):
        nested = nest_in_order(start, end, group)
        return Nesting(nested.parent, nested.level)
    order = outer_first(start, end, group)
    nested = nest_in_order(start[order], end[order], group[order])
    position = np.append(order, NO_PARENT)
    parent, level = np.empty(len(start), dtype=np.int32), np.empty(len(start), dtype=nested.level.dtype)
    parent[order], level[order] = position[nested.parent], nested.level
    return Nesting(parent, level)


def is_outer_first(start: Int64, end: Int64, group: Int64) -> bool:
    """Whether intervals are in order of (group, start, -end) as they stand, which most traces are."""
    s, e, g = (column[1:] for column in (start, end, group))
    before_s, before_e, before_g = (column[:-1] for column in (start, end, group))
    later = (s > before_s) | ((s == before_s) & (e <= before_e))
    return bool(((g > before_g) | ((g == before_g) & later)).all())


def outer_first(start: Int64, end: Int64, group: Int64) -> Int64:
    """Order by (group, start, -end, row). Events mostly come in order of time, which a stable sort turns to use."""
    by_start = np.argsort(start, kind="stable")
    if (np.diff(start[by_start]) == 0).any():
        return np.lexsort((np.arange(len(start)), -end, start, group))
    return by_start[np.argsort(group[by_start], kind="stable")]


def nest_in_order(start: Int64, end: Int64, group: Int64) -> OrderedNesting:
    """The same as `nest` for intervals that are in order of (group, start, -end)."""
    count = len(start)
    found = _Found(np.full(count, NO_PARENT, dtype=np.int32), np.zeros(count, dtype=np.int32))
    remaining = np.arange(count, dtype=np.int32)  # positions whose parent is deeper than the current level
    owner = np.full(count, NO_PARENT, dtype=np.int32)  # enclosing interval of the level above
    partition: Integers = group
    depth = 0
    while len(remaining) and depth < VECTORIZED_LEVELS:
        # Among intervals with one owner, in order of start, one that reaches beyond all before it is contained in none.
        e = end[remaining]
        before = running_maximum_before(e, partition)
        outermost = e > before
        touches = outermost & (start[remaining] <= before)
        if touches.any():
            found.touching.update(np.unique(group[remaining[touches]]).tolist())
            found.overlapping.update(np.unique(group[remaining[touches & (start[remaining] < before)]]).tolist())
        at = remaining[outermost]
        found.parent[at] = owner[at]
        found.level[at] = depth
        inner = ~outermost
        above = remaining[
            np.maximum.accumulate(np.where(outermost, np.arange(len(remaining), dtype=np.int32), 0))[inner]
        ]
        remaining = remaining[inner]
        owner[remaining] = above
        partition = above
        depth += 1
    _nest_deep(remaining, owner, depth, (start, end, group), found)
    for value in found.overlapping:
        members = np.flatnonzero(group == value)
        found.parent[members], found.level[members] = _nest_overlapping(start, end, members)
    level: Integers = found.level
    if level.max(initial=0) <= np.iinfo(np.int16).max:
        level = level.astype(np.int16)
    return OrderedNesting(found.parent, level, frozenset(found.touching))


@dataclass(frozen=True)
class _Found:
    """Parents and levels so far; the groups in which intervals touch, and those in which they overlap."""

    parent: Integers
    level: Integers
    touching: set[int] = field(default_factory=set)
    overlapping: set[int] = field(default_factory=set)


def _nest_deep(
    remaining: Integers, owner: Integers, depth: int, intervals: tuple[Int64, Int64, Int64], into: _Found
) -> None:
    """The same for what is left, one by one, so that the time does not grow with the depth.

    The intervals around the current one are a stack; their ends do not rise from the outermost to the innermost.
    """
    starts, ends, groups = (column[remaining].tolist() for column in intervals)
    owners, positions = owner[remaining].tolist(), remaining.tolist()
    stack: list[int] = []
    base = NO_PARENT
    for at, position in enumerate(positions):
        if owners[at] != base:
            base, stack = owners[at], []
        sibling = None
        while stack and ends[stack[-1]] < ends[at]:
            sibling = stack.pop()
        if sibling is not None and starts[at] <= ends[sibling]:
            into.touching.add(groups[at])
            if starts[at] < ends[sibling]:
                into.overlapping.add(groups[at])
        into.parent[position] = positions[stack[-1]] if stack else base
        into.level[position] = depth + len(stack)
        stack.append(at)


def running_maximum_before(values: Int64, partition: Integers) -> Int64:
    """Largest value before each position within its run of equal `partition`; the smallest int64 at its begin."""
    lowest = np.iinfo(np.int64).min
    if not len(values):
        return values
    first = np.r_[True, partition[1:] != partition[:-1]]
    if not first[1:].any():
        return np.concatenate([[lowest], np.maximum.accumulate(values)[:-1]])
    run = np.cumsum(first)
    origin = int(values.min())
    span = int(values.max()) - origin + 1
    if span * (int(run[-1]) + 1) >= 1 << 62:
        # Runs laid one behind the other would leave 64 bits: take ranks for times.
        sorted_values, ranks = np.unique(values, return_inverse=True)
        before = running_maximum_before(ranks.astype(np.int64), partition)
        return np.where(before == lowest, lowest, sorted_values[np.maximum(before, 0)])
    shift = run * span
    shift -= origin
    before = np.empty(len(values), dtype=np.int64)
    np.subtract(np.maximum.accumulate(values[:-1] + shift[:-1]), shift[1:], out=before[1:])
    before[first] = lowest
    return before


def _nest_overlapping(start: Int64, end: Int64, members: Int64) -> tuple[Int64, Int64]:
    """The same for one group in which intervals overlap; `members` are in order of start. Slower, for few intervals."""
    parents, levels = np.full(len(members), NO_PARENT, dtype=np.int64), np.zeros(len(members), dtype=np.int64)
    s, e = start[members], end[members]
    candidates: Int64 = np.empty(0, dtype=np.int64)
    for i in range(len(members)):
        candidates = candidates[e[candidates] >= s[i]]
        containing = candidates[e[candidates] >= e[i]]
        if len(containing):
            lengths = e[containing] - s[containing]
            # Of equally tight ones the last that began is the inner one.
            tightest = containing[len(lengths) - 1 - np.argmin(lengths[::-1])]
            parents[i], levels[i] = members[tightest], levels[tightest] + 1
        candidates = np.append(candidates, i)
    return parents, levels
