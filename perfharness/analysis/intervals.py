"""Which intervals enclose which, on columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfharness.model.trace import Int64, Integers

NO_PARENT = -1


CHUNK = 1 << 18
"""Intervals nested at a time, which bounds the memory."""

LEVELS_AT_ONCE = 64
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
    place = np.append(order, NO_PARENT)
    parent, level = np.empty(len(start), dtype=np.int32), np.empty(len(start), dtype=nested.level.dtype)
    parent[order], level[order] = place[nested.parent], nested.level
    return Nesting(parent, level)


def is_outer_first(start: Int64, end: Int64, group: Int64) -> bool:
    """Whether intervals are in order of (group, start, -end) as they stand, which most traces are."""
    for begin in range(0, len(start), CHUNK):
        part = slice(begin, begin + CHUNK + 1)
        s, e, g = start[part], end[part], group[part]
        later = (s[1:] > s[:-1]) | ((s[1:] == s[:-1]) & (e[1:] <= e[:-1]))
        if not ((g[1:] > g[:-1]) | ((g[1:] == g[:-1]) & later)).all():
            return False
    return True


def outer_first(start: Int64, end: Int64, group: Int64) -> Int64:
    """Order by (group, start, -end, row). Events mostly come in order of time, which a stable sort turns to use."""
    by_start = np.argsort(start, kind="stable")
    if (np.diff(start[by_start]) == 0).any():
        return np.lexsort((np.arange(len(start)), -end, start, group))
    return by_start[np.argsort(group[by_start], kind="stable")]


def nest_in_order(start: Int64, end: Int64, group: Int64) -> OrderedNesting:
    """The same as `nest` for intervals that are in order of (group, start, -end); a chunk at a time."""
    count = len(start)
    parent: Integers = np.empty(count, dtype=np.int32)
    level: Integers = np.empty(count, dtype=np.int32)
    still_open: Int64 = np.empty(0, dtype=np.int64)  # what began earlier and may enclose what comes
    touching: set[int] = set()
    overlapping: set[int] = set()
    for begin in range(0, count, CHUNK):
        stop = min(begin + CHUNK, count)
        at = np.r_[still_open, np.arange(begin, stop)]
        chunk = _nest_chunk(start[at], end[at], group[at])
        new = len(still_open)
        parent[begin:stop] = np.where(chunk.parent[new:] >= 0, at[chunk.parent[new:]], NO_PARENT)
        level[begin:stop] = chunk.level[new:]
        touching |= chunk.touching
        overlapping |= chunk.overlapping
        if stop < count:
            still_open = at[(end[at] >= start[stop]) & (group[at] == group[stop])]
    for value in overlapping:
        members = np.flatnonzero(group == value)
        parent[members], level[members] = _nest_overlapping(start, end, members)
    if level.max(initial=0) <= np.iinfo(np.int8).max:
        level = level.astype(np.int8)
    return OrderedNesting(parent, level, frozenset(touching))


@dataclass(frozen=True)
class _Chunk:
    parent: Int64
    level: Int64
    touching: set[int]
    overlapping: set[int]


def _nest_chunk(s: Int64, e: Int64, g: Int64) -> _Chunk:
    count = len(s)
    parent = np.full(count, NO_PARENT, dtype=np.int64)
    level = np.zeros(count, dtype=np.int64)
    remaining = np.arange(count)  # positions whose parent is deeper than the current level
    owner = np.full(count, NO_PARENT, dtype=np.int64)  # enclosing interval of the level above
    partition = g
    touching: set[int] = set()
    overlapping: set[int] = set()
    depth = 0
    while len(remaining) and depth < LEVELS_AT_ONCE:
        # Among intervals with one owner, in order of start, one that reaches beyond all before it is contained in none.
        before = running_maximum_before(e[remaining], partition)
        outermost = e[remaining] > before
        touches = outermost & (s[remaining] <= before)
        if touches.any():
            touching.update(np.unique(g[remaining[touches]]).tolist())
            overlapping.update(np.unique(g[remaining[touches & (s[remaining] < before)]]).tolist())
        found = remaining[outermost]
        parent[found] = owner[found]
        level[found] = depth
        inner = ~outermost
        last_found = np.maximum.accumulate(np.where(outermost, np.arange(len(remaining)), 0))[inner]
        above = remaining[last_found]
        remaining = remaining[inner]
        owner[remaining] = above
        partition = above
        depth += 1
    _nest_deep(remaining, owner, depth, (s, e, g), _Chunk(parent, level, touching, overlapping))
    return _Chunk(parent, level, touching, overlapping)


def _nest_deep(remaining: Int64, owner: Int64, depth: int, intervals: tuple[Int64, Int64, Int64], into: _Chunk) -> None:
    """The same for what is left, one by one, so that the time does not grow with the depth.

    The intervals around the one looked at are a stack; their ends do not rise from the outermost to the innermost.
    """
    starts, ends, groups = (column[remaining].tolist() for column in intervals)
    owners, places = owner[remaining].tolist(), remaining.tolist()
    stack: list[int] = []
    base = NO_PARENT
    for at, place in enumerate(places):
        if owners[at] != base:
            base, stack = owners[at], []
        sibling = None
        while stack and ends[stack[-1]] < ends[at]:
            sibling = stack.pop()
        if sibling is not None and starts[at] <= ends[sibling]:
            into.touching.add(groups[at])
            if starts[at] < ends[sibling]:
                into.overlapping.add(groups[at])
        into.parent[place] = places[stack[-1]] if stack else base
        into.level[place] = depth + len(stack)
        stack.append(at)


def running_maximum_before(values: Int64, partition: Int64) -> Int64:
    """Largest value before each position within its run of equal `partition`; the smallest int64 at its begin."""
    lowest = np.iinfo(np.int64).min
    if not len(values):
        return values
    first = np.r_[True, partition[1:] != partition[:-1]]
    run = np.cumsum(first)
    origin = int(values.min())
    span = int(values.max()) - origin + 1
    if span * (int(run[-1]) + 1) >= 1 << 62:
        # Runs laid one behind the other would leave 64 bits: take ranks for times.
        sorted_values, ranks = np.unique(values, return_inverse=True)
        before = running_maximum_before(ranks.astype(np.int64), partition)
        return np.where(before == lowest, lowest, sorted_values[np.maximum(before, 0)])
    running = np.maximum.accumulate(values - origin + run * span)
    previous = np.r_[0, running[:-1]] - run * span + origin
    return np.where(first, lowest, previous)


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
