"""The diagnoses of several processes side by side: how far they agree, and which shows a stage best."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from perfharness.model.diagnosis import Code, Diagnosis, Path, StageDiagnosis


@dataclass(frozen=True)
class StageAgreement:
    """A stage of several processes: how many have each verdict, the most common first, and the `process` in which it
    takes longest among those with that one.
    """

    path: Path
    verdicts: Mapping[Code, int]
    process: str
    wall_ms: float

    @property
    def processes(self) -> int:
        """In how many it is."""
        return sum(self.verdicts.values())

    @property
    def votes(self) -> str | None:
        """How many of them have the most common verdict (`2/3`); None: all."""
        most = next(iter(self.verdicts.values()))
        return None if most == self.processes else f"{most}/{self.processes}"


@dataclass(frozen=True)
class RunDiagnosis:
    """What benchmark_mean.json has of the diagnoses."""

    stages: list[StageAgreement]


def agreement(diagnoses: Mapping[str, Diagnosis]) -> list[StageAgreement]:
    """Every stage of the diagnoses, which are by process, in their order."""
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
