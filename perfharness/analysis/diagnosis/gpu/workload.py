"""GPU work and CUDA calls of a trace, joined and ordered once for all stages, and the part of each stage."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.diagnosis.gpu.calls import TO_HOST, CallTable, call_table
from perfharness.analysis.diagnosis.gpu.kernels import KernelGroups, group_kernels
from perfharness.analysis.diagnosis.thread_readings import ThreadReadings, thread_times
from perfharness.analysis.stages.roles import StageTable
from perfharness.analysis.stages.times import StageRows
from perfharness.analysis.timeline.busy import BusyLine, expand, overlaps
from perfharness.analysis.timeline.gpus import Gpus, find_gpus
from perfharness.analysis.timeline.grouping import sum_by_code, unique
from perfharness.model.columns import Bool, Float64, Int64, Integers
from perfharness.model.trace import GpuOperationKind, GpuOperations, Trace
from perfharness.model.units import NS_PER_MS
from perfharness.trace.columns import narrow


@dataclass(frozen=True)
class OtherProcesses:
    """Busy time of the run's other processes on one GPU, on this trace's clock; None if unknown.

    `gpu_uuid` (without `GPU-`): that GPU, if this process uses several.
    """

    busy: BusyLine | None
    count: int
    reason: str | None = None
    gpu_uuid: str | None = None


@dataclass(frozen=True)
class SomeGpus:
    """Busy time of some GPUs of a trace, with and without copies, and their idle time in each call."""

    busy: BusyLine
    compute: BusyLine
    own_idle_ns: Integers


@dataclass(frozen=True)
class Workload:
    """A trace and the data that all stages share. Operations of other processes are not included."""

    analysis: Analysis
    others: OtherProcesses
    _on: dict[tuple[int, ...], SomeGpus] = field(default_factory=dict)

    @property
    def trace(self) -> Trace:
        """The trace."""
        return self.analysis.trace

    @property
    def stages(self) -> StageTable:
        """Its stages."""
        return self.analysis.stages

    @property
    def has_all_calls(self) -> bool:
        """Whether the trace has calls that start no GPU work (embedded tracer, profiling pass)."""
        return self.trace.meta.has_all_calls or self.trace.meta.gpu_coverage == "no_gpu_work"

    @cached_property
    def calls(self) -> CallTable:
        """All CUDA calls."""
        return call_table(self.trace, self.analysis.launches, api_is_complete=self.has_all_calls)

    @cached_property
    def gpus(self) -> Gpus:
        """The GPUs with operations."""
        return find_gpus(self.trace.operations, self.trace.meta)

    @cached_property
    def kernels(self) -> KernelGroups:
        """Groups of equal kernels."""
        return group_kernels(self.trace, self.gpus)

    def on(self, gpus: tuple[int, ...]) -> SomeGpus:
        """Data of these GPUs (by index) only, because a stage is not affected by GPUs that it does not use."""
        if gpus not in self._on:
            of, operations = self.gpus.of, self.trace.operations
            is_mine = np.isin(of, gpus) if len(gpus) < len(self.gpus) else np.ones(len(of), dtype=np.bool_)
            is_copy = operations.kind == GpuOperationKind.MEMCPY
            busy = busy_line(operations, is_mine)
            compute = busy_line(operations, is_mine & ~is_copy) if is_copy.any() else busy
            self._on[gpus] = SomeGpus(busy, compute, self.calls.own_idle_ns(busy))
        return self._on[gpus]

    @cached_property
    def compiling(self) -> ThreadReadings:
        """Compile times of threads, from the recorders."""
        return thread_times(self.trace)[-1]

    @cached_property
    def is_new_kernel(self) -> Bool:
        """Mask of operations that are the first launch of their kernel name in this process."""
        names, start = self.trace.details.full_name, self.trace.operations.start_ns
        mine = np.flatnonzero((self.trace.operations.kind == GpuOperationKind.KERNEL) & (names >= 0))
        first = np.full(len(self.trace.names), np.iinfo(np.int64).max)
        np.minimum.at(first, names[mine], start[mine])
        found = np.zeros(len(start), dtype=np.bool_)
        found[mine] = start[mine] == first[names[mine]]
        return found

    @cached_property
    def overlapped_ns(self) -> Integers:
        """Time that each kernel, memset or graph ran next to another one on its GPU."""
        operations = self.trace.operations
        overlapped = np.zeros(len(operations), dtype=np.int64)
        for gpu in range(len(self.gpus)):
            mine = np.flatnonzero((operations.kind != GpuOperationKind.MEMCPY) & (self.gpus.of == gpu))
            line = BusyLine(*overlaps(operations.start_ns[mine], operations.end_ns[mine]))
            if line.length:
                overlapped[mine] = line.within(operations.start_ns[mine], operations.end_ns[mine])
        return narrow(overlapped)

    @cached_property
    def helpers_reads_ns(self) -> Int64:
        """Start of each copy to the host by a thread without stages, in order."""
        launches, api = self.analysis.launches, self.trace.api
        call = launches.call[np.isin(self.trace.details.copy_kind[launches.operation], TO_HOST)]
        own = np.isin(api.thread[call], unique(self.stages.thread))
        return np.sort(api.start_ns[call[~own]]).astype(np.int64)


def busy_line(operations: GpuOperations, rows: Bool | Int64) -> BusyLine:
    """Busy time of the GPUs with some of the operations."""
    if rows.dtype == np.bool_ and rows.all():
        return BusyLine(operations.start_ns, operations.end_ns)
    return BusyLine(operations.start_ns[rows], operations.end_ns[rows])


@dataclass(frozen=True)
class StageKernels:
    """The kernels that a stage started, their lengths and groups (`KernelGroups`), and the time per group, ns."""

    operation: Int64
    length_ns: Integers
    group: Integers
    time_by_group: Float64


@dataclass(frozen=True)
class StageEvents:
    """Ranges of a stage; launches and calls in them, as indices of the workload, each with its range (`…_of`)."""

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
        """Total time of the ranges, ns."""
        return float((self.end_ns - self.start_ns).sum())

    def ms(self, nanoseconds: float) -> float:
        """Convert a sum in nanoseconds to milliseconds per batch."""
        return float(nanoseconds) / NS_PER_MS * self.per_batch

    @property
    def per_batch(self) -> float:
        """Factor from a sum to the mean over batches."""
        return 1.0 / self.stage.batches

    @cached_property
    def operation_kind(self) -> Integers:
        """`GpuOperationKind` of each operation."""
        kinds: Integers = self.workload.trace.operations.kind[self.operation]
        return kinds

    @cached_property
    def operation_ns(self) -> Integers:
        """Duration of each operation."""
        operations = self.workload.trace.operations
        return narrow(operations.end_ns[self.operation] - operations.start_ns[self.operation])

    @cached_property
    def copies(self) -> Int64:
        """Copies among the stage's operations."""
        return np.compress(self.operation_kind == GpuOperationKind.MEMCPY, self.operation)

    @cached_property
    def kernels(self) -> StageKernels:
        """Kernels among the stage's operations."""
        groups, is_kernel = self.workload.kernels, self.operation_kind == GpuOperationKind.KERNEL
        kernel, length = self.operation[is_kernel], self.operation_ns[is_kernel]
        group = groups.of[kernel]
        return StageKernels(kernel, length, group, sum_by_code(group, length, len(groups)))

    @cached_property
    def blocking(self) -> Int64:
        """Blocking calls."""
        return self.call[self.workload.calls.is_blocking[self.call]]

    @cached_property
    def gpus(self) -> SomeGpus:
        """The GPUs of the stage's operations; all GPUs of the trace if it started none."""
        gpus = self.workload.gpus
        used = np.flatnonzero(np.bincount(gpus.of[self.operation], minlength=len(gpus)))
        return self.workload.on(tuple(used.tolist()) or tuple(range(len(gpus))))

    @cached_property
    def own(self) -> BusyLine:
        """GPU busy time of the stage's operations."""
        return busy_line(self.workload.trace.operations, self.operation)


def stage_events(workload: Workload, stage: StageRows) -> StageEvents:
    """Collect the launches and calls in a stage's ranges. Ranges that ended on another thread have no calls.

    A call that starts when a range ends counts as after it; otherwise adjacent ranges would count it twice.
    """
    stages, rows = workload.stages, stage.rows
    start, end, thread = stages.start_ns[rows], stages.end_ns[rows], stages.thread[rows]
    last = np.maximum(end - 1, start)
    reach = np.where(workload.trace.ranges.crosses_threads[stages.index[rows]], start - 1, last)
    launches = workload.analysis.launches
    launch, launch_of = expand(*launches.lines.slices(thread, start, reach))
    call, call_of = expand(*workload.calls.lines.slices(thread, start, reach))
    return StageEvents(workload, stage, start, end, launch, launch_of, call, call_of, launches.operation[launch])
