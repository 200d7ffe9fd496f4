"""The sums over a stage's ranges that its verdict rests on."""

from __future__ import annotations

import numpy as np

from perfharness.analysis.diagnosis.host.calls import host_memory, stays_inside
from perfharness.analysis.diagnosis.host.cpu_time import WINDOW_SHARE
from perfharness.analysis.diagnosis.host.host_side import working_stage
from perfharness.analysis.diagnosis.host.host_waits import find_concurrent_stage, find_handover
from perfharness.analysis.diagnosis.host.issuing import issuing
from perfharness.analysis.diagnosis.rules.evidence import (
    Figures,
    HostEvidence,
    KeptCpu,
    OtherThread,
    Recompiling,
    RestOfProcess,
)
from perfharness.analysis.diagnosis.rules.gpu import WAITING_SHARE
from perfharness.analysis.diagnosis.rules.host import CPU_BOUND_SHARE
from perfharness.analysis.diagnosis.workload import StageEvents, Workload
from perfharness.analysis.timeline.busy import BusyLine
from perfharness.analysis.timeline.cuda_calls import ACTIVITIES
from perfharness.model.diagnosis import GpuLimits, HostActivity
from perfharness.model.trace import GpuOperationKind, Int64, MemoryKind, OsWaitKind

MIN_REST_SHARE = 0.05
"""Of the time between readings: a stage that is open for all but less shows nothing of what others do without it."""


def stage_figures(
    events: StageEvents, slow_start_ns: float, limits: GpuLimits, recompiling: Recompiling | None = None,
    host: HostEvidence | None = None,
) -> Figures:  # fmt: skip
    """Everything that the rules read, nanoseconds."""
    workload, own_time, blocking = events.workload, events.time_in_calls, events.call[events.blocking]
    calls, operations = workload.calls, workload.trace.operations
    copies = events.of_kind(GpuOperationKind.MEMCPY)
    copies = copies[~stays_inside(workload.details, copies)]
    start, end = operations.start_ns[copies], operations.end_ns[copies]
    copy_only = end - start - workload.compute.within(start, end)
    for_stages, waits_most = _for_other_stages(events, blocking)
    outside = events.wall - float(own_time.sum())
    waiting_share, ready_share = _ready_shares(events)
    return Figures(
        wall=events.wall,
        span=_span(events),
        batches=events.stage.batches,
        gpu_busy=float(events.own.length),
        copy_only=min(float(copy_only.sum()), float(events.own.length)),
        pageable=float(copy_only[_is_pageable(workload, copies)].sum()),
        gpu_idle=float(events.gaps_ns.sum()),
        blocking_idle=float(calls.own_idle_ns[blocking].sum()),
        outside=outside,
        issuing=issuing(events),
        helpers_reads=_helpers_reads(events),
        blocked=events.blocked,
        other_thread=_other_thread(events, outside),
        operation_time=float(events.operation_ns.sum()),
        for_stages=for_stages,
        other_stage=waits_most,
        shared=_shared(events, blocking),
        loading=float(own_time[ACTIVITIES.index(HostActivity.LOAD)]),
        slow_start=slow_start_ns,
        recompiling=recompiling,
        waiting_share=waiting_share,
        ready_share=ready_share,
        queued_share=_queued_share(events, ready_share),
        rest_of_process=_rest_of_process(events),
        collecting_share=events.least_share(workload.thread_times.collecting),
        crowded_share=events.least_share(workload.thread_times.crowded),
        api_is_complete=workload.api_is_complete,
        without_calls=0.0 if workload.api_is_complete else _without_calls(events),
        limits=limits,
        gpu_shares=_gpu_shares(events),
        uses_gpu=bool(len(workload.trace.api) or len(workload.trace.operations)),
        host=host,
        kept=_kept_cpu(events),
    )


def _helpers_reads(events: StageEvents) -> int:
    """0 where stages run on several threads, for it is not known then which of them a helper reads for."""
    stages, began = events.workload.stages, events.workload.helpers_reads_ns
    if not len(began) or (stages.thread != stages.thread[0]).any():
        return 0
    first, last = np.searchsorted(began, events.start_ns), np.searchsorted(began, events.end_ns)
    return int((last - first).sum())


def _ready_shares(events: StageEvents) -> tuple[float | None, float | None]:
    """Of the host time, what its threads waited, and were ready, at least: by readings in their batches, or (only the
    former) of the process beside it.
    """
    workload, start, end = events.workload, events.start_ns, events.end_ns
    thread, used = workload.stages.thread[events.stage.rows], workload.cpu_time
    of_threads = workload.thread_times.ready.shares(thread, start, end)
    if of_threads is not None:
        return of_threads
    return None if used is None or (thread != thread[0]).any() else used.waiting_share(start, end), None


def _queued_share(events: StageEvents, ready_share: float | None) -> float | None:
    """Of the host time, what of `ready_share` its threads waited for a CPU: as much of it as of all that they were
    ready between the readings. None where that was not read.
    """
    times, ranges = events.workload.thread_times, (events.start_ns, events.end_ns)
    thread = events.workload.stages.thread[events.stage.rows]
    if ready_share is None or not len(times.queued.thread):
        return None
    ready, queued = times.ready.evenly_ns(thread, *ranges), times.queued.evenly_ns(thread, *ranges)
    return ready_share * min(queued / ready, 1.0) if ready else 0.0


def queued_time_ns(events: StageEvents) -> float | None:
    """Of the host time, how long its threads waited for a CPU: as if it were spread evenly between two readings. None
    where readings enclose less than half of it.
    """
    thread, ranges = events.workload.stages.thread[events.stage.rows], (events.start_ns, events.end_ns)
    queued = events.workload.thread_times.queued
    inside_ns = queued.inside_ns(thread, *ranges)
    if not inside_ns or inside_ns < WINDOW_SHARE * events.wall:
        return None
    return min(queued.evenly_ns(thread, *ranges) / inside_ns, 1.0) * events.wall


def _rest_of_process(events: StageEvents) -> RestOfProcess | None:
    """CPU time of the process's other threads while the stage is open, and while it is not, by readings of its own
    thread. None where there are none, or it is on several threads or always open.
    """
    workload, ranges = events.workload, (events.start_ns, events.end_ns)
    thread = workload.stages.thread[events.stage.rows]
    readings = workload.thread_times.process, workload.thread_times.ready, workload.thread_times.queued
    if not len(readings[0].thread) or (thread != thread[0]).any():
        return None
    (window, process), (_, ready), (_, queued) = (one.total(thread[:1]) for one in readings)
    inside_ns = readings[0].inside_ns(thread, *ranges)
    outside_ns = window - inside_ns
    if not inside_ns or outside_ns < MIN_REST_SHARE * window:
        return None
    process_in, ready_in, queued_in = (one.evenly_ns(thread, *ranges) for one in readings)
    inside = max(process_in - (ready_in - queued_in), 0.0)
    otherwise = max(process - (ready - queued) - inside, 0.0)
    return RestOfProcess(inside / inside_ns, otherwise / outside_ns)


def _without_calls(events: StageEvents) -> float:
    """Of the host time, ns: in the stage's ranges, and ranges inside of them, that have no CUDA call."""
    workload, stages = events.workload, events.workload.stages
    free = np.flatnonzero(workload.is_without_calls)
    thread, spent = stages.thread[events.stage.rows], 0.0
    for one in np.unique(thread).tolist():
        mine, of_thread = free[stages.thread[free] == one], thread == one
        line = BusyLine(stages.start_ns[mine], stages.end_ns[mine])
        spent += float(line.within(events.start_ns[of_thread], events.end_ns[of_thread]).sum())
    return spent


def _kept_cpu(events: StageEvents) -> KeptCpu:
    used, start, end = events.workload.cpu_time, events.start_ns, events.end_ns
    if used is None:
        return KeptCpu()
    supply = used.supply
    thread = events.workload.stages.thread[events.stage.rows]
    return KeptCpu(
        quota_cpus=None if supply.quota is None else supply.quota.cpus,
        quota_ns=None if supply.quota is None else supply.quota.within(start, end),
        stolen_share=supply.stolen.mean(start, end),
        computing_share=None if (thread != thread[0]).any() else used.computing_share(start, end),
    )


def _other_thread(events: StageEvents, outside: float) -> OtherThread | None:
    """The stage of another thread that the stage's threads wait for, searched only where a verdict may rest on it."""
    workload, rows, blocked = events.workload, events.stage.rows, events.blocked
    stages, paths, keys = workload.stages, workload.paths, workload.stages.paths.keys
    if workload.host_waits is not None and blocked is not None:
        if blocked[OsWaitKind.LOCK] < WAITING_SHARE * events.wall:
            return None
        found = find_concurrent_stage(stages, paths, workload.host_waits, rows)
        return None if found is None else OtherThread(keys[found.path], found.share, None)
    handover = find_handover(stages, paths, rows) if outside >= CPU_BOUND_SHARE * events.wall else None
    return None if handover is None else OtherThread(keys[handover[0].path], handover[0].share, handover[1])


def _gpu_shares(events: StageEvents) -> dict[str, float]:
    """How long each GPU was at work on the stage, ns; empty where the trace has only one."""
    if len(events.workload.gpus) < 2:
        return {}
    return {f"GPU {position}": float(events.own_line(position).length) for position in events.gpus_used}


def _span(events: StageEvents) -> float:
    """From each range's start to the later of its end and the end of its last operation."""
    projection, at = events.workload.table.projection, events.workload.stages.index[events.stage.rows]
    gpu_end = np.where(projection.operation_count[at] > 0, projection.end_ns[at], events.end_ns)
    return float((np.maximum(events.end_ns, gpu_end) - events.start_ns).sum())


def _is_pageable(workload: Workload, copies: Int64) -> np.typing.NDArray[np.bool_]:
    details = workload.details
    memory = host_memory(details.copy_kind[copies], details.source[copies], details.target[copies])
    return np.asarray(memory == MemoryKind.PAGEABLE, dtype=np.bool_)


def _for_other_stages(events: StageEvents, blocking: Int64) -> tuple[float, str | None]:
    """Time of waits, or of queueing, while the GPU worked on what other stages started; and one such stage."""
    workload, calls, own = events.workload, events.workload.calls, events.own
    start, end = calls.start_ns[blocking], calls.end_ns[blocking]
    waits = workload.busy.within(start, end) - own.within(start, end)
    launch = events.launch[np.r_[True, events.launch_of[1:] != events.launch_of[:-1]][: len(events.launch)]]
    launch = launch[workload.queued_ns[launch] > 0]
    called = workload.trace.api.start_ns[workload.launches.call[launch]]
    began = called + workload.latency_ns[launch]
    queued = np.minimum(workload.queued_ns[launch], workload.busy.within(called, began) - own.within(called, began))
    queued = np.maximum(queued, 0)
    whose = None
    if len(waits) and waits.sum() >= queued.sum():
        longest = int(np.argmax(waits))
        whose = working_stage(workload, int(start[longest]), int(end[longest]), events.operation)
    return float(max(waits.sum(), queued.sum())), whose


def _shared(events: StageEvents, blocking: Int64) -> float | None:
    """Own GPU time concurrent with other processes' work, and waits with an idle GPU of ours while theirs was busy."""
    workload, others, shared = events.workload, events.workload.others.busy, events.shared_ns
    if others is None or shared is None:
        return None
    if not others.length:
        return shared
    start, end = workload.calls.start_ns[blocking], workload.calls.end_ns[blocking]
    either = BusyLine(np.r_[workload.busy.start, others.start], np.r_[workload.busy.end, others.end])
    return shared + float((either.within(start, end) - workload.busy.within(start, end)).sum())
