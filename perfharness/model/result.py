"""What a run says: the trees of benchmark.json and benchmark_mean.json before they are written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from perfharness.model.diagnosis import Diagnosis
from perfharness.model.findings import Finding
from perfharness.model.gpu_work import GpuWork
from perfharness.model.trace import Bool, Int64

Float64 = npt.NDArray[np.float64]

SCHEMA_VERSION = 1
BENCHMARK_NAME = "benchmark.json"
BENCHMARK_MEAN_NAME = "benchmark_mean.json"

Tree = dict[str, Any]
"""Names to sub-trees and keys to numbers, nested as the ranges are; times in ms."""

Path = tuple[str, ...]


@dataclass(frozen=True)
class Statistics:
    """Summary of one number over batches; None where there are too few values to mean anything."""

    count: int
    mean: float | None
    std: float | None
    min: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    max: float | None

    def to_json(self) -> dict[str, float | int | None]:
        """As it stands in the files."""
        return asdict(self)


@dataclass(frozen=True)
class BatchValues:
    """One value per batch, by key, in order of the batches; NaN: not measured. `warmup` tells those set apart."""

    values: dict[str, Float64]
    warmup: Bool

    def without_warmup(self) -> dict[str, Float64]:
        """The values of the batches that are not set apart."""
        return {key: column[~self.warmup] for key, column in self.values.items()}


@dataclass(frozen=True)
class BatchLoop:
    """The batches of one loop of one process, in order of start; columns of one length.

    `path` is recorder, ranges and batch name; `items` is NaN for a batch that counted none; times are UTC nanoseconds,
    or the trace's own where it does not tell the time.
    """

    path: Path
    start_ns: Int64
    end_ns: Int64
    items: Float64
    warmup: Bool
    throttled: Bool | None = None
    """Batches during which the GPU's clocks were kept down; None where that is not known."""

    rejected: Bool | None = None
    """Those of them, warm-up apart, that were set apart for it: they are in `warmup` too."""

    @property
    def only_warmup(self) -> Bool:
        """Those that are set apart as warm-up."""
        return self.warmup if self.rejected is None else self.warmup & ~self.rejected

    @property
    def count(self) -> int:
        """How many batches."""
        return len(self.warmup)

    @property
    def count_minus_warmup(self) -> int:
        """How many of them are not set apart."""
        return int((~self.warmup).sum())


@dataclass(frozen=True)
class ProcessResult:
    """The result of one measured process.

    `values_minus_warmup` holds, per path and key, one value for each batch that is not set apart: what statistics over
    several processes are pooled from. `build_data` makes the tree of all batches, which nobody may want.
    """

    names: list[str]
    """Recorders, or domains of plain NVTX, that the result is about."""

    build_data: Callable[[], Tree]
    mean_data: Tree
    stats_minus_warmup: Tree
    values_minus_warmup: dict[Path, dict[str, Float64]]
    loops: list[BatchLoop]
    clock_is_utc: bool
    findings: list[Finding]
    meta: dict[str, Any] = field(default_factory=dict)
    diagnosis: Diagnosis | None = None
    """None where it was not asked for."""

    gpu_work: GpuWork | None = None
    """None where it was not asked for: it is what joins the trace to the sensors of a run."""

    @cached_property
    def data(self) -> Tree:
        """Every range under its own name, every batch with its index."""
        return self.build_data()
