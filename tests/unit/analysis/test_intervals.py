"""Nesting and unions of intervals, against counting moments one by one and trying all pairs."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perfharness.analysis.timeline.busy import BusyLine, ThreadOrder, overlaps
from perfharness.analysis.timeline.cuda_calls import activity_of
from perfharness.analysis.timeline.intervals import MAX_LEVELS, innermost_at, nest
from perfharness.model.activity import Activity
from perfharness.model.columns import Int64

MOMENT = st.integers(0, 30)
STRETCH = st.tuples(MOMENT, MOMENT).map(sorted)
INTERVALS = st.lists(st.tuples(STRETCH, st.integers(0, 2)), max_size=25)
PAIRS = st.lists(STRETCH, max_size=8)


def columns(pairs: list[list[int]]) -> tuple[Int64, Int64]:
    array = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
    return array[:, 0], array[:, 1]


@given(INTERVALS)
def test_nesting_is_the_tightest_containment(intervals: list[tuple[list[int], int]]) -> None:
    """Of equal intervals the first is the outer one; in which of two a moment on their border lies is left open."""
    start, end = columns([pair for pair, _ in intervals])
    group = np.asarray([number for _, number in intervals], dtype=np.int64)
    nesting = nest(start, end, group)
    for i, parent in enumerate(nesting.parent.tolist()):
        around = [
            j
            for j in range(len(start))
            if j != i and group[j] == group[i] and start[j] <= start[i] and end[j] >= end[i]
            if (start[j], end[j]) != (start[i], end[i]) or j < i
        ]
        if start[i] < end[i]:
            assert (parent < 0) == (not around)
        assert nesting.level[i] == (nesting.level[parent] + 1 if parent >= 0 else 0)
        if parent >= 0:
            assert parent in around or start[i] == end[i]
            assert group[parent] == group[i]
            assert start[parent] <= start[i] <= end[i] <= end[parent]
            assert start[i] == end[i] or end[parent] - start[parent] == min(end[j] - start[j] for j in around)


@given(INTERVALS, STRETCH)
def test_the_innermost_interval_around_a_stretch(intervals: list[tuple[list[int], int]], stretch: list[int]) -> None:
    """Of intervals that nest: those of which no two overlap without one holding the other."""
    kept: list[list[int]] = []
    for start, end in sorted((pair for pair, _ in intervals), key=lambda pair: (pair[0], -pair[1])):
        if not any(other[0] < start <= other[1] < end for other in kept):
            kept.append([start, end])
    starts, ends = columns(kept)
    parent = nest(starts, ends, np.zeros_like(starts)).parent
    first, last = stretch
    (found,) = innermost_at(starts, ends, parent, np.asarray([first]), np.asarray([last])).tolist()
    around = [end - start for start, end in kept if start <= first and end >= last]
    assert (found == -1) == (not around)
    if around:
        assert kept[found][0] <= first <= last <= kept[found][1]
        assert kept[found][1] - kept[found][0] == min(around)


def test_large_times() -> None:
    depth, origin = MAX_LEVELS, 1 << 60
    start = origin + np.arange(depth, dtype=np.int64)
    end = origin + 2 * depth - np.arange(depth, dtype=np.int64)
    nesting = nest(start, end, np.full(depth, 1 << 55, dtype=np.int64))
    assert nesting.parent.tolist() == [-1, *range(depth - 1)]
    assert nesting.level.tolist() == list(range(depth))


@given(PAIRS, st.lists(st.tuples(MOMENT, MOMENT), max_size=6))
def test_within_and_overlaps_count_the_moments(pairs: list[list[int]], stretches: list[tuple[int, int]]) -> None:
    depth = [sum(start <= at < end for start, end in pairs) for at in range(31)]
    line, twice = BusyLine(*columns(pairs)), BusyLine(*overlaps(*columns(pairs)))
    found = line.within(*columns([list(stretch) for stretch in stretches]))
    assert found.tolist() == [sum(count > 0 for count in depth[first:last]) for first, last in stretches]
    assert line.length == sum(count > 0 for count in depth)
    ends = zip(twice.start.tolist(), twice.end.tolist(), strict=True)
    assert {at for start, end in ends for at in range(start, end)} == {
        at for at, count in enumerate(depth) if count >= 2
    }


@given(st.lists(st.tuples(st.integers(0, 2), MOMENT), max_size=12), st.integers(0, 3), st.tuples(MOMENT, MOMENT))
def test_slices_hold_what_lies_inside(events: list[tuple[int, int]], thread: int, stretch: tuple[int, int]) -> None:
    threads, times = columns([list(event) for event in events])
    lines = ThreadOrder(threads, times, np.zeros_like(times))
    first, last = lines.slices(np.asarray([thread]), np.asarray(stretch[:1]), np.asarray(stretch[1:]))
    found = sorted(lines.order[first[0] : last[0]].tolist())
    assert found == [
        place for place, (who, when) in enumerate(events) if who == thread and stretch[0] <= when <= stretch[1]
    ]


CALLS = {
    Activity.LAUNCH: "cudaLaunchKernel_v7000 cuLaunchKernelEx cudaGraphLaunch_v10000 cudaMemsetAsync_v3020",
    Activity.COPY: "cudaMemcpyAsync_v3020 cuMemcpyHtoDAsync_v2",
    Activity.SYNC: "cudaStreamSynchronize_v3020 cudaEventSynchronize_v3020 cuCtxSynchronize",
    Activity.ALLOC: "cudaMalloc_v3020 cudaMallocAsync_v11020 cudaHostAlloc_v3020 cuMemAlloc_v2",
    Activity.COMPILE: "cuLibraryLoadData cuModuleLoadDataEx",
    Activity.OTHER: "cudaEventRecord_v3020 cudaStreamIsCapturing_v10000 cudaGraphInstantiateWithFlags_v11040",
}


def test_calls_are_of_the_kind_that_their_name_says() -> None:
    for kind, names in CALLS.items():
        assert {name: activity_of(name) for name in names.split()} == dict.fromkeys(names.split(), kind)
