"""The kernels and copies that a stage started."""

from __future__ import annotations

import numpy as np

from perfharness.analysis.diagnosis.gpu.calls import host_memory
from perfharness.analysis.diagnosis.gpu.counters import operation_counters, roofline_point
from perfharness.analysis.diagnosis.gpu.kernels import KINDS_OF_KERNELS, LIMITERS
from perfharness.analysis.diagnosis.gpu.workload import StageEvents, Workload
from perfharness.analysis.timeline.grouping import group_rows
from perfharness.model.diagnosis import CopyGroup, GpuCounters, KernelGroup
from perfharness.model.trace import CopyKind, Int64, MemoryKind

TOP_KERNELS = 5


def top_kernels(events: StageEvents) -> list[KernelGroup]:
    """Groups of the stage's kernels, those that take longest first."""
    workload, kernels = events.workload, events.kernels
    details, groups, times = workload.trace.details, workload.kernels, kernels.time_by_group
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


def copies(events: StageEvents) -> list[CopyGroup]:
    """The stage's copies, those that take longest first."""
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
    """Indices of the GPUs that copies between GPUs go from and to, -1 for all others, and where it is not known."""
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
