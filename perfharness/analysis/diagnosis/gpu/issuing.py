"""How a stage's host time is spent on giving the GPU work: launches, copies, what is read back, waits, allocations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfharness.analysis.diagnosis.gpu.call_roles import ALLOCATE, COPY, LAUNCH, READ_BACK, ROLES, WAIT, steps
from perfharness.analysis.diagnosis.gpu.calls import host_memory
from perfharness.analysis.diagnosis.gpu.workload import StageEvents
from perfharness.model.trace import Int64, MemoryKind


@dataclass(frozen=True)
class Issuing:
    """How the stage's host time is spent on giving the GPU work; a moment counts under one of these only. ns, sums.

    `launching_ns` and `copying_ns` are the time in the calls and in what leads to them (`issuing.py`), the others that
    in the calls; counts are of all batches. `copies`: from the host to a GPU, with the waits that follow them.
    `read_backs`: from a GPU to the host, with the waits that follow; where the stage has only these, they are among
    the `waits`. `synchronizing_ns`: other waits. `turning_ns`: what leads to read-backs and waits. `issued_gpu_ns`:
    time on the GPU of what `launches` started.
    """

    launches: int = 0
    launching_ns: float = 0.0
    launch_calls_ns: float = 0.0
    """Of `launching_ns`: inside of the calls themselves."""
    issued_gpu_ns: float = 0.0
    copies: int = 0
    copying_ns: float = 0.0
    copies_gpu_ns: float = 0.0
    pageable_ns: float = 0.0
    """Of `copies_gpu_ns`: from pageable memory."""
    read_backs: int = 0
    reading_ns: float = 0.0
    waits: int = 0
    synchronizing_ns: float = 0.0
    turning_ns: float = 0.0
    allocations: int = 0
    """Calls that allocate or free memory of a GPU, or pinned memory."""
    allocating_ns: float = 0.0


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
    copied = events.operation[of_operation == COPY]
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
        read_backs=int(started[READ_BACK]),
        reading_ns=reading_ns,
        waits=int(sum(count[each] for each in waits)),
        synchronizing_ns=float(sum(spent_ns[each] for each in waits)),
        turning_ns=float(both[READ_BACK] + both[WAIT] - spent_ns[READ_BACK] - spent_ns[WAIT]),
        allocations=int(count[ALLOCATE]),
        allocating_ns=float(spent_ns[ALLOCATE]),
    )


def _pageable_ns(events: StageEvents, copies: Int64) -> float:
    operations, details = events.workload.trace.operations, events.workload.details
    memory = host_memory(details.copy_kind[copies], details.source[copies], details.target[copies])
    mine = copies[memory == MemoryKind.PAGEABLE]
    return float((operations.end_ns[mine] - operations.start_ns[mine]).sum())
