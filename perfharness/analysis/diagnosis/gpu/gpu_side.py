"""The GPU's side of a stage: what it started there, and what the GPU did while the host was in it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfharness.analysis.diagnosis.gpu.counters import operation_counters, roofline_point
from perfharness.analysis.diagnosis.gpu.kernels import KINDS_OF_KERNELS, LIMITERS
from perfharness.analysis.diagnosis.gpu.limits import gpu_limits
from perfharness.analysis.diagnosis.host.calls import host_memory
from perfharness.analysis.diagnosis.workload import NS_PER_MS, StageEvents, Workload
from perfharness.analysis.timeline.cuda_calls import ACTIVITIES
from perfharness.analysis.timeline.grouping import group_rows
from perfharness.model.diagnosis import CopyGroup, GpuCounters, GpuDuringStage, GpuWork, HostActivity, KernelGroup
from perfharness.model.trace import CopyKind, GpuOperationKind, Int64, MemoryKind

TOP_KERNELS = 5


def gpu_work(events: StageEvents, counters: Sequence[GpuCounters] = ()) -> GpuWork:
    """The operations that the stage started, per batch. `counters`: of its kernels, by GPU."""
    workload, at = events.workload, events.operation
    operations = workload.trace.operations
    duration, kind = events.operation_ns, events.operation_kind
    time = np.bincount(kind, weights=duration, minlength=len(GpuOperationKind)) / NS_PER_MS * events.per_batch
    count = np.bincount(kind, minlength=len(GpuOperationKind)) * events.per_batch
    total, busy = events.ms(duration.sum()), events.ms(events.own.length)
    projection, rows = workload.table.projection, workload.stages.index[events.stage.rows]
    has_work = projection.operation_count[rows] > 0
    copies = events.of_kind(GpuOperationKind.MEMCPY)
    memset_bytes = workload.details.bytes[events.of_kind(GpuOperationKind.MEMSET)]
    shared = events.shared_ns
    return GpuWork(
        kernel_count=float(count[GpuOperationKind.KERNEL]),
        kernel_time_ms=float(time[GpuOperationKind.KERNEL]),
        kernel_share=float(time[GpuOperationKind.KERNEL]) / total if total else None,
        top_kernels=_top_kernels(events),
        copies=_copies(events, copies),
        memset_count=float(count[GpuOperationKind.MEMSET]),
        memset_time_ms=float(time[GpuOperationKind.MEMSET]),
        memset_bytes=None if (memset_bytes < 0).any() else float(memset_bytes.sum()) * events.per_batch,
        graph_launch_count=float(count[GpuOperationKind.GRAPH]),
        graph_time_ms=float(time[GpuOperationKind.GRAPH]),
        busy_ms=busy,
        projected_ms=events.ms((projection.end_ns[rows] - projection.start_ns[rows])[has_work].sum()),
        operation_time_ms=total,
        streams=int(np.count_nonzero(np.bincount(workload.gpus.stream_of[at]))),
        stream_overlap_ms=max(total - busy, 0.0),
        copy_with_compute_ms=events.ms(
            workload.compute.within(operations.start_ns[copies], operations.end_ns[copies]).sum()
        ),
        shared_with_processes_ms=None if shared is None else events.ms(shared),
        limits=gpu_limits(events, counters),
    )


def _top_kernels(events: StageEvents) -> list[KernelGroup]:
    workload, kernels = events.workload, events.kernels
    details, groups, times = workload.details, workload.kernels, kernels.time_by_group
    counts = np.bincount(kernels.group, minlength=len(groups))
    whole, shape = max(float(kernels.length_ns.sum()), 1.0), groups.residency
    top = []
    for position in np.argsort(-times, kind="stable")[:TOP_KERNELS].tolist():
        if not counts[position]:
            continue
        example, limiter = int(groups.example[position]), int(shape.limiter[position])
        name, count, time = int(details.name[example]), int(counts[position]), float(times[position])
        counters = _kernel_counters(events, position)
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
                waves=_number(float(shape.waves[position])),
                occupancy=_number(float(shape.occupancy[position])),
                limiter=LIMITERS[limiter] if limiter >= 0 else None,
                count=count * events.per_batch,
                time_ms=events.ms(time),
                mean_us=time / count / 1e3,
                share=time / whole,
                counters=counters,
                roofline=None if counters is None else roofline_point(counters, workload.gpus.facts[gpu]),
            )
        )
    return top


def _kernel_counters(events: StageEvents, group: int) -> GpuCounters | None:
    """Counters of the trace while kernels of one group ran; None where it has none."""
    if events.workload.trace.gpu_metrics is None:
        return None
    found = operation_counters(events.workload, events.kernels.operation[events.kernels.group == group])
    return found[0] if found else None


def _known(value: int) -> int | None:
    return value if value >= 0 else None


def _number(value: float) -> float | None:
    return None if np.isnan(value) else value


def _shape(values: Int64) -> tuple[int, int, int] | None:
    x, y, z = (int(value) for value in values)
    return (x, y, z) if x >= 0 else None


def _copies(events: StageEvents, at: Int64) -> list[CopyGroup]:
    workload, per_batch = events.workload, events.per_batch
    operations, details = workload.trace.operations, workload.details
    duration = operations.end_ns[at] - operations.start_ns[at]
    memory = host_memory(details.copy_kind[at], details.source[at], details.target[at])
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
    """Indices of the GPUs that copies between GPUs go from and to, -1 for all others, and where it is not known."""
    details, process = workload.details, workload.trace.operations.process[at]
    between = details.copy_kind[at] == CopyKind.PEER_TO_PEER
    between |= (details.source_device[at] >= 0) & (details.source_device[at] != details.target_device[at])
    nothing = np.zeros(len(at), dtype=np.int64)
    ends = (
        workload.gpus.find_streams(process, each[at], nothing)[1]
        for each in (details.source_device, details.target_device)
    )
    source, target = (np.where(between, end, -1) for end in ends)
    return source, target


def _label(kinds: type[CopyKind] | type[MemoryKind], value: int) -> str:
    try:
        return kinds(value).name.lower().replace("_", "-")
    except ValueError:
        return "unknown"


def gpu_during(events: StageEvents) -> list[GpuDuringStage]:
    """Each GPU that the stage uses while the host was in the stage, and what the host did while that GPU was idle."""
    return [_during(events, position) for position in events.gpus_used or (None,)]


def _during(events: StageEvents, gpu: int | None) -> GpuDuringStage:
    workload = events.workload
    line = workload.busy if gpu is None else workload.busy_of[gpu]
    gaps = events.gaps_ns if line is workload.busy else line.gaps_within(events.start_ns, events.end_ns)
    busy = events.wall - float(gaps.sum())
    calls = workload.calls if len(workload.gpus) <= 1 else workload.calls.with_busy(line)
    idle = np.bincount(events.call_kind, weights=calls.own_idle_ns[events.call], minlength=len(ACTIVITIES))
    meanwhile: dict[str, float | None] = {kind.value: events.ms(idle[at]) for at, kind in enumerate(ACTIVITIES)}
    meanwhile[HostActivity.OUTSIDE.value] = events.ms(max(events.wall - busy - float(idle.sum()), 0.0))
    if not workload.api_is_complete:
        meanwhile |= dict.fromkeys(NOT_RECORDED, None)
    return GpuDuringStage(
        gpu=gpu,
        busy_ms=events.ms(busy),
        own_busy_ms=events.ms((events.own if len(workload.gpus) <= 1 else events.own_line(gpu)).length),
        idle_ms=events.ms(events.wall - busy),
        gaps=len(gaps) * events.per_batch,
        gap_p50_us=float(np.median(gaps)) / 1e3 if len(gaps) else None,
        longest_gap_ms=float(gaps.max()) / NS_PER_MS if len(gaps) else None,
        host_meanwhile_ms=meanwhile,
    )


NOT_RECORDED = (
    HostActivity.SYNCHRONIZE.value, HostActivity.ALLOCATE.value, HostActivity.LOAD.value, HostActivity.OTHER.value,
    HostActivity.OUTSIDE.value,
)  # fmt: skip
"""What a tracer misses that records only calls which start work: the others count as time outside of CUDA."""
