"""Everything about a trace that the stages' figures are taken from, computed once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfharness.analysis.diagnosis.calls import CallTable, call_table, previous_end_on_stream
from perfharness.analysis.diagnosis.gpus import Gpus, find_gpus
from perfharness.analysis.diagnosis.kernels import KernelGroups, group_kernels
from perfharness.analysis.diagnosis.timeline import BusyLine, ThreadOrder, overlaps
from perfharness.analysis.measures import Measures, measure, name_paths
from perfharness.analysis.projection import Launches, find_launches
from perfharness.analysis.range_table import RangeTable
from perfharness.analysis.stages import StageTable
from perfharness.analysis.tabulate import path_names
from perfharness.model.diagnosis import Path
from perfharness.model.trace import GpuOperationKind, Int64, OperationDetails, Trace


@dataclass(frozen=True)
class OtherProcesses:
    """When other processes of the run were at work on the same GPU, on this trace's clock; None: not known."""

    busy: BusyLine | None
    count: int
    reason: str | None = None


@dataclass(frozen=True)
class Workload:
    """A trace, and what all stages share.

    `launches` are ordered by thread and start of the call (`launch_lines` finds slices); `queued_ns` and `latency_ns`
    are aligned with them; `several_kernels`: when at least two kernels (or graphs) ran at once, for each GPU.
    """

    trace: Trace
    details: OperationDetails
    table: RangeTable
    stages: StageTable
    measures: Measures
    paths: Int64
    launches: Launches
    launch_lines: ThreadOrder
    latency_ns: Int64
    queued_ns: Int64
    calls: CallTable
    busy: BusyLine
    compute: BusyLine
    gpus: Gpus
    kernels: KernelGroups
    several_kernels: list[BusyLine]
    others: OtherProcesses

    @property
    def api_is_complete(self) -> bool:
        """Whether calls that start no GPU work are in the trace: the embedded tracer does not record them."""
        return self.trace.meta.tracer == "nsys" or self.trace.meta.gpu_coverage == "no_gpu_work"


@dataclass(frozen=True)
class StageRows:
    """The ranges of one stage that are looked at: rows of the stage table, and in how many batches they lie."""

    path: Path
    number: int
    rows: Int64
    batches: int
    items: int | None


def build_workload(
    trace: Trace, table: RangeTable, stages: StageTable, warmup_batches: int, others: OtherProcesses
) -> Workload:
    """Join, order and merge once. The trace must have been read with details."""
    if trace.details is None:
        raise ValueError("open the trace with details=True")
    operations = trace.operations
    launches = find_launches(trace.api, operations)
    gpus = find_gpus(operations, trace.meta)
    busy = BusyLine(operations.start_ns, operations.end_ns)
    is_compute = operations.kind != GpuOperationKind.MEMCPY
    call_start = trace.api.start_ns[launches.call]
    latency = np.maximum(operations.start_ns[launches.operation] - call_start, 0)
    previous = previous_end_on_stream(operations)[launches.operation]
    return Workload(
        trace=trace, details=trace.details.operations, table=table, stages=stages,
        measures=measure(stages, table, warmup_batches), paths=name_paths(stages), launches=launches,
        launch_lines=ThreadOrder(trace.api.thread[launches.call], call_start, np.zeros_like(call_start)),
        latency_ns=latency, queued_ns=np.clip(np.maximum(previous, call_start) - call_start, 0, latency),
        calls=call_table(trace, launches, busy), busy=busy,
        compute=BusyLine(operations.start_ns[is_compute], operations.end_ns[is_compute]),
        gpus=gpus, kernels=group_kernels(trace, trace.details.operations, gpus),
        several_kernels=[
            BusyLine(*overlaps(operations.start_ns[mine], operations.end_ns[mine]))
            for mine in (is_compute & (gpus.of == place) for place in range(len(gpus)))
        ],
        others=others,
    )  # fmt: skip


def stage_rows(workload: Workload) -> list[StageRows]:
    """The stages of a trace in order of their paths: ranges in batches, less the warm-up; without batches, all."""
    stages, measures = workload.stages, workload.measures
    has_batches = bool(stages.is_batch.any())
    eligible = measures.batch >= 0 if has_batches else np.ones(len(stages), dtype=np.bool_)
    kept = eligible & ~measures.warmup
    found = []
    for number in _in_order(workload.paths[eligible]):
        rows = np.flatnonzero(kept & (workload.paths == number))
        first = int(np.flatnonzero(eligible & (workload.paths == number))[0])
        batches = np.unique(measures.batch[rows]) if has_batches else rows
        items = measures.items[batches] if has_batches else np.full(len(rows), np.nan)
        total = float(items.sum())
        found.append(
            StageRows(
                path_names(stages, first), int(number), rows, len(batches), None if np.isnan(total) else int(total)
            )
        )
    return found


def _in_order(paths: Int64) -> list[int]:
    """Path numbers as they first occur: rows are ordered by start, so a parent comes before its children."""
    numbers, first = np.unique(paths, return_index=True)
    return [int(number) for number in numbers[np.argsort(first)]]
