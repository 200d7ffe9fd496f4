"""What a profiling pass that is not trusted in its proportions still shows of a stage: bounds.

Recording adds time, and it is not known to what. Of a stage that took M in the measured pass and E in the profiling
one, a part that took P of E took at least P - (E - M) of M, if all of what was added was its own, and at most P, if
none was. Where the profiling pass was the faster one, by chance or for another state of the machine, the part took
between P and P + (M - E). So whatever changed, what takes almost all of E takes most of M.
"""

from __future__ import annotations

from dataclasses import replace

from perfharness.analysis.diagnosis.rules import OF_A_PASS
from perfharness.analysis.diagnosis.rules.calls import (
    ALLOCATION_SHARE,
    COPYING_SHARE,
    DISPATCH_BOUND_SHARE,
    LAUNCH_BOUND_SHARE,
    SYNCHRONIZATION_SHARE,
)
from perfharness.analysis.diagnosis.rules.evidence import MISSING_OS, call_of, percent, place
from perfharness.analysis.diagnosis.rules.gpu import RECOMPILATION_SHARE, WAITING_SHARE
from perfharness.analysis.diagnosis.rules.host import COLLECTION_SHARE, CPU_BOUND_SHARE
from perfharness.analysis.diagnosis.rules.waits import (
    BLOCKED_SHARE,
    GIL_SHARE,
    NAMED_WAIT_SHARE,
)
from perfharness.model.diagnosis import Cause, FunctionTime, StageDiagnosis, StageVerdict, Verdict

DOMINATES = 0.5
"""Of a cause: of the stage's time in the profiling pass. Of a line: of that in the measured one, at least; then
nothing else can be the larger part of it."""

ENOUGH = {
    Verdict.RECOMPILATION: RECOMPILATION_SHARE,
    Verdict.GARBAGE_COLLECTION: COLLECTION_SHARE,
    Verdict.GIL_CONTENTION: GIL_SHARE,
    Verdict.WAITING_ON_STAGE: WAITING_SHARE,
    Verdict.WAITING_ON_PROCESS: WAITING_SHARE,
    Verdict.WAITING_ON_SYSTEM: BLOCKED_SHARE,
    Verdict.DATA_LOADER_STARVATION: NAMED_WAIT_SHARE,
    Verdict.FILE_WAIT: NAMED_WAIT_SHARE,
    Verdict.NETWORK_WAIT: NAMED_WAIT_SHARE,
    Verdict.SMALL_COPIES: COPYING_SHARE,
    Verdict.ALLOCATOR_CHURN: ALLOCATION_SHARE,
    Verdict.IMPLICIT_SYNCHRONIZATION: SYNCHRONIZATION_SHARE,
    Verdict.SYNCHRONIZATION_BOUND: SYNCHRONIZATION_SHARE,
    Verdict.LAUNCH_BOUND: LAUNCH_BOUND_SHARE,
    Verdict.DISPATCH_BOUND: DISPATCH_BOUND_SHARE,
    Verdict.CPU_BOUND: CPU_BOUND_SHARE,
}
"""Of the stage's time in the measured pass, at least: what the rule of a cause asks for, the largest where it has
several. Not of `cpu-contention`: whether there were CPUs is as much the machine's as the stage's, and what changed
between the passes may be just that."""

RESIDUAL = frozenset({Verdict.CPU_BOUND, Verdict.CANNOT_TELL})
"""Verdicts of one pass that only say what is left: a cause with a name is better, where it dominates."""

OF_SPAN = frozenset({
    Verdict.GPU_BOUND, Verdict.COPY_BOUND, Verdict.PAGEABLE_COPIES, Verdict.WAITING_ON_STAGE,
    Verdict.WAITING_ON_PROCESS,
})  # fmt: skip
"""Their shares may be of the time until the GPU has done the stage's work, where it has any."""


def share_bounds(share: float, slowdown: float) -> tuple[float, float]:
    """The least and the most that a part took of the measured time, 0 to 1.

    Args:
        share: of the profiling pass's time, 0 to 1.
        slowdown: that time by the measured one.
    """
    part, added = share * slowdown, slowdown - 1
    first, last = sorted((part - added, part))
    return min(max(first, 0.0), 1.0), min(max(last, 0.0), 1.0)


def with_bounds(stage: StageDiagnosis, found: StageDiagnosis, slowdown: float) -> StageDiagnosis:
    """A stage of the measured pass with what dominates it in the profiling pass, where enough of that is left whatever
    has changed; else it is a candidate in the evidence of the verdict.

    Args:
        found: the same stage of the profiling pass, which did the same work on the GPU.
        slowdown: host time of the profiling pass by that of the measured one.
    """
    cause = _first_cause(found)
    if cause is not None and stage.causes and stage.causes[0].code == cause.code:
        return _with_line(stage, found, cause, slowdown)
    waits_for_unknown = stage.verdict.verdict is Verdict.WAITING_ON_SYSTEM and MISSING_OS in stage.verdict.missing
    if stage.verdict.verdict not in RESIDUAL and not waits_for_unknown:
        return stage
    is_computing = cause is not None and Verdict(cause.code) in RESIDUAL
    if cause is not None and _is_enough(cause, slowdown) and not (waits_for_unknown and is_computing):
        return _limited_by(stage, found, cause, slowdown)
    if cause is not None:
        at = "" if cause.where is None else f" At {place(cause.where)}."
        stage = _with_evidence(stage, f"The profiling pass would say {cause.code}: {cause.what}{at}")
    longest = None if found.profile is None else found.profile.longest
    return stage if longest is None else _at_line(stage, found, longest, slowdown)


def _is_enough(cause: Cause, slowdown: float) -> bool:
    """Whether it dominates the stage in the profiling pass, and its rule holds in the measured one, too."""
    enough = ENOUGH.get(Verdict(cause.code))
    return enough is not None and cause.share >= DOMINATES and share_bounds(cause.share, slowdown)[0] >= enough


def _first_cause(found: StageDiagnosis) -> Cause | None:
    """What limits the stage in the profiling pass, where its share is of the host time."""
    if not found.causes or found.causes[0].code != found.verdict.verdict.value:
        return None
    uses_gpu = found.gpu is not None and found.gpu.busy_ms > 0
    verdict = found.verdict.verdict
    return None if verdict in OF_A_PASS or (uses_gpu and verdict in OF_SPAN) else found.causes[0]


def _limited_by(stage: StageDiagnosis, found: StageDiagnosis, cause: Cause, slowdown: float) -> StageDiagnosis:
    """With the cause as its verdict, and its share between bounds."""
    least, most = share_bounds(cause.share, slowdown)
    bounded = replace(
        cause,
        what=f"At least {percent(least, 1)} of its host time, whatever the profiling pass added. There: {cause.what}",
        share=least,
        share_at_most=most,
        saves_ms=None,
        where=None if cause.where is None else _bounded(stage, found, cause.where, slowdown),
    )
    replaced = {cause.code, stage.verdict.verdict.value, *(each.value for each in RESIDUAL)}
    others = [one for one in stage.causes if one.code not in replaced]
    verdict = StageVerdict(
        found.verdict.verdict, [bounded.what, *stage.verdict.evidence], cause.try_this, stage.verdict.missing
    )
    return replace(stage, verdict=verdict, causes=[bounded, *others])


def _with_line(stage: StageDiagnosis, found: StageDiagnosis, cause: Cause, slowdown: float) -> StageDiagnosis:
    """With the line of the same cause in the profiling pass. Of time outside of calls, where the line dominates: there
    the cause is only what is left.
    """
    first, where = stage.causes[0], cause.where
    if where is None or not found.cpu_ms or first.where is not None:
        return stage
    if stage.verdict.verdict is Verdict.CPU_BOUND:
        return _at_line(stage, found, where, slowdown)
    if where.self_ms < DOMINATES * cause.share * found.cpu_ms:
        return stage
    first = replace(first, where=_bounded(stage, found, where, slowdown), where_reason=None)
    return replace(stage, causes=[first, *stage.causes[1:]])


def _at_line(stage: StageDiagnosis, found: StageDiagnosis, line: FunctionTime, slowdown: float) -> StageDiagnosis:
    """With a line, as that of the cause where it dominates, and in the evidence. Of a line that may have anything
    between nothing and all of the measured time, nothing is said with the cause.
    """
    if not found.cpu_ms:
        return stage
    share = min(line.self_ms / found.cpu_ms, 1.0)
    least, most = share_bounds(share, slowdown)
    is_bounded = least > 0 or most < 1
    between = f"of this one, {percent(least, 1)} to {percent(most, 1)}" if is_bounded else "of this one, any part"
    text = f"In the profiling pass {percent(share, 1)} of it passes in {place(line)}: {between}."
    stage = _with_evidence(stage, text)
    if not is_bounded or not stage.causes or stage.verdict.verdict is not Verdict.CPU_BOUND:
        return stage
    first = replace(stage.causes[0], what=f"{stage.causes[0].what} {text}")
    if least >= DOMINATES:
        where, step = _bounded(stage, found, line, slowdown), f"Make {call_of(line)} cheaper."
        first = replace(first, where=where, where_reason=None, try_this=step)
        stage = replace(stage, verdict=replace(stage.verdict, next_step=step))
    return replace(stage, causes=[first, *stage.causes[1:]])


def _with_evidence(stage: StageDiagnosis, text: str) -> StageDiagnosis:
    return replace(stage, verdict=replace(stage.verdict, evidence=[*stage.verdict.evidence, text]))


def _bounded(stage: StageDiagnosis, found: StageDiagnosis, line: FunctionTime, slowdown: float) -> FunctionTime:
    """A line whose own time is between bounds: the middle of them, with half of what is between as its error."""
    measured, explaining = stage.cpu_ms or 0.0, found.cpu_ms or 0.0
    share = min(line.self_ms / explaining, 1.0) if explaining else 0.0
    least, most = share_bounds(share, slowdown)
    middle, half = (least + most) / 2 * measured, (most - least) / 2 * measured
    return replace(line, self_ms=middle, cumulative_ms=middle, error_ms=half)
