"""GPU work of each range: projected from the API calls inside it to the operations that they started.

An operation belongs to a range when the API call that started it (same correlation id, same process) lies inside the
range on the same thread; the projected range runs from the first start to the last end. The rule is nsys's
(`nvtx_gpu_proj_trace`), except that a CUDA graph replayed as a whole counts as an operation too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfharness.analysis.timeline.forest import Forest
from perfharness.analysis.timeline.grouping import distinct
from perfharness.analysis.timeline.intervals import running_maximum_before
from perfharness.model.trace import PROCESS_MASK, ApiCalls, Bool, GpuOperations, Int64, Integers, Trace
from perfharness.trace.columns import narrow

NEVER = np.iinfo(np.int64)


@dataclass(frozen=True)
class Launches:
    """Operations with the API call that started them, ordered by thread and start of the call.

    `operation` indexes `GpuOperations`, `call` indexes `ApiCalls`; `is_first` marks the first operation of each call.
    """

    operation: Integers
    call: Integers
    is_first: Bool

    def __len__(self) -> int:
        return len(self.operation)


@dataclass(frozen=True)
class Projection:
    """GPU side of each range, aligned with the ranges; all 0 where `operation_count` is."""

    start_ns: Int64
    end_ns: Int64
    busy_ns: Int64
    operation_count: Integers


def find_launches(api: ApiCalls, operations: GpuOperations) -> Launches:
    """Join operations to calls on process and correlation id.

    Where two calls share an id (a driver call inside the runtime call), the later one, the inner, is taken.
    """
    call = _calls_of(api, operations)
    started = np.flatnonzero(call >= 0)
    call = narrow(call[started])
    order = np.lexsort((call, api.start_ns[call], api.thread[call]))  # operations of one call stay together
    call = call[order]
    is_first = np.ones(len(call), dtype=np.bool_)
    is_first[1:] = call[1:] != call[:-1]
    return Launches(narrow(started[order]), call, is_first)


def _calls_of(api: ApiCalls, operations: GpuOperations) -> Int64:
    """The call of each operation, -1 where there is none."""
    process = api.thread & PROCESS_MASK
    numbers = distinct(process)
    if len(numbers) == 1 and (operations.process == numbers[0]).all():
        return _last_of_id(api.correlation, api.start_ns, operations.correlation)
    call = np.full(len(operations), -1, dtype=np.int64)
    for number in numbers:
        mine, theirs = np.flatnonzero(process == number), np.flatnonzero(operations.process == number)
        at = _last_of_id(api.correlation[mine], api.start_ns[mine], operations.correlation[theirs])
        call[theirs] = np.where(at >= 0, mine[at], -1)
    return call


def _last_of_id(ids: Integers, start_ns: Int64, wanted: Integers) -> Int64:
    """Of the calls with each wanted id, the one that began last; -1 where there is none."""
    order = None
    if not (ids[1:] > ids[:-1]).all():
        order = np.lexsort((start_ns, ids))
        ids = ids[order]
    at = np.searchsorted(ids, wanted, side="right") - 1
    at[(at < 0) | (wanted < 0) | (ids[at] != wanted)] = -1
    return at if order is None else np.where(at >= 0, order[at], -1)


def project(trace: Trace, forest: Forest, launches: Launches) -> Projection:
    """Project every range. Those that ended on another thread get nothing, as in nsys's report."""
    api, operations = trace.api, trace.operations
    first = np.flatnonzero(launches.is_first)
    bounds = np.r_[first, len(launches)]
    call = launches.call[first]
    thread, start, end = api.thread[call], api.start_ns[call], api.end_ns[call]
    of_call = np.cumsum(launches.is_first, dtype=np.int32)
    of_call -= 1
    counted: list[Integers] = []  # the innermost range around each call, and around each operation's
    positions: list[Integers] = []
    operations_of: list[Integers] = []
    for line in forest.lines:
        begin, stop = np.searchsorted(thread, line.thread, "left"), np.searchsorted(thread, line.thread, "right")
        around = forest.innermost(line, start[begin:stop], end[begin:stop])
        counted.append(around[around >= 0])
        launch = slice(bounds[begin], bounds[stop])
        position = around[of_call[launch] - begin]
        inside = position >= 0
        positions.append(position[inside])
        operations_of.append(launches.operation[launch][inside])
    operation, position = _joined(operations_of), _joined(positions)
    start = operations.start_ns[operation]
    if not (start[1:] >= start[:-1]).all():
        order = np.argsort(start, kind="stable")
        operation, position, start = operation[order], position[order], start[order]
    busy = BusyTimes(forest)
    busy.add(position, start, operations.end_ns[operation])
    count = forest.sum_up(np.bincount(_joined(counted), minlength=len(forest)).astype(np.int32))
    has_work, rows = count > 0, len(trace.ranges)
    return Projection(
        start_ns=forest.to_rows(np.where(has_work, busy.first_ns, 0), rows),
        end_ns=forest.to_rows(np.where(has_work, busy.last_ns, 0), rows),
        busy_ns=forest.to_rows(busy.busy_ns, rows),
        operation_count=forest.to_rows(count, rows),
    )


def _joined(parts: list[Integers]) -> Integers:
    """One behind the other; a single one is no copy."""
    return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, dtype=np.int32), *parts])


class BusyTimes:
    """First start, last end and length of the union of each range's operations, by position in a forest.

    `last_ns` is the least number, and `first_ns` the largest, where a range has none.
    """

    def __init__(self, forest: Forest) -> None:
        self._parent, self._level = forest.parent, forest.level
        self.first_ns = np.full(len(forest), NEVER.max, dtype=np.int64)
        self.last_ns = np.full(len(forest), NEVER.min, dtype=np.int64)
        self.busy_ns = np.zeros(len(forest), dtype=np.int64)

    def add(self, position: Integers, start: Int64, end: Int64) -> None:
        """All operations, in order of start, each with the innermost range that it belongs to; not -1."""
        if (start[1:] >= np.maximum.accumulate(end)[:-1]).all():
            self._add_serial(position, start, end)
        else:
            self._add_overlapping(position, start, end)

    def _add_serial(self, position: Integers, start: Int64, end: Int64) -> None:
        """No operation overlaps another, so their lengths add up, for the ranges around them too."""
        busy = end - start
        while len(position):
            if not (position[1:] >= position[:-1]).all():
                order = np.argsort(position, kind="stable")
                position, busy, start, end = position[order], busy[order], start[order], end[order]
            runs = np.flatnonzero(np.r_[True, position[1:] != position[:-1]])
            position = position[runs]
            busy = np.add.reduceat(busy, runs)
            start, end = np.minimum.reduceat(start, runs), np.maximum.reduceat(end, runs)
            self.busy_ns[position] += busy
            self._widen(position, start, end)
            position = self._parent[position]
            inside = position >= 0
            position, busy, start, end = position[inside], busy[inside], start[inside], end[inside]

    def _add_overlapping(self, position: Integers, start: Int64, end: Int64) -> None:
        """Depth by depth, so that a range sees all its operations, those of the ranges inside it too, in order."""
        position = position.copy()
        for depth in range(int(self._level[position].max()), -1, -1):
            at = np.flatnonzero((self._level[position] == depth) & (position >= 0))
            order = np.argsort(position[at], kind="stable")
            own, s, e = position[at][order], start[at][order], end[at][order]
            position[at] = self._parent[position[at]]
            runs = np.flatnonzero(np.r_[True, own[1:] != own[:-1]])
            added = np.maximum(e - np.maximum(s, running_maximum_before(e, own)), 0)
            own = own[runs]
            self.busy_ns[own] = np.add.reduceat(added, runs)
            self._widen(own, np.minimum.reduceat(s, runs), np.maximum.reduceat(e, runs))

    def _widen(self, position: Integers, first: Int64, last: Int64) -> None:
        self.first_ns[position] = np.minimum(self.first_ns[position], first)
        self.last_ns[position] = np.maximum(self.last_ns[position], last)
