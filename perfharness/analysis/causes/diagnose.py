"""The diagnosis of one process: times of the measured pass, causes as shares of the profiling pass."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.causes.causes import Evidence, find_causes
from perfharness.analysis.causes.cpu_supply import CpuSupply
from perfharness.analysis.causes.gpu import GpuTime, gpu_time
from perfharness.analysis.causes.host import HostTimes
from perfharness.analysis.causes.results import Causes, StageCauses
from perfharness.analysis.diagnosis.workload import (
    OtherProcesses,
    StageRows,
    Workload,
    build_workload,
    stage_events,
    stage_rows,
)
from perfharness.analysis.stages.warmup import judge_warmup, warmup_findings
from perfharness.analysis.timeline.busy import BusyLine
from perfharness.model.diagnosis import Path
from perfharness.model.trace import Bool, Int64

NS_PER_MS = 1e6
MAX_STAGES = 200
"""The longest; more are no help."""
MAX_CHANGE = 1.5
"""Of a stage's part of its batch between the passes: beyond it, its shares are marked."""
ALONE = OtherProcesses(None, 0)


@dataclass(frozen=True)
class Pass:
    """One launch of the program.

    `supply`: the CPUs that it shares. `quota`: starts and ends of the times in which a CPU quota made the process stand
    still, on the trace's clock.
    """

    analysis: Analysis
    others: OtherProcesses = ALONE
    supply: CpuSupply = field(default_factory=CpuSupply)
    quota: tuple[Int64, Int64] | None = None

    @cached_property
    def stages(self) -> dict[Path, StageRows]:
        """The stages with batches left."""
        found = stage_rows(self.analysis.stages, self.analysis.stage_times)
        return {one.path: one for one in found if one.batches}

    @cached_property
    def kept(self) -> Bool:
        """Which rows of the stage table count."""
        kept = np.zeros(len(self.analysis.stages), dtype=np.bool_)
        for stage in self.stages.values():
            kept[stage.rows] = True
        return kept

    @cached_property
    def host(self) -> HostTimes:
        """The time of its threads."""
        return HostTimes(self.analysis, self.kept)

    @cached_property
    def workload(self) -> Workload | None:
        """Its GPU work; None: it uses no GPU."""
        trace = self.analysis.trace
        uses_gpu = bool(len(trace.api) or len(trace.operations))
        return build_workload(self.analysis, self.others) if uses_gpu else None

    def wall_ms(self, stage: StageRows) -> float:
        """Of a stage per batch, over all batches of its loop, also those without the stage."""
        return float(self._length(stage).sum()) / NS_PER_MS / self.batches_around(stage)

    def batches_around(self, stage: StageRows) -> int:
        """Batches of the loop that a stage is in; where it is in none, its own occurrences."""
        batches = (self.stages.get(stage.path[:length]) for length in range(1, len(stage.path) + 1))
        outermost = next((one for one in batches if one is not None and self._is_batch[one.number]), stage)
        return outermost.batches

    @cached_property
    def _is_batch(self) -> Bool:
        return np.asarray(self.analysis.stages.paths.is_batch)

    def gpu_time(self, stage: StageRows) -> GpuTime | None:
        """Of a stage; None: it uses no GPU, or its GPU work is not known."""
        if self.workload is None or not self._knows_gpu_work(stage):
            return None
        return gpu_time(stage_events(self.workload, stage))

    def _knows_gpu_work(self, stage: StageRows) -> bool:
        """Whether the trace lost none of it."""
        table, rows = self.analysis.table, self.analysis.stages.index[stage.rows]
        is_whole = all(finding.code != "trace-missing-calls" for finding in table.findings)
        return is_whole and self.analysis.trace.meta.gpu_coverage != "untraced" and bool(table.gpu_known[rows].all())

    def throttled(self, stage: StageRows) -> float:
        """Of a stage's time, while a quota made the process stand still."""
        if self.quota is None or not len(self.quota[0]):
            return 0.0
        stages = self.analysis.stages
        within = BusyLine(*self.quota).within(stages.start_ns[stage.rows], stages.end_ns[stage.rows])
        return float(within.sum() / self._length(stage).sum())

    def _length(self, stage: StageRows) -> Int64:
        stages = self.analysis.stages
        return np.asarray(stages.end_ns[stage.rows] - stages.start_ns[stage.rows])


def diagnose(measured: Pass, profiling: Pass | None = None) -> Causes:
    """Why each stage takes the time it takes."""
    times = measured.analysis.stage_times
    loops = [
        judge_warmup(
            measured.analysis.stages.paths.of_row(int(rows[0])),
            times.times["cpu_time"][rows],
            measured.analysis.options.warmup_batches,
        )
        for rows in times.rows_of_loops
    ]
    longest = sorted(measured.stages.values(), key=lambda one: -measured.wall_ms(one))[:MAX_STAGES]
    shown = {one.path for one in longest}
    stages = [_diagnose_stage(measured, profiling, stage) for path, stage in measured.stages.items() if path in shown]
    return Causes(_marked(stages), loops, warmup_findings(loops))


def _diagnose_stage(measured: Pass, profiling: Pass | None, stage: StageRows) -> StageCauses:
    wall_ms = measured.wall_ms(stage)
    again = None if profiling is None else profiling.stages.get(stage.path)
    source, seen = (measured, stage) if profiling is None or again is None else (profiling, again)
    host = source.host.of_stage(seen.number)
    gpu = _gpu(measured, stage, source, seen)
    evidence = Evidence(
        wall_ms=wall_ms,
        host=host,
        gpu=gpu,
        supply=source.supply,
        throttled=measured.throttled(stage),
        has_profile=source is profiling,
    )
    return StageCauses(
        path=stage.path,
        batches=measured.batches_around(stage),
        wall_ms=wall_ms,
        gpu_busy_ms=None if gpu is None else gpu.busy * wall_ms,
        activities=host.activities,
        samples=host.samples,
        causes=find_causes(evidence),
        slowdown=None if profiling is None or again is None else profiling.wall_ms(again) / wall_ms,
    )


def _gpu(measured: Pass, stage: StageRows, source: Pass, seen: StageRows) -> GpuTime | None:
    """GPU work of the measured pass; the host's calls of the pass that records all of them."""
    own = measured.gpu_time(stage)
    if own is None or own.has_all_calls or source is measured:
        return own
    found = source.gpu_time(seen)
    if found is None:
        return own
    return replace(
        found,
        limits=own.limits if found.headroom is None else found.limits,
        busy=own.busy,
        copy_only=own.copy_only,
        idle=own.idle,
        shared=own.shared,
    )


def _marked(stages: list[StageCauses]) -> list[StageCauses]:
    """With `is_changed`, of stages that are another part of what is around them in the profiling pass."""
    slowdowns = {one.path: one.slowdown for one in stages}
    found = []
    for stage in stages:
        around = next(
            (slow for length in range(1, len(stage.path)) if (slow := slowdowns.get(stage.path[:length]))), None
        )
        changed = False
        if around is not None and stage.slowdown is not None:
            changed = not 1 / MAX_CHANGE <= stage.slowdown / around <= MAX_CHANGE
        found.append(replace(stage, is_changed=changed))
    return found
