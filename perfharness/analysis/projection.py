"""GPU work of each range: projected from the API calls inside it to the operations that they started.

An operation belongs to a range when the API call that started it (same correlation id, same process) lies inside the
range on the same thread; the projected range runs from the first start to the last end. The rule is nsys's
(`nvtx_gpu_proj_trace`), except that a CUDA graph replayed as a whole counts as an operation too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfharness.analysis.busy import NEVER, BusyTimes, sum_up
from perfharness.analysis.call_index import CallIndex
from perfharness.analysis.forest import Forest
from perfharness.analysis.keys import distinct, parts_of
from perfharness.model.trace import (
    PROCESS_MASK,
    ApiCalls,
    Bool,
    Events,
    GpuOperationKind,
    GpuOperations,
    Int64,
    Integers,
    OperationBlock,
)


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
    """GPU side of each range, aligned with the ranges; all 0 where `operation_count` is."""

    start_ns: Int64
    end_ns: Int64
    busy_ns: Int64
    operation_count: Integers


@dataclass(frozen=True)
class OperationTally:
    """How many operations there are, and how many of them no call started, which no tracer that works leaves."""

    total: int
    without_call: int


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
    return np.where((at >= 0) & (wanted >= 0) & (sorted_key[at] == wanted), order[at], -1)


def _key(processes: Int64, process: Int64, correlation: Int64) -> Int64:
    """One integer of a process and a correlation id (32 bits in CUPTI); -1 where the process is unknown."""
    rank = np.minimum(np.searchsorted(processes, process), len(processes) - 1)
    known = (processes[rank] == process) & (correlation >= 0)
    return np.where(known, (rank << 32) | (correlation & 0xFFFFFFFF), -1)


def project(events: Events, forest: Forest, index: CallIndex) -> tuple[Projection, OperationTally]:
    """Project every range, reading all operations once; marks in the index which calls started any.

    Ranges that ended on another thread get nothing, as in nsys's report.
    """
    added = _add_all(events, forest, index, in_order=False) or _add_all(events, forest, index, in_order=True)
    if added is None:
        raise AssertionError("operations asked for in order of start came in another")
    times, tally = added
    count = len(events.ranges)
    operation_count = sum_up(forest, _count_started(index, len(forest)))
    has_no_work = operation_count == 0
    times.first_ns[has_no_work] = times.last_ns[has_no_work] = 0
    return (
        Projection(
            start_ns=forest.to_rows(times.first_ns, count),
            end_ns=forest.to_rows(times.last_ns, count),
            busy_ns=forest.to_rows(times.busy_ns, count),
            operation_count=forest.to_rows(operation_count, count),
        ),
        tally,
    )


def _count_started(index: CallIndex, count: int) -> Integers:
    """How many calls with an operation have each of `count` positions innermost around them."""
    positions = np.zeros(count, dtype=np.int32)
    for calls in index.processes.values():
        for around in calls.around:
            for part in parts_of(len(around)):
                inside = around[part][calls.started[part] & (around[part] >= 0)]
                if len(inside):
                    low, high = int(inside.min()), int(inside.max())
                    positions[low : high + 1] += np.bincount(inside - low).astype(np.int32)
    return positions


def _add_all(
    events: Events, forest: Forest, index: CallIndex, in_order: bool
) -> tuple[BusyTimes, OperationTally] | None:
    """Busy times of all ranges; None where the operations did not come in order of start."""
    times = BusyTimes(forest)
    total = without_call = 0
    last_start = NEVER.min
    for block in events.operation_blocks(in_order=in_order):
        if int(block.start_ns[0]) < last_start:
            return None
        last_start = int(block.start_ns[-1])
        total += len(block)
        without_call += _add(block, index, times)
    return times, OperationTally(total, without_call)


def _add(block: OperationBlock, index: CallIndex, times: BusyTimes) -> int:
    """Add a block's operations to the ranges around their calls; returns how many have no call and should have."""
    lost = 0
    found: list[tuple[Integers, Int64]] = []  # positions, and which operations of the block they are of
    for process in distinct(block.process):
        mine = np.flatnonzero(block.process == process)
        calls = index.processes.get(process)
        if calls is None:
            lost += _should_have_a_call(block, mine)
            continue
        call = calls.find(block.correlation[mine])
        if (call < 0).any():
            lost += _should_have_a_call(block, mine[call < 0])
            mine, call = mine[call >= 0], call[call >= 0]
        calls.started[call] = True
        for around in calls.around:
            position = around[call]
            inside = position >= 0
            found.append((position, mine) if inside.all() else (position[inside], mine[inside]))
    # The lanes' ranges have nothing to do with each other, but all must see operations in order of start.
    if found:
        at = np.concatenate([operation for _, operation in found])
        position = np.concatenate([positions for positions, _ in found])
        if len(found) > 1:
            order = np.argsort(at, kind="stable")
            at, position = at[order], position[order]
        whole = len(at) == len(block) and len(found) == 1
        times.add(
            position, block.start_ns if whole else block.start_ns[at], block.end_ns if whole else block.end_ns[at]
        )
    return lost


def _should_have_a_call(block: OperationBlock, at: Int64) -> int:
    """How many of these are not copies that the driver makes by itself (managed memory): those have id 0."""
    by_itself = (block.kind[at] == GpuOperationKind.MEMCPY) & (block.correlation[at] == 0)
    return len(at) - int(np.count_nonzero(by_itself))
