"""How a stage's host time is spent on giving the GPU work: launches, copies, what is read back, waits, allocations."""

from __future__ import annotations

import numpy as np

from perfharness.analysis.diagnosis.host.call_roles import ALLOCATE, COPY, LAUNCH, READ_BACK, ROLES, WAIT, steps
from perfharness.analysis.diagnosis.host.calls import host_memory
from perfharness.analysis.diagnosis.rules.evidence import Issuing
from perfharness.analysis.diagnosis.workload import StageEvents
from perfharness.model.trace import Int64, MemoryKind


def issuing(events: StageEvents) -> Issuing:
    """The stage's calls by what they are for, each moment of the host under one."""
    roles, call = events.workload.roles, events.call
    if not len(call):
        return Issuing()
    calls = events.workload.calls
    role, step, leads_to = roles.role[call], roles.step_ns[call], roles.leads_to[call]
    first = np.flatnonzero(np.r_[True, events.call_of[1:] != events.call_of[:-1]])  # of each range: since it began
    step[first] = steps(calls, calls.start_ns[call[first]] - events.start_ns[events.call_of[first]], leads_to[first])
    spent_ns = np.bincount(role, weights=roles.spent_ns[call], minlength=ROLES)
    both = spent_ns + np.bincount(leads_to, weights=step, minlength=ROLES)
    count = np.bincount(role, minlength=ROLES)
    started = np.bincount(role[roles.starts[call]], minlength=ROLES)
    of_operation = roles.of_launch[events.launch]
    gpu_ns = np.bincount(of_operation, weights=events.operation_ns, minlength=ROLES)
    copied, read = (events.operation[of_operation == each] for each in (COPY, READ_BACK))
    # Waits for copies that other stages started are waits of this one.
    waits = (WAIT,) if started[READ_BACK] else (WAIT, READ_BACK)
    reading_ns = float(spent_ns[READ_BACK]) if started[READ_BACK] else 0.0
    return Issuing(
        launches=int(count[LAUNCH]),
        launching_ns=float(both[LAUNCH]),
        launch_calls_ns=float(spent_ns[LAUNCH]),
        issued_gpu_ns=float(gpu_ns[LAUNCH]),
        copies=int(started[COPY]),
        copying_ns=float(both[COPY]),
        copies_gpu_ns=float(gpu_ns[COPY]),
        pageable_ns=_pageable_ns(events, copied),
        copied_bytes=_bytes(events, copied),
        read_backs=int(started[READ_BACK]),
        reading_ns=reading_ns,
        read_back_bytes=_bytes(events, read),
        waits=int(sum(count[each] for each in waits)),
        synchronizing_ns=float(sum(spent_ns[each] for each in waits)),
        turning_ns=float(both[READ_BACK] + both[WAIT] - spent_ns[READ_BACK] - spent_ns[WAIT]),
        allocations=int(count[ALLOCATE]),
        allocating_ns=float(spent_ns[ALLOCATE]),
    )


def stretches(events: StageEvents, role: int) -> tuple[Int64, Int64, Int64]:
    """Thread, start and end of the stage's outermost calls of one role."""
    calls = events.workload.calls
    mine = events.call[events.workload.roles.role[events.call] == role]
    return calls.thread[mine], calls.start_ns[mine], calls.end_ns[mine]


def _pageable_ns(events: StageEvents, copies: Int64) -> float:
    operations, details = events.workload.trace.operations, events.workload.details
    memory = host_memory(details.copy_kind[copies], details.source[copies], details.target[copies])
    mine = copies[memory == MemoryKind.PAGEABLE]
    return float((operations.end_ns[mine] - operations.start_ns[mine]).sum())


def _bytes(events: StageEvents, copies: Int64) -> float | None:
    size = events.workload.details.bytes[copies]
    return None if (size < 0).any() else float(size.sum())
