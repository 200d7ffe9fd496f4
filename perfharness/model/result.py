"""What a run says: the trees of benchmark.json and benchmark_mean.json before they are written."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from perfharness.model.findings import Finding

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
class BatchLoop:
    """The batches of one loop of one process, in order of start.

    `path` is recorder, ranges and batch name; `items` holds None for a batch that counted none; times are UTC
    nanoseconds, or the trace's own where it does not tell the time.
    """

    path: Path
    start_ns: list[int]
    end_ns: list[int]
    items: list[int | None]
    warmup: list[bool]


@dataclass(frozen=True)
class ProcessResult:
    """The result of one measured process.

    `values_minus_warmup` holds, per path and key, one value for each batch that is not set apart (None: not measured):
    what statistics over several processes are pooled from.
    """

    data: Tree
    mean_data: Tree
    stats_minus_warmup: Tree
    values_minus_warmup: dict[Path, dict[str, list[float | None]]]
    loops: list[BatchLoop]
    clock_is_utc: bool
    findings: list[Finding]
    meta: dict[str, Any] = field(default_factory=dict)
