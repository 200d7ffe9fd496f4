"""The diagnosis of one trace: every stage's figures, verdict and cost, and whether the warm-up was enough."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.diagnosis.figures import queued_time_ns, stage_figures
from perfharness.analysis.diagnosis.gpu.counters import trace_counters
from perfharness.analysis.diagnosis.gpu.gpu_side import gpu_during, gpu_work
from perfharness.analysis.diagnosis.host.cpu_time import CpuTime
from perfharness.analysis.diagnosis.host.host_evidence import KnownStacks, host_evidence, known_stacks
from perfharness.analysis.diagnosis.host.host_side import host_work
from perfharness.analysis.diagnosis.host.recompiling import find_recompiling
from perfharness.analysis.diagnosis.replay import MAX_ERROR, SEVERAL_THREADS, Window, find_window, stage_cost
from perfharness.analysis.diagnosis.rules import cannot_tell, judge
from perfharness.analysis.diagnosis.rules.evidence import MISSING_CALLS, MISSING_OS
from perfharness.analysis.diagnosis.warmup import judge_warmup, warmup_findings
from perfharness.analysis.diagnosis.workload import (
    NS_PER_MS,
    OtherProcesses,
    StageRows,
    Workload,
    build_workload,
    stage_events,
    stage_rows,
)
from perfharness.analysis.timeline.grouping import distinct
from perfharness.model.diagnosis import (
    Cause,
    Diagnosis,
    StageCost,
    StageDiagnosis,
    StageVerdict,
    Verdict,
    WarmupDiagnosis,
)
from perfharness.model.trace import Bool, Int64, OsWaitKind

ALONE = OtherProcesses(None, 0, "other processes on the GPU, if any, are not in this trace")


STAGES_AT_A_TIME = 2
"""Threads: most of a stage's time goes to NumPy, which lets others run, and each takes memory of its own."""

MAX_STAGES = 200
"""Each stage's diagnosis takes milliseconds, and more of them are no help."""


@dataclass(frozen=True)
class _Loop:
    """One loop of outermost batches: its rows in order of start, and the judgement of its warm-up."""

    rows: Int64
    warmup: WarmupDiagnosis
    workload: Workload

    @cached_property
    def window(self) -> Window | str:
        """What is replayed of it, or why nothing can be."""
        kept = self.rows[~self.workload.stage_times.warmup[self.rows]]
        return _waits_for_threads(self.workload, kept) or find_window(self.workload, kept)


def diagnose(
    analysis: Analysis,
    others: OtherProcesses = ALONE,
    cpu_time: CpuTime | None = None,
) -> Diagnosis:
    """Why each stage takes the time it takes.

    Args:
        analysis: of the process's trace.
        others: the other processes of the run on the same GPU.
        cpu_time: of the process, sampled beside it, UTC.
    """
    workload = build_workload(analysis, others)
    if cpu_time is not None:
        workload = replace(workload, cpu_time=cpu_time.on_trace_clock(analysis.trace.meta))
    loops = _loops(workload, analysis.options.warmup_batches)
    judged = [loop.warmup for loop in loops]
    rows, left_out = _longest_stages(workload, stage_rows(workload.stages, workload.stage_times))
    probe = workload.host_probe
    known = None if probe is None else known_stacks(probe.samples)
    with ThreadPoolExecutor(STAGES_AT_A_TIME) as pool:
        diagnosed = list(pool.map(lambda stage: _diagnose_stage(workload, stage, loops, known), rows))
    return Diagnosis(
        stages=_without_handover_costs(diagnosed, loops),
        warmup=judged,
        missing=[*_missing(workload), *left_out],
        findings=warmup_findings(judged),
        gpus=workload.gpus.facts,
    )


def _longest_stages(workload: Workload, stages: list[StageRows]) -> tuple[list[StageRows], list[str]]:
    """The stages that take the most time, in their order, and a note on the others."""
    if len(stages) <= MAX_STAGES:
        return stages, []
    length = workload.stages.end_ns - workload.stages.start_ns
    times = [int(length[stage.rows].sum()) for stage in stages]
    longest = sorted(sorted(range(len(stages)), key=lambda position: -times[position])[:MAX_STAGES])
    return [stages[position] for position in longest], [
        f"a diagnosis of {len(stages) - MAX_STAGES} stages: only the {MAX_STAGES} that take the most time have one"
    ]


def _loops(workload: Workload, warmup_batches: int) -> list[_Loop]:
    stages, stage_times = workload.stages, workload.stage_times
    found = []
    for rows in stage_times.rows_of_loops:
        warmup = judge_warmup(stages.paths.of_row(int(rows[0])), stage_times.times["cpu_time"][rows], warmup_batches)
        found.append(_Loop(rows, warmup, workload))
    return found


def _waits_for_threads(workload: Workload, rows: Int64) -> str | None:
    """Why a loop cannot be played again though its batches are on one thread: that thread waits for others."""
    if workload.host_waits is None:
        return None
    stages = workload.stages
    start, end = stages.start_ns[rows], stages.end_ns[rows]
    lock = workload.host_waits.within(stages.thread[rows], start, end)[OsWaitKind.LOCK]
    length = int((end - start).sum())
    if lock <= MAX_ERROR * length:
        return None
    return f"the loop waits for locks or queues {100 * lock / length:.0f} % of its time, and {UNTIED}"


def _without_handover_costs(diagnosed: list[StageDiagnosis], loops: list[_Loop]) -> list[StageDiagnosis]:
    """Where a stage seems to wait for another thread, taking others out may only make it wait longer."""
    tied = {
        loop.warmup.loop
        for loop in loops
        for stage in diagnosed
        if stage.path[: len(loop.warmup.loop)] == loop.warmup.loop
        and stage.verdict.verdict is Verdict.WAITING_ON_STAGE
        and MISSING_OS in stage.verdict.missing
    }
    reason = f"a stage of the loop seems to wait for another thread, and {UNTIED}"
    return [
        replace(stage, cost=StageCost(None, None, None, reason))
        if any(stage.path[: len(loop)] == loop for loop in tied)
        else stage
        for stage in diagnosed
    ]


UNTIED = "which work of other threads each wait is for is not in a trace"


def _diagnose_stage(
    workload: Workload,
    stage: StageRows,
    loops: list[_Loop],
    known: KnownStacks | None,
) -> StageDiagnosis:
    if not stage.batches:
        verdict = cannot_tell(["a batch without the warm-up"], "Run more batches, or give a smaller -w.")
        return _without_figures(stage, verdict, "no batch is left without the warm-up")
    events = stage_events(workload, stage)
    items, problem = stage.items or None, _gpu_problem(workload, stage)
    cpu_ms = events.wall / NS_PER_MS / stage.batches
    per_item = events.wall / NS_PER_MS / items if items else None
    if problem is not None:
        verdict = cannot_tell([problem], "Run `perfharness doctor` to see what GPU tracing needs here.")
        bare = _without_figures(stage, verdict, f"the stage's GPU work is not known: {problem}")
        return replace(bare, cpu_ms=cpu_ms, cpu_ms_per_item=per_item, profile=events.profile)
    counters = trace_counters(events)
    gpu = gpu_work(events, counters)
    slow_start, is_early = _slow_start(workload, stage, loops), _is_early(workload, stage, loops)
    host = None if known is None else host_evidence(events, known, is_early)
    figures = stage_figures(events, slow_start, gpu.limits, find_recompiling(events), host)
    judged = judge(figures)
    cost = _cost(workload, stage, loops, events.start_ns, events.end_ns)
    return StageDiagnosis(
        path=stage.path,
        batches=stage.batches,
        items=stage.items,
        cpu_ms=cpu_ms,
        cpu_ms_per_item=per_item,
        gpu_busy_ms_per_item=events.own.length / NS_PER_MS / items if items else None,
        kernels_per_item=gpu.kernel_count * stage.batches / items if items else None,
        gpu=gpu,
        gpu_during=gpu_during(events),
        host=host_work(events),
        verdict=judged.verdict,
        cost=cost,
        causes=[_within(cause, cost) for cause in judged.causes],
        profile=events.profile,
        counters=counters,
        queued_ms=None if (queued_ns := queued_time_ns(events)) is None else events.ms(queued_ns),
    )


def _within(cause: Cause, cost: StageCost) -> Cause:
    """A cause that saves no more than the batch would gain if the whole stage took no time."""
    if cause.saves_ms is None or cost.pipeline_ms is None or cost.without_stage_ms is None:
        return cause
    return replace(cause, saves_ms=min(cause.saves_ms, max(cost.pipeline_ms - cost.without_stage_ms, 0.0)))


def _without_figures(stage: StageRows, verdict: StageVerdict, reason: str) -> StageDiagnosis:
    cost, numbers = StageCost(None, None, None, reason), (None, None, None, None)
    return StageDiagnosis(stage.path, stage.batches, stage.items, *numbers, None, [], None, verdict, cost)


def _gpu_problem(workload: Workload, stage: StageRows) -> str | None:
    """Why the stage's GPU work cannot be known; None where it can."""
    meta, table = workload.trace.meta, workload.table
    if meta.gpu_coverage == "untraced":
        return f"GPU operations: {meta.gpu_coverage_reason}"
    unknown = int((~table.gpu_known[workload.stages.index[stage.rows]]).sum())
    if unknown:
        return f"GPU operations of {unknown} of its {len(stage.rows)} ranges: the trace lost them (see the findings)"
    if any(finding.code == "trace-missing-calls" for finding in table.findings):
        return "the CUDA calls of some GPU operations, so that those are in no stage"
    return None


def _slow_start(workload: Workload, stage: StageRows, loops: list[_Loop]) -> float:
    """What batches kept before the steady state took more than the median of the steady ones, ns.

    Without what its threads may have waited for a CPU: other work that ends while the pipeline runs is no beginning of
    it. 0 where it is noise, which only happened to be early: as many steady batches in a row took half as much more, or
    half of it is one batch, and not the first that counts.
    """
    stages, stage_times = workload.stages, workload.stage_times
    slow = [loop for loop in loops if (loop.warmup.steady_from or 0) > loop.warmup.warmup_batches]
    if not slow:
        return 0.0
    thread, start, end = (column[stage.rows] for column in (stages.thread, stages.start_ns, stages.end_ns))
    length = np.maximum(end - start - workload.thread_times.queued.most_ns(thread, start, end), 0)
    outer = stage_times.outer_batch[stage.rows]
    inside = outer >= 0
    spent = np.bincount(outer[inside], weights=length[inside], minlength=len(stages))
    present = np.zeros(len(stages), dtype=np.bool_)
    present[outer[inside]] = True
    extra = 0.0
    for loop in slow:
        early, steady = loop.rows[: loop.warmup.steady_from], loop.rows[loop.warmup.steady_from :]
        early, steady = early[present[early]], steady[present[steady]]
        if len(early) and len(steady):
            usual = np.median(spent[steady])
            more = spent[early] - usual
            slower = float(more.sum())
            later = np.convolve(spent[steady] - usual, np.ones(len(early)), mode="valid")
            is_noise = len(steady) >= len(early) and later.max() > slower / 2
            is_noise |= bool(more[1:].max(initial=0.0) > slower / 2)
            extra += 0.0 if is_noise else slower
    return max(extra, 0.0)


def _is_early(workload: Workload, stage: StageRows, loops: list[_Loop]) -> Bool:
    """Which of a stage's ranges are of batches before the steady state."""
    early = [loop.rows[: loop.warmup.steady_from or 0] for loop in loops]
    return np.isin(workload.stage_times.outer_batch[stage.rows], np.concatenate([np.empty(0, np.int64), *early]))


def _cost(workload: Workload, stage: StageRows, loops: list[_Loop], start: Int64, end: Int64) -> StageCost:
    outer = workload.stage_times.outer_batch[stage.rows]
    holds = np.zeros(len(workload.stages), dtype=np.bool_)
    holds[outer[outer >= 0]] = True
    mine = [loop for loop in loops if holds[loop.rows].any()]
    if not mine:
        return StageCost(None, None, None, "the stage is in no loop of batches")
    if len(distinct(workload.stages.thread[np.concatenate([loop.rows for loop in mine])])) > 1:
        return StageCost(None, None, None, SEVERAL_THREADS)
    window = max(mine, key=lambda loop: len(loop.rows)).window
    if isinstance(window, Window) and (workload.stages.thread[stage.rows] != window.thread).any():
        return StageCost(None, None, None, "the stage runs on another thread than its batches")
    return stage_cost(window, start, end)


def _missing(workload: Workload) -> list[str]:
    missing = []
    meta = workload.trace.meta
    if meta.gpu_coverage == "untraced":
        missing.append(f"GPU operations: {meta.gpu_coverage_reason}")
    elif not workload.api_is_complete and len(workload.trace.api):
        missing.append(MISSING_CALLS)
    if workload.others.busy is None and workload.others.reason and len(workload.trace.operations):
        missing.append(workload.others.reason)
    return missing
