"""What a comparison of versions says. Written as JSON, so validated."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, Field

from perfharness.analysis.comparison.compare import Interval, Rule
from perfharness.model.base import Record
from perfharness.model.checks import PrintableText
from perfharness.model.findings import Finding
from perfharness.notebook import notebook_html
from perfharness.runs.comparison.limits import LimitResult
from perfharness.runs.figures import Unit
from perfharness.secrets import mask_arguments

COMPARISON_VERSION = 1

Verdict = Literal["faster", "slower", "same", "undecided", "not-comparable"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
Order = Literal["in-turns", "one-after-the-other", "unknown"]

THE_MACHINE = "the machine itself changed in the same direction, by half as much or more"
"""Why a change of a time or a rate is undecided."""


class _Model(Record, use_attribute_docstrings=True):
    """Its fields are described in schemas."""


class ComparedLaunch(_Model):
    """One launch of a side."""

    folder: PrintableText
    run_id: str
    created: str | None
    problem: str | None = None
    """why it was left out; null: it was used"""

    errors: list[str] = Field(default_factory=list)
    """codes of the findings that put numbers of it in doubt"""


class ComparedSide(_Model):
    """The launches of a version."""

    name: PrintableText
    launches: list[ComparedLaunch]

    @property
    def used(self) -> int:
        """How many launches were used."""
        return sum(launch.problem is None for launch in self.launches)


class EnvironmentDifference(_Model):
    """Something that is not the same on both sides, or not in all launches of one."""

    name: str
    base: list[str | None]
    """each value that a launch has; null: not recorded"""

    new: list[str | None]
    decides: bool
    """whether it makes the comparison meaningless"""

    allowed: bool = False
    """whether the user said that it may differ"""

    reason: str | None = None
    """why it makes the comparison meaningless"""

    def values(self, between: str) -> str:
        """Those of the base, and those of the new version."""
        return between.join(" or ".join(value or "not recorded" for value in side) for side in (self.base, self.new))

    @property
    def is_deciding(self) -> bool:
        """Whether nothing can be compared for it."""
        return self.decides and not self.allowed


class SideFigures(_Model):
    """A figure of one side."""

    mean: float | None
    """geometric mean of the launches; null: not measured"""

    spread: float | None
    """relative standard deviation between launches; null: of one launch it is not known"""

    launches: list[float | None]
    """each launch's"""


class ComparedRow(_Model):
    """One figure of a stage, or of the run."""

    stage: str
    """path in the base; empty: of the whole run"""

    new_stage: str | None = None
    """path in the new version, where it is another one"""

    metric: str
    unit: Unit
    base: SideFigures
    new: SideFigures
    verdict: Verdict = "not-comparable"
    """of memory and energy, `slower` means more of it"""

    ratio: float | None = None
    """new over base"""

    interval: Interval | None = None
    """of this row alone"""

    judged_by: Interval | None = None
    """the interval that the verdict rests on: corrected for the number of rows"""

    threshold: float | None = None
    """relative difference that had to be exceeded, both thresholds together"""

    p_different: float | None = None
    """that it is within the threshold, adjusted for the number of rows"""

    p_same: float | None = None
    """that it is beyond the threshold, adjusted for the number of rows"""

    reason: str | None = None
    """of `undecided` and `not-comparable`"""

    launches_needed: int | None = None
    """launches a side that would probably decide it; null: it is decided, more than a thousand, or not known"""

    @property
    def is_proven(self) -> bool:
        """Whether it changed, and not by chance."""
        return self.verdict in ("faster", "slower")

    @property
    def may_be_the_machine(self) -> bool:
        """Whether it changed, and the machine may be why."""
        return self.reason == THE_MACHINE


class NotCompared(_Model):
    """A figure that is in one version only, or in neither measured."""

    stage: str
    metric: str
    reason: str


class UnmatchedStage(_Model):
    """A stage that one version has alone."""

    side: Literal["base", "new"]
    stage: str
    cpu_ms: float | None
    """mean of a batch over the launches; null: not measured"""

    gpu_ms: float | None


class GradedAdvice(_Model):
    """What the advice of the base promised for a stage, and what came of it."""

    stage: str
    cause: str
    advice: PrintableText
    promised_ms: float
    """what mending the cause saves per batch, at most"""

    got_ms: float
    """how much less time a batch takes in the stage; negative: more"""

    is_proven: bool
    """whether the change of the stage's time is faster or slower, and not by chance"""


class ComparedVersion(_Model):
    """One version against the base."""

    side: ComparedSide
    conclusion: PrintableText
    """the comparison in one sentence"""

    order: Order
    """whether the launches of both sides were made in turns"""

    allows_drift: bool
    """whether the intervals are made wider for a machine that drifts"""

    differences: list[EnvironmentDifference]
    rows: list[ComparedRow]
    not_compared: list[NotCompared]
    unmatched: list[UnmatchedStage] = Field(default_factory=list)
    """stages that only one side has"""

    machine_ratio: float | None = None
    """time of the reference loop around the launches, new over base; null: it does not differ, or was not timed"""

    advice: list[GradedAdvice] = Field(default_factory=list)
    remarks: list[PrintableText]
    """what a reader must know of the whole"""

    findings: list[Finding] = Field(default_factory=list)
    """a base that is old, or was measured with another driver or GPU"""

    @property
    def deciding(self) -> list[EnvironmentDifference]:
        """Differences that make the comparison meaningless."""
        return [one for one in self.differences if one.is_deciding]

    @property
    def withheld(self) -> Verdict | None:
        """The verdict of the rows that may be the machine, if it is not."""
        if self.machine_ratio is None or not any(row.may_be_the_machine for row in self.rows):
            return None
        return "slower" if self.machine_ratio > 1 else "faster"


class Comparison(_Model):
    """What `perfharness compare` says. Times are milliseconds."""

    schema_version: int = COMPARISON_VERSION
    created: str
    """UTC, ISO 8601"""

    command: Annotated[list[PrintableText], AfterValidator(mask_arguments)] = Field(default_factory=list)
    rule: Rule
    rows_tested: int
    """how many rows the verdicts are corrected for"""

    base: ComparedSide
    versions: list[ComparedVersion]

    limits: list[LimitResult] = Field(default_factory=list)

    def __repr__(self) -> str:
        return f"<Comparison of {self.base.name} with {len(self.versions)} versions>"

    @property
    def has_nothing(self) -> bool:
        """Whether no row of any version could be compared."""
        return self.verdicts() <= {"not-comparable"}

    def verdicts(self) -> set[Verdict]:
        """All that occur."""
        return {row.verdict for version in self.versions for row in version.rows}

    def _repr_html_(self) -> str | None:
        return notebook_html(self)
