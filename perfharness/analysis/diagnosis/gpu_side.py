"""The GPU's side of a stage: what it started there, and what the GPU did while the host was in it."""

from __future__ import annotations

import numpy as np

from perfharness.analysis.cuda_calls import ACTIVITIES
from perfharness.analysis.diagnosis.calls import TO_HOST
from perfharness.analysis.diagnosis.events import NS_PER_MS, StageEvents, shared_with_others
from perfharness.analysis.diagnosis.kernels import KINDS_OF_KERNELS, LIMITERS
from perfharness.analysis.diagnosis.limits import gpu_limits
from perfharness.analysis.diagnosis.workload import StageRows, Workload
from perfharness.analysis.grouping import group_rows
from perfharness.analysis.timeline import BusyLine
from perfharness.model.diagnosis import CopyGroup, GpuDuringStage, GpuWork, HostActivity, KernelGroup
from perfharness.model.trace import CopyKind, GpuOperationKind, Int64, MemoryKind

TOP_KERNELS = 5

FROM_HOST = (CopyKind.HOST_TO_DEVICE, CopyKind.HOST_TO_ARRAY)


def gpu_work(workload: Workload, stage: StageRows, events: StageEvents, own: BusyLine) -> GpuWork:
    """The operations that the stage started, per batch."""
    operations = workload.trace.operations
    per_batch = 1.0 / stage.batches
    at = events.operation
    duration = operations.end_ns[at] - operations.start_ns[at]
    kind = operations.kind[at]
    time = np.bincount(kind, weights=duration, minlength=len(GpuOperationKind)) / NS_PER_MS * per_batch
    count = np.bincount(kind, minlength=len(GpuOperationKind)) * per_batch
    total = float(duration.sum()) / NS_PER_MS * per_batch
    projection, rows = workload.table.projection, workload.stages.index[stage.rows]
    has_work = projection.operation_count[rows] > 0
    projected = (projection.end_ns[rows] - projection.start_ns[rows])[has_work].sum()
    busy = own.length / NS_PER_MS * per_batch
    copies = at[kind == GpuOperationKind.MEMCPY]
    with_compute = workload.compute.within(operations.start_ns[copies], operations.end_ns[copies]).sum()
    shared = shared_with_others(workload, at)
    return GpuWork(
        kernel_count=float(count[GpuOperationKind.KERNEL]),
        kernel_time_ms=float(time[GpuOperationKind.KERNEL]),
        kernel_share=float(time[GpuOperationKind.KERNEL]) / total if total else None,
        top_kernels=_top_kernels(workload, at[kind == GpuOperationKind.KERNEL], per_batch),
        copies=_copies(workload, copies, per_batch),
        memset_count=float(count[GpuOperationKind.MEMSET]),
        memset_time_ms=float(time[GpuOperationKind.MEMSET]),
        memset_bytes=_total_bytes(workload.details.bytes[at[kind == GpuOperationKind.MEMSET]], per_batch),
        graph_launch_count=float(count[GpuOperationKind.GRAPH]),
        graph_time_ms=float(time[GpuOperationKind.GRAPH]),
        busy_ms=busy,
        projected_ms=float(projected) / NS_PER_MS * per_batch,
        operation_time_ms=total,
        streams=int(np.count_nonzero(np.bincount(workload.gpus.stream_of[at]))),
        stream_overlap_ms=max(total - busy, 0.0),
        copy_with_compute_ms=float(with_compute) / NS_PER_MS * per_batch,
        shared_with_processes_ms=None if shared is None else shared / NS_PER_MS * per_batch,
        limits=gpu_limits(workload, events, per_batch),
    )


def _total_bytes(sizes: Int64, per_batch: float) -> float | None:
    return None if (sizes < 0).any() else float(sizes.sum()) * per_batch


def _top_kernels(workload: Workload, at: Int64, per_batch: float) -> list[KernelGroup]:
    if not len(at):
        return []
    operations, groups = workload.trace.operations, workload.kernels
    duration, group = operations.end_ns[at] - operations.start_ns[at], groups.of[at]
    time, count = np.bincount(group, weights=duration), np.bincount(group)
    whole = max(float(duration.sum()), 1.0)
    top = [position for position in np.argsort(-time, kind="stable")[:TOP_KERNELS].tolist() if count[position]]
    return [
        _kernel_group(workload, position, int(count[position]), float(time[position]), whole, per_batch)
        for position in top
    ]


def _kernel_group(
    workload: Workload, position: int, count: int, time: float, whole: float, per_batch: float
) -> KernelGroup:
    details, groups, shape = workload.details, workload.kernels, workload.kernels.residency
    example = int(groups.example[position])
    name, limiter = int(details.name[example]), int(shape.limiter[position])
    return KernelGroup(
        name=workload.trace.names[name] if name >= 0 else "?",
        gpu=int(workload.gpus.of[example]),
        kind=KINDS_OF_KERNELS[groups.kind[position]],
        grid=_shape(details.grid[example]),
        block=_shape(details.block[example]),
        registers=_known(int(details.registers[example])),
        shared_bytes=_known(int(details.shared_bytes[example])),
        waves=_number(float(shape.waves[position])),
        occupancy=_number(float(shape.occupancy[position])),
        limiter=LIMITERS[limiter] if limiter >= 0 else None,
        count=count * per_batch,
        time_ms=time / NS_PER_MS * per_batch,
        mean_us=time / count / 1e3,
        share=time / whole,
    )


def _known(value: int) -> int | None:
    return value if value >= 0 else None


def _number(value: float) -> float | None:
    return None if np.isnan(value) else value


def _shape(values: Int64) -> tuple[int, int, int] | None:
    x, y, z = (int(value) for value in values)
    return (x, y, z) if x >= 0 else None


def host_memory(copy_kind: Int64, source: Int64, target: Int64) -> Int64:
    """Kind of the host's side of each copy, -1 where no side is the host's, or it is not known."""
    side = np.where(np.isin(copy_kind, FROM_HOST), source, np.where(np.isin(copy_kind, TO_HOST), target, -1))
    return np.where(side == MemoryKind.UNKNOWN, -1, side)


def _copies(workload: Workload, at: Int64, per_batch: float) -> list[CopyGroup]:
    operations, details = workload.trace.operations, workload.details
    duration = operations.end_ns[at] - operations.start_ns[at]
    memory = host_memory(details.copy_kind[at], details.source[at], details.target[at])
    gpu, (source, target) = workload.gpus.of[at], _ends(workload, at)
    groups = group_rows(details.copy_kind[at], memory, gpu, source, target)
    found = []
    for position, first in enumerate(groups.first.tolist()):
        mine = groups.code == position
        direction, host = int(details.copy_kind[at[first]]), int(memory[first])
        size, time = details.bytes[at[mine]], float(duration[mine].sum())
        known = bool((size >= 0).all())
        found.append(
            CopyGroup(
                direction=_label(CopyKind, direction),
                gpu=int(gpu[first]),
                source_gpu=_known(int(source[first])),
                target_gpu=_known(int(target[first])),
                host_memory=_label(MemoryKind, host) if host >= 0 else None,
                count=float(mine.sum()) * per_batch,
                bytes=float(size.sum()) * per_batch if known else None,
                time_ms=time / NS_PER_MS * per_batch,
                gb_per_s=float(size.sum()) / time if known and time else None,
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


def gpu_during(workload: Workload, stage: StageRows, events: StageEvents) -> list[GpuDuringStage]:
    """Each GPU that the stage uses while the host was in the stage, and what the host did while that GPU was idle."""
    return [_during(workload, stage, events, position) for position in events.gpus_used(workload)] or [
        _during(workload, stage, events, None)
    ]


def _during(workload: Workload, stage: StageRows, events: StageEvents, position: int | None) -> GpuDuringStage:
    per_batch = 1.0 / stage.batches
    wall = float((events.end_ns - events.start_ns).sum())
    line = workload.busy if position is None else workload.busy_of[position]
    busy = float(line.within(events.start_ns, events.end_ns).sum())
    gaps = line.gaps_within(events.start_ns, events.end_ns)
    calls = workload.calls if len(workload.gpus) <= 1 else workload.calls.with_busy(line)
    idle = np.bincount(calls.kind[events.call], weights=calls.own_idle_ns[events.call], minlength=len(ACTIVITIES))
    meanwhile: dict[str, float | None] = {
        kind.value: float(idle[at]) / NS_PER_MS * per_batch for at, kind in enumerate(ACTIVITIES)
    }
    meanwhile[HostActivity.OUTSIDE.value] = max(wall - busy - float(idle.sum()), 0.0) / NS_PER_MS * per_batch
    if not workload.api_is_complete:
        meanwhile |= dict.fromkeys(NOT_RECORDED, None)
    return GpuDuringStage(
        gpu=position,
        busy_ms=busy / NS_PER_MS * per_batch,
        own_busy_ms=_own_busy(workload, events, position) / NS_PER_MS * per_batch,
        idle_ms=(wall - busy) / NS_PER_MS * per_batch,
        gaps=len(gaps) * per_batch,
        gap_p50_us=float(np.median(gaps)) / 1e3 if len(gaps) else None,
        longest_gap_ms=float(gaps.max()) / NS_PER_MS if len(gaps) else None,
        host_meanwhile_ms=meanwhile,
    )


def _own_busy(workload: Workload, events: StageEvents, position: int | None) -> float:
    operations = workload.trace.operations
    own = events.operation if position is None else events.operation[workload.gpus.of[events.operation] == position]
    return float(BusyLine(operations.start_ns[own], operations.end_ns[own]).length)


NOT_RECORDED = (
    HostActivity.SYNCHRONIZE.value, HostActivity.ALLOCATE.value, HostActivity.LOAD.value, HostActivity.OTHER.value,
    HostActivity.OUTSIDE.value,
)  # fmt: skip
"""What a tracer misses that records only calls which start work: the others count as time outside of CUDA."""
