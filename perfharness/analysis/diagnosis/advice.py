"""What is worth doing about a run, the most valuable first: the causes of all stages, each named once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from perfharness.model.diagnosis import Cause, Diagnosis, Path, StageDiagnosis, Verdict

HELD_SHARE = 0.5
"""Of what a cause costs a stage: a stage inside it with the same cause and this much of the cost has it alone."""


@dataclass(frozen=True)
class Advice:
    """A cause of one stage, with the figures of the process that it costs most.

    Times are host milliseconds a batch. `worth_ms` ranks: what the mended stage would save, or, where nothing bounds
    that, what it can save at most. `batch_ms` is None where the stage is in no batch, or where that is not known.
    """

    path: Path
    cause: Cause
    process: str
    processes: int
    """That have this cause in this stage."""
    stage_ms: float
    gpu_ms: float | None
    """Of the stage's own operations."""
    batch_ms: float | None
    worth_ms: float

    @property
    def worth_share(self) -> float | None:
        """Of the batch, 0 to 1."""
        return min(self.worth_ms / self.batch_ms, 1.0) if self.batch_ms else None

    @property
    def saves_share(self) -> float | None:
        """What it saves, of the batch; None where nothing bounds that."""
        return None if self.cause.saves_ms is None else self.worth_share


def advise(diagnoses: Mapping[str, Diagnosis]) -> list[Advice]:
    """One for each cause, the most valuable first.

    Of a stage and those inside it that have the same cause, or the same line as the cause, one is named: the innermost
    that holds most of the cost. Of several processes, the one that it costs most speaks for all that have it.

    Args:
        diagnoses: by process.
    """
    found: dict[tuple[Path, str, tuple[str, int] | None], list[Advice]] = {}
    for process, diagnosis in diagnoses.items():
        for advice in _each_once(list(_of_process(process, diagnosis))):
            found.setdefault((advice.path, advice.cause.code, _line(advice.cause)), []).append(advice)
    spoken = [replace(max(group, key=lambda one: one.worth_ms), processes=len(group)) for group in found.values()]
    return sorted(spoken, key=lambda one: -one.worth_ms)


def _of_process(process: str, diagnosis: Diagnosis) -> Iterator[Advice]:
    by_path = {stage.path: stage for stage in diagnosis.stages}
    for stage in diagnosis.stages:
        if stage.cpu_ms is None:
            continue
        batch = _batch_of(stage.path, diagnosis, by_path)
        for cause in stage.causes or _from_verdict(stage):
            gpu_ms = None if stage.gpu is None else stage.gpu.busy_ms
            yield Advice(stage.path, cause, process, 1, stage.cpu_ms, gpu_ms, batch, _worth(stage, cause))


def _batch_of(path: Path, diagnosis: Diagnosis, by_path: Mapping[Path, StageDiagnosis]) -> float | None:
    """Mean host time of the batches that the stage is in."""
    for loop in diagnosis.warmup:
        if path[: len(loop.loop)] == loop.loop and loop.loop in by_path:
            return by_path[loop.loop].cpu_ms
    return None


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
    """Without those that a stage inside, or one around it, has as well."""
    dropped: set[int] = set()
    for place, outer in sorted(enumerate(every), key=lambda one: len(one[1].path)):
        if place in dropped:
            continue
        inner = [other for other, one in enumerate(every) if other not in dropped and _repeats(outer, one)]
        if any(every[other].worth_ms >= HELD_SHARE * outer.worth_ms for other in inner):
            dropped.add(place)
        else:
            dropped.update(inner)
    return [advice for place, advice in enumerate(every) if place not in dropped]


def _repeats(outer: Advice, inner: Advice) -> bool:
    """Whether a stage inside another one has the same cause, or one at the same line."""
    if len(inner.path) <= len(outer.path) or inner.path[: len(outer.path)] != outer.path:
        return False
    line = _line(outer.cause)
    return outer.cause.code == inner.cause.code or (line is not None and line == _line(inner.cause))


def is_explained(diagnoses: Iterable[Diagnosis]) -> bool:
    """Whether an explaining pass is part of any of them."""
    return any(
        stage.explained is not None or stage.profile is not None
        for diagnosis in diagnoses
        for stage in diagnosis.stages
    )
