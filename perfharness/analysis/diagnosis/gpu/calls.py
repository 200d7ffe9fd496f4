"""CUDA calls by purpose: launches, copies, reads, waits, allocations; and the host time that leads to them.

The time of an outermost call includes the gap since the previous call on its thread, if that gap is at most
`STEP_CALLS` (before a wait, `TURN_CALLS`) times the usual launching call of this trace; longer gaps are other work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from perfharness.analysis.timeline.busy import BusyLine, ThreadOrder
from perfharness.analysis.timeline.cuda_calls import call_activities
from perfharness.analysis.timeline.intervals import nest
from perfharness.analysis.timeline.projection import Launches
from perfharness.model.activity import CODES, Activity
from perfharness.model.columns import Bool, Int64, Integers
from perfharness.model.trace import CopyKind, GpuOperationKind, MemoryKind, OperationDetails, Trace
from perfharness.trace.columns import narrow

_Value = TypeVar("_Value", bound=np.generic)

FROM_HOST = (CopyKind.HOST_TO_DEVICE, CopyKind.HOST_TO_ARRAY)
TO_HOST = (CopyKind.DEVICE_TO_HOST, CopyKind.ARRAY_TO_HOST)
INSIDE_GPU = (CopyKind.DEVICE_TO_DEVICE, CopyKind.ARRAY_TO_ARRAY, CopyKind.ARRAY_TO_DEVICE, CopyKind.DEVICE_TO_ARRAY)
"""Copies inside the GPU's memory, which are not transfers."""
STEP_CALLS = 30
"""PyTorch takes 3 to 10 launches' time per operation, layers of JAX and Hugging Face up to 25."""
TURN_CALLS = 5
"""`torch.cuda.synchronize()` takes 3 launches' time around its wait, `.item()` 1."""
SCALAR_BYTES = 64
"""Largest copy to the host that counts as a value read by the program (`.item()`, the count of a `nonzero`)."""

ROLES = 6
NONE, LAUNCH, COPY, READ_BACK, WAIT, ALLOCATE = range(ROLES)
_MOST_CALLS = np.array([0, STEP_CALLS, STEP_CALLS, TURN_CALLS, TURN_CALLS, 0])
"""Longest gap before a call of each role that counts as its preparation, in launching calls."""


@dataclass(frozen=True)
class CallTable:
    """Calls ordered by thread and start, outer before inner; columns aligned, except `of_launch`.

    `own_ns`: without inner calls. `is_blocking`: returned only after GPU work ended. `role`: its purpose. `spent_ns`:
    time in the call, or until the value it copies has arrived; 0 inside other calls. `step_ns`: host time since the
    previous call on its thread; `leads_to`: the role this time counts for. `starts`: started an operation. `of_launch`:
    role of each launch. `launch_ns`: median of the calls that launched a kernel or memset; 0 without any.
    """

    lines: ThreadOrder
    thread: Int64
    start_ns: Int64
    end_ns: Int64
    kind: Integers
    own_ns: Integers
    is_blocking: Bool
    role: Integers
    spent_ns: Integers
    step_ns: Integers
    leads_to: Integers
    starts: Bool
    of_launch: Integers
    launch_ns: float
    parent: Integers

    def own_idle_ns(self, busy: BusyLine) -> Integers:
        """GPU idle time in each call, without its inner calls, given the GPU's busy time."""
        return _less_inner(self.end_ns - self.start_ns - busy.within(self.start_ns, self.end_ns), self.parent)

    def steps(self, call: Int64 | slice, gap: Int64) -> Int64:
        """Keep gaps before calls that are steps to a launch, copy or wait; set the others to 0."""
        return _steps(gap, self.leads_to[call], self.launch_ns)


def call_table(trace: Trace, launches: Launches, *, api_is_complete: bool) -> CallTable:
    """Build the table of all calls of a trace."""
    api, operations = trace.api, trace.operations
    lines = ThreadOrder(api.thread, api.start_ns, api.end_ns)

    def ordered(column: npt.NDArray[_Value]) -> npt.NDArray[_Value]:
        return column if lines.is_in_order else column[lines.order]

    thread, start, end = ordered(api.thread), ordered(api.start_ns), ordered(api.end_ns)
    kind = ordered(call_activities(trace))
    parent = _parents(thread, start, end)
    last_end = np.full(len(api), -1, dtype=np.int64)
    np.maximum.at(last_end, launches.call, operations.end_ns[launches.operation])
    last_end = ordered(last_end)
    is_copy = kind == CODES[Activity.COPY]
    is_blocking = (kind == CODES[Activity.SYNC]) | (is_copy & (last_end >= 0) & (end >= last_end))

    count, started_by, outer = len(api), _outermost(lines, parent, launches), np.flatnonzero(parent < 0)
    has_inner = len(outer) < count
    starts = np.zeros(count, dtype=np.bool_)
    starts[started_by] = True
    launch_ns = _usual_launch(trace, launches)
    role = _roles(trace, launches, kind, thread, outer, starts, started_by)
    outer_thread, outer_start, outer_end = (column[outer] if has_inner else column for column in (thread, start, end))
    leads_to = _next_work(role, outer_thread)
    gap = np.zeros(len(outer), dtype=np.int64)
    np.subtract(outer_start[1:], outer_end[:-1], out=gap[1:], where=outer_thread[1:] == outer_thread[:-1])
    spent, step = outer_end - outer_start, narrow(_steps(gap, leads_to, launch_ns))

    def of_all(values: Integers) -> Integers:
        """Expand values of outermost calls to all calls; 0 for inner ones."""
        if not has_inner:
            return values
        column = np.zeros(count, dtype=values.dtype)
        column[outer] = values
        return column

    role = of_all(role)
    if not api_is_complete:
        until = np.r_[outer_start[1:], 0]
        until[np.r_[outer_thread[1:] != outer_thread[:-1], True][: len(until)]] = np.iinfo(np.int64).max
        spent += np.maximum(np.minimum(_there(trace, launches, role, started_by)[outer], until) - outer_end, 0)
    return CallTable(
        lines=lines,
        thread=thread,
        start_ns=start,
        end_ns=end,
        kind=kind,
        own_ns=_less_inner(end - start, parent),
        is_blocking=is_blocking,
        role=role,
        spent_ns=of_all(narrow(spent)),
        step_ns=of_all(step),
        leads_to=of_all(leads_to),
        starts=starts,
        of_launch=role[started_by],
        launch_ns=launch_ns,
        parent=parent,
    )


def _usual_launch(trace: Trace, launches: Launches) -> float:
    started = launches.operation
    is_launch = np.isin(trace.operations.kind[started], (GpuOperationKind.KERNEL, GpuOperationKind.MEMSET))
    call = launches.call[is_launch & (trace.details.graph_node[started] < 0)]
    return float(np.median(trace.api.end_ns[call] - trace.api.start_ns[call])) if len(call) else 0.0


def _parents(thread: Int64, start: Int64, end: Int64) -> Integers:
    """The enclosing call of each call, -1 for most. Few calls are nested, so only those are searched."""
    parent = np.full(len(start), -1, dtype=np.int32)
    # Put threads one after the other on one line, so that one running maximum serves all.
    e = end
    if len(start) and thread[0] != thread[-1]:  # calls are ordered by thread
        e = end + np.r_[0, np.cumsum(thread[1:] != thread[:-1])] * (int(end.max()) - int(start.min()) + 1)
    is_inner = np.r_[False, e[1:] <= np.maximum.accumulate(e)[:-1]]
    inner, outer = np.flatnonzero(is_inner), np.flatnonzero(~is_inner)
    if len(inner):
        members = np.union1d(inner, outer[np.searchsorted(outer, inner) - 1])
        found = nest(start[members], end[members], thread[members]).parent
        parent[members] = np.where(found >= 0, members[found], -1)
    return parent


def _less_inner(values: Int64, parent: Integers) -> Integers:
    """Subtract the values of inner calls from each call's value; never below 0."""
    inside = np.flatnonzero(parent >= 0)
    if not len(inside):
        return narrow(values)
    own = values.copy()
    np.subtract.at(own, parent[inside], values[inside])
    return narrow(np.maximum(own, 0))


def _outermost(lines: ThreadOrder, parent: Integers, launches: Launches) -> Int64:
    """Table position of each launch's outermost call."""
    at = np.asarray(launches.call, dtype=np.int64)
    if not lines.is_in_order:
        place = np.empty(len(parent), dtype=np.int64)
        place[lines.order] = np.arange(len(parent))
        at = place[at]
    while (inner := parent[at] >= 0).any():
        at = np.where(inner, parent[at], at)
    return at


def _roles(
    trace: Trace, launches: Launches, kind: Integers, thread: Int64, outer: Int64, starts: Bool, started_by: Int64
) -> Integers:
    """Roles of the outermost calls. A wait right after a copy gets the copy's role."""
    count, kind = len(kind), kind[outer]
    role = np.zeros(len(outer), dtype=np.int8)
    is_copy = kind == CODES[Activity.COPY]
    role[starts[outer] & ((kind == CODES[Activity.LAUNCH]) | is_copy)] = LAUNCH  # includes copies inside the GPU
    copies = np.flatnonzero(trace.operations.kind[launches.operation] == GpuOperationKind.MEMCPY)
    direction = trace.details.copy_kind[launches.operation[copies]]
    for copied, kinds in ((COPY, FROM_HOST), (READ_BACK, TO_HOST)) if len(copies) else ():
        marked = np.zeros(count, dtype=np.bool_)
        marked[started_by[copies[np.isin(direction, kinds)]]] = True
        role[marked[outer] & is_copy] = copied
    role[kind == CODES[Activity.ALLOC]] = ALLOCATE
    role[kind == CODES[Activity.SYNC]] = WAIT
    matters = np.flatnonzero(kind != CODES[Activity.OTHER])
    of_thread = thread[outer[matters]]
    follows = (role[matters[1:]] == WAIT) & (of_thread[1:] == of_thread[:-1])
    previous, waits = matters[:-1][follows], matters[1:][follows]
    of_copy = np.isin(role[previous], (COPY, READ_BACK))
    role[waits[of_copy]] = role[previous[of_copy]]
    return role


def _next_work(role: Integers, thread: Int64) -> Integers:
    """The role of each call; for calls that have none or allocate, that of the next call on the thread with one."""
    works = np.flatnonzero((role != NONE) & (role != ALLOCATE))
    found = np.full(len(role), NONE, dtype=np.int8)
    if not len(works):
        return found
    since = np.diff(works, prepend=-1)  # each call with a role, and the calls without one before it
    stop = works[-1] + 1
    found[:stop] = np.repeat(role[works], since)
    if thread[0] != thread[-1]:  # calls are ordered by thread
        found[:stop][np.repeat(thread[works], since) != thread[:stop]] = NONE
    return found


def _steps(gap: Int64, leads_to: Integers, launch_ns: float) -> Int64:
    return np.where((gap > 0) & (gap <= (_MOST_CALLS * launch_ns)[leads_to]), gap, 0)


def _there(trace: Trace, launches: Launches, role: Integers, started_by: Int64) -> Int64:
    """Arrival of the scalar that each call copies; the host waits for it if waits were not recorded."""
    size = trace.details.bytes[launches.operation]
    scalar = np.flatnonzero((role[started_by] == READ_BACK) & (size >= 0) & (size <= SCALAR_BYTES))
    there = np.zeros(len(role), dtype=np.int64)
    np.maximum.at(there, started_by[scalar], trace.operations.end_ns[launches.operation[scalar]])
    return there


def stays_inside(details: OperationDetails, copies: Int64) -> Bool:
    """Mask of copies that stay inside one GPU's memory."""
    source, target = details.source_device[copies], details.target_device[copies]
    between = (source >= 0) & (target >= 0) & (source != target)
    return np.asarray(np.isin(details.copy_kind[copies], INSIDE_GPU) & ~between, dtype=np.bool_)


def host_memory(details: OperationDetails, copies: Int64) -> Int64:
    """Memory kind of the host's side of each copy, -1 if there is none or it is unknown."""
    kind, to_host = details.copy_kind[copies], details.target[copies]
    side = np.where(np.isin(kind, FROM_HOST), details.source[copies], np.where(np.isin(kind, TO_HOST), to_host, -1))
    return np.where(side == MemoryKind.UNKNOWN, -1, side)
