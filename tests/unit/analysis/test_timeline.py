"""Unions of intervals against counting moments one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perfharness.analysis.timeline.busy import BusyLine, ThreadOrder, overlaps
from perfharness.analysis.timeline.cuda_calls import activity_of
from perfharness.model.activity import Activity

moment = st.integers(0, 40)
intervals = st.lists(st.tuples(moment, moment).map(lambda pair: (min(pair), max(pair))), max_size=8)


def columns(pairs: list[tuple[int, int]]) -> tuple[np.typing.NDArray[np.int64], np.typing.NDArray[np.int64]]:
    array = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
    return array[:, 0], array[:, 1]


@given(intervals, st.lists(st.tuples(moment, moment), max_size=6))
def test_within_counts_the_moments(pairs: list[tuple[int, int]], stretches: list[tuple[int, int]]) -> None:
    busy = {at for start, end in pairs for at in range(start, end)}
    line = BusyLine(*columns(pairs))
    found = line.within(*columns(stretches))
    assert found.tolist() == [len(busy & set(range(*stretch))) for stretch in stretches]
    assert line.length == len(busy)


@given(intervals)
def test_overlaps_are_where_two_lie_at_once(pairs: list[tuple[int, int]]) -> None:
    depth = [sum(start <= at < end for start, end in pairs) for at in range(41)]
    line = BusyLine(*overlaps(*columns(pairs)))
    found = {at for start, end in zip(line.start.tolist(), line.end.tolist(), strict=True) for at in range(start, end)}
    assert found == {at for at, count in enumerate(depth) if count >= 2}


@given(st.lists(st.tuples(st.integers(0, 2), moment), max_size=12), st.integers(0, 3), st.tuples(moment, moment))
def test_slices_hold_what_lies_inside(events: list[tuple[int, int]], thread: int, stretch: tuple[int, int]) -> None:
    threads, times = columns(events)
    lines = ThreadOrder(threads, times, np.zeros_like(times))
    first, last = lines.slices(np.asarray([thread]), np.asarray(stretch[:1]), np.asarray(stretch[1:]))
    found = sorted(lines.order[first[0] : last[0]].tolist())
    assert found == [
        place for place, (who, when) in enumerate(events) if who == thread and stretch[0] <= when <= stretch[1]
    ]


def test_calls_are_of_the_kind_that_their_name_says() -> None:
    expected = {
        "cudaLaunchKernel_v7000": Activity.LAUNCH,
        "cuLaunchKernelEx": Activity.LAUNCH,
        "cudaGraphLaunch_v10000": Activity.LAUNCH,
        "cudaMemsetAsync_v3020": Activity.LAUNCH,
        "cudaMemcpyAsync_v3020": Activity.COPY,
        "cuMemcpyHtoDAsync_v2": Activity.COPY,
        "cudaStreamSynchronize_v3020": Activity.SYNC,
        "cudaEventSynchronize_v3020": Activity.SYNC,
        "cuCtxSynchronize": Activity.SYNC,
        "cudaMalloc_v3020": Activity.ALLOC,
        "cudaMallocAsync_v11020": Activity.ALLOC,
        "cudaHostAlloc_v3020": Activity.ALLOC,
        "cuMemAlloc_v2": Activity.ALLOC,
        "cuLibraryLoadData": Activity.COMPILE,
        "cuModuleLoadDataEx": Activity.COMPILE,
        "cudaEventRecord_v3020": Activity.OTHER,
        "cudaStreamIsCapturing_v10000": Activity.OTHER,
        "cudaGraphInstantiateWithFlags_v11040": Activity.OTHER,
    }
    assert {name: activity_of(name) for name in expected} == expected
