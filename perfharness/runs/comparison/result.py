"""Result of a comparison of versions. Written as JSON, so validated."""

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

THE_MACHINE = "the machine itself changed in the same direction, at least half as much"
"""Reason why a change of a time or rate is undecided."""


class _Model(Record, use_attribute_docstrings=True):
    """Base class whose fields are described in JSON schemas."""


class ComparedLaunch(_Model):
    """One launch of a side."""

    folder: PrintableText
    run_id: str
    created: str | None
    problem: str | None = None
    """why the launch is not used, or null"""

    errors: list[str] = Field(default_factory=list)
    """codes of findings of severity error"""


class ComparedSide(_Model):
    """Launches of a version."""

    name: PrintableText
    launches: list[ComparedLaunch]

    @property
    def used(self) -> int:
        """Number of used launches."""
        return sum(launch.problem is None for launch in self.launches)


class EnvironmentDifference(_Model):
    """A difference between the sides, or between launches of one side."""

    name: str
    base: list[str | None]
    """distinct values of the launches; null if not recorded"""

    new: list[str | None]
    decides: bool
    """whether the difference makes the comparison meaningless"""

    allowed: bool = False
    """whether the user allows the difference"""

    reason: str | None = None
    """why the difference makes the comparison meaningless"""

    def values(self, between: str) -> str:
        """Values of the base and of the new version as text."""
        return between.join(" or ".join(value or "not recorded" for value in side) for side in (self.base, self.new))

    @property
    def is_deciding(self) -> bool:
        """Whether the difference prevents the comparison."""
        return self.decides and not self.allowed


class SideFigures(_Model):
    """A figure of one side."""

    mean: float | None
    """geometric mean of the launches, or null if not measured"""

    spread: float | None
    """relative standard deviation between launches, or null for one launch"""

    launches: list[float | None]
    """value per launch"""


class ComparedRow(_Model):
    """One figure of a stage, or of the run."""

    stage: str
    """path in the base; empty for the run"""

    new_stage: str | None = None
    """path in the new version, if different"""

    metric: str
    unit: Unit
    base: SideFigures
    new: SideFigures
    verdict: Verdict = "not-comparable"
    """for memory and energy, `slower` means more"""

    ratio: float | None = None
    """new over base"""

    interval: Interval | None = None
    """interval of this row alone"""

    judged_by: Interval | None = None
    """interval for the verdict, corrected for the number of rows"""

    threshold: float | None = None
    """relative difference to exceed, both thresholds together"""

    p_different: float | None = None
    """p-value of a difference beyond the threshold, adjusted for the number of rows"""

    p_same: float | None = None
    """p-value of a difference within the threshold, adjusted for the number of rows"""

    reason: str | None = None
    """reason for `undecided` or `not-comparable`"""

    launches_needed: int | None = None
    """launches per side that would probably decide; null if decided, unknown, or more than a thousand"""

    @property
    def is_proven(self) -> bool:
        """Whether the figure changed significantly."""
        return self.verdict in ("faster", "slower")

    @property
    def may_be_the_machine(self) -> bool:
        """Whether the machine may have caused the change."""
        return self.reason == THE_MACHINE


class NotCompared(_Model):
    """A figure that cannot be compared."""

    stage: str
    metric: str
    reason: str


class UnmatchedStage(_Model):
    """A stage of one side only."""

    side: Literal["base", "new"]
    stage: str
    cpu_ms: float | None
    """mean per batch over the launches, or null if not measured"""

    gpu_ms: float | None


class GradedAdvice(_Model):
    """Time that advice on the base promised for a stage, and time saved."""

    stage: str
    cause: str
    advice: PrintableText
    promised_ms: float
    """largest possible saving per batch"""

    got_ms: float
    """saving per batch; negative if slower"""

    is_proven: bool
    """whether the change of the stage's time is significant"""


class ComparedVersion(_Model):
    """One version against the base."""

    side: ComparedSide
    conclusion: PrintableText
    """the comparison in one sentence"""

    order: Order
    """whether both sides were launched in turns"""

    allows_drift: bool
    """whether intervals are wider because the machine may have drifted"""

    differences: list[EnvironmentDifference]
    rows: list[ComparedRow]
    not_compared: list[NotCompared]
    unmatched: list[UnmatchedStage] = Field(default_factory=list)
    """stages of one side only"""

    machine_ratio: float | None = None
    """time of the reference loop, new over base; null if not timed or not different"""

    advice: list[GradedAdvice] = Field(default_factory=list)
    remarks: list[PrintableText]
    """remarks on the machine, the launches and the accuracy"""

    findings: list[Finding] = Field(default_factory=list)
    """base that is old or was measured with a different driver or GPU"""

    @property
    def deciding(self) -> list[EnvironmentDifference]:
        """Differences that make the comparison meaningless."""
        return [one for one in self.differences if one.is_deciding]

    @property
    def withheld(self) -> Verdict | None:
        """Verdict withheld from rows whose change the machine may have caused."""
        if self.machine_ratio is None or not any(row.may_be_the_machine for row in self.rows):
            return None
        return "slower" if self.machine_ratio > 1 else "faster"


class Comparison(_Model):
    """Result of `perfharness compare`. Times are milliseconds."""

    schema_version: int = COMPARISON_VERSION
    created: str
    """UTC, ISO 8601"""

    command: Annotated[list[PrintableText], AfterValidator(mask_arguments)] = Field(default_factory=list)
    rule: Rule
    rows_tested: int
    """number of rows that verdicts are corrected for"""

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
        """Distinct verdicts of all rows."""
        return {row.verdict for version in self.versions for row in version.rows}

    def _repr_html_(self) -> str | None:
        return notebook_html(self)
