"""Rules about what the host computes outside of CUDA calls."""

from __future__ import annotations

from perfharness.analysis.diagnosis.rules.calls import launching
from perfharness.analysis.diagnosis.rules.evidence import (
    FURTHER_SHARE,
    MISSING_CALLS,
    MISSING_OS,
    Figures,
    Match,
    call_of,
    percent,
    place,
)
from perfharness.analysis.diagnosis.rules.gpu import REPORTED_SHARE, recompilation
from perfharness.analysis.diagnosis.rules.libraries import (
    ENGINES,
    cheaper,
    cpus_text,
    idle_share,
    time_in_library,
)
from perfharness.model.diagnosis import FunctionTime, Verdict

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
FEW_SAMPLES = 100
"""With fewer, a sentence gives their number."""
FAULT_NS = 500
"""Of host time, at least: the kernel is entered, finds a page and clears its 4 KiB."""
KEEP_MEMORY_STEP = "Keep its memory between batches and write into it (out=, copy_) rather than allocate it anew."
PROFILE_STEP = "Profile the stage: --explain names the function{}."
MORE_SAMPLES_STEP = "Run more batches: its stacks are sampled 500 times a second."
CALLS_STEP = "Record all calls: --explain names those that take the time, or the function that computes."


def garbage_collection(f: Figures) -> Match | None:
    """Python's garbage collector runs inside the stage."""
    lost = f.collection_ns
    if not lost:
        return None
    if f.host is None:
        evidence = f"The garbage collector runs at least {percent(lost, f.wall)} of its host time."
        return Match(
            Verdict.GARBAGE_COLLECTION, lost, f.wall, [evidence], COLLECTION_STEP, verdict_share=COLLECTION_SHARE,
            undisturbed_ns=f.undisturbed_ns,
        )  # fmt: skip
    count = f.host.profile.collections or 0.0
    evidence = f"{count:.1f} runs of the garbage collector a batch take {percent(lost, f.wall)} of its host time."
    return Match(
        Verdict.GARBAGE_COLLECTION, lost, f.wall, [evidence], COLLECTION_STEP, verdict_share=COLLECTION_SHARE,
        undisturbed_ns=f.undisturbed_ns, saves_ns=lost, where=f.line_during("collections") or f.host.busiest,
        where_reason=f.no_line,
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
    evidence = []
    if f.uses_gpu:
        outside = percent(f.outside, f.wall)
        evidence = [f"{outside} of its host time is outside of CUDA calls; the GPU is idle for {f.idle} of it."]
    if f.uses_gpu and not f.api_is_complete and (unrecorded := _unrecorded(f)) is not None:
        return Match(
            Verdict.CANNOT_TELL,
            0.0,
            f.wall,
            [f"{evidence[0]} {unrecorded}"],
            CALLS_STEP,
            where=None if f.host is None else f.host.busiest,
            where_reason=f.no_line,
            missing=[MISSING_CALLS],
        )
    launch = launching(f)  # what leads to launches has that name where they limit the stage
    dispatching = (
        f.issuing.launching_ns - f.issuing.launch_calls_ns if launch is not None and launch.is_verdict else 0.0
    )
    held_up = max(f.throttled_ns, f.crowded_ns) if f.host is None else 0.0  # with samples it is part of the waiting
    computing = max(f.outside - f.waiting_outside_ns - f.recorder_ns - dispatching - held_up - _compiling(f), 0.0)
    if f.host is None and f.blocked is None and f.waiting_share is not None:
        computing = min(computing, (1 - f.waiting_share) * f.wall)
    if f.host is not None and computing + f.state_ns("runnable") < CPU_BOUND_SHARE / 2 * f.wall:
        return None  # it waits, for several things of which none is enough for a rule
    if f.blocked is not None:
        evidence.append(f"{percent(sum(f.blocked.values()), f.wall)} is blocked in the operating system.")
    saves = computing + f.others_ns  # what is not computed does not wait for a CPU either
    saves = min(saves, f.gpu_idle) if f.uses_gpu else saves
    line = None if f.host is None else f.host.busiest
    if line is None and f.host is not None and f.host.profile.samples:
        return None  # where it is ready to run it has only been woken
    if line is None:
        ready = None if f.blocked is not None or f.host is not None else f.ready_share
        waits = ""
        if f.waiting_share is not None and f.waiting_share >= REPORTED_SHARE:
            waits = f", and waits for something else at least {percent(f.waiting_share, 1)}"
        ran = None if ready is None else ready - (f.queued_share or 0.0)
        if ready is not None and ran is not None and ran < 1 - ready and not f.uses_gpu:
            either = (
                f"It computes at least {percent(ran, 1)} of its host time, and waits at least "
                f"{percent(f.waiting_share or 0.0, 1)}: that was read of several stages together."
            )
            return Match(Verdict.CANNOT_TELL, 0.0, f.wall, [either], PROFILE_STEP.format(""), missing=[MISSING_OS])
        if ready is not None and ready >= CPU_BOUND_SHARE:
            evidence.append(f"It computes, or waits for a CPU, at least {percent(ready, 1)} of its host time{waits}.")
        elif f.host is not None:
            evidence.append("Whether it computes or waits is not known: it has too few samples.")
        elif not evidence:
            evidence.append("It uses no GPU; whether it computes or waits was not recorded.")
        next_step = PROFILE_STEP.format("; then do it in other threads while the GPU is at work" if f.uses_gpu else "")
        next_step = next_step if f.host is None else MORE_SAMPLES_STEP
        saves_ns: float | None = saves
    else:
        described, next_step, saves_ns = _of_function(f, line, saves)
        evidence.append(described)
    faults = 0.0 if f.host is None else f.batches * (f.host.profile.minor_faults or 0.0)
    if f.host is not None and f.host.faulting is not None and faults * FAULT_NS >= FURTHER_SHARE * f.undisturbed_ns:
        evidence.append(
            f"{f.a_batch(faults):.0f} page faults a batch, most in {place(f.host.faulting)}: memory that is new to the "
            "process, a page at a time."
        )
        next_step = f"{next_step} {KEEP_MEMORY_STEP}"
    if f.recorder_ns >= FURTHER_SHARE * f.wall and f.recorder_ns:
        evidence.append(f"Opening and closing ranges takes {percent(f.recorder_ns, f.wall)} of it.")
    if f.others_ns >= REPORTED_SHARE * f.wall and f.others_ns:
        whose = "Other processes" if f.host is not None else "Other processes, or threads of its own,"
        evidence.append(f"{whose} had the CPUs for {percent(f.others_ns, f.wall)} of it.")
    is_known = f.blocked is not None or f.host is not None
    is_known = is_known or (f.ready_share is not None and f.ready_share >= 1 - FURTHER_SHARE)
    unknown = [] if is_known else [MISSING_OS]
    return Match(
        Verdict.CPU_BOUND, computing, f.wall, evidence, next_step, saves_ns=saves_ns, where=line,
        where_reason=f.no_line, missing=[*f.missing_calls, *unknown] if f.uses_gpu else unknown,
    )  # fmt: skip


def _unrecorded(f: Figures) -> str | None:
    """What the time outside of CUDA calls may be instead of computing, where only calls that start GPU work were
    recorded; None: computing is most of it.
    """
    if f.gpu_idle < CPU_BOUND_SHARE * f.wall:
        return "It may compute, or wait for the GPU."
    if f.without_calls >= CPU_BOUND_SHARE * f.wall:
        return None
    free = f", and only {percent(f.without_calls, f.wall)} in ranges without any CUDA call" if f.without_calls else ""
    return f"It may compute, or allocate, free or load{free}: such calls were not recorded."


def _compiling(f: Figures) -> float:
    """Of the computing, ns: what is a compiler's, where that is a cause of its own."""
    match = recompilation(f)
    if match is None or not match.is_cause:
        return 0.0
    if f.host is None:
        return 0.0 if f.recompiling is None else f.recompiling.computing_ns
    return 0.0 if f.host.compiling is None else f.sum_ns(f.host.compiling.computing_ms)


def _of_function(f: Figures, line: FunctionTime, saves_ns: float) -> tuple[str, str, float | None]:
    """Where the computing passes, what to try, and what that saves at most: all that the function takes; of a network's
    computing what idle CPUs can take over, None where none are.
    """
    library, idle = time_in_library(f), idle_share(f)
    inside = percent(f.sum_ns(line.cumulative_ms), f.wall)
    text = f"{inside} of its host time passes in {place(line)}"
    if f.host is not None and f.host.profile.samples < FEW_SAMPLES:
        text += f" ({f.host.profile.samples} samples)"
    if library is not None:
        text += f", {percent(f.sum_ns(library.ms), f.wall)} in {library.name}, most in {library.most_in}"
    text += "" if idle is None else f"; {cpus_text(f)}"
    step = cheaper(call_of(line), library, is_idle=idle is not None and not f.uses_gpu)
    step = f"{step[0].upper()}{step[1:]}"
    saves = min(saves_ns, f.sum_ns(line.self_ms))
    if f.uses_gpu:
        return f"{text}.", f"{step}, or do it in other threads while the GPU is at work.", saves
    if library is not None and library.name in ENGINES:
        return f"{text}.", f"{step}.", None if idle is None else saves * idle
    return f"{text}.", f"{step}.", saves
