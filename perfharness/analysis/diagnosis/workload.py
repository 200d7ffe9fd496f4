"""Everything about a trace that the stages' figures are taken from, computed once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.diagnosis.calls import CallTable, call_table, previous_end_on_stream
from perfharness.analysis.diagnosis.gpus import Gpus, find_gpus
from perfharness.analysis.diagnosis.host_waits import HostWaits, find_host_waits
from perfharness.analysis.diagnosis.kernels import KernelGroups, group_kernels
from perfharness.analysis.grouping import group_rows, unique
from perfharness.analysis.projection import Launches
from perfharness.analysis.range_table import RangeTable
from perfharness.analysis.stage_times import StageTimes
from perfharness.analysis.stages import StageTable
from perfharness.analysis.timeline import BusyLine, ThreadOrder, overlaps
from perfharness.model.diagnosis import Path
from perfharness.model.trace import Bool, GpuOperationKind, GpuOperations, Int64, OperationDetails, Trace


@dataclass(frozen=True)
class OtherProcesses:
    """When other processes of the run were at work on one GPU, on this trace's clock; None: not known.

    `gpu_uuid` (without `GPU-`): of which GPU, where this process uses several.
    """

    busy: BusyLine | None
    count: int
    reason: str | None = None
    gpu_uuid: str | None = None


@dataclass(frozen=True)
class Workload:
    """A trace, and what all stages share.

    `launches` are ordered by thread and start of the call (`launch_lines` finds slices); `queued_ns` and `latency_ns`
    are aligned with them; `busy` and `compute` are of all GPUs, `busy_of` of each; `overlapped_ns` is how long each
    kernel ran concurrently with another (or a graph) on its GPU.
    """

    trace: Trace
    details: OperationDetails
    table: RangeTable
    stages: StageTable
    stage_times: StageTimes
    paths: Int64
    launches: Launches
    launch_lines: ThreadOrder
    latency_ns: Int64
    queued_ns: Int64
    calls: CallTable
    busy: BusyLine
    compute: BusyLine
    busy_of: list[BusyLine]
    gpus: Gpus
    kernels: KernelGroups
    overlapped_ns: Int64
    host_waits: HostWaits | None
    others: OtherProcesses
    narrowed: dict[tuple[int, ...], Workload] = field(default_factory=dict)

    @property
    def api_is_complete(self) -> bool:
        """Whether calls that start no GPU work are in the trace: the embedded tracer does not record them."""
        return self.trace.meta.tracer == "nsys" or self.trace.meta.gpu_coverage == "no_gpu_work"


@dataclass(frozen=True)
class StageRows:
    """The ranges of one stage that are examined: rows of the stage table, and in how many batches they lie."""

    path: Path
    number: int
    rows: Int64
    batches: int
    items: int | None


def build_workload(analysis: Analysis, others: OtherProcesses) -> Workload:
    """Join, order and merge once."""
    trace, launches = analysis.trace, analysis.launches
    operations = trace.operations
    gpus = find_gpus(operations, trace.meta)
    busy = BusyLine(operations.start_ns, operations.end_ns)
    is_compute = operations.kind != GpuOperationKind.MEMCPY
    call_start = trace.api.start_ns[launches.call]
    latency = np.maximum(operations.start_ns[launches.operation] - call_start, 0)
    calls = call_table(trace, launches, busy, gpus)
    previous = previous_end_on_stream(operations, gpus.stream_of)[launches.operation]
    return Workload(
        trace=trace, details=trace.details, table=analysis.table, stages=analysis.stages,
        stage_times=analysis.stage_times, paths=analysis.stages.paths.code, launches=launches,
        launch_lines=ThreadOrder(trace.api.thread[launches.call], call_start, np.zeros_like(call_start)),
        latency_ns=latency, queued_ns=np.clip(np.maximum(previous, call_start) - call_start, 0, latency),
        calls=calls, busy=busy,
        compute=busy if is_compute.all() else BusyLine(
            operations.start_ns[is_compute], operations.end_ns[is_compute]
        ),
        busy_of=[
            BusyLine(operations.start_ns[gpus.of == position], operations.end_ns[gpus.of == position])
            for position in range(len(gpus))
        ] if len(gpus) > 1 else [busy] * len(gpus),
        gpus=gpus, kernels=group_kernels(trace, gpus),
        overlapped_ns=_overlapped(operations, is_compute, gpus),
        host_waits=find_host_waits(trace, calls), others=others,
    )  # fmt: skip


def _overlapped(operations: GpuOperations, is_compute: Bool, gpus: Gpus) -> Int64:
    """How long each operation ran while two kernels, memsets or graphs, itself perhaps one of them, were on its GPU."""
    overlapped = np.zeros(len(operations), dtype=np.int64)
    for position in range(len(gpus)):
        mine = np.flatnonzero(is_compute & (gpus.of == position))
        line = BusyLine(*overlaps(operations.start_ns[mine], operations.end_ns[mine]))
        if line.length:
            overlapped[mine] = line.within(operations.start_ns[mine], operations.end_ns[mine])
    return overlapped


def on_gpus(workload: Workload, positions: tuple[int, ...]) -> Workload:
    """The workload where only these GPUs count as busy: what other GPUs do is not this stage's."""
    if len(positions) == len(workload.gpus):
        return workload
    if positions not in workload.narrowed:
        operations = workload.trace.operations
        mine = np.isin(workload.gpus.of, positions)
        compute = mine & (operations.kind != GpuOperationKind.MEMCPY)
        busy = BusyLine(operations.start_ns[mine], operations.end_ns[mine])
        workload.narrowed[positions] = replace(
            workload,
            busy=busy,
            compute=BusyLine(operations.start_ns[compute], operations.end_ns[compute]),
            calls=workload.calls.with_busy(busy),
        )
    return workload.narrowed[positions]


def stage_rows(workload: Workload) -> list[StageRows]:
    """The stages of a trace in order of their paths: ranges in batches, less the warm-up; without batches, all."""
    stages, stage_times = workload.stages, workload.stage_times
    has_batches = bool(stages.is_batch.any())
    eligible = stage_times.batch >= 0 if has_batches else np.ones(len(stages), dtype=np.bool_)
    kept = eligible & ~stage_times.warmup
    found = []
    rows_of = np.argsort(workload.paths, kind="stable")
    bounds = np.r_[0, np.cumsum(np.bincount(workload.paths))]
    for number, first in _in_order(workload.paths, eligible):
        rows = rows_of[bounds[number] : bounds[number + 1]]
        rows = rows[kept[rows]]
        batches = unique(stage_times.batch[rows]) if has_batches else rows
        items = stage_times.items[batches] if has_batches else np.full(len(rows), np.nan)
        total = float(items.sum())
        counted = None if np.isnan(total) else int(total)
        found.append(StageRows(stages.paths.of_row(first), number, rows, len(batches), counted))
    return found


def _in_order(paths: Int64, eligible: Bool) -> list[tuple[int, int]]:
    """Paths of eligible rows with the first such row of each, as they first occur: a parent comes before its children,
    because rows are ordered by start.
    """
    rows = np.flatnonzero(eligible)
    groups = group_rows(paths[rows])
    return [(int(paths[row]), int(row)) for row in rows[groups.first]]
