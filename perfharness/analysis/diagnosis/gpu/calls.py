"""CUDA calls by kind, each with the time that is its own: a call inside a call is counted once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from perfharness.analysis.timeline.busy import BusyLine, ThreadOrder
from perfharness.analysis.timeline.cuda_calls import CudaCalls
from perfharness.analysis.timeline.intervals import nest
from perfharness.analysis.timeline.projection import Launches
from perfharness.model.activity import CODES, Activity
from perfharness.model.trace import (
    Bool,
    CopyKind,
    GpuOperationKind,
    Int64,
    Integers,
    MemoryKind,
    OperationDetails,
    Trace,
)
from perfharness.trace.columns import narrow

_Value = TypeVar("_Value", bound=np.generic)

FROM_HOST = (CopyKind.HOST_TO_DEVICE, CopyKind.HOST_TO_ARRAY)
TO_HOST = (CopyKind.DEVICE_TO_HOST, CopyKind.ARRAY_TO_HOST)
INSIDE_GPU = (CopyKind.DEVICE_TO_DEVICE, CopyKind.ARRAY_TO_ARRAY, CopyKind.ARRAY_TO_DEVICE, CopyKind.DEVICE_TO_ARRAY)
"""Work of the GPU's own memory, no transfers."""


def stays_inside(details: OperationDetails, copies: Int64) -> Bool:
    """Which copies only move what is in one GPU's memory."""
    source, target = details.source_device[copies], details.target_device[copies]
    between = (source >= 0) & (target >= 0) & (source != target)
    return np.asarray(np.isin(details.copy_kind[copies], INSIDE_GPU) & ~between, dtype=np.bool_)


def host_memory(copy_kind: Int64, source: Int64, target: Int64) -> Int64:
    """Kind of the host's side of each copy, -1 where no side is the host's, or it is not known."""
    side = np.where(np.isin(copy_kind, FROM_HOST), source, np.where(np.isin(copy_kind, TO_HOST), target, -1))
    return np.where(side == MemoryKind.UNKNOWN, -1, side)


@dataclass(frozen=True)
class CallTable:
    """Calls ordered by thread and start, an outer call before the inner ones; columns aligned.

    `own_ns` is a call's time less that of the calls inside it. `is_blocking`: it returned only when GPU work had ended.
    """

    lines: ThreadOrder
    index: Integers
    thread: Int64
    start_ns: Int64
    end_ns: Int64
    kind: Integers
    parent: Integers
    own_ns: Integers
    is_blocking: Bool
    launch_ns: float
    """Median length of the calls that launched a kernel or a memset; 0 without any."""

    def __len__(self) -> int:
        return len(self.index)


def own_idle_ns(calls: CallTable, busy: BusyLine) -> Integers:
    """How long a GPU with this work was idle in each call, without the calls inside it."""
    return _less_inner(calls.end_ns - calls.start_ns - busy.within(calls.start_ns, calls.end_ns), calls.parent)


def call_table(trace: Trace, launches: Launches) -> CallTable:
    """All calls of a trace."""
    api = trace.api
    lines = ThreadOrder(api.thread, api.start_ns, api.end_ns)
    order = lines.order

    def ordered(column: npt.NDArray[_Value]) -> npt.NDArray[_Value]:
        return column if lines.is_in_order else column[order]

    thread, start, end = ordered(api.thread), ordered(api.start_ns), ordered(api.end_ns)
    kind = ordered(CudaCalls(api, trace.names).activity())
    parent = _parents(thread, start, end)
    last_end = np.full(len(api), -1, dtype=np.int64)
    np.maximum.at(last_end, launches.call, trace.operations.end_ns[launches.operation])
    last_end = ordered(last_end)
    starts_work = last_end >= 0
    is_copy = kind == CODES[Activity.COPY]
    blocking = (kind == CODES[Activity.SYNC]) | (is_copy & starts_work & (end >= last_end))
    return CallTable(
        lines=lines,
        index=order,
        thread=thread,
        start_ns=start,
        end_ns=end,
        kind=kind,
        parent=parent,
        own_ns=_less_inner(end - start, parent),
        is_blocking=blocking,
        launch_ns=_usual_launch(trace, launches),
    )


def _usual_launch(trace: Trace, launches: Launches) -> float:
    started = launches.operation
    is_launch = np.isin(trace.operations.kind[started], (GpuOperationKind.KERNEL, GpuOperationKind.MEMSET))
    call = launches.call[is_launch & (trace.details.graph_node[started] < 0)]
    return float(np.median(trace.api.end_ns[call] - trace.api.start_ns[call])) if len(call) else 0.0


def _parents(thread: Int64, start: Int64, end: Int64) -> Integers:
    """The call that encloses each call, -1 for most: few calls lie inside others, so only those are nested."""
    parent = np.full(len(start), -1, dtype=np.int32)
    if not len(start):
        return parent
    # Threads one behind the other on one line, so that one running maximum serves them all.
    e = end
    if thread[0] != thread[-1]:  # calls are ordered by thread
        e = end + np.r_[0, np.cumsum(thread[1:] != thread[:-1])] * (int(end.max()) - int(start.min()) + 1)
    is_inner = np.r_[False, e[1:] <= np.maximum.accumulate(e)[:-1]]
    inner = np.flatnonzero(is_inner)
    if not len(inner):
        return parent
    outer = np.flatnonzero(~is_inner)
    members = np.union1d(inner, outer[np.searchsorted(outer, inner) - 1])
    found = nest(start[members], end[members], thread[members]).parent
    parent[members] = np.where(found >= 0, members[found], -1)
    return parent


def _less_inner(values: Int64, parent: Integers) -> Integers:
    """Of values, none of them below 0, those of each call without those of the calls inside it."""
    inside = np.flatnonzero(parent >= 0)
    if not len(inside):
        return narrow(values)
    own = values.copy()
    np.subtract.at(own, parent[inside], values[inside])
    return narrow(np.maximum(own, 0))
