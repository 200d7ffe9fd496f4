"""The host's side of a stage: CUDA calls by kind, latency, and the longest waits with what they waited for."""

from __future__ import annotations

import numpy as np

from perfharness.analysis.diagnosis.gpu.gpu_side import NOT_RECORDED
from perfharness.analysis.diagnosis.workload import NS_PER_MS, StageEvents, Workload
from perfharness.analysis.timeline.cuda_calls import ACTIVITIES
from perfharness.model.diagnosis import HostActivity, HostWork, Wait
from perfharness.model.trace import CopyKind, GpuOperationKind, Int64, OsWaitKind

LONGEST_WAITS = 3
MOST_OPERATIONS = 100
"""The longest of a wait, of which it is looked up who started them."""

CLOCK_SLACK_NS = 2_000
"""A wait returns after what it waited for; host and GPU clocks are matched to about this (CUPTI interpolates)."""


def host_work(events: StageEvents) -> HostWork:
    """Time in CUDA calls, outside of them, and in waiting; per batch."""
    workload, calls = events.workload, events.workload.calls
    time = events.time_in_calls / NS_PER_MS * events.per_batch
    count = np.bincount(events.call_kind, minlength=len(ACTIVITIES)) * events.per_batch
    activity: dict[str, float | None] = {kind.value: float(time[position]) for position, kind in enumerate(ACTIVITIES)}
    numbers: dict[str, float | None] = {kind.value: float(count[position]) for position, kind in enumerate(ACTIVITIES)}
    activity[HostActivity.OUTSIDE.value] = max(events.ms(events.wall) - float(time.sum()), 0.0)
    if not workload.api_is_complete:
        activity |= dict.fromkeys(NOT_RECORDED, None)
        numbers |= {name: None for name in NOT_RECORDED if name in numbers}
    blocking, blocked = events.blocking, events.blocked
    return HostWork(
        activity_ms=activity,
        calls=numbers,
        blocking_calls=float(len(blocking)) * events.per_batch,
        blocking_ms=events.ms(calls.own_ns[events.call[blocking]].sum()),
        blocked_ms={kind.name.lower(): None if blocked is None else events.ms(blocked[kind]) for kind in OsWaitKind},
        launch_latency_us=float(np.median(workload.latency_ns[events.launch])) / 1e3 if len(events.launch) else None,
        queueing_us=float(workload.queued_ns[events.launch].mean()) / 1e3 if len(events.launch) else None,
        longest_waits=_longest_waits(events),
    )


def _longest_waits(events: StageEvents) -> list[Wait]:
    workload, calls = events.workload, events.workload.calls
    operations, api, names = workload.trace.operations, workload.trace.api, workload.trace.names
    positions = events.blocking
    length = calls.end_ns[events.call[positions]] - calls.start_ns[events.call[positions]]
    waits = []
    for position in positions[np.argsort(-length, kind="stable")[:LONGEST_WAITS]].tolist():
        call = int(events.call[position])
        batch = int(workload.stage_times.batch[events.stage.rows[events.call_of[position]]])
        awaited, name = awaited_operation(workload, call), int(api.name[calls.index[call]])
        took = None if awaited is None else operations.end_ns[awaited] - operations.start_ns[awaited]
        waits.append(
            Wait(
                call=names[name] if name >= 0 else "?",
                time_ms=float(calls.end_ns[call] - calls.start_ns[call]) / NS_PER_MS,
                batch=int(workload.stages.batch_index[batch]) if batch >= 0 else None,
                waited_for=None if awaited is None else operation_name(workload, awaited),
                waited_for_stage=None if awaited is None else launching_stage(workload, awaited),
                operation_ms=None if took is None else float(took) / NS_PER_MS,
            )
        )
    return waits


def awaited_operation(workload: Workload, call: int) -> int | None:
    """The operation that ended last before the call returned, on its stream; None where none ended during the call."""
    calls, operations = workload.calls, workload.trace.operations
    start, end = int(calls.start_ns[call]), int(calls.end_ns[call])
    scope, gpu = int(calls.scope[call]), int(calls.scope_gpu[call])
    fits = (operations.end_ns > start) & (operations.end_ns <= end + CLOCK_SLACK_NS)
    if scope != -1:
        fits &= workload.gpus.stream_of == scope
    elif gpu >= 0:
        fits &= workload.gpus.of == gpu
    at = np.flatnonzero(fits)
    return int(at[np.argmax(operations.end_ns[at])]) if len(at) else None


def operation_name(workload: Workload, operation: int) -> str:
    """A kernel's short name, a copy's direction, `memset` or `graph`."""
    kind = int(workload.trace.operations.kind[operation])
    if kind == GpuOperationKind.KERNEL:
        name = int(workload.details.name[operation])
        return workload.trace.names[name] if name >= 0 else "kernel"
    if kind == GpuOperationKind.MEMCPY:
        direction = int(workload.details.copy_kind[operation])
        return f"copy {CopyKind(direction).name.lower().replace('_', '-')}" if 0 < direction < 14 else "copy"
    return GpuOperationKind(kind).name.lower()


def working_stage(workload: Workload, start_ns: int, end_ns: int, but: Int64) -> str | None:
    """The stage that started most of what the GPUs do in that time, without some operations; None: it was in none."""
    operations = workload.trace.operations
    at = np.flatnonzero((operations.start_ns < end_ns) & (operations.end_ns > start_ns))
    at = at[~np.isin(at, but)]
    time = np.minimum(operations.end_ns[at], end_ns) - np.maximum(operations.start_ns[at], start_ns)
    found: dict[str | None, int] = {}
    for place in np.argsort(-time, kind="stable")[:MOST_OPERATIONS].tolist():
        stage = launching_stage(workload, int(at[place]))
        found[stage] = found.get(stage, 0) + int(time[place])
    return max(found, key=lambda stage: found[stage], default=None)


def launching_stage(workload: Workload, operation: int) -> str | None:
    """Name of the innermost stage in which an operation was started; None where it was in none."""
    at = np.flatnonzero(workload.launches.operation == operation)
    if not len(at):
        return None
    call = int(workload.launches.call[at[0]])
    moment, thread = int(workload.trace.api.start_ns[call]), int(workload.trace.api.thread[call])
    stages = workload.stages
    around = np.flatnonzero((stages.thread == thread) & (stages.start_ns <= moment) & (stages.end_ns >= moment))
    if not len(around):
        return None
    name: str = stages.names[stages.name[around[np.argmax(stages.level[around])]]]
    return name
