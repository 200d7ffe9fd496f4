"""GPU work of each range: projected from the API calls inside it to the operations that they started.

An operation belongs to a range when the API call that started it (same correlation id, same process) lies inside the
range on the same thread; the projected range runs from the first start to the last end. The rule is nsys's
(`nvtx_gpu_proj_trace`), except that a CUDA graph replayed as a whole counts as an operation too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfharness.analysis.intervals import union_lengths
from perfharness.model.trace import PROCESS_MASK, ApiCalls, Bool, GpuOperations, Int64, NvtxRanges


@dataclass(frozen=True)
class Launches:
    """Operations with the API call that started them, ordered by thread and start of the call.

    `operation` indexes `GpuOperations`, `call` indexes `ApiCalls`; `is_first` tells the first operation of each call.
    """

    operation: Int64
    call: Int64
    is_first: Bool


@dataclass(frozen=True)
class Projection:
    """GPU side of each range, aligned with the ranges; times count only where `operation_count` is not 0."""

    start_ns: Int64
    end_ns: Int64
    busy_ns: Int64
    operation_count: Int64


def find_launches(api: ApiCalls, operations: GpuOperations) -> Launches:
    """Join operations to calls on process and correlation id.

    Where two calls share an id (a driver call inside the runtime call), the later one, the inner, is taken.
    """
    call = _calls_of(api, operations)
    started = np.flatnonzero(call >= 0)
    order = np.lexsort((api.start_ns[call[started]], api.thread[call[started]]))
    operation = started[order]
    call = call[operation]
    is_first = np.ones(len(call), dtype=np.bool_)
    is_first[1:] = call[1:] != call[:-1]
    return Launches(operation, call, is_first)


def _calls_of(api: ApiCalls, operations: GpuOperations) -> Int64:
    if not len(api):
        return np.full(len(operations), -1, dtype=np.int64)
    processes = np.unique(api.thread & PROCESS_MASK)
    api_key = _key(processes, api.thread & PROCESS_MASK, api.correlation)
    order = np.lexsort((api.start_ns, api_key))
    sorted_key = api_key[order]
    wanted = _key(processes, operations.process, operations.correlation)
    at = np.searchsorted(sorted_key, wanted, side="right") - 1
    return np.where((at >= 0) & (sorted_key[at] == wanted), order[at], -1)


def _key(processes: Int64, process: Int64, correlation: Int64) -> Int64:
    """One integer of a process and a correlation id (32 bits in CUPTI); -1 where the process is unknown."""
    rank = np.minimum(np.searchsorted(processes, process), len(processes) - 1)
    known = (processes[rank] == process) & (correlation >= 0)
    return np.where(known, (rank << 32) | (correlation & 0xFFFFFFFF), -1)


def project(ranges: NvtxRanges, api: ApiCalls, operations: GpuOperations, launches: Launches) -> Projection:
    """Project every range. Ranges that ended on another thread get nothing, as in nsys's report."""
    count = len(ranges)
    if not len(launches.call) or not count:
        zeros = np.zeros(count, dtype=np.int64)
        return Projection(zeros, zeros, zeros, zeros)
    line = _ThreadLine(api, launches)
    first, last = line.slices(ranges)
    start, end = operations.start_ns[launches.operation], operations.end_ns[launches.operation]
    distinct_before = np.r_[0, np.cumsum(launches.is_first)]
    has_work = last > first
    return Projection(
        start_ns=np.where(has_work, slice_minimum(start, first, last), 0),
        end_ns=np.where(has_work, -slice_minimum(-end, first, last), 0),
        busy_ns=union_lengths(start, end, first, last),
        operation_count=np.where(has_work, distinct_before[last] - distinct_before[first], 0),
    )


class _ThreadLine:
    """All threads' launching calls on one line of time, a thread behind the other, so that a range is a slice."""

    def __init__(self, api: ApiCalls, launches: Launches) -> None:
        self.thread, self.begin = np.unique(api.thread[launches.call], return_index=True)
        self.stop = np.r_[self.begin[1:], len(launches.call)]
        self.call_start = api.start_ns[launches.call]
        self.call_end = api.end_ns[launches.call]
        self.origin = int(self.call_start.min())
        self.span = int(self.call_end.max()) - self.origin + 2

    def slices(self, ranges: NvtxRanges) -> tuple[Int64, Int64]:
        """For each range, the slice of launches whose call lies inside it."""
        rank = np.minimum(np.searchsorted(self.thread, ranges.thread), len(self.thread) - 1)
        known = (self.thread[rank] == ranges.thread) & ~ranges.crosses_threads
        offsets = np.repeat(np.arange(len(self.thread)) * self.span, self.stop - self.begin)
        line = self.call_start - self.origin + offsets
        lower = np.clip(ranges.start_ns - self.origin, 0, self.span - 1) + rank * self.span
        upper = np.clip(ranges.end_ns - self.origin, -1, self.span - 2) + rank * self.span
        first = np.searchsorted(line, lower, side="left")
        last = np.searchsorted(line, upper, side="right")
        first = np.where(known, first, 0)
        last = np.maximum(np.where(known, last, 0), first)
        return first, self._without_calls_that_outlast(ranges.end_ns, first, last)

    def _without_calls_that_outlast(self, range_end: Int64, first: Int64, last: Int64) -> Int64:
        """Calls of one thread end in the order of their starts, so only the tail of a slice can outlast its range."""
        while True:
            outlasting = (last > first) & (self.call_end[np.maximum(last - 1, 0)] > range_end)
            if not outlasting.any():
                return last
            last = last - outlasting


def slice_minimum(values: Int64, first: Int64, last: Int64) -> Int64:
    """Smallest of `values[first:last]` for each pair; undefined where the slice is empty."""
    padded = np.r_[values, np.iinfo(np.int64).max]
    pairs = np.stack([first, np.maximum(last, first)], axis=1).ravel()
    return np.asarray(np.minimum.reduceat(padded, pairs)[::2], dtype=np.int64)
