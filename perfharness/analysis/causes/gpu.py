"""The GPU's side of a stage: its work, and what the host spends on issuing it, as shares of the stage's time."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields

import numpy as np

from perfharness.analysis.diagnosis.gpu.counters import trace_counters
from perfharness.analysis.diagnosis.gpu.limits import gpu_limits
from perfharness.analysis.diagnosis.host.call_roles import READ_BACK
from perfharness.analysis.diagnosis.host.calls import stays_inside
from perfharness.analysis.diagnosis.host.host_side import working_stage
from perfharness.analysis.diagnosis.host.issuing import issuing
from perfharness.analysis.diagnosis.host.recompiling import find_recompiling
from perfharness.analysis.diagnosis.workload import StageEvents
from perfharness.analysis.timeline.busy import BusyLine
from perfharness.analysis.timeline.cuda_calls import BEGINS_CAPTURE, ENDS_CAPTURE, CudaCalls
from perfharness.model.diagnosis import GpuLimits
from perfharness.model.trace import GpuOperationKind

INSTANTIATES = r"cu(da)?GraphInstantiate"
COUNTS = ("launches", "copies", "read_backs", "waits", "allocations")


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


@dataclass(frozen=True)
class GpuTime:
    """Of a stage in one pass; shares of its time.

    `busy` may exceed 1: the GPU works longer than the host. `capturing`: CUDA graphs. `helpers_reads`: values per batch
    that threads without a stage read from the GPU meanwhile. `headroom`: what of `busy` its peak would save, None: not
    known. `has_all_calls`: calls that start no GPU work were recorded, too.
    """

    limits: GpuLimits
    busy: float = 0.0
    copy_only: float = 0.0
    idle: float = 1.0
    blocking_idle: float = 0.0
    for_stages: float = 0.0
    other_stage: str | None = None
    shared: float = 0.0
    recompiling: float = 0.0
    capturing: float = 0.0
    helpers_reads: float = 0.0
    headroom: float | None = None
    made: Issued = field(default_factory=Issued)
    has_all_calls: bool = False


def gpu_time(events: StageEvents) -> GpuTime:
    """What the GPU and the CUDA calls did."""
    workload, wall = events.workload, max(events.wall, 1.0)
    operations, details = workload.trace.operations, workload.details
    copies = events.of_kind(GpuOperationKind.MEMCPY)
    copies = copies[~stays_inside(details, copies)]
    start, end = operations.start_ns[copies], operations.end_ns[copies]
    alone = float((end - start - workload.compute.within(start, end)).sum())
    counters = trace_counters(events) if len(events.operation) else []
    limits = gpu_limits(events, counters)
    for_stages, other = _for_other_stages(events)
    recompiling = find_recompiling(events)
    blocking = events.call[events.blocking]
    return GpuTime(
        limits=limits,
        busy=float(events.own.length) / wall,
        copy_only=min(alone, float(events.own.length)) / wall,
        idle=float(events.gaps_ns.sum()) / wall,
        blocking_idle=float(workload.calls.own_idle_ns[blocking].sum()) / wall,
        for_stages=for_stages / wall,
        other_stage=other,
        shared=_shared(events) / wall,
        recompiling=0.0 if recompiling is None else recompiling.lost_ns / wall,
        capturing=_capturing(events) / wall,
        helpers_reads=_helpers_reads(events) / max(events.stage.batches, 1),
        headroom=_headroom(limits),
        made=_issued(events, wall),
        has_all_calls=workload.api_is_complete,
    )


def _shared(events: StageEvents) -> float:
    """Own GPU work beside that of other processes, and waits while only theirs was at work, ns; 0: not known."""
    workload, others, shared = events.workload, events.workload.others.busy, events.shared_ns
    if others is None or shared is None or not others.length:
        return 0.0
    blocking = events.call[events.blocking]
    start, end = workload.calls.start_ns[blocking], workload.calls.end_ns[blocking]
    either = BusyLine(np.r_[workload.busy.start, others.start], np.r_[workload.busy.end, others.end])
    return shared + float((either.within(start, end) - workload.busy.within(start, end)).sum())


def _issued(events: StageEvents, wall: float) -> Issued:
    made, batches = issuing(events), max(events.stage.batches, 1)
    counts = {name: getattr(made, name) / batches for name in COUNTS}
    times = {one.name: getattr(made, f"{one.name}_ns") / wall for one in fields(Issued) if one.name not in COUNTS}
    return Issued(**counts, **times)


def _capturing(events: StageEvents) -> float:
    """Time from each beginning of a capture to its end, and in the calls that make graphs of them, ns."""
    calls, trace = events.workload.calls, events.workload.trace
    if not any(re.match(BEGINS_CAPTURE, name) for name in trace.names):
        return 0.0
    names = CudaCalls(trace.api, trace.names)
    of = calls.index[events.call]
    begin, end, made = (events.call[names.of(one)[of]] for one in (BEGINS_CAPTURE, ENDS_CAPTURE, INSTANTIATES))
    end = end[calls.start_ns[end] > calls.start_ns[begin].min(initial=np.iinfo(np.int64).max)]
    begin = begin[np.searchsorted(calls.start_ns[begin], calls.start_ns[end]) - 1]
    starts, ends = np.concatenate([begin, made]), np.concatenate([end, made])
    return float((calls.end_ns[ends] - calls.start_ns[starts]).sum())


def _helpers_reads(events: StageEvents) -> int:
    """Copies to the host by threads without a stage; 0 where it is not known which stage's thread they are for."""
    stages, began = events.workload.stages, events.workload.helpers_reads_ns
    if (stages.thread != stages.thread[0]).any():
        return 0
    return int((np.searchsorted(began, events.end_ns) - np.searchsorted(began, events.start_ns)).sum())


def _headroom(limits: GpuLimits) -> float | None:
    """The part of the busy time that is above what its bytes and operations need at the peak."""
    reached = [point.flop_per_s / point.ceiling_flop_per_s for point in limits.roofline if point.ceiling_flop_per_s > 0]
    return None if not reached else 1 - min(max(reached), 1.0)


def _for_other_stages(events: StageEvents) -> tuple[float, str | None]:
    """Time of waits and readings while the GPU did what other stages started, ns, and one of these stages."""
    workload, calls, roles, own = events.workload, events.workload.calls, events.workload.roles, events.own
    waits = events.call[calls.is_blocking[events.call] | (roles.role[events.call] == READ_BACK)]
    start = calls.start_ns[waits]
    end = np.maximum(calls.end_ns[waits], start + roles.spent_ns[waits])
    others = workload.busy.within(start, end) - own.within(start, end)
    if not len(others) or not others.sum():
        return 0.0, None
    longest = int(np.argmax(others))
    whose = working_stage(workload, int(start[longest]), int(end[longest]), events.operation)
    return float(others.sum()), whose
