from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perfharness.analysis.timeline.intervals import MAX_LEVELS, innermost_at, nest
from perfharness.model.trace import Int64

MOMENTS = st.integers(0, 30)
INTERVALS = st.lists(st.tuples(MOMENTS, MOMENTS, st.integers(0, 2)), max_size=25)


def columns(intervals: list[tuple[int, int, int]]) -> tuple[Int64, Int64, Int64]:
    rows = np.asarray([(min(a, b), max(a, b), g) for a, b, g in intervals], dtype=np.int64).reshape(-1, 3)
    return rows[:, 0], rows[:, 1], rows[:, 2]


def tightest(intervals: list[tuple[int, int, int]]) -> list[int | None]:
    """Length of the tightest interval that contains each one, by trying all pairs; of equal ones the first is outer."""
    start, end, group = (column.tolist() for column in columns(intervals))
    found = []
    for i in range(len(intervals)):
        around = [
            end[j] - start[j]
            for j in range(len(intervals))
            if j != i and group[j] == group[i] and start[j] <= start[i] and end[j] >= end[i]
            and ((start[j], end[j]) != (start[i], end[i]) or j < i)
        ]  # fmt: skip
        found.append(min(around, default=None))
    return found


@given(INTERVALS)
def test_nesting_is_the_tightest_containment(intervals: list[tuple[int, int, int]]) -> None:
    start, end, group = columns(intervals)
    nesting = nest(start, end, group)
    lengths = [int(end[p] - start[p]) if p >= 0 else None for p in nesting.parent]
    for length, expected, is_moment in zip(lengths, tightest(intervals), end == start, strict=True):
        # A moment on the border of two intervals lies in both; which one is taken is left open.
        assert (length is None) == (expected is None) if is_moment else length == expected
    for i, parent in enumerate(nesting.parent):
        assert nesting.level[i] == (nesting.level[parent] + 1 if parent >= 0 else 0)
        if parent >= 0:
            assert group[parent] == group[i]
            assert start[parent] <= start[i]
            assert end[parent] >= end[i]


@given(INTERVALS, MOMENTS, MOMENTS)
def test_the_innermost_interval_around_a_stretch(intervals: list[tuple[int, int, int]], a: int, b: int) -> None:
    """Of intervals that nest: those of which no two overlap without one holding the other."""
    start, end, _ = columns(intervals)
    order = np.lexsort((-end, start))
    start, end = start[order], end[order]
    kept: list[int] = []
    for i in range(len(start)):
        if not any(start[j] < start[i] <= end[j] < end[i] for j in kept):
            kept.append(i)
    start, end = start[kept], end[kept]
    parent = nest(start, end, np.zeros_like(start)).parent
    first, last = np.asarray([min(a, b)]), np.asarray([max(a, b)])
    (found,) = innermost_at(start, end, parent, first, last).tolist()
    around = [int(end[i] - start[i]) for i in range(len(start)) if start[i] <= first[0] and end[i] >= last[0]]
    assert (found == -1) == (not around)
    if around:
        assert start[found] <= first[0]
        assert end[found] >= last[0]
        assert end[found] - start[found] == min(around)


def test_large_times() -> None:
    depth, origin = MAX_LEVELS, 1 << 60
    start = origin + np.arange(depth, dtype=np.int64)
    end = origin + 2 * depth - np.arange(depth, dtype=np.int64)
    nesting = nest(start, end, np.full(depth, 1 << 55, dtype=np.int64))
    assert nesting.parent.tolist() == [-1, *range(depth - 1)]
    assert nesting.level.tolist() == list(range(depth))
