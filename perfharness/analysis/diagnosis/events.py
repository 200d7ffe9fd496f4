"""Where a stage's ranges lie, and what was launched and called in them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfharness.analysis.diagnosis.workload import Workload
from perfharness.analysis.timeline import BusyLine, expand
from perfharness.model.trace import Int64

NS_PER_MS = 1e6


@dataclass(frozen=True)
class StageEvents:
    """Where a stage's ranges lie, and which launches and calls are in them (indices in the workload's orders).

    `launch_of` and `call_of`: the range that each belongs to.
    """

    start_ns: Int64
    end_ns: Int64
    launch: Int64
    launch_of: Int64
    call: Int64
    call_of: Int64
    operation: Int64

    def gpus_used(self, workload: Workload) -> tuple[int, ...]:
        """Indices of the GPUs that the stage's operations ran on; all of the trace's where it started none."""
        used = np.flatnonzero(np.bincount(workload.gpus.of[self.operation], minlength=len(workload.gpus)))
        return tuple(used.tolist()) or tuple(range(len(workload.gpus)))

    def own_line(self, workload: Workload) -> BusyLine:
        """When the GPU was at work on what the stage started."""
        operations = workload.trace.operations
        return BusyLine(operations.start_ns[self.operation], operations.end_ns[self.operation])


def shared_with_others(workload: Workload, operation: Int64) -> float | None:
    """How long these operations, united, ran while other processes were at work on their GPU, ns; None: not known."""
    others, gpus = workload.others, workload.gpus
    if others.busy is None:
        return None
    if len(gpus) > 1 and others.count:
        same = [
            position for position, device in enumerate(gpus.facts) if device.uuid and device.uuid == others.gpu_uuid
        ]
        if not same:
            return None
        operation = operation[gpus.of[operation] == same[0]]
    operations = workload.trace.operations
    own = BusyLine(operations.start_ns[operation], operations.end_ns[operation])
    return float(others.busy.within(own.start, own.end).sum())


def stage_events(workload: Workload, rows: Int64) -> StageEvents:
    """What lies in these ranges. Ranges that ended on another thread have no calls."""
    stages = workload.stages
    start, end, thread = stages.start_ns[rows], stages.end_ns[rows], stages.thread[rows]
    reach = np.where(workload.trace.ranges.crosses_threads[stages.index[rows]], start - 1, end)
    launch, launch_of = expand(*workload.launch_lines.slices(thread, start, reach))
    call, call_of = expand(*workload.calls.lines.slices(thread, start, reach))
    launch = workload.launch_lines.order[launch] if len(launch) else launch
    return StageEvents(start, end, launch, launch_of, call, call_of, workload.launches.operation[launch])
