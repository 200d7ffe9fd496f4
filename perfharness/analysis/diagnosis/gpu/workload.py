"""Everything about a trace that the stages' figures are taken from, computed once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.diagnosis.gpu.call_roles import CallRoles, call_roles
from perfharness.analysis.diagnosis.gpu.calls import TO_HOST, CallTable, call_table
from perfharness.analysis.diagnosis.gpu.kernels import KernelGroups, group_kernels
from perfharness.analysis.diagnosis.thread_readings import (
    ThreadReadings,
    ThreadTimes,
    thread_times,
)
from perfharness.analysis.stages.roles import StageTable
from perfharness.analysis.stages.times import StageTimes
from perfharness.analysis.timeline.busy import BusyLine, ThreadOrder, expand, overlaps
from perfharness.analysis.timeline.gpus import Gpus, find_gpus
from perfharness.analysis.timeline.grouping import group_rows, unique
from perfharness.analysis.timeline.projection import Launches, RangeTable
from perfharness.model.diagnosis import Path
from perfharness.model.result import Float64
from perfharness.model.trace import (
    Bool,
    GpuOperationKind,
    GpuOperations,
    Int64,
    Integers,
    OperationDetails,
    Trace,
    TraceMeta,
)
from perfharness.trace.columns import narrow

NS_PER_MS = 1e6


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

    `launches` are ordered by thread and start of the call (`launch_lines` finds slices); `busy` and `compute` are of
    all GPUs, `busy_of` of each; `overlapped_ns` is how long each kernel ran concurrently with another (or a graph) on
    its GPU.
    """

    trace: Trace
    details: OperationDetails
    table: RangeTable
    stages: StageTable
    stage_times: StageTimes
    paths: Int64
    launches: Launches
    launch_lines: ThreadOrder
    calls: CallTable
    roles: CallRoles
    is_new_kernel: Bool
    """Of each operation, whether it is the first launch of a kernel of its name in this process."""
    busy: BusyLine
    compute: BusyLine
    busy_of: list[BusyLine]
    gpus: Gpus
    kernels: KernelGroups
    overlapped_ns: Integers
    others: OtherProcesses
    thread_times: ThreadTimes = field(kw_only=True)
    narrowed: dict[tuple[int, ...], Workload] = field(default_factory=dict)

    @property
    def api_is_complete(self) -> bool:
        """Whether calls that start no GPU work are in the trace."""
        return api_is_complete(self.trace.meta)

    @cached_property
    def helpers_reads_ns(self) -> Int64:
        """When threads without any stage began copies to the host, in order."""
        launch = np.flatnonzero(np.isin(self.details.copy_kind[self.launches.operation], TO_HOST))
        call = self.launches.call[launch]
        own = np.isin(self.trace.api.thread[call], unique(self.stages.thread))
        return np.sort(self.trace.api.start_ns[call[~own]]).astype(np.int64)


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
    with ThreadPoolExecutor(max_workers=1) as pool:
        ranges = pool.submit(lambda: analysis.stage_times)  # and what it is made of; all else here needs none of it
        calls, kernels = call_table(trace, launches, busy), group_kernels(trace, gpus)
        roles = call_roles(trace, calls, launches, api_is_complete=api_is_complete(trace.meta))
        launch_lines = ThreadOrder(trace.api.thread[launches.call], trace.api.start_ns[launches.call])
        overlapped = _overlapped(operations, is_compute, gpus)
        compute = busy
        if not is_compute.all():
            compute = busy_line(operations, is_compute)
        busy_of = [busy] * len(gpus)
        if len(gpus) > 1:
            busy_of = [busy_line(operations, gpus.of == position) for position in range(len(gpus))]
        ranges.result()
    return Workload(
        trace=trace, details=trace.details, table=analysis.table, stages=analysis.stages,
        thread_times=thread_times(trace),
        stage_times=analysis.stage_times, paths=analysis.stages.paths.code, launches=launches,
        launch_lines=launch_lines, calls=calls, busy=busy,
        compute=compute, busy_of=busy_of, gpus=gpus, kernels=kernels, overlapped_ns=overlapped,
        roles=roles, is_new_kernel=_first_of_name(trace), others=others,
    )  # fmt: skip


def api_is_complete(meta: TraceMeta) -> bool:
    """Whether a trace holds calls that start no GPU work: of the embedded tracer, in the profiling pass."""
    return meta.has_all_calls or meta.gpu_coverage == "no_gpu_work"


def _first_of_name(trace: Trace) -> Bool:
    names, start = trace.details.full_name, trace.operations.start_ns
    mine = np.flatnonzero((trace.operations.kind == GpuOperationKind.KERNEL) & (names >= 0))
    first = np.full(len(trace.names), np.iinfo(np.int64).max)
    np.minimum.at(first, names[mine], start[mine])
    found = np.zeros(len(start), dtype=np.bool_)
    found[mine] = start[mine] == first[names[mine]]
    return found


def busy_line(operations: GpuOperations, rows: Bool | Int64) -> BusyLine:
    """When GPUs were at work on some of the operations."""
    return BusyLine(operations.start_ns[rows], operations.end_ns[rows])


def _overlapped(operations: GpuOperations, is_compute: Bool, gpus: Gpus) -> Integers:
    """How long each operation ran while two kernels, memsets or graphs, itself perhaps one of them, were on its GPU."""
    overlapped = np.zeros(len(operations), dtype=np.int64)
    for position in range(len(gpus)):
        mine = np.flatnonzero(is_compute & (gpus.of == position))
        line = BusyLine(*overlaps(operations.start_ns[mine], operations.end_ns[mine]))
        if line.length:
            overlapped[mine] = line.within(operations.start_ns[mine], operations.end_ns[mine])
    return narrow(overlapped)


def on_gpus(workload: Workload, positions: tuple[int, ...]) -> Workload:
    """The workload where only these GPUs count as busy: what other GPUs do is not this stage's."""
    if len(positions) == len(workload.gpus):
        return workload
    if positions not in workload.narrowed:
        operations = workload.trace.operations
        mine = np.isin(workload.gpus.of, positions)
        compute = mine & (operations.kind != GpuOperationKind.MEMCPY)
        busy = busy_line(operations, mine)
        workload.narrowed[positions] = replace(
            workload,
            busy=busy,
            compute=busy_line(operations, compute),
            calls=workload.calls.with_busy(busy),
        )
    return workload.narrowed[positions]


def stage_rows(stages: StageTable, stage_times: StageTimes) -> list[StageRows]:
    """The stages of a trace in order of their paths: ranges in batches, less the warm-up; without batches, all."""
    paths = stages.paths.code
    has_batches = bool(stages.is_batch.any())
    eligible = stage_times.batch >= 0 if has_batches else np.ones(len(stages), dtype=np.bool_)
    kept = eligible & ~stage_times.warmup
    found = []
    rows_of = np.argsort(paths, kind="stable")
    bounds = np.r_[0, np.cumsum(np.bincount(paths))]
    for number, first in _in_order(paths, eligible):
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


@dataclass(frozen=True)
class StageKernels:
    """The kernels that a stage started, their lengths and groups (`KernelGroups`); and the time of each group, ns."""

    operation: Int64
    length_ns: Integers
    group: Integers
    time_by_group: Float64


@dataclass(frozen=True)
class StageEvents:
    """Where a stage's ranges lie, and which launches and calls are in them (indices in the workload's orders).

    `launch_of` and `call_of`: the range that each belongs to. In `workload` only the GPUs that the stage uses are busy.
    """

    workload: Workload
    stage: StageRows
    start_ns: Int64
    end_ns: Int64
    launch: Int64
    launch_of: Int64
    call: Int64
    call_of: Int64
    operation: Int64

    @cached_property
    def wall(self) -> float:
        """Host time, ns."""
        return float((self.end_ns - self.start_ns).sum())

    def ms(self, nanoseconds: float) -> float:
        """As milliseconds a batch."""
        return float(nanoseconds) / NS_PER_MS * self.per_batch

    @property
    def per_batch(self) -> float:
        """Sums times this are means over the batches."""
        return 1.0 / self.stage.batches

    def least_share(self, readings: ThreadReadings) -> float | None:
        """Of the host time, what its threads did (as collecting garbage) at least, by readings in their batches."""
        shares = readings.shares(self.workload.stages.thread[self.stage.rows], self.start_ns, self.end_ns)
        return None if shares is None else shares[1]

    @cached_property
    def operation_kind(self) -> Integers:
        """A `GpuOperationKind` for each operation."""
        kinds: Integers = self.workload.trace.operations.kind[self.operation]
        return kinds

    @cached_property
    def operation_ns(self) -> Integers:
        """How long each operation took."""
        operations = self.workload.trace.operations
        return narrow(operations.end_ns[self.operation] - operations.start_ns[self.operation])

    def of_kind(self, kind: GpuOperationKind) -> Int64:
        """Those of the stage's operations."""
        return np.compress(self.operation_kind == kind, self.operation)

    @cached_property
    def kernels(self) -> StageKernels:
        """The stage's kernels."""
        groups, kernel, length = self.workload.kernels, self.operation, self.operation_ns
        is_kernel = self.operation_kind == GpuOperationKind.KERNEL
        if not is_kernel.all():
            kernel, length = kernel[is_kernel], length[is_kernel]
        group = groups.of[kernel]
        time = np.bincount(group, weights=length, minlength=len(groups)).astype(np.float64, copy=False)
        return StageKernels(kernel, length, group, time)

    @cached_property
    def call_kind(self) -> Integers:
        """The code of the activity of each call."""
        return self.workload.calls.kind[self.call]

    @cached_property
    def blocking(self) -> Int64:
        """Which of the calls blocked: positions in `call`."""
        return np.flatnonzero(self.workload.calls.is_blocking[self.call])

    @cached_property
    def gaps_ns(self) -> Int64:
        """Lengths of the stretches in which the GPUs were idle while the host was in the stage."""
        return self.workload.busy.gaps_within(self.start_ns, self.end_ns)

    @cached_property
    def gpus_used(self) -> tuple[int, ...]:
        """Indices of the GPUs that the stage's operations ran on; all of the trace's where it started none."""
        gpus = self.workload.gpus
        if len(gpus) == 1:
            return (0,)
        used = np.flatnonzero(np.bincount(gpus.of[self.operation], minlength=len(gpus)))
        return tuple(used.tolist()) or tuple(range(len(gpus)))

    def own_line(self, gpu: int | None = None) -> BusyLine:
        """When the GPU (None: any) was at work on what the stage started."""
        operations, own = self.workload.trace.operations, self.operation
        own = own if gpu is None else own[self.workload.gpus.of[own] == gpu]
        return busy_line(operations, own)

    @cached_property
    def own(self) -> BusyLine:
        """When GPUs were at work on what the stage started."""
        return self.own_line()

    @cached_property
    def shared_ns(self) -> float | None:
        """How long its operations, united, ran while other processes were at work on their GPU; None: not known."""
        others, gpus = self.workload.others, self.workload.gpus
        if others.busy is None:
            return None
        own = self.own
        if len(gpus) > 1 and others.count:
            uuids = [device.uuid for device in gpus.facts]
            if others.gpu_uuid is None or others.gpu_uuid not in uuids:
                return None
            own = self.own_line(uuids.index(others.gpu_uuid))
        return float(others.busy.within(own.start, own.end).sum())


def stage_events(workload: Workload, stage: StageRows) -> StageEvents:
    """What lies in a stage's ranges. Ranges that ended on another thread have no calls.

    A call that begins when a range ends is after it, or calls between two ranges that touch would count twice.
    """
    stages, rows = workload.stages, stage.rows
    start, end, thread = stages.start_ns[rows], stages.end_ns[rows], stages.thread[rows]
    last = np.maximum(end - 1, start)
    reach = np.where(workload.trace.ranges.crosses_threads[stages.index[rows]], start - 1, last)
    launch, launch_of = expand(*workload.launch_lines.slices(thread, start, reach))
    call, call_of = expand(*workload.calls.lines.slices(thread, start, reach))
    launch = workload.launch_lines.order[launch] if len(launch) else launch
    operation = workload.launches.operation[launch]
    found = StageEvents(workload, stage, start, end, launch, launch_of, call, call_of, operation)
    return replace(found, workload=on_gpus(workload, found.gpus_used))
