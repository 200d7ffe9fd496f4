"""Results of many cases: a suite and what it recommends, searches of batch sizes, several machines side by side."""

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
    """What a recommended case must keep to; None: anything goes."""

    max_latency_ms: float | None = Field(default=None, gt=0)
    latency_percentile: LatencyPercentile = "p95"
    memory_limit_bytes: int | None = Field(default=None, gt=0)
    max_accuracy_loss: float | None = Field(default=None, ge=0)  # in the metric's unit
    accuracy_metric: str | None = None  # None: 1 - cosine of the outputs against the suite's reference
    accuracy_direction: Direction | None = None  # of a metric of the user's
    max_energy_per_item_j: float | None = Field(default=None, gt=0)


class MissedConstraint(Record):
    """A constraint that a case does not meet; `value` is None where it was not measured, with the `reason`."""

    what: str
    value: float | None = None
    limit: float
    unit: str = ""
    reason: str | None = None


class Exclusion(Record):
    """A case that is not recommended, and why."""

    case_id: str
    reason: str
    missed: list[MissedConstraint] = Field(default_factory=list)


class Recommendation(Record):
    """The best case of one model under the constraints, by case id."""

    model: str
    best: str | None = None  # most items per second of those that meet all constraints; None: none does
    ties: list[str] = Field(default_factory=list)  # cases whose interval of items per second overlaps the best one's
    excluded: list[Exclusion] = Field(default_factory=list)
    nearest: str | None = None  # where none meets them: the case that misses them by the smallest factor
    why: list[str] = Field(default_factory=list)  # sentences for people


class BatchSearch(Cell):
    """What --find-batch found of one cell."""

    batch_sizes: list[int]  # in the order in which they were measured
    batch_size: int | None = None  # the largest that ran, or that meets the target
    ended_by: SearchEnd | None = None  # why it is not a larger one
    ended_at_batch: int | None = None  # the smallest that was too large; after an interrupt the next one
    target_ms: float | None = None
    figure: LatencyPercentile | None = None  # of the latency, that `target_ms` is of
    reason: str = ""


class BenchSuiteResult(Record):
    """`bench.json`."""

    schema_version: int = BENCH_VERSION
    created: str
    command: MaskedArguments = Field(default_factory=list)
    name: str = "bench"
    seed: int = 0  # of the order of the cases
    order: list[str] = Field(default_factory=list)  # case ids as they were run
    baseline: str | None = None  # of speed-ups: `backend/mode/precision`, at the same model and batch size
    constraints: Constraints = Constraints()
    machine: MachineRecord
    settings: dict[str, str | int | float | bool | None] = Field(default_factory=dict)
    cases: list[CaseResult] = Field(default_factory=list)
    recommendations: list[Recommendation] = Field(default_factory=list)
    searches: list[BatchSearch] = Field(default_factory=list)  # of --find-batch; its cases are in order of measurement
    complete: bool = True  # every case was tried
    remarks: list[str] = Field(default_factory=list)

    def __repr__(self) -> str:
        return f"<BenchSuiteResult {self.name}: {len(self.cases)} cases>"

    def _repr_html_(self) -> str | None:
        return notebook_html(self)


class MergedRun(Record):
    """One of the runs that are side by side."""

    name: str  # of the machine, with a number where it is not unique
    path: str
    created: str
    machine: MachineRecord
    baseline: str | None = None
    complete: bool = True


class MergedCell(Record):
    """What one run has for a row; `speedup` is against that run's own baseline."""

    run: str
    result: CaseResult | None
    speedup: Estimate | None = None
    reason: str | None = None


class MergedRow(Cell):
    """The same case of all runs; `cells` in the order of the runs."""

    batch_size: int
    cells: list[MergedCell]


class BenchMergedResult(Record):
    """Suites side by side."""

    runs: list[MergedRun]
    rows: list[MergedRow]
    differences: list[str] = Field(default_factory=list)  # that keep them from being comparable
