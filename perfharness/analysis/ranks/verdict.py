"""The verdict `waiting-on-rank`: stages whose time goes to waiting for one rank, batch after batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from perfharness.analysis.diagnosis.rules import DESCRIPTIONS
from perfharness.analysis.diagnosis.rules.evidence import Match, percent, place
from perfharness.analysis.diagnosis.rules.gpu import GPU_BOUND_SHARE
from perfharness.analysis.diagnosis.rules.waits import NAMED_WAIT_SHARE
from perfharness.analysis.ranks.results import RankDelay, RankGroup
from perfharness.model.diagnosis import Cause, Diagnosis, FunctionTime, Path, StageDiagnosis, StageVerdict, Verdict
from perfharness.model.result import path_text

NS_PER_MS = 1e6

SAME_WAIT = frozenset(
    verdict.value
    for verdict in (
        Verdict.WAITING_ON_PROCESS, Verdict.WAITING_ON_STAGE, Verdict.WAITING_ON_SYSTEM, Verdict.NETWORK_WAIT,
        Verdict.SYNCHRONIZATION_BOUND, Verdict.IMPLICIT_SYNCHRONIZATION, Verdict.GPU_BOUND, Verdict.CPU_BOUND,
    )
)  # fmt: skip
"""What waiting for a rank looks like from inside of one process: sockets, a kernel that runs, a spinning thread."""


def with_rank_delays(
    diagnosis: Diagnosis, group: RankGroup, process: str, of_ranks: Mapping[str, Diagnosis]
) -> Diagnosis:
    """The diagnosis of one rank's process, with what it waits for other ranks.

    Args:
        of_ranks: the diagnoses of the group's processes, as far as there are any; they have the late rank's line.
    """
    waits = [delay for delay in group.delays if delay.waiting_by_process.get(process)]
    if not waits:
        return diagnosis
    lines = {delay.rank: _line_of(delay, of_ranks) for delay in waits}
    return replace(diagnosis, stages=[_judged(stage, waits, process, lines) for stage in diagnosis.stages])


def _line_of(delay: RankDelay, of_ranks: Mapping[str, Diagnosis]) -> FunctionTime | None:
    """Where the late rank is in the stage in which it loses the time."""
    late = of_ranks.get(delay.process)
    stages = late.stages if late is not None and delay.stage else []
    causes = (cause for stage in stages if stage.path == delay.stage for cause in stage.causes)
    return next((cause.where for cause in causes if cause.where is not None), None)


def _judged(
    stage: StageDiagnosis, delays: list[RankDelay], process: str, lines: Mapping[int, FunctionTime | None]
) -> StageDiagnosis:
    mine = [delay for delay in delays if _is_at(stage.path, delay)]
    if not mine or stage.cpu_ms is None or not stage.batches:
        return stage
    match = _match(stage, mine, process, lines)
    if not match.is_cause:
        return stage
    stage_ns = match.of_ns
    cause = match.cause(stage.batches, stage_ns)
    others = [one for one in stage.causes if not _is_same_wait(one, cause)]
    main = stage.verdict.verdict
    first = next(iter(stage.causes), None)
    is_larger = first is None or main in DESCRIPTIONS or first.code in SAME_WAIT or cause.share >= first.share
    if not (match.is_verdict and is_larger):
        kept = [one for one in stage.causes if one in others or one.code == main.value]
        return replace(stage, causes=sorted([*kept, cause], key=lambda one: (one is not first, -one.share)))
    verdict = StageVerdict(Verdict.WAITING_ON_RANK, match.evidence, match.try_this, stage.verdict.missing)
    return replace(stage, verdict=verdict, causes=[cause, *others])


def _is_at(stage: Path, delay: RankDelay) -> bool:
    """Whether the collectives are called in the stage, or are it."""
    return delay.at_stage[: len(stage)] == stage or delay.call == stage


def _is_same_wait(other: Cause, cause: Cause) -> bool:
    """Whether too little is left of the other, without this one, to be a cause of its own."""
    enough = GPU_BOUND_SHARE if other.code == Verdict.GPU_BOUND.value else NAMED_WAIT_SHARE
    return other.code in SAME_WAIT and other.share - cause.share < enough


def _match(
    stage: StageDiagnosis, delays: list[RankDelay], process: str, lines: Mapping[int, FunctionTime | None]
) -> Match:
    waited = [delay.waiting_by_process[process] for delay in delays]
    lost = sum(waited) * NS_PER_MS * stage.batches
    longest = delays[waited.index(max(waited))]
    span_ms = max(stage.cpu_ms or 0.0, stage.gpu.projected_ms if stage.gpu is not None else 0.0)
    whole = span_ms * NS_PER_MS * stage.batches
    lost = min(lost, whole)
    line = lines[longest.rank]
    whose = origin(longest) if line is None else f"{origin(longest)}, mostly in {place(line)}"
    saves = sum(min(delay.saves_ms, delay.waiting_by_process[process]) for delay in delays)
    return Match(
        Verdict.WAITING_ON_RANK, lost, whole,
        [f"It waits {percent(lost, whole)} of its time for {_who(delays)} in {longest.operation}; {whose}."],
        _try(longest),
        verdict_share=NAMED_WAIT_SHARE, saves_ns=saves * NS_PER_MS * stage.batches,
        where_reason="the line is in the other rank: see the sentence, and the diagnosis of its process",
    )  # fmt: skip


def _who(delays: list[RankDelay]) -> str:
    ranks = sorted({delay.rank for delay in delays})
    names = ", ".join(str(rank) for rank in ranks)
    return f"rank {names}" if len(ranks) == 1 else f"ranks {names}"


def origin(delay: RankDelay) -> str:
    """In which stage a rank lost the time, in a part of a sentence."""
    if delay.stage is None:
        return f"where rank {delay.rank} loses the time is not known ({delay.reason})"
    if not delay.stage:
        return f"rank {delay.rank} loses the time outside of all ranges, between batches"
    where = "between batches, in" if delay.between_batches else "in"
    work = "work that the GPU does for" if delay.basis == "gpu" else "host time of"
    return f"rank {delay.rank} comes last: it loses the time {where} '{path_text(delay.stage[1:])}' ({work} that stage)"


def _try(delay: RankDelay) -> str:
    if not delay.stage:
        return f"Look at what rank {delay.rank} does before it calls {delay.operation}; {delay.process} has its stages."
    return (
        f"Look at '{path_text(delay.stage[1:])}' of rank {delay.rank} ({delay.process}): do what only that rank does "
        "elsewhere or at another time, or share its work out more evenly."
    )
