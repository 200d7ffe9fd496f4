"""GPU work of a stage, and the host time to issue it, as shares of the stage's time."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from perfharness.analysis.diagnosis.gpu.calls import (
    ALLOCATE,
    COPY,
    LAUNCH,
    READ_BACK,
    ROLES,
    WAIT,
    host_memory,
    stays_inside,
)
from perfharness.analysis.diagnosis.gpu.counters import operation_counters, roofline_point, trace_counters
from perfharness.analysis.diagnosis.gpu.kernels import KINDS_OF_KERNELS, LIMITERS
from perfharness.analysis.diagnosis.gpu.limits import gpu_limits
from perfharness.analysis.diagnosis.gpu.workload import StageEvents, Workload, busy_line
from perfharness.analysis.stages.times import stage_of_calls
from perfharness.analysis.timeline.busy import BusyLine
from perfharness.analysis.timeline.cuda_calls import BEGINS_CAPTURE, ENDS_CAPTURE, calls_named
from perfharness.analysis.timeline.grouping import count_by_code, group_rows, sum_by_code
from perfharness.model.activity import CODES, Activity
from perfharness.model.columns import Bool, Int64
from perfharness.model.diagnosis import CopyGroup, GpuCounters, GpuLimits, KernelGroup
from perfharness.model.trace import CopyKind, MemoryKind

MIN_BATCHES = 6
"""Fewest batches for a statement about the steady state (the second half)."""
RECURS, RECURS_LATE = 3, 2
"""Fewest batches, and batches of the second half; a single late load may be a rare branch of the program."""
LOADING_SHARE = 0.02
"""Least share of a batch's time in the stage; less may be queries of kernel attributes."""
INSTANTIATES = r"cu(da)?GraphInstantiate"


@dataclass(frozen=True)
class GpuTime:
    """GPU time of a stage in one pass, as shares of its time. Counts per batch: `launches`, `copies`, `read_backs`,
    `waits`, `allocations`, and `helpers_reads` (values that threads without a stage read from the GPU).
    """

    limits: GpuLimits
    counters: list[GpuCounters]
    has_all_calls: bool  # includes calls that start no GPU work
    busy: float  # above 1 if the GPU works longer than the host
    copy_only: float
    idle: float
    blocking_idle: float
    for_stages: float
    other_stage: str | None
    shared: float
    recompiling: float
    capturing: float  # CUDA graphs
    helpers_reads: float
    headroom: float | None  # share of `busy` that its bytes and operations would not need at the GPU's peak
    launches: float
    launching: float  # calls and their preparation
    launch_calls: float  # calls only
    issued_gpu: float  # GPU time of the launched operations
    copies: float
    copying: float
    copies_gpu: float
    pageable: float  # GPU time of copies from or to pageable memory
    read_backs: float
    reading: float
    waits: float
    synchronizing: float
    turning: float  # preparation of read-backs and waits
    allocations: float
    allocating: float


def gpu_time(events: StageEvents) -> GpuTime:
    """Sum up the activity of the GPU and the CUDA calls."""
    workload, gpus, wall = events.workload, events.gpus, max(events.wall, 1.0)
    operations = workload.trace.operations
    copies = events.copies[~stays_inside(workload.trace.details, events.copies)]
    start, end = operations.start_ns[copies], operations.end_ns[copies]
    alone = float((end - start - gpus.compute.within(start, end)).sum())
    counters = trace_counters(events)
    limits = gpu_limits(events, counters)
    reached = [point.flop_per_s / point.ceiling_flop_per_s for point in limits.roofline if point.ceiling_flop_per_s > 0]
    for_stages, other = _for_other_stages(events)
    return GpuTime(
        limits=limits,
        counters=counters,
        busy=float(events.own.length) / wall,
        copy_only=min(alone, float(events.own.length)) / wall,
        idle=(events.wall - float(gpus.busy.within(events.start_ns, events.end_ns).sum())) / wall,
        blocking_idle=float(gpus.own_idle_ns[events.blocking].sum()) / wall,
        for_stages=for_stages / wall,
        other_stage=other,
        shared=_shared(events) / wall,
        recompiling=_recompiling(events) / wall,
        capturing=_capturing(events) / wall,
        helpers_reads=_helpers_reads(events) / max(events.stage.batches, 1),
        headroom=None if not reached else 1 - min(max(reached), 1.0),
        has_all_calls=workload.has_all_calls,
        **_issuing(events),
    )


def _issuing(events: StageEvents) -> dict[str, float]:
    """Host time and counts of the stage's calls by role, each moment counted once."""
    calls, call = events.workload.calls, events.call
    role, step, leads_to = calls.role[call], calls.step_ns[call], calls.leads_to[call]
    first = np.flatnonzero(np.diff(events.call_of, prepend=-1))  # in each range: since its start
    step[first] = calls.steps(call[first], calls.start_ns[call[first]] - events.start_ns[events.call_of[first]])
    spent_ns = sum_by_code(role, calls.spent_ns[call], ROLES)
    to_it_ns = sum_by_code(leads_to, step, ROLES)
    count = count_by_code(role, ROLES)
    started = count_by_code(role[calls.starts[call]], ROLES)
    of_operation = calls.of_launch[events.launch]
    gpu_ns = sum_by_code(of_operation, events.operation_ns, ROLES)
    of_copies, copied = events.operation_ns[of_operation == COPY], events.operation[of_operation == COPY]
    is_pageable = host_memory(events.workload.trace.details, copied) == MemoryKind.PAGEABLE
    # Waits for copies of other stages count as waits of this one.
    waits = [WAIT] if started[READ_BACK] else [WAIT, READ_BACK]
    counts = {
        "launches": count[LAUNCH],
        "copies": started[COPY],
        "read_backs": started[READ_BACK],
        "waits": count[waits].sum(),
        "allocations": count[ALLOCATE],
    }
    times_ns = {
        "launching": spent_ns[LAUNCH] + to_it_ns[LAUNCH],
        "launch_calls": spent_ns[LAUNCH],
        "issued_gpu": gpu_ns[LAUNCH],
        "copying": spent_ns[COPY] + to_it_ns[COPY],
        "copies_gpu": gpu_ns[COPY],
        "pageable": of_copies[is_pageable].sum(),
        "reading": spent_ns[READ_BACK] if started[READ_BACK] else 0.0,
        "synchronizing": spent_ns[waits].sum(),
        "turning": to_it_ns[READ_BACK] + to_it_ns[WAIT],
        "allocating": spent_ns[ALLOCATE],
    }
    batches, wall = max(events.stage.batches, 1), max(events.wall, 1.0)
    shares = {name: float(ns) / wall for name, ns in times_ns.items()}
    return {name: float(number) / batches for name, number in counts.items()} | shares


def _shared(events: StageEvents) -> float:
    """Own GPU work next to that of other processes, plus waits while only they used the GPU, ns; 0 if unknown."""
    workload, others, busy = events.workload, events.workload.others, events.gpus.busy
    if others.busy is None or not others.busy.length:
        return 0.0
    own = events.own
    if len(workload.gpus) > 1 and others.count:
        uuids = [device.uuid for device in workload.gpus.facts]
        if others.gpu_uuid is None or others.gpu_uuid not in uuids:
            return 0.0
        on_it = workload.gpus.of[events.operation] == uuids.index(others.gpu_uuid)
        own = busy_line(workload.trace.operations, events.operation[on_it])
    start, end = workload.calls.start_ns[events.blocking], workload.calls.end_ns[events.blocking]
    either = BusyLine(np.r_[busy.start, others.busy.start], np.r_[busy.end, others.busy.end])
    waited = either.within(start, end) - busy.within(start, end)
    return float(others.busy.within(own.start, own.end).sum()) + float(waited.sum())


def _capturing(events: StageEvents) -> float:
    """Time from the start to the end of each graph capture, and in calls that instantiate graphs, ns."""
    calls, trace = events.workload.calls, events.workload.trace
    if not any(re.match(BEGINS_CAPTURE, name) for name in trace.names):
        return 0.0
    of, names = calls.lines.order[events.call], (BEGINS_CAPTURE, ENDS_CAPTURE, INSTANTIATES)
    begin, end, made = (events.call[calls_named(trace, one)[of]] for one in names)
    end = end[calls.start_ns[end] > calls.start_ns[begin].min(initial=np.iinfo(np.int64).max)]
    begin = begin[np.searchsorted(calls.start_ns[begin], calls.start_ns[end]) - 1]
    starts, ends = np.concatenate([begin, made]), np.concatenate([end, made])
    return float((calls.end_ns[ends] - calls.start_ns[starts]).sum())


def _helpers_reads(events: StageEvents) -> int:
    """Copies to the host by threads without a stage; 0 if stages run on several threads, as it is unclear for which."""
    stages, began = events.workload.stages, events.workload.helpers_reads_ns
    if (stages.thread != stages.thread[0]).any():
        return 0
    return int((np.searchsorted(began, events.end_ns) - np.searchsorted(began, events.start_ns)).sum())


def _for_other_stages(events: StageEvents) -> tuple[float, str | None]:
    """Time of waits and reads while the GPU did work of other stages, ns, and one of these stages."""
    workload, calls, own = events.workload, events.workload.calls, events.own
    waits = events.call[calls.is_blocking[events.call] | (calls.role[events.call] == READ_BACK)]
    start = calls.start_ns[waits]
    end = np.maximum(calls.end_ns[waits], start + calls.spent_ns[waits])
    others = events.gpus.busy.within(start, end) - own.within(start, end)
    if not len(others) or not others.sum():
        return 0.0, None
    longest = int(np.argmax(others))
    whose = _working_stage(workload, int(start[longest]), int(end[longest]), events.operation)
    return float(others.sum()), whose


def _working_stage(workload: Workload, start_ns: int, end_ns: int, but: Int64) -> str | None:
    """The stage that started most of the GPU work in this time, except operations `but`; None for work of no stage."""
    operations, launches, stages = workload.trace.operations, workload.analysis.launches, workload.stages
    works = (operations.start_ns < end_ns) & (operations.end_ns > start_ns)
    works[but] = False
    launch = np.flatnonzero(works[launches.operation])
    operation = launches.operation[launch]
    spent = np.minimum(operations.end_ns[operation], end_ns) - np.maximum(operations.start_ns[operation], start_ns)
    row = stage_of_calls(stages, workload.trace.api, launches.call[launch])
    by_name = np.bincount(np.append(stages.name, len(stages.names))[row], weights=spent, minlength=1)
    return [*stages.names, None][int(by_name.argmax())]


def _recompiling(events: StageEvents) -> float:
    """Cost of loading modules, compiling, or running kernels for the first time compared to other batches, ns."""
    workload, rows = events.workload, events.stage.rows
    outer = workload.analysis.stage_times.outer_batch[rows]
    batches, of_row = np.unique(outer, return_inverse=True)
    count = len(batches)
    if count < MIN_BATCHES or batches[0] < 0:
        return 0.0
    spent = sum_by_code(of_row, events.end_ns - events.start_ns, count)
    is_load = workload.calls.kind[events.call] == CODES[Activity.COMPILE]
    loading = sum_by_code(of_row[events.call_of[is_load]], workload.calls.own_ns[events.call[is_load]], count)
    lost = []
    loads = loading >= np.maximum(LOADING_SHARE * spent, 1)
    if _recurs(loads):
        lost.append(float(loading.sum()))
    lost.append(_compiling(events, batches))
    is_new = np.zeros(count, dtype=np.bool_)
    is_new[of_row[events.launch_of[workload.is_new_kernel[events.operation]]]] = True
    if _recurs(is_new) and not is_new.all():
        lost.append(float(np.maximum(spent[is_new] - np.median(spent[~is_new]), 0).sum()))
    return max(lost)


def _compiling(events: StageEvents, batches: Int64) -> float:
    """Compile time of torch.compile or JAX, from the recorder's readings in the batches (rows of stages)."""
    stages = events.workload.stages
    readings = events.workload.compiling
    shares = readings.shares(stages.thread[events.stage.rows], events.start_ns, events.end_ns)
    if shares is None or not shares[1]:
        return 0.0
    begin, end = stages.start_ns[batches], stages.end_ns[batches]
    grown = np.r_[False, (np.diff(readings.spent_ns) > 0) & (np.diff(readings.thread) == 0)]
    at = np.sort(readings.time_ns[grown])
    compiles = np.searchsorted(at, end, "right") > np.searchsorted(at, begin)
    return shares[1] * events.wall if _recurs(compiles) else 0.0


def _recurs(occurs: Bool) -> bool:
    return bool(occurs.sum() >= RECURS and occurs[len(occurs) // 2 :].sum() >= RECURS_LATE)


TOP_KERNELS = 5


def top_kernels(events: StageEvents) -> list[KernelGroup]:
    """Groups of the stage's kernels, longest first."""
    workload, kernels = events.workload, events.kernels
    details, groups, times = workload.trace.details, workload.kernels, kernels.time_by_group
    counts = np.bincount(kernels.group, minlength=len(groups))
    whole = max(float(kernels.length_ns.sum()), 1.0)
    top = []
    for position in np.argsort(-times, kind="stable")[:TOP_KERNELS].tolist():
        if not counts[position]:
            continue
        example, limiter = int(groups.example[position]), int(groups.limiter[position])
        name, count, time = int(details.name[example]), int(counts[position]), float(times[position])
        counters = operation_counters(workload, kernels.operation[kernels.group == position])
        gpu = int(workload.gpus.of[example])
        top.append(
            KernelGroup(
                name=workload.trace.names[name] if name >= 0 else "?",
                gpu=gpu,
                kind=KINDS_OF_KERNELS[groups.kind[position]],
                grid=_shape(details.grid[example]),
                block=_shape(details.block[example]),
                registers=_known(int(details.registers[example])),
                shared_bytes=_known(int(details.shared_bytes[example])),
                waves=_number(float(groups.waves[position])),
                occupancy=_number(float(groups.occupancy[position])),
                limiter=LIMITERS[limiter] if limiter >= 0 else None,
                count=count * events.per_batch,
                time_ms=events.ms(time),
                mean_us=time / count / 1e3,
                share=time / whole,
                counters=next(iter(counters), None),
                roofline=roofline_point(counters[0], workload.gpus.facts[gpu]) if counters else None,
            )
        )
    return top


def _known(value: int) -> int | None:
    return value if value >= 0 else None


def _number(value: float) -> float | None:
    return None if np.isnan(value) else value


def _shape(values: Int64) -> tuple[int, int, int] | None:
    x, y, z = (int(value) for value in values)
    return (x, y, z) if x >= 0 else None


def copies(events: StageEvents) -> list[CopyGroup]:
    """Groups of the stage's copies, longest first."""
    workload, per_batch, at = events.workload, events.per_batch, events.copies
    operations, details = workload.trace.operations, workload.trace.details
    duration = operations.end_ns[at] - operations.start_ns[at]
    memory = host_memory(details, at)
    gpu, (source, target) = workload.gpus.of[at], _ends(workload, at)
    groups = group_rows(details.copy_kind[at], memory, gpu, source, target)
    found = []
    for position, first in enumerate(groups.first.tolist()):
        mine = groups.code == position
        host, size, time = int(memory[first]), details.bytes[at[mine]], float(duration[mine].sum())
        moved = float(size.sum()) if (size >= 0).all() else None
        found.append(
            CopyGroup(
                direction=_label(CopyKind, int(details.copy_kind[at[first]])),
                gpu=int(gpu[first]),
                source_gpu=_known(int(source[first])),
                target_gpu=_known(int(target[first])),
                host_memory=_label(MemoryKind, host) if host >= 0 else None,
                count=float(mine.sum()) * per_batch,
                bytes=None if moved is None else moved * per_batch,
                time_ms=events.ms(time),
                gb_per_s=moved / time if moved is not None and time else None,
            )
        )
    return sorted(found, key=lambda copy: -copy.time_ms)


def _ends(workload: Workload, at: Int64) -> tuple[Int64, Int64]:
    """Source and target GPU index of copies between GPUs, -1 for other copies and if unknown."""
    details, process = workload.trace.details, workload.trace.operations.process[at]
    between = details.copy_kind[at] == CopyKind.PEER_TO_PEER
    between |= (details.source_device[at] >= 0) & (details.source_device[at] != details.target_device[at])
    ends = (workload.gpus.find(process, each[at]) for each in (details.source_device, details.target_device))
    source, target = (np.where(between, end, -1) for end in ends)
    return source, target


def _label(kinds: type[CopyKind] | type[MemoryKind], value: int) -> str:
    try:
        return kinds(value).name.lower().replace("_", "-")
    except ValueError:
        return "unknown"
