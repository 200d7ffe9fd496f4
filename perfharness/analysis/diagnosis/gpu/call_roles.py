"""What each CUDA call of a trace is for: a launch, a copy, reading back, waiting, allocating; and what the host does on
the way to it.

The time of a call is that in it and that of what the host does to get there: what lies between it and the call before.
Such a gap counts where it is at most `STEP_CALLS` times (before a wait, `TURN_CALLS` times) as long as a launching call
usually takes in this trace; what is longer is something else that the host does. So the host itself is the measure, and
this holds on slow and fast ones, and under any tracer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfharness.analysis.diagnosis.gpu.calls import FROM_HOST, TO_HOST, CallTable
from perfharness.analysis.timeline.projection import Launches
from perfharness.model.activity import CODES, Activity
from perfharness.model.trace import Bool, GpuOperationKind, Int64, Integers, Trace
from perfharness.trace.columns import narrow

STEP_CALLS = 30
"""PyTorch needs 3 to 10 times as long for an operation as for its launch, JAX's and Hugging Face's layers up to 25."""
TURN_CALLS = 5
"""`torch.cuda.synchronize()` needs 3 launches' time around its wait, `.item()` 1."""
SCALAR_BYTES = 64
"""A copy to the host of so little is a value that the program reads next (`.item()`, the count of a `nonzero`)."""

NONE, LAUNCH, COPY, READ_BACK, WAIT, ALLOCATE = range(6)
ROLE_NAMES = {LAUNCH: "launches", COPY: "copies", READ_BACK: "read-backs", WAIT: "waits", ALLOCATE: "allocations"}
ROLES = len(ROLE_NAMES) + 1
_MOST_CALLS = {LAUNCH: STEP_CALLS, COPY: STEP_CALLS, READ_BACK: TURN_CALLS, WAIT: TURN_CALLS}
LAUNCHES, COPIES, WAITS, ALLOCATES, OTHERS = (
    CODES[one] for one in (Activity.LAUNCH, Activity.COPY, Activity.SYNC, Activity.ALLOC, Activity.OTHER)
)


@dataclass(frozen=True)
class CallRoles:
    """What each call of a `CallTable` is for; columns aligned with it, but `of_launch` with `Launches`.

    `spent_ns`: in the call, or until the value that it copies is there; 0 for calls inside others. `step_ns`: of the
    host on the way to it since the call before on its thread; `leads_to`: the role that this time belongs to.
    `starts`: whether it started an operation.
    """

    role: Integers
    spent_ns: Integers
    step_ns: Integers
    leads_to: Integers
    starts: Bool
    of_launch: Integers


def call_roles(trace: Trace, calls: CallTable, launches: Launches, *, api_is_complete: bool) -> CallRoles:
    """What all calls of a trace are for."""
    count, started_by = len(calls), _outermost(calls, launches)
    outer = np.flatnonzero(calls.parent < 0)
    has_inner = len(outer) < count
    starts = np.zeros(count, dtype=np.bool_)
    starts[started_by] = True
    start, end, thread = (
        column[outer] if has_inner else column for column in (calls.start_ns, calls.end_ns, calls.thread)
    )

    def of_all(values: Integers) -> Integers:
        """Values of outermost calls as a column of all calls; 0 for those inside others."""
        if not has_inner:
            return values
        column = np.zeros(count, dtype=values.dtype)
        column[outer] = values
        return column

    roles = _roles(trace, calls, launches, outer, starts, started_by)
    role, leads_to = of_all(roles), _next_work(roles, thread)
    gap = np.zeros(len(outer), dtype=np.int64)
    np.subtract(start[1:], end[:-1], out=gap[1:], where=thread[1:] == thread[:-1])
    spent = end - start
    if not api_is_complete:
        spent += _implied_waits(trace, launches, role, outer, started_by, calls)
    return CallRoles(
        role=role,
        spent_ns=of_all(narrow(spent)),
        step_ns=of_all(narrow(steps(calls, gap, leads_to))),
        leads_to=of_all(leads_to),
        starts=starts,
        of_launch=role[started_by],
    )


def steps(calls: CallTable, gap: Int64, leads_to: Integers) -> Int64:
    """Of gaps before calls, those that are steps to a launch, copy or wait; the others are 0."""
    most = np.array([_MOST_CALLS.get(role, 0) for role in range(ROLES)]) * calls.launch_ns
    return np.where((gap > 0) & (gap <= most[leads_to]), gap, 0)


def _outermost(calls: CallTable, launches: Launches) -> Int64:
    """Of each launch, the place of its call in the table; where that lies inside another, of the outermost."""
    at = np.asarray(launches.call, dtype=np.int64)
    if (calls.index[1:] < calls.index[:-1]).any():
        place = np.empty(len(calls), dtype=np.int64)
        place[calls.index] = np.arange(len(calls))
        at = place[at]
    while (inner := calls.parent[at] >= 0).any():
        at = np.where(inner, calls.parent[at], at)
    return at


def _roles(
    trace: Trace, calls: CallTable, launches: Launches, outer: Int64, starts: Bool, started_by: Int64
) -> Integers:
    """Of outermost calls. A wait right after a copy belongs to it."""
    kind, copy_kind = calls.kind[outer], trace.details.copy_kind
    role = np.zeros(len(outer), dtype=np.int8)
    works = starts[outer]
    role[works & ((kind == LAUNCHES) | (kind == COPIES))] = LAUNCH  # a copy inside of the GPU is work like a kernel
    copies = np.flatnonzero(trace.operations.kind[launches.operation] == GpuOperationKind.MEMCPY)
    if len(copies):
        direction = copy_kind[launches.operation[copies]]
        for copied, which in ((COPY, np.isin(direction, FROM_HOST)), (READ_BACK, np.isin(direction, TO_HOST))):
            marked = np.zeros(len(calls), dtype=np.bool_)
            marked[started_by[copies[which]]] = True
            role[marked[outer] & (kind == COPIES)] = copied
    role[kind == ALLOCATES] = ALLOCATE
    role[kind == WAITS] = WAIT
    matters = np.flatnonzero(kind != OTHERS)
    thread = calls.thread[outer[matters]]
    follows = (role[matters[1:]] == WAIT) & (thread[1:] == thread[:-1])
    previous, waits = matters[:-1][follows], matters[1:][follows]
    of_copy = np.isin(role[previous], (COPY, READ_BACK))
    role[waits[of_copy]] = role[previous[of_copy]]
    return role


def _next_work(role: Integers, thread: Int64) -> Integers:
    """The role of each call, or, where it has none or allocates, that of the next on its thread that has one."""
    works = np.flatnonzero((role != NONE) & (role != ALLOCATE))
    found = np.full(len(role), NONE, dtype=np.int8)
    if not len(works):
        return found
    since = np.diff(works, prepend=-1)  # each call that has one, and those before it that have none
    stop = works[-1] + 1
    found[:stop] = np.repeat(role[works], since)
    if thread[0] != thread[-1]:  # calls are ordered by thread
        found[:stop][np.repeat(thread[works], since) != thread[:stop]] = NONE
    return found


def _implied_waits(
    trace: Trace, launches: Launches, role: Integers, outer: Int64, started_by: Int64, calls: CallTable
) -> Int64:
    """Where waits were not recorded: the host waits for a scalar that it copies, until it is there or the next call."""
    size = trace.details.bytes[launches.operation]
    scalar = np.flatnonzero((role[started_by] == READ_BACK) & (size >= 0) & (size <= SCALAR_BYTES))
    there = np.zeros(len(calls), dtype=np.int64)
    np.maximum.at(there, started_by[scalar], trace.operations.end_ns[launches.operation[scalar]])
    thread = calls.thread[outer]
    following = np.r_[np.where(thread[1:] == thread[:-1], calls.start_ns[outer[1:]], np.iinfo(np.int64).max), 0]
    following[-1:] = np.iinfo(np.int64).max
    return np.asarray(np.maximum(np.minimum(there[outer], following) - calls.end_ns[outer], 0), dtype=np.int64)
