"""Results over batch sizes: a sweep until memory ends it, and the largest batch that meets a latency target."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from perfharness.model.bench import CaseResult, CaseStatus, Estimate, Precision

SWEEP_NAME = "sweep.json"
SWEEP_VERSION = 1

TargetFigure = Literal["mean", "p50", "p95", "p99"]
"""Figures of the latency that have an interval, so that it can be told whether a target is met."""

Meets = Literal["meets", "misses", "cannot-tell", "not-measured"]
SearchEnd = Literal["latency", "out-of-memory", "memory-limit", "largest-batch", "failed", "measurements"]


class _Model(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class Sweep(_Model):
    """Cases of growing batch size, and why there are no more."""

    cases: list[CaseResult] = Field(default_factory=list)
    ended_by: CaseStatus | None = None
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
    ended_by: Literal["latency", "out-of-memory", "memory-limit", "largest-batch", "failed", "measurements"] | None = (
        None
    )
    undecided: list[int] = Field(default_factory=list)
    proven: bool = False
    """Whether the next larger size was measured and does not meet the target, or is more than was asked for."""

    points: list[TargetPoint] = Field(default_factory=list)
    reason: str = ""
    """All of it in a sentence."""


class CellSweep(_Model):
    """What a sweep or a search found of one cell: model, backend, mode and precision."""

    model: str
    backend: str
    mode: str
    precision: Precision
    device: Literal["cpu", "cuda"]
    batch_sizes: list[int]
    """In the order in which they were measured."""

    ended_by: CaseStatus | None = None
    ended_at_batch: int | None = None
    target: LatencyTarget | None = None
    """Where a latency target was searched for."""

    reason: str | None = None


class SweepFile(_Model):
    """`sweep.json` of `perfharness bench sweep`."""

    schema_version: int = SWEEP_VERSION
    command: list[str] = Field(default_factory=list)
    complete: bool = True
    cells: list[CellSweep] = Field(default_factory=list)
    cases: list[CaseResult] = Field(default_factory=list)
    """Every case that was measured, in order."""
