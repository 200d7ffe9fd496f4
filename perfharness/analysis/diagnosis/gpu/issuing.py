"""How a stage's host time is spent on giving the GPU work: launches, copies, what is read back, waits, allocations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfharness.analysis.diagnosis.gpu.call_roles import ALLOCATE, COPY, LAUNCH, READ_BACK, ROLES, WAIT, steps
from perfharness.analysis.diagnosis.gpu.calls import host_memory
from perfharness.analysis.diagnosis.gpu.workload import StageEvents
from perfharness.model.trace import Int64, MemoryKind


@dataclass(frozen=True)
class Issued:
    """What the host does to give the GPU work: counts per batch, times as shares of the stage's time.

    `launching` and `copying` hold what leads to the calls; `launch_calls` only the calls. `issued_gpu`, `copies_gpu`,
    `pageable`: time on the GPU.
    """

    launches: float = 0.0
    launching: float = 0.0
    launch_calls: float = 0.0
    issued_gpu: float = 0.0
    copies: float = 0.0
    copying: float = 0.0
    copies_gpu: float = 0.0
    pageable: float = 0.0
    read_backs: float = 0.0
    reading: float = 0.0
    waits: float = 0.0
    synchronizing: float = 0.0
    turning: float = 0.0
    allocations: float = 0.0
    allocating: float = 0.0


def issuing(events: StageEvents) -> Issued:
    """The stage's calls by what they are for, each moment of the host under one."""
    roles, call = events.workload.roles, events.call
    if not len(call):
        return Issued()
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
    wall, batches = max(events.wall, 1.0), max(events.stage.batches, 1)
    return Issued(
        launches=int(count[LAUNCH]) / batches,
        launching=float(both[LAUNCH]) / wall,
        launch_calls=float(spent_ns[LAUNCH]) / wall,
        issued_gpu=float(gpu_ns[LAUNCH]) / wall,
        copies=int(started[COPY]) / batches,
        copying=float(both[COPY]) / wall,
        copies_gpu=float(gpu_ns[COPY]) / wall,
        pageable=_pageable_ns(events, copied) / wall,
        read_backs=int(started[READ_BACK]) / batches,
        reading=reading_ns / wall,
        waits=int(sum(count[each] for each in waits)) / batches,
        synchronizing=float(sum(spent_ns[each] for each in waits)) / wall,
        turning=float(both[READ_BACK] + both[WAIT] - spent_ns[READ_BACK] - spent_ns[WAIT]) / wall,
        allocations=int(count[ALLOCATE]) / batches,
        allocating=float(spent_ns[ALLOCATE]) / wall,
    )


def _pageable_ns(events: StageEvents, copies: Int64) -> float:
    operations, details = events.workload.trace.operations, events.workload.trace.details
    memory = host_memory(details.copy_kind[copies], details.source[copies], details.target[copies])
    mine = copies[memory == MemoryKind.PAGEABLE]
    return float((operations.end_ns[mine] - operations.start_ns[mine]).sum())
