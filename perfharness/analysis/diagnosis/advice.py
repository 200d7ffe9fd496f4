"""Rank what to do first over the stages of all processes, and show how far processes agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from perfharness.model.diagnosis import Cause, Code, Diagnosis, Path, StageDiagnosis

HELD = 0.5
"""Share of a stage's saving: inner stages with the same cause that hold this much replace the stage."""
LEAST = 0.01
"""Smallest share of the batch worth advice."""
SHORT = 0.05
"""Share of the batch below which an unexplained stage is not named."""


@dataclass(frozen=True)
class Advice:
    """A stage worth improving; `cause` is its verdict. Times are per batch of `process`, the most affected of the
    `processes` with this cause; `batch_ms` is None for a stage outside batches.
    """

    path: Path
    cause: Cause
    worth_ms: float
    batch_ms: float | None
    process: str
    processes: int = 1

    @property
    def share(self) -> float | None:
        """Saving as a share of the batch; None if unknown."""
        saves = self.cause.saves_ms
        return None if saves is None or not self.batch_ms else min(saves / self.batch_ms, 1.0)


def advise(diagnoses: Mapping[str, Diagnosis]) -> list[Advice]:
    """One entry per stage and known cause, for its most affected process. Largest savings first, then those without a
    known saving by their time, waits for other stages last. Nested stages with the same cause give one entry.
    """
    found: dict[tuple[Path, Code], Advice] = {}
    for process, causes in diagnoses.items():
        for advice in _each_once(_of_process(process, causes)):
            key = advice.path, advice.cause.code
            known = found.get(key)
            most = advice if known is None or advice.worth_ms > known.worth_ms else known
            found[key] = replace(most, processes=1 if known is None else known.processes + 1)

    def rank(one: Advice) -> tuple[bool, bool, float]:
        names_none = one.cause.saves_ms is None
        return names_none, names_none and one.cause.detail == "stage", -one.worth_ms

    return sorted(found.values(), key=rank)


def unexplained(diagnoses: Mapping[str, Diagnosis]) -> list[Path]:
    """Stages without a cause that takes enough of their time, except short ones."""
    found = []
    for diagnosis in diagnoses.values():
        for stage in diagnosis.stages:
            batch = diagnosis.batch_around(stage.path)
            is_short = batch is not None and stage.wall_ms < SHORT * batch.wall_ms
            found += [stage.path] if stage.verdict.code is Code.UNKNOWN and not is_short else []
    return list(dict.fromkeys(found))


def _of_process(process: str, causes: Diagnosis) -> list[Advice]:
    found = []
    for stage in causes.stages:
        batch = causes.batch_around(stage.path)
        batch_ms = None if batch is None else batch.wall_ms
        worth = stage.verdict.saves_ms
        if worth is None:
            worth = stage.verdict.share * max(stage.wall_ms, stage.gpu_busy_ms or 0.0)
        if stage.verdict.code is not Code.UNKNOWN and (batch_ms is None or worth >= LEAST * batch_ms):
            found.append(Advice(stage.path, stage.verdict, worth, batch_ms, process))
    return found


def _each_once(every: list[Advice]) -> list[Advice]:
    """Drop entries that repeat those of stages inside or around them."""
    dropped: set[Path] = set()
    for outer in sorted(every, key=lambda one: len(one.path)):
        if outer.path in dropped:
            continue
        inner = [one for one in every if _repeats(outer, one) and one.path not in dropped]
        nearest = [one for one in inner if not any(_repeats(other, one) for other in inner)]
        if nearest and sum(one.worth_ms for one in nearest) >= HELD * outer.worth_ms:
            dropped.add(outer.path)
        else:
            dropped |= {one.path for one in inner}
    return [one for one in every if one.path not in dropped]


def _repeats(outer: Advice, inner: Advice) -> bool:
    """Whether `inner` lies inside `outer` and has the same cause."""
    is_inside = len(inner.path) > len(outer.path) and inner.path[: len(outer.path)] == outer.path
    return is_inside and inner.cause.code is outer.cause.code


@dataclass(frozen=True)
class StageAgreement:
    """Verdicts of several processes, most common first; `process`: that with the most common one and most time."""

    path: Path
    verdicts: Mapping[Code, int]
    process: str
    wall_ms: float

    @property
    def processes(self) -> int:
        """Processes that have the stage."""
        return sum(self.verdicts.values())

    @property
    def votes(self) -> str | None:
        """Share of processes with the most common verdict, as `2/3`; None if all have it."""
        most = next(iter(self.verdicts.values()))
        return None if most == self.processes else f"{most}/{self.processes}"


@dataclass(frozen=True)
class RunDiagnosis:
    """The diagnosis part of benchmark_mean.json."""

    stages: list[StageAgreement]


def agreement(diagnoses: Mapping[str, Diagnosis]) -> list[StageAgreement]:
    """Collect every stage of the diagnoses (by process), in their order."""
    by_path: dict[Path, dict[str, StageDiagnosis]] = {}
    for process, diagnosis in diagnoses.items():
        for stage in diagnosis.stages:
            by_path.setdefault(stage.path, {})[process] = stage
    found = []
    for path, stages in by_path.items():
        verdicts = dict(Counter(stage.verdict.code for stage in stages.values()).most_common())
        usual = next(iter(verdicts))
        process = max(
            (one for one, stage in stages.items() if stage.verdict.code is usual), key=lambda one: stages[one].wall_ms
        )
        found.append(StageAgreement(path, verdicts, process, stages[process].wall_ms))
    return found
