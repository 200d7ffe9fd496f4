"""The GPU's side of a stage: its work, and what the host spends on issuing it, as shares of the stage's time."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np

from perfharness.analysis.diagnosis.gpu.call_roles import READ_BACK
from perfharness.analysis.diagnosis.gpu.calls import stays_inside
from perfharness.analysis.diagnosis.gpu.counters import trace_counters
from perfharness.analysis.diagnosis.gpu.issuing import Issued, issuing
from perfharness.analysis.diagnosis.gpu.limits import gpu_limits
from perfharness.analysis.diagnosis.gpu.recompiling import recompiling_ns
from perfharness.analysis.diagnosis.gpu.workload import StageEvents, Workload
from perfharness.analysis.timeline.busy import BusyLine
from perfharness.analysis.timeline.cuda_calls import BEGINS_CAPTURE, ENDS_CAPTURE, CudaCalls
from perfharness.model.diagnosis import GpuCounters, GpuLimits
from perfharness.model.trace import GpuOperationKind, Int64

MOST_OPERATIONS = 100
"""The longest of a wait, of which it is looked up who started them."""

INSTANTIATES = r"cu(da)?GraphInstantiate"


@dataclass(frozen=True)
class GpuTime:
    """Of a stage in one pass; shares of its time.

    `busy` may exceed 1: the GPU works longer than the host. `capturing`: CUDA graphs. `helpers_reads`: values per batch
    that threads without a stage read from the GPU meanwhile. `headroom`: what of `busy` its peak would save, None: not
    known. `has_all_calls`: calls that start no GPU work were recorded, too.
    """

    limits: GpuLimits
    counters: list[GpuCounters] = field(default_factory=list)
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
    blocking = events.call[events.blocking]
    return GpuTime(
        limits=limits,
        counters=counters,
        busy=float(events.own.length) / wall,
        copy_only=min(alone, float(events.own.length)) / wall,
        idle=float(events.gaps_ns.sum()) / wall,
        blocking_idle=float(workload.calls.own_idle_ns[blocking].sum()) / wall,
        for_stages=for_stages / wall,
        other_stage=other,
        shared=_shared(events) / wall,
        recompiling=recompiling_ns(events) / wall,
        capturing=_capturing(events) / wall,
        helpers_reads=_helpers_reads(events) / max(events.stage.batches, 1),
        headroom=_headroom(limits),
        made=issuing(events),
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
    whose = _working_stage(workload, int(start[longest]), int(end[longest]), events.operation)
    return float(others.sum()), whose


def _working_stage(workload: Workload, start_ns: int, end_ns: int, but: Int64) -> str | None:
    """The stage that started most of what the GPUs do in that time, without some operations; None: it was in none."""
    operations = workload.trace.operations
    at = np.flatnonzero((operations.start_ns < end_ns) & (operations.end_ns > start_ns))
    at = at[~np.isin(at, but)]
    time = np.minimum(operations.end_ns[at], end_ns) - np.maximum(operations.start_ns[at], start_ns)
    found: dict[str | None, int] = {}
    for place in np.argsort(-time, kind="stable")[:MOST_OPERATIONS].tolist():
        stage = _launching_stage(workload, int(at[place]))
        found[stage] = found.get(stage, 0) + int(time[place])
    return max(found, key=lambda stage: found[stage], default=None)


def _launching_stage(workload: Workload, operation: int) -> str | None:
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
