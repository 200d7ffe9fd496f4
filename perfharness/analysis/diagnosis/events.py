"""Where a stage's ranges lie, and what was launched and called in them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfharness.analysis.diagnosis.timeline import BusyLine, expand
from perfharness.analysis.diagnosis.workload import Workload
from perfharness.model.trace import Int64

NS_PER_MS = 1e6


@dataclass(frozen=True)
class StageEvents:
    """Where a stage's ranges lie, and which launches and calls are in them (places in the workload's orders).

    `launch_of` and `call_of` say which range each belongs to.
    """

    start_ns: Int64
    end_ns: Int64
    launch: Int64
    launch_of: Int64
    call: Int64
    call_of: Int64
    operation: Int64

    def own_line(self, workload: Workload) -> BusyLine:
        """When the GPU was at work on what the stage started."""
        operations = workload.trace.operations
        return BusyLine(operations.start_ns[self.operation], operations.end_ns[self.operation])


def stage_events(workload: Workload, rows: Int64) -> StageEvents:
    """What lies in these ranges. Ranges that ended on another thread have no calls."""
    ranges, at = workload.trace.ranges, workload.stages.index[rows]
    start, end = ranges.start_ns[at], ranges.end_ns[at]
    reach = np.where(ranges.crosses_threads[at], start - 1, end)
    launch, launch_of = expand(*workload.launch_lines.slices(ranges.thread[at], start, reach))
    call, call_of = expand(*workload.calls.lines.slices(ranges.thread[at], start, reach))
    launch = workload.launch_lines.order[launch] if len(launch) else launch
    return StageEvents(start, end, launch, launch_of, call, call_of, workload.launches.operation[launch])
