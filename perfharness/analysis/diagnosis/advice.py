"""What is worth doing about a run, the most valuable first: the causes of all stages, each named once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from perfharness.model.diagnosis import Cause, Diagnosis, Path, StageDiagnosis, Verdict

HELD_SHARE = 0.5
"""Of what a cause costs a stage: stages inside it with the same cause and together this much of the cost have it."""
SAME_TIME = 0.02
"""Two causes at one line whose savings differ by less are about the same time."""
ALL_OF_IT = 0.98
"""Of the stages' time: a saving of as much, of nobody knows which line, is only what bounds any saving."""
LEAST_SHARE = 0.01
"""Of the batch: what is worth less in a stage is no advice."""


@dataclass(frozen=True)
class Advice:
    """A cause, and the stages that one step mends, with the figures of the process that it costs most.

    Times are host milliseconds a batch, of all these stages; where they are in none (`is_in_batches`), an occurrence.
    `worth_ms` ranks: what the mended stages would save, or, where nothing bounds that, what they can save at most.
    `batch_ms` is None where they are in no batch, or where that is not known.
    """

    paths: tuple[Path, ...]
    """The one that it costs most first."""
    cause: Cause
    """Of the first stage."""
    process: str
    processes: int
    """That have this cause."""
    stage_ms: float
    gpu_ms: float | None
    """Of the stages' own operations."""
    batch_ms: float | None
    worth_ms: float
    saves_ms: float | None
    is_in_batches: bool
    doubt: str | None = None
    """Why the profiling pass says nothing of the first stage; None where it does, or where there was none."""

    @property
    def worth_share(self) -> float | None:
        """Of the batch, 0 to 1."""
        return min(self.worth_ms / self.batch_ms, 1.0) if self.batch_ms else None

    @property
    def saves_share(self) -> float | None:
        """What it saves, of the batch; None where nothing bounds that."""
        return None if self.saves_ms is None else self.worth_share

    @property
    def tells_saving(self) -> bool:
        """Whether the saving says more than that no stage can save more time than it takes."""
        if self.saves_ms is None:
            return False
        return self.cause.where is not None or self.saves_ms < ALL_OF_IT * self.stage_ms


def advise(diagnoses: Mapping[str, Diagnosis]) -> list[Advice]:
    """One for each step that can be taken, the most valuable first.

    Of a stage and those inside it that have the same cause, or the same line as the cause, the innermost are named that
    hold most of the cost together. Stages with the same cause, line and step are one piece of advice. Of several
    processes, the one that it costs most speaks for all that have it, also for those that know no line.

    Args:
        diagnoses: by process.
    """
    found: dict[Step, list[Advice]] = {}
    for process, diagnosis in diagnoses.items():
        every = _each_once(list(_of_process(process, diagnosis)))
        worth_it = [one for one in every if one.worth_share is None or one.worth_share >= LEAST_SHARE]
        for step, advice in _by_step(worth_it).items():
            found.setdefault(step, []).append(advice)
    spoken = [_speaker(group) for group in _with_those_without_a_line(found)]
    return sorted(spoken, key=lambda one: -one.worth_ms)


def _with_those_without_a_line(found: Mapping[Step, list[Advice]]) -> list[list[Advice]]:
    """The groups; where a process knows no line for the cause of a stage and others do, it is of theirs."""
    groups = {step: list(group) for step, group in found.items() if step[1] is not None}
    rest = []
    for step, group in found.items():
        if step[1] is not None:
            continue
        alone: list[Advice] = []
        for advice in group:
            same = (each for named, each in groups.items() if named[0] == step[0] and _is_of_others(advice, each))
            next(same, alone).append(advice)
        rest.append(alone)
    return [*groups.values(), *(group for group in rest if group)]


def _is_of_others(advice: Advice, group: Sequence[Advice]) -> bool:
    """Whether a group has the advice's stages, in other processes."""
    is_there = any(set(one.paths) == set(advice.paths) for one in group)
    return is_there and all(one.process != advice.process for one in group)


def _speaker(group: Sequence[Advice]) -> Advice:
    """The process that it costs most, of those that know a line."""
    known = [one for one in group if one.cause.where is not None] or group
    return replace(max(known, key=lambda one: one.worth_ms), processes=len(group))


Step = tuple[str, tuple[str, int] | None, str]
"""A cause's code, its line, and what to try."""


def _by_step(every: Iterable[Advice]) -> dict[Step, Advice]:
    """What one step mends, together."""
    found: dict[Step, Advice] = {}
    for advice in sorted(every, key=lambda one: -one.worth_ms):
        step = (advice.cause.code, _line(advice.cause), advice.cause.try_this)
        found[step] = _together(found[step], advice) if step in found else advice
    return found


def _together(first: Advice, second: Advice) -> Advice:
    return replace(
        first,
        paths=(*first.paths, *second.paths),
        stage_ms=first.stage_ms + second.stage_ms,
        gpu_ms=_sum(first.gpu_ms, second.gpu_ms),
        batch_ms=first.batch_ms if first.batch_ms == second.batch_ms else None,
        worth_ms=first.worth_ms + second.worth_ms,
        saves_ms=_sum(first.saves_ms, second.saves_ms),
    )


def _sum(left: float | None, right: float | None) -> float | None:
    return None if left is None or right is None else left + right


def _of_process(process: str, diagnosis: Diagnosis) -> Iterator[Advice]:
    by_path = {stage.path: stage for stage in diagnosis.stages}
    for stage in diagnosis.stages:
        if stage.cpu_ms is None:
            continue
        loop = next((one.loop for one in diagnosis.warmup if stage.path[: len(one.loop)] == one.loop), None)
        batch = by_path[loop].cpu_ms if loop in by_path else None
        for cause in _distinct(stage.causes) or _from_verdict(stage):
            gpu_ms = None if stage.gpu is None else stage.gpu.busy_ms
            times = (stage.cpu_ms, gpu_ms, batch, _worth(stage, cause), cause.saves_ms, loop is not None)
            yield Advice((stage.path,), cause, process, 1, *times, doubt=_doubt(stage, cause))


def _doubt(stage: StageDiagnosis, cause: Cause) -> str | None:
    if cause.share_at_most is not None or stage.explained is None or stage.explained.trusted:
        return None
    return stage.explained.reason


def _distinct(causes: Sequence[Cause]) -> list[Cause]:
    """Without those that name the same time at the same line as one before them, which has the better name."""
    kept: list[Cause] = []
    for cause in causes:
        if not any(_is_same_time(cause, one) for one in kept):
            kept.append(cause)
    return kept


def _is_same_time(left: Cause, right: Cause) -> bool:
    if left.where is None or _line(left) != _line(right) or left.saves_ms is None or right.saves_ms is None:
        return False
    return math.isclose(left.saves_ms, right.saves_ms, rel_tol=SAME_TIME)


def _from_verdict(stage: StageDiagnosis) -> list[Cause]:
    """The verdict as a cause, of a stage whose diagnosis lists none."""
    verdict = stage.verdict
    if verdict.verdict is Verdict.CANNOT_TELL or not verdict.evidence:
        return []
    return [Cause(verdict.verdict.value, verdict.evidence[0], 1.0, None, None, verdict.next_step, None)]


def _worth(stage: StageDiagnosis, cause: Cause) -> float:
    """What to rank by, ms a batch: the saving; else the cause's part of what the batch would save without the stage, or
    of the stage where that is not known.
    """
    if cause.saves_ms is not None:
        return cause.saves_ms
    whole, without = stage.cost.pipeline_ms, stage.cost.without_stage_ms
    at_most = stage.cpu_ms or 0.0 if whole is None or without is None else whole - without
    return max(cause.share * at_most, 0.0)


def _line(cause: Cause) -> tuple[str, int] | None:
    return None if cause.where is None else (cause.where.file, cause.where.line)


def _each_once(every: Sequence[Advice]) -> list[Advice]:
    """Without those that stages inside, or one around it, have as well."""
    dropped: set[int] = set()
    for place, outer in sorted(enumerate(every), key=lambda one: len(one[1].paths[0])):
        if place in dropped:
            continue
        inner = [other for other, one in enumerate(every) if other not in dropped and _repeats(outer, one)]
        nearest = [one for one in inner if not any(_repeats(every[other], every[one]) for other in inner)]
        if sum(every[other].worth_ms for other in nearest) >= HELD_SHARE * outer.worth_ms and nearest:
            dropped.add(place)
        else:
            dropped.update(inner)
    return [advice for place, advice in enumerate(every) if place not in dropped]


def _repeats(outer: Advice, inner: Advice) -> bool:
    """Whether a stage inside another one has the same cause, or one at the same line."""
    (around,), (within,) = outer.paths, inner.paths
    if len(within) <= len(around) or within[: len(around)] != around:
        return False
    line = _line(outer.cause)
    return outer.cause.code == inner.cause.code or (line is not None and line == _line(inner.cause))


def is_explained(diagnoses: Iterable[Diagnosis]) -> bool:
    """Whether a profiling pass is part of any of them."""
    return any(
        stage.explained is not None or stage.profile is not None
        for diagnosis in diagnoses
        for stage in diagnosis.stages
    )
