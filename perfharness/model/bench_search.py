"""Results over batch sizes: a sweep until memory ends it, and the largest batch that meets a latency target."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from perfharness.model.bench import CaseResult, CaseStatus, Estimate, MachineRecord, Precision
from perfharness.model.checks import MaskedArguments

SWEEP_NAME = "sweep.json"
SWEEP_TABLE_NAME = "sweep.parquet"
SWEEP_VERSION = 1

TargetFigure = Literal["mean", "p50", "p95", "p99"]
"""Figures of the latency that have an interval, by which a target is met or missed."""

Meets = Literal["meets", "misses", "cannot-tell", "not-measured"]
SearchEnd = Literal[
    "latency", "undecided", "out-of-memory", "memory-limit", "largest-batch", "failed", "measurements", "interrupted"
]
SweepEnd = CaseStatus | Literal["interrupted"]
"""What a case became, or that the user ended it."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class Sweep(_Model):
    """Cases of growing batch size, and why there are no more."""

    cases: list[CaseResult] = Field(default_factory=list)
    ended_by: SweepEnd | None = None
    """What the last case became where that ended the sweep; None: all sizes were measured."""

    ended_at_batch: int | None = None
    reason: str | None = None


class TargetPoint(_Model):
    """One measurement of a search, in the order in which they were made."""

    batch_size: int
    step: Literal["doubling", "bisection", "neighbour"]
    status: CaseStatus
    latency: Estimate | None = None
    """The figure that the target is of, milliseconds."""

    meets: Meets
    reason: str | None = None


class LatencyTarget(_Model):
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


class CellSweep(_Model):
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


class SweepFile(_Model):
    """`sweep.json` of `perfharness bench sweep`, written after every case.

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
