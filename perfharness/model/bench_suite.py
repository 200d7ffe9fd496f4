"""Results of many cases: a suite and what it recommends, a sweep over batch sizes, several machines side by side.

Read back, so validated; what a case is stands in `model.bench`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from perfharness.model.base import Record
from perfharness.model.bench import (
    CaseResult,
    CaseStatus,
    Direction,
    Estimate,
    LatencyPercentile,
    MachineRecord,
    Precision,
)
from perfharness.model.checks import MaskedArguments
from perfharness.notebook import notebook_html

BENCH_TABLE_NAME = "bench.parquet"
BENCH_VERSION = 1
SWEEP_NAME = "sweep.json"
SWEEP_TABLE_NAME = "sweep.parquet"
SWEEP_VERSION = 1

TargetFigure = Literal["mean", "p50", "p95", "p99"]
"""Figures of the latency that have an interval, by which a target is met or missed."""

SearchStep = Literal["doubling", "bisection", "neighbour"]
Meets = Literal["meets", "misses", "cannot-tell", "not-measured"]
SearchEnd = Literal[
    "latency", "undecided", "out-of-memory", "memory-limit", "largest-batch", "failed", "measurements", "interrupted"
]
SweepEnd = CaseStatus | Literal["interrupted"]
"""What a case became, or that the user ended it."""


class Constraints(Record):
    """What a recommended case must keep to; None: anything goes.

    `max_accuracy_loss` is in the metric's own unit (`accuracy_metric`); None for the metric: 1 - cosine of the outputs
    against the suite's reference. `accuracy_direction`: which values of a metric of the user's are better.
    """

    max_latency_ms: float | None = Field(default=None, gt=0)
    latency_percentile: LatencyPercentile = "p95"
    memory_limit_bytes: int | None = Field(default=None, gt=0)
    max_accuracy_loss: float | None = Field(default=None, ge=0)
    accuracy_metric: str | None = None
    accuracy_direction: Direction | None = None
    max_energy_per_item_j: float | None = Field(default=None, gt=0)


class MissedConstraint(Record):
    """A constraint that a case does not meet; `value` is None where it was not measured, with the `reason`."""

    what: str
    value: float | None = None
    limit: float
    unit: str = ""
    reason: str | None = None


class Exclusion(Record):
    """A case that is not recommended, the one sentence why, and the constraints where they are why."""

    case_id: str
    reason: str
    missed: list[MissedConstraint] = Field(default_factory=list)


class Recommendation(Record):
    """The best case of one model under the constraints.

    Args:
        best: of the cases that meet all constraints, the one with the most items per second; None: none meets them.
        ties: cases whose interval of items per second overlaps the best one's.
        nearest: where none meets the constraints: the case that misses them by the smallest factor.
        why: sentences for people, in addition to the other fields.
    """

    model: str
    best: str | None = None
    ties: list[str] = Field(default_factory=list)
    excluded: list[Exclusion] = Field(default_factory=list)
    nearest: str | None = None
    why: list[str] = Field(default_factory=list)


class BenchSuiteResult(Record):
    """`bench.json`.

    Args:
        name: of the suite.
        suite_sha256: of all that decides what is measured, so that `--resume` can detect a changed suite.
        seed: of the order of the cases.
        order: case ids as they were run.
        baseline: what speed-ups are against: `backend/mode/precision`, at the same model and batch size.
        complete: whether every case was tried.
        remarks: what a reader must know of the whole.
    """

    schema_version: int = BENCH_VERSION
    created: str
    command: MaskedArguments = Field(default_factory=list)
    name: str = "bench"
    suite_sha256: str | None = None
    seed: int = 0
    order: list[str] = Field(default_factory=list)
    baseline: str | None = None
    constraints: Constraints = Constraints()
    machine: MachineRecord
    settings: dict[str, str | int | float | bool | None] = Field(default_factory=dict)
    cases: list[CaseResult] = Field(default_factory=list)
    recommendations: list[Recommendation] = Field(default_factory=list)
    complete: bool = True
    remarks: list[str] = Field(default_factory=list)

    def _repr_html_(self) -> str | None:
        return notebook_html(self)


class Sweep(Record):
    """Cases of growing batch size, and why there are no more."""

    cases: list[CaseResult] = Field(default_factory=list)
    ended_by: SweepEnd | None = None
    """What the last case became where that ended the sweep; None: all sizes were measured."""

    ended_at_batch: int | None = None
    reason: str | None = None


class TargetPoint(Record):
    """One measurement of a search, in the order in which they were made."""

    batch_size: int
    step: SearchStep
    status: CaseStatus
    latency: Estimate | None = None
    """The figure that the target is of, milliseconds."""

    meets: Meets
    reason: str | None = None


class LatencyTarget(Record):
    """The largest batch size that meets a target, with the measurements that prove it.

    `batch_size` meets the target with the whole 95 % interval of the figure; None: none does. `ended_by` is why not a
    larger one. `undecided` are larger sizes whose interval has the target inside.
    """

    target_ms: float
    figure: TargetFigure
    batch_size: int | None = None
    ended_by: SearchEnd | None = None
    undecided: list[int] = Field(default_factory=list)
    proven: bool = False
    """Whether the next larger size certainly does not meet the target, or is more than was asked for; and no larger one
    is undecided."""

    points: list[TargetPoint] = Field(default_factory=list)
    reason: str = ""
    """All of it in a sentence."""


class CellSweep(Record):
    """What a sweep or a search found of one cell: model, backend with its settings, mode and precision."""

    model: str
    backend: str
    mode: str
    precision: Precision
    device: Literal["cpu", "cuda"]
    variant: str = ""
    batch_sizes: list[int]
    """In the order in which they were measured."""

    case_ids: list[str] = Field(default_factory=list)
    """Likewise."""

    ended_by: SweepEnd | None = None
    """None: all sizes were measured, or `target` has the reason. `interrupted`: the state at that time."""

    ended_at_batch: int | None = None
    """Which ended it; of one that was interrupted the next one, which has not been measured."""

    target: LatencyTarget | None = None
    """Where a latency target was searched for."""

    reason: str | None = None


class SweepFile(Record):
    """`sweep.json` of `perfharness bench --find-batch`, written after every case.

    Args:
        complete: whether every cell came to its end.
        remarks: what a reader must know of the whole.
    """

    schema_version: int = SWEEP_VERSION
    created: str = ""
    command: MaskedArguments = Field(default_factory=list)
    machine: MachineRecord = MachineRecord(hostname="")
    settings: dict[str, str | int | float | bool | None] = Field(default_factory=dict)
    smallest: int | None = None
    largest: int | None = None
    memory_limit_bytes: int | None = None
    target_ms: float | None = None
    figure: TargetFigure | None = None
    """Of the latency, that `target_ms` is of."""

    complete: bool = True
    cells: list[CellSweep] = Field(default_factory=list)
    cases: list[CaseResult] = Field(default_factory=list)
    """Every case that was measured, in order."""

    remarks: list[str] = Field(default_factory=list)


class MergedRun(Record):
    """One of the runs that are side by side; `name` is the machine's, with the folder's where it comes twice.

    Runs of one machine have the same `machine_number`.
    """

    name: str
    path: str
    created: str
    machine: MachineRecord
    machine_number: int = 1
    baseline: str | None = None
    complete: bool = True


class MergedCell(Record):
    """What one run has for a row; `speedup` is against that run's own baseline."""

    run: str
    result: CaseResult | None
    speedup: Estimate | None = None
    reason: str | None = None


class MergedRow(Record):
    """The same model, backend with its settings, mode, precision and batch size; `cells` in the order of the runs.

    `device` is empty but where one run has the others on several.
    """

    model: str
    backend: str
    mode: str
    precision: Precision
    variant: str = ""
    device: str = ""
    batch_size: int
    cells: list[MergedCell]


class BenchMergedResult(Record):
    """Suites side by side. `differences`: what keeps them from being comparable, one sentence each."""

    runs: list[MergedRun]
    rows: list[MergedRow]
    differences: list[str] = Field(default_factory=list)
