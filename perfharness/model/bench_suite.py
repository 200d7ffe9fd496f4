"""Results of many cases: suites with recommendations, batch size searches, comparisons of machines."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from perfharness.model.base import Record
from perfharness.model.bench import (
    CaseResult,
    CaseStatus,
    Cell,
    Direction,
    Estimate,
    LatencyPercentile,
    MachineRecord,
)
from perfharness.model.checks import MaskedArguments
from perfharness.notebook import notebook_html

BENCH_TABLE_NAME = "bench.parquet"
BENCH_VERSION = 1

SearchEnd = CaseStatus | Literal["latency", "largest-batch", "interrupted"]


class Constraints(Record):
    """Limits for a recommended case; None for no limit."""

    max_latency_ms: float | None = Field(default=None, gt=0)
    latency_percentile: LatencyPercentile = "p95"
    memory_limit_bytes: int | None = Field(default=None, gt=0)
    max_accuracy_loss: float | None = Field(default=None, ge=0)  # in the metric's unit
    accuracy_metric: str | None = None  # None for 1 - cosine with the suite's reference
    accuracy_direction: Direction | None = None  # for a metric of the user
    max_energy_per_item_j: float | None = Field(default=None, gt=0)


class MissedConstraint(Record):
    """A constraint that a case does not meet; `value` is None if not measured, with the `reason`."""

    what: str
    value: float | None = None
    limit: float
    unit: str = ""
    reason: str | None = None


class Exclusion(Record):
    """A case that is not recommended, and the reason."""

    case_id: str
    reason: str
    missed: list[MissedConstraint] = Field(default_factory=list)


class Recommendation(Record):
    """The best case of one model under the constraints, by case id."""

    model: str
    best: str | None = None  # most items per second among those within all constraints, if any
    ties: list[str] = Field(default_factory=list)  # cases whose items per second overlap the best one's interval
    excluded: list[Exclusion] = Field(default_factory=list)
    nearest: str | None = None  # if none meets them: the case with the smallest factor
    why: list[str] = Field(default_factory=list)  # sentences for people


class BatchSearch(Cell):
    """Result of --find-batch for one cell."""

    batch_sizes: list[int]  # in measured order
    batch_size: int | None = None  # largest that ran, or meets the target
    ended_by: SearchEnd | None = None  # why it is not larger
    ended_at_batch: int | None = None  # smallest that was too large; if interrupted, the next one
    target_ms: float | None = None
    figure: LatencyPercentile | None = None  # figure that `target_ms` limits
    reason: str = ""


class BenchSuiteResult(Record):
    """`bench.json`."""

    schema_version: int = BENCH_VERSION
    created: str
    command: MaskedArguments = Field(default_factory=list)
    name: str = "bench"
    seed: int = 0  # for the order of cases
    order: list[str] = Field(default_factory=list)  # case ids in running order
    baseline: str | None = None  # `backend/mode/precision` for speed-ups, at the same model and batch size
    constraints: Constraints = Constraints()
    machine: MachineRecord
    settings: dict[str, str | int | float | bool | None] = Field(default_factory=dict)
    cases: list[CaseResult] = Field(default_factory=list)
    recommendations: list[Recommendation] = Field(default_factory=list)
    searches: list[BatchSearch] = Field(default_factory=list)  # by --find-batch; its cases are in measured order
    complete: bool = True  # whether every case was tried
    remarks: list[str] = Field(default_factory=list)

    def __repr__(self) -> str:
        return f"<BenchSuiteResult {self.name}: {len(self.cases)} cases>"

    def _repr_html_(self) -> str | None:
        return notebook_html(self)


class MergedRun(Record):
    """One of the compared runs."""

    name: str  # of the machine, numbered if not unique
    path: str
    created: str
    machine: MachineRecord
    baseline: str | None = None
    complete: bool = True


class MergedCell(Record):
    """One run's result in a row; `speedup` is against that run's own baseline."""

    run: str
    result: CaseResult | None
    speedup: Estimate | None = None
    reason: str | None = None


class MergedRow(Cell):
    """The same case in all runs; `cells` are in the order of the runs."""

    batch_size: int
    cells: list[MergedCell]


class BenchMergedResult(Record):
    """Comparison of suites."""

    runs: list[MergedRun]
    rows: list[MergedRow]
    differences: list[str] = Field(default_factory=list)  # reasons why they are not comparable
