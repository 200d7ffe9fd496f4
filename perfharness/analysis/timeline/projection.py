"""Project ranges onto the GPU: from the API calls inside a range to the operations that they started.

An operation belongs to a range if the API call that started it (same correlation id, same process) lies inside the
range on the same thread; the projected range is from the first start to the last end. Same rule as nsys's
`nvtx_gpu_proj_trace`, except that a CUDA graph replayed as a whole counts as an operation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from perfharness.analysis.timeline.busy import ThreadOrder, expand
from perfharness.analysis.timeline.coverage import find_untraced_work, never_closed
from perfharness.analysis.timeline.grouping import distinct, row_order
from perfharness.analysis.timeline.intervals import MAX_LEVELS, Nesting, nest, running_maximum_before
from perfharness.model.columns import Bool, Int64, Integers
from perfharness.model.findings import Finding
from perfharness.model.trace import PROCESS_MASK, ApiCalls, GpuOperations, NvtxRanges, Trace, pid_of
from perfharness.trace.columns import narrow

BLOCK_MEMBERS = 1 << 20
"""Operations processed at a time, to limit memory."""


@dataclass(frozen=True)
class Launches:
    """Operations with the API call that started them, both as indices, ordered by thread and start of the call.

    `is_first`: first operation of each call. `lines`: finds the launches in an interval of a thread.
    """

    operation: Integers
    call: Integers
    is_first: Bool
    lines: ThreadOrder


@dataclass(frozen=True)
class Projection:
    """GPU work of each range, aligned with the ranges; all 0 where `operation_count` is 0."""

    start_ns: Int64
    end_ns: Int64
    busy_ns: Int64
    operation_count: Int64


@dataclass(frozen=True)
class RangeTable:
    """Ranges with their nesting and GPU work. `gpu_known`: False if some of that work may be missing."""

    ranges: NvtxRanges
    nesting: Nesting
    projection: Projection
    gpu_known: Bool
    findings: list[Finding]

    @cached_property
    def order(self) -> Int64:
        """Rows ordered by (pid, tid, start, -duration)."""
        ranges = self.ranges
        length = ranges.end_ns - ranges.start_ns
        order = row_order(pid_of(ranges.thread), ranges.thread, ranges.start_ns, -length, ranges.row)
        return np.arange(len(ranges)) if order is None else order


def build_range_table(trace: Trace, launches: Launches) -> RangeTable:
    """Nest and project all ranges of a trace. Ranges that end on another thread stand alone, without GPU work."""
    ranges, alone = trace.ranges, trace.ranges.crosses_threads
    group = ranges.thread
    if alone.any():
        group = np.where(alone, -1 - np.arange(len(ranges)), group)
    nesting = nest(ranges.start_ns, ranges.end_ns, group)
    gpu_known, findings = find_untraced_work(trace, launches.call, launches.operation)
    return RangeTable(
        ranges=ranges,
        nesting=nesting,
        projection=project(trace, launches, ~alone & (nesting.level < MAX_LEVELS)),
        gpu_known=gpu_known & ~alone & (nesting.level < MAX_LEVELS),
        findings=[*trace.meta.findings, *findings, *never_closed(trace)],
    )


def find_launches(api: ApiCalls, operations: GpuOperations) -> Launches:
    """Join operations to calls by process and id; of two calls (a driver call in a runtime call), to the inner one."""
    call = _calls_of(api, operations)
    started = np.flatnonzero(call >= 0)
    call = call[started]
    order = row_order(api.thread[call], api.start_ns[call], call)  # keeps operations of one call together
    if order is not None:
        started, call = started[order], call[order]
    call = narrow(call)
    is_first = np.ones(len(call), dtype=np.bool_)
    is_first[1:] = call[1:] != call[:-1]
    return Launches(narrow(started), call, is_first, ThreadOrder(api.thread[call], api.start_ns[call]))


def _calls_of(api: ApiCalls, operations: GpuOperations) -> Int64:
    """The call of each operation, or -1."""
    process = api.thread & PROCESS_MASK
    call = np.full(len(operations), -1, dtype=np.int64)
    for number in distinct(process):
        mine, theirs = np.flatnonzero(process == number), np.flatnonzero(operations.process == number)
        at = _last_of_id(api.correlation[mine], api.start_ns[mine], operations.correlation[theirs])
        call[theirs] = np.where(at >= 0, mine[at], -1)
    return call


def _last_of_id(ids: Integers, start_ns: Int64, wanted: Integers) -> Int64:
    """The last call to begin with each wanted id, or -1."""
    order = row_order(ids, start_ns)
    ids = ids if order is None else ids[order]
    at = np.searchsorted(ids, wanted, side="right") - 1
    at[(at < 0) | (wanted < 0) | (ids[at] != wanted)] = -1
    return at if order is None else np.where(at >= 0, order[at], -1)


def project(trace: Trace, launches: Launches, wanted: Bool) -> Projection:
    """Project the wanted ranges; others get zeros."""
    api, operations, ranges = trace.api, trace.operations, trace.ranges
    found = Projection(*np.zeros((4, len(ranges)), dtype=np.int64))
    call_end = api.end_ns[launches.call]
    start, end = operations.start_ns[launches.operation], operations.end_ns[launches.operation]
    first, last = launches.lines.slices(ranges.thread, ranges.start_ns, ranges.end_ns)
    rows = np.flatnonzero((last > first) & wanted)
    blocks = np.cumsum(last[rows] - first[rows]) // BLOCK_MEMBERS
    for block in np.split(rows, np.flatnonzero(np.diff(blocks)) + 1) if len(rows) else ():
        member, place = expand(first[block], last[block])
        inside = call_end[member] <= ranges.end_ns[block[place]]
        if not inside.all():
            member, place = member[inside], place[inside]
        s, e = start[member], end[member]
        if not ((s[1:] >= s[:-1]) | (place[1:] != place[:-1])).all():
            order = np.lexsort((s, place))
            member, s, e = member[order], s[order], e[order]  # `place` is sorted already
        runs = np.flatnonzero(np.r_[True, place[1:] != place[:-1]][: len(place)])
        row = block[place[runs]]
        if not len(runs):
            continue
        added = np.maximum(e - np.maximum(s, running_maximum_before(e, place)), 0)
        found.start_ns[row], found.end_ns[row] = s[runs], np.maximum.reduceat(e, runs)
        found.busy_ns[row] = np.add.reduceat(added, runs)
        found.operation_count[row] = np.add.reduceat(launches.is_first[member].astype(np.int64), runs)
    return found
