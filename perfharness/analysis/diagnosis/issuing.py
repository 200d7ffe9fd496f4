"""How a stage's host time is spent on giving the GPU work: launches, copies, what is read back, waits, allocations.

The time of a launch, and of a copy to a GPU, is that of the call and of what the host does to get there: what lies
between it and the call before. Such a gap counts where it is at most `STEP_CALLS` times as long as a launching call
usually takes in this trace; what is longer is something else that the host does. So the host itself is the measure, and
this holds on slow and fast ones, and under any tracer.
"""

from __future__ import annotations

import numpy as np

from perfharness.analysis.cuda_calls import ACTIVITIES
from perfharness.analysis.diagnosis.gpu_side import FROM_HOST, host_memory
from perfharness.analysis.diagnosis.rules.evidence import Issuing
from perfharness.analysis.diagnosis.workload import StageEvents
from perfharness.model.diagnosis import HostActivity
from perfharness.model.trace import GpuOperationKind, Int64, MemoryKind

STEP_CALLS = 30
"""PyTorch needs 3 to 10 times as long for an operation as for its launch, JAX's and Hugging Face's layers up to 25."""
SCALAR_BYTES = 64
"""A copy to the host of so little is a value that the program reads next (`.item()`, the count of a `nonzero`)."""

NONE, LAUNCH, COPY, READ_BACK, WAIT, ALLOCATE = range(6)
ROLE_NAMES = {LAUNCH: "launches", COPY: "copies", READ_BACK: "read-backs", WAIT: "waits", ALLOCATE: "allocations"}
LAUNCHES, COPIES, WAITS, ALLOCATES = (
    ACTIVITIES.index(activity)
    for activity in (HostActivity.LAUNCH, HostActivity.COPY, HostActivity.SYNCHRONIZE, HostActivity.ALLOCATE)
)
OTHERS = ACTIVITIES.index(HostActivity.OTHER)


def issuing(events: StageEvents) -> Issuing:
    """The stage's calls by what they are for, each moment of the host under one."""
    calls = events.workload.calls
    is_outer = calls.parent[events.call] < 0
    call, group = events.call[is_outer], events.call_of[is_outer]
    if not len(call):
        return Issuing()
    operation, of_call = _started(events, call)
    start, end = calls.start_ns[call], calls.end_ns[call]
    role = _roles(events, call, group, operation, of_call)
    before = np.r_[-1, end[:-1]]
    before = np.where(np.r_[True, group[1:] != group[:-1]], events.start_ns[group], before)
    gap = np.maximum(start - before, 0)
    step = np.where(gap <= STEP_CALLS * calls.launch_ns, gap, 0)
    own = end - start
    operations, details = events.workload.trace.operations, events.workload.details
    implied = np.zeros(len(call), dtype=np.int64)
    if not events.workload.api_is_complete:
        implied = _implied_waits(events, start, end, group, operation, of_call, role)
    # What leads to an allocation, or to a call that is for none of these, leads to the next launch or copy.
    leads_to = _next_work(role, group)
    step[np.isin(leads_to, (READ_BACK, WAIT))] = 0
    calls_ns = np.bincount(role, weights=own + implied, minlength=6)
    steps_ns = np.bincount(leads_to, weights=step, minlength=6)
    started = role[of_call]
    length = (operations.end_ns[operation] - operations.start_ns[operation]).astype(np.float64)
    gpu_ns = np.bincount(started, weights=length, minlength=6)
    count = np.bincount(role, minlength=6)
    is_copy = operations.kind[operation] == GpuOperationKind.MEMCPY
    copied, read = operation[is_copy & (started == COPY)], operation[is_copy & (started == READ_BACK)]
    memory = host_memory(details.copy_kind[copied], details.source[copied], details.target[copied])
    pageable = length[is_copy & (started == COPY)][memory == MemoryKind.PAGEABLE]
    both = calls_ns + steps_ns
    started_calls = np.bincount(np.unique(of_call), minlength=len(call)).astype(np.bool_)
    return Issuing(
        launches=int(count[LAUNCH]),
        launching_ns=float(both[LAUNCH]),
        launch_calls_ns=float(own[role == LAUNCH].sum()),
        issued_gpu_ns=float(gpu_ns[LAUNCH]),
        copies=int((started_calls & (role == COPY)).sum()),
        copying_ns=float(both[COPY]),
        copies_gpu_ns=float(gpu_ns[COPY]),
        pageable_ns=float(pageable.sum()),
        copied_bytes=_bytes(events, copied),
        read_backs=int((started_calls & (role == READ_BACK)).sum()),
        reading_ns=float(both[READ_BACK]),
        read_back_bytes=_bytes(events, read),
        waits=int(count[WAIT]),
        synchronizing_ns=float(both[WAIT]),
        allocations=int(count[ALLOCATE]),
        allocating_ns=float(calls_ns[ALLOCATE]),
    )


def stretches(events: StageEvents, role: int) -> tuple[Int64, Int64, Int64]:
    """Thread, start and end of the stage's outermost calls of one role."""
    calls = events.workload.calls
    is_outer = calls.parent[events.call] < 0
    call, group = events.call[is_outer], events.call_of[is_outer]
    if not len(call):
        return call, call, call
    mine = call[_roles(events, call, group, *_started(events, call)) == role]
    return calls.thread[mine], calls.start_ns[mine], calls.end_ns[mine]


def _started(events: StageEvents, call: Int64) -> tuple[Int64, Int64]:
    """The stage's operations, and the position in `call` (outermost calls) of the one that started each."""
    calls, launches = events.workload.calls, events.workload.launches
    rows = launches.call[events.launch]
    at = calls.position[rows].astype(np.int64)
    while (inner := calls.parent[at] >= 0).any():
        at = np.where(inner, calls.parent[at], at)
    order = np.argsort(call, kind="stable")
    place = np.minimum(np.searchsorted(call[order], at), len(call) - 1)
    found = order[place]
    is_there = call[found] == at
    return events.operation[is_there], found[is_there]


def _roles(events: StageEvents, call: Int64, group: Int64, operation: Int64, of_call: Int64) -> Int64:
    """What each call is for. A wait right after a copy belongs to it."""
    calls, details = events.workload.calls, events.workload.details
    kind = calls.kind[call]
    role = np.full(len(call), NONE, dtype=np.int64)
    starts = np.zeros(len(call), dtype=np.bool_)
    starts[of_call] = True
    role[starts & ((kind == LAUNCHES) | (kind == COPIES))] = LAUNCH  # a copy inside of the GPU is work like a kernel
    from_host = np.zeros(len(call), dtype=np.bool_)
    from_host[of_call[np.isin(details.copy_kind[operation], FROM_HOST)]] = True
    role[from_host & (kind == COPIES)] = COPY
    to_host = np.zeros(len(call), dtype=np.bool_)
    to_host[of_call[calls.to_host[call[of_call]]]] = True
    role[to_host & (kind == COPIES)] = READ_BACK
    role[kind == ALLOCATES] = ALLOCATE
    role[kind == WAITS] = WAIT
    matters = np.flatnonzero(kind != OTHERS)
    follows = (role[matters[1:]] == WAIT) & (group[matters[1:]] == group[matters[:-1]])
    previous, waits = matters[:-1][follows], matters[1:][follows]
    of_copy = np.isin(role[previous], (COPY, READ_BACK))
    role[waits[of_copy]] = role[previous[of_copy]]
    return role


def _next_work(role: Int64, group: Int64) -> Int64:
    """The role of each call, or, where it has none or allocates, that of the next in its range that has one."""
    last = len(role)
    at = np.where(np.isin(role, (NONE, ALLOCATE)), last, np.arange(last))
    following = np.minimum.accumulate(at[::-1])[::-1]
    inside = following < last
    inside[inside] = group[following[inside]] == group[inside]
    return np.where(inside, role[np.minimum(following, last - 1)], NONE)


def _implied_waits(
    events: StageEvents, start: Int64, end: Int64, group: Int64, operation: Int64, of_call: Int64, role: Int64
) -> Int64:
    """Where waits were not recorded: the host waits for a scalar that it copies, until it is there or the next call."""
    details, operations = events.workload.details, events.workload.trace.operations
    size = details.bytes[operation]
    scalar = (role[of_call] == READ_BACK) & (size >= 0) & (size <= SCALAR_BYTES)
    there = np.zeros(len(start), dtype=np.int64)
    np.maximum.at(there, of_call[scalar], operations.end_ns[operation[scalar]])
    following = np.r_[start[1:], 0]
    is_last = np.r_[group[1:] != group[:-1], True]
    following = np.where(is_last, events.end_ns[group], following)
    return np.asarray(np.maximum(np.minimum(there, following) - end, 0), dtype=np.int64)


def _bytes(events: StageEvents, copies: Int64) -> float | None:
    size = events.workload.details.bytes[copies]
    return None if (size < 0).any() else float(size.sum())
