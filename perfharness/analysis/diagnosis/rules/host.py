"""Rules about what the host computes outside of CUDA calls."""

from __future__ import annotations

from perfharness.analysis.diagnosis.rules.calls import launching
from perfharness.analysis.diagnosis.rules.evidence import (
    FURTHER_SHARE,
    MISSING_CALLS,
    MISSING_OS,
    Figures,
    Match,
    percent,
)
from perfharness.analysis.diagnosis.rules.gpu import REPORTED_SHARE
from perfharness.model.diagnosis import Verdict

CPU_BOUND_SHARE = 0.50
"""Of the host time: most of it is spent outside of CUDA."""
COLLECTION_SHARE = 0.15
"""Of the host time. Collections do nothing for the result, and one that runs in every batch can be moved or avoided."""

RECORDER_SHARE = 0.30
"""Of the host time. Where so much of a stage is its measurement, its times say little of the program."""

RECORDER_STEP = "Annotate fewer, longer ranges here; this work counts in the stages around them, too."
COLLECTION_STEP = (
    "Make fewer objects a batch; gc.freeze() after the set-up; raise gc.set_threshold(), or collect between batches."
)
CPU_STEP = "Make {} cheaper, or do it in other threads while the GPU is at work."
CPU_ONLY_STEP = "Make {} cheaper, or spread it over threads or processes."
PROFILE_STEP = "Profile the stage: --explain names the function{}."


def garbage_collection(f: Figures) -> Match | None:
    """Python's garbage collector runs inside the stage."""
    lost = f.collection_ns
    if f.host is None or not lost:
        return None
    count = f.host.profile.collections or 0.0
    evidence = f"{count:.1f} runs of the garbage collector a batch take {percent(lost, f.wall)} of its host time."
    return Match(
        Verdict.GARBAGE_COLLECTION, lost, f.wall, [evidence], COLLECTION_STEP, verdict_share=COLLECTION_SHARE,
        saves_ns=lost, where=f.line_during("collections") or f.host.busiest, where_reason=f.no_line,
    )  # fmt: skip


def recording(f: Figures) -> Match | None:
    """Opening and closing many short ranges takes the time; seen in samples only."""
    lost = f.recorder_ns
    if f.host is None or lost < RECORDER_SHARE * f.wall or not lost:
        return None
    if f.host.busiest is not None and f.sum_ns(f.host.busiest.self_ms) > lost:
        return None
    evidence = f"Opening and closing ranges takes {percent(lost, f.wall)} of its host time: perfharness's own work."
    return Match(
        Verdict.CPU_BOUND, lost, f.wall, [evidence], RECORDER_STEP, saves_ns=lost, where=f.host.recorder,
        where_reason=f.no_line,
    )  # fmt: skip


def cpu_bound(f: Figures) -> Match | None:
    """Most of the time is the host's own, outside of CUDA calls."""
    if f.outside < CPU_BOUND_SHARE * f.wall:
        return None
    evidence = ["The process used no GPU, so all of its time is the CPU's."]
    if f.uses_gpu:
        outside = percent(f.outside, f.wall)
        evidence = [f"{outside} of its host time is outside of CUDA calls; the GPU is idle for {f.idle} of it."]
    if f.uses_gpu and not f.api_is_complete and f.gpu_idle < CPU_BOUND_SHARE * f.wall:
        either = f"{evidence[0]} It may compute, or wait for the GPU."
        next_step = "Trace it with --tracer nsys."
        return Match(Verdict.CANNOT_TELL, 0.0, f.wall, [either], next_step, missing=[MISSING_CALLS])
    if f.blocked is not None:
        evidence.append(f"{percent(sum(f.blocked.values()), f.wall)} is blocked in the operating system.")
    line = None if f.host is None else f.host.busiest
    if f.others_ns >= REPORTED_SHARE * f.wall and f.others_ns:
        evidence.append(f"Other processes had the CPUs for {percent(f.others_ns, f.wall)} of it.")
    if f.recorder_ns >= FURTHER_SHARE * f.wall and f.recorder_ns:
        evidence.append(f"Opening and closing ranges takes {percent(f.recorder_ns, f.wall)} of it.")
    if line is not None:
        inside = percent(f.sum_ns(line.cumulative_ms), f.wall)
        evidence.append(f"{inside} of it passes in {line.function} ({line.file}:{line.line}).")
        next_step = (CPU_STEP if f.uses_gpu else CPU_ONLY_STEP).format(line.function)
    else:
        next_step = PROFILE_STEP.format("; then do it in other threads while the GPU is at work" if f.uses_gpu else "")
    unknown = [] if f.blocked is not None or f.host is not None else [MISSING_OS]
    launch = launching(f)  # what leads to launches has that name where they limit the stage
    dispatching = (
        f.issuing.launching_ns - f.issuing.launch_calls_ns if launch is not None and launch.is_verdict else 0.0
    )
    computing = max(f.outside - f.waiting_outside_ns - f.recorder_ns - dispatching, 0.0)
    if f.host is not None and computing + f.state_ns("runnable") < CPU_BOUND_SHARE / 2 * f.wall:
        return None  # it waits, for several things of which none is enough for a rule
    saves = min(computing, f.gpu_idle) if f.uses_gpu else computing
    if line is not None:
        saves = min(saves, f.sum_ns(line.self_ms))
    return Match(
        Verdict.CPU_BOUND, computing, f.wall, evidence, next_step, saves_ns=saves, where=line, where_reason=f.no_line,
        missing=[*f.missing_calls, *unknown] if f.uses_gpu else unknown,
    )  # fmt: skip
