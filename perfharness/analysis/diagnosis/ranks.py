"""Waits for other ranks as a cause of the stages that wait, from the comparison of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from perfharness.analysis.diagnosis.causes import THRESHOLDS, WORTH
from perfharness.analysis.diagnosis.steps import WAIT_STEPS
from perfharness.model.diagnosis import Cause, Code, Diagnosis, StageDiagnosis
from perfharness.model.result import path_text

if TYPE_CHECKING:
    from perfharness.analysis.ranks.results import RankDelay

SAME_WAIT = (Code.WAITING, Code.SYNCHRONIZATION, Code.GPU_BOUND, Code.CPU_BOUND)
"""Causes that a wait for a rank looks like from inside a process: a socket, a running kernel, a spinning thread."""


def with_rank_delays(causes: Diagnosis, delays: Sequence[RankDelay], process: str) -> Diagnosis:
    """Add waits for late ranks to the causes of one rank's process."""
    mine = [delay for delay in delays if delay.waiting_by_process.get(process)]
    return replace(causes, stages=[_with_waits(stage, mine, process) for stage in causes.stages])


def _with_waits(stage: StageDiagnosis, delays: Sequence[RankDelay], process: str) -> StageDiagnosis:
    path, whole_ms = stage.path, max(stage.wall_ms, stage.gpu_busy_ms or 0.0)
    waits = [
        sum(one.waiting_ms for one in delay.calls if one.process == process and one.path[: len(path)] == path)
        for delay in delays
    ]
    if not any(waits) or not whole_ms:
        return stage
    longest = delays[waits.index(max(waits))]
    share, least = min(sum(waits) / whole_ms, 1.0), THRESHOLDS["waiting"].least
    where = f" in {path_text(longest.stage[1:])}" if longest.stage else ""
    what = f"Waits {100 * share:.0f} % of its time for rank {longest.rank}, which loses the time{where}."
    saves_ms = sum(min(one.saves_ms, waited) for one, waited in zip(delays, waits, strict=True))
    cause = Cause(Code.WAITING, share, saves_ms, what, WAIT_STEPS["rank"], least, stage.verdict.place, "rank")
    known = [one for one in stage.causes if one.code is not Code.UNKNOWN]
    rest = [one for one in known if one.code not in SAME_WAIT or one.share - share >= one.least]
    if share >= least and (stage.verdict not in rest or share >= stage.verdict.share):
        return replace(stage, causes=[cause, *rest])
    return replace(stage, causes=[*stage.causes, cause]) if share >= WORTH else stage
