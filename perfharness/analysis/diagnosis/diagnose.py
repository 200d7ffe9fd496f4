"""Diagnose one process: times from the measured pass, causes as shares of the profiling pass."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.diagnosis.causes import Evidence, find_causes
from perfharness.analysis.diagnosis.cpu_supply import CpuQuota, CpuSupply, cpus_used
from perfharness.analysis.diagnosis.gpu.stage import GpuTime, copies, gpu_time, top_kernels
from perfharness.analysis.diagnosis.gpu.workload import OtherProcesses, StageEvents, Workload, stage_events
from perfharness.analysis.diagnosis.host import HostTimes
from perfharness.analysis.stages.times import StageRows, stage_rows
from perfharness.analysis.stages.warmup import judge_loops
from perfharness.model.columns import Bool, Int64
from perfharness.model.diagnosis import Diagnosis, Path, StageDiagnosis, WarmupDiagnosis
from perfharness.model.trace import GpuDevice
from perfharness.model.units import NS_PER_MS

MAX_STAGES = 200
"""Longest stages kept per process."""
MAX_CHANGE = 1.5
"""Ratio of a stage's share of its batch between the passes beyond which its shares are marked."""
ALONE = OtherProcesses(None, 0)


@dataclass(frozen=True)
class Pass:
    """One launch of the program; `quota` (None if there is none) is on the trace's clock."""

    analysis: Analysis
    others: OtherProcesses = ALONE
    supply: CpuSupply = field(default_factory=CpuSupply)
    quota: CpuQuota | None = None

    @cached_property
    def stages(self) -> dict[Path, StageRows]:
        """Stages with measured batches."""
        found = stage_rows(self.analysis.stages, self.analysis.stage_times)
        return {one.path: one for one in found if one.batches}

    @cached_property
    def kept(self) -> Bool:
        """Mask of the stage table's rows that count."""
        kept = np.zeros(len(self.analysis.stages), dtype=np.bool_)
        for stage in self.stages.values():
            kept[stage.rows] = True
        return kept

    @cached_property
    def host(self) -> HostTimes:
        """Time of its threads."""
        return HostTimes(self.analysis, self.kept)

    @cached_property
    def workload(self) -> Workload | None:
        """Its GPU work; None if it does not use a GPU."""
        trace = self.analysis.trace
        uses_gpu = bool(len(trace.api) or len(trace.operations))
        return Workload(self.analysis, self.others) if uses_gpu else None

    def wall_ms(self, stage: StageRows) -> float:
        """Time of a stage per batch, over all batches of its loop, including those without the stage."""
        return float(self._length(stage).sum()) / NS_PER_MS / self.batches_around(stage)

    def batches_around(self, stage: StageRows) -> int:
        """Batches of the loop around a stage, or its own occurrences outside of loops."""
        batches = (self.stages.get(stage.path[:length]) for length in range(1, len(stage.path) + 1))
        is_batch = self.analysis.stages.paths.is_batch
        return next((one for one in batches if one is not None and is_batch[one.number]), stage).batches

    def events(self, stage: StageRows) -> StageEvents | None:
        """GPU work of a stage; None if it has none, or if the trace lacks some of it."""
        table, meta, rows = self.analysis.table, self.analysis.trace.meta, self.analysis.stages.index[stage.rows]
        is_whole = all(finding.code != "trace-missing-calls" for finding in table.findings)
        is_known = is_whole and meta.gpu_coverage != "untraced" and bool(table.gpu_known[rows].all())
        if self.workload is None or not is_known:
            return None
        return stage_events(self.workload, replace(stage, batches=self.batches_around(stage)))

    def throttled(self, stage: StageRows) -> float:
        """Share of a stage's time stopped by a quota."""
        if self.quota is None:
            return 0.0
        stages = self.analysis.stages
        within = self.quota.within(stages.start_ns[stage.rows], stages.end_ns[stage.rows])
        return within / float(self._length(stage).sum())

    def cpu_load(self, stage: StageRows) -> float | None:
        """Share of its CPUs that the processes of this launch use during a stage, or None if unknown."""
        stages, probe, length = self.analysis.stages, self.analysis.host_probe, self._length(stage)
        if probe is None or self.supply.cpus is None:
            return None
        used = cpus_used(probe.events, stages.start_ns[stage.rows], stages.end_ns[stage.rows])
        if used is None:
            return None
        cpus = self.supply.cpus if self.quota is None else min(self.supply.cpus, self.quota.cpus)
        return float(np.average(used, weights=np.maximum(length, 1))) * self.supply.processes / cpus

    def _length(self, stage: StageRows) -> Int64:
        stages = self.analysis.stages
        return np.asarray(stages.end_ns[stage.rows] - stages.start_ns[stage.rows])


@dataclass(frozen=True)
class PassEvidence:
    """What is kept of a pass. `others_reason`: why the GPU use of the run's other processes is unknown."""

    stages: dict[Path, Evidence]
    loops: list[WarmupDiagnosis]
    gpus: list[GpuDevice]
    others_reason: str | None


def find_evidence(one: Pass) -> PassEvidence:
    """Collect the evidence about the longest stages of a pass."""
    loops = [loop for loop, _ in judge_loops(one.analysis)]
    longest = {stage.path for stage in sorted(one.stages.values(), key=lambda stage: -one.wall_ms(stage))[:MAX_STAGES]}
    host = one.host  # before the GPU work, because both at once need the most memory
    found = {path: _of_stage(one, host, stage, longest) for path, stage in one.stages.items() if path in longest}
    gpus = [] if one.workload is None else list(one.workload.gpus.facts)
    return PassEvidence(found, loops, gpus, one.others.reason)


def _of_stage(one: Pass, host: HostTimes, stage: StageRows, paths: Collection[Path]) -> Evidence:
    path, events = stage.path, one.events(stage)
    return Evidence(
        batches=one.batches_around(stage),
        wall_ms=one.wall_ms(stage),
        host=host.of_stage(stage.number),
        gpu=None if events is None else gpu_time(events),
        supply=one.supply,
        throttled=one.throttled(stage),
        cpu_load=one.cpu_load(stage),
        has_inner=any(len(inner) > len(path) and inner[: len(path)] == path for inner in paths),
        functions=host.functions(stage.number),
        kernels=[] if events is None else top_kernels(events),
        copies=[] if events is None else copies(events),
    )


def diagnose(measured: PassEvidence, profiling: PassEvidence | None = None) -> Diagnosis:
    """Find the causes of each stage's time."""
    again = {} if profiling is None else profiling.stages
    stages = [_diagnosed(path, stage, again.get(path)) for path, stage in measured.stages.items()]
    return Diagnosis(_marked(stages), measured.loops, measured.gpus)


def _diagnosed(path: Path, stage: Evidence, again: Evidence | None) -> StageDiagnosis:
    seen = stage if again is None else again
    gpu = stage.gpu if again is None else _gpu(stage.gpu, again.gpu)
    evidence = replace(stage, host=seen.host, gpu=gpu, supply=seen.supply, has_profile=again is not None)
    return StageDiagnosis(
        path=path,
        batches=stage.batches,
        wall_ms=stage.wall_ms,
        gpu_busy_ms=None if gpu is None else gpu.busy * stage.wall_ms,
        activities=seen.host.activities,
        samples=seen.host.samples,
        causes=find_causes(evidence),
        slowdown=None if again is None else again.wall_ms / stage.wall_ms,
        functions=seen.functions,
        limits=None if gpu is None else gpu.limits,
        kernels=stage.kernels,
        copies=stage.copies,
        counters=[] if gpu is None else gpu.counters,
    )


def _gpu(own: GpuTime | None, again: GpuTime | None) -> GpuTime | None:
    """GPU work of the measured pass, with the host calls of the pass that recorded all of them."""
    if own is None or own.has_all_calls or again is None:
        return own
    is_better = again.headroom is not None
    return replace(
        again,
        limits=again.limits if is_better else own.limits,
        counters=again.counters if is_better else own.counters,
        busy=own.busy,
        copy_only=own.copy_only,
        idle=own.idle,
        shared=own.shared,
    )


def _marked(stages: list[StageDiagnosis]) -> list[StageDiagnosis]:
    """Set `is_changed` on stages whose share of the enclosing stage differs in the profiling pass."""
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
