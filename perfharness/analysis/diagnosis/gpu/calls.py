"""CUDA calls by kind, each with the time that is its own: a call inside a call is counted once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from perfharness.analysis.timeline.busy import BusyLine, ThreadOrder
from perfharness.analysis.timeline.cuda_calls import ACTIVITIES, CudaCalls
from perfharness.analysis.timeline.gpus import Gpus
from perfharness.analysis.timeline.intervals import nest
from perfharness.analysis.timeline.projection import Launches
from perfharness.model.diagnosis import HostActivity
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

    `own_ns` is a call's time less that of the calls inside it, `own_idle_ns` the part of it in which the GPU was idle.
    `is_blocking`: it returned only when GPU work had ended. `operation_end_ns` is the end of the last operation that it
    started, -1 where it started none; `scope` is the stream (`Gpus.stream_of`) a blocking call waits for (-1: not
    known, or all; `NO_STREAM`: one on which nothing ran), `scope_gpu` which GPU (-1: not known).
    """

    lines: ThreadOrder
    index: Integers
    thread: Int64
    start_ns: Int64
    end_ns: Int64
    kind: Integers
    parent: Integers
    own_ns: Integers
    own_idle_ns: Integers
    is_blocking: Bool
    starts_work: Bool
    to_host: Bool
    scope: Integers
    scope_gpu: Integers
    launch_ns: float
    """Median length of the calls that launched a kernel or a memset; 0 without any."""

    def __len__(self) -> int:
        return len(self.index)

    def with_busy(self, busy: BusyLine) -> CallTable:
        """The same calls where other work of the GPU counts as busy."""
        idle = self.end_ns - self.start_ns - busy.within(self.start_ns, self.end_ns)
        return replace(self, own_idle_ns=_less_inner(idle, self.parent))

    @cached_property
    def waits_before(self) -> Integers:
        """How many blocking calls there are before each call; the last value is that of all."""
        return narrow(np.cumsum(np.r_[False, self.is_blocking], dtype=np.int64))


def call_table(trace: Trace, launches: Launches, busy: BusyLine, gpus: Gpus) -> CallTable:
    """All calls of a trace. `busy` is the time in which the GPU was at work."""
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
    is_copy = kind == ACTIVITIES.index(HostActivity.COPY)
    blocking = (kind == ACTIVITIES.index(HostActivity.SYNCHRONIZE)) | (is_copy & starts_work & (end >= last_end))
    length = end - start
    blocking_copy = np.empty(len(api), dtype=np.bool_)
    blocking_copy[order] = blocking & starts_work
    stream, gpu = _streams_of_calls(launches, gpus, blocking_copy)
    scope, scope_gpu = _scopes(trace, order, ordered(stream), ordered(gpu), gpus)
    return CallTable(
        lines=lines, index=order, thread=thread, start_ns=start, end_ns=end, kind=kind,
        parent=parent, own_ns=_less_inner(length, parent),
        own_idle_ns=_less_inner(length - busy.within(start, end), parent), is_blocking=blocking,
        starts_work=starts_work, to_host=ordered(_copies_to_host(trace, launches)),
        scope=scope, scope_gpu=scope_gpu, launch_ns=_usual_launch(trace, launches),
    )  # fmt: skip


def _copies_to_host(trace: Trace, launches: Launches) -> Bool:
    """Which calls started a copy to the host's memory."""
    found = np.zeros(len(trace.api), dtype=np.bool_)
    found[launches.call[np.isin(trace.details.copy_kind[launches.operation], TO_HOST)]] = True
    return found


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


def _streams_of_calls(launches: Launches, gpus: Gpus, wanted: Bool) -> tuple[Integers, Integers]:
    """Stream and GPU of what each of the wanted calls started, -1 of all others."""
    stream, gpu = np.full(len(wanted), -1, dtype=np.int32), np.full(len(wanted), -1, dtype=np.int32)
    started = np.flatnonzero(wanted[launches.call])
    call, operation = launches.call[started], launches.operation[started]
    stream[call], gpu[call] = gpus.stream_of[operation], gpus.of[operation]
    return stream, gpu


def _scopes(trace: Trace, order: Int64, scope: Integers, gpu: Integers, gpus: Gpus) -> tuple[Integers, Integers]:
    """What a blocking call waits for: a copy for its own stream and GPU, a synchronisation for what was recorded.

    Args:
        trace: of the calls.
        order: the calls.
        scope: stream of what each blocking copy started, -1 of all other calls.
        gpu: the same with the GPU.
        gpus: of the trace.
    """
    waits = trace.synchronizations
    if not len(waits):
        return scope, gpu
    stream, position = gpus.find_streams(waits.process, waits.device, waits.stream)
    by_correlation = np.argsort(waits.correlation, kind="stable")
    known = waits.correlation[by_correlation]
    wanted = trace.api.correlation[order]
    at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    row = by_correlation[at]
    matches = (known[at] == wanted) & (waits.start_ns[row] >= trace.api.start_ns[order])
    matches &= (waits.end_ns[row] <= trace.api.end_ns[order]) & (gpu < 0)
    return np.where(matches, stream[row], scope), np.where(matches, position[row], gpu)
