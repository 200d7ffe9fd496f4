"""Results of a run: trees of benchmark.json and benchmark_mean.json before they are written."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from perfharness.model.columns import Bool, Float64, Int64
from perfharness.model.diagnosis import Diagnosis
from perfharness.model.diagnosis import Path as Path
from perfharness.model.findings import Finding
from perfharness.model.manifest import BENCHMARK_MEAN_NAME as BENCHMARK_MEAN_NAME
from perfharness.model.manifest import BENCHMARK_NAME as BENCHMARK_NAME

SCHEMA_VERSION = 1

Tree = dict[str, Any]
"""Names to sub-trees and keys to numbers, nested like the ranges; times in ms."""

TIMES = ("cpu_time", "gpu_time", "gpu_busy_time")
RESERVED_KEYS = frozenset(
    {"count", "total_items", "total_items_minus_warmup", "warmup", "throttled", "throttle_reasons", "batches"}
    | {f"{time}{suffix}" for time in TIMES for suffix in ("", "_per_item", "_minus_warmup", "_per_item_minus_warmup")}
)
"""Keys of numbers in an entry, which inner entries never have as names."""

PER_ITEM = "_per_item"  # suffix of times per item, optionally followed by `_minus_warmup`
NO_INDEX = -1  # for an entry without an index in its key


def path_text(path: Path) -> str:
    """Join a path with slashes; slashes and backslashes in keys are escaped with a backslash."""
    return "/".join(key.replace("\\", "\\\\").replace("/", "\\/") for key in path)


def path_of(text: str) -> Path:
    """Parse the output of `path_text`."""
    keys = re.findall(r"(?:^|/)((?:[^/\\]|\\.)*)", text, re.DOTALL)
    return tuple(re.sub(r"\\(.)", r"\1", key, flags=re.DOTALL) for key in keys)


def last_key(text: str) -> str:
    """Last key of a path from `path_text`."""
    return path_of(text)[-1]


@dataclass(frozen=True)
class Statistics:
    """Summary of one number over batches without warm-up: sample standard deviation, interpolated percentiles.

    None for too few values (p90 10, p95 20, p99 100, std 2), or if any was not measured.
    """

    count: int
    mean: float | None
    std: float | None
    min: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    max: float | None


@dataclass(frozen=True)
class BatchValues:
    """One value per batch in which a path occurs, by key, summed over its occurrences.

    Keys are those of `TIMES` (ms, NaN if not measured), `count`, and `items` of the batch (NaN if not counted).
    """

    values: Mapping[str, Float64]
    warmup: Bool
    is_batch: bool  # the path is the batch itself


@dataclass(frozen=True)
class BatchLoop:
    """Batches of one loop of one process, ordered by start; columns of one length."""

    path: Path  # recorder, ranges and batch name
    start_ns: Int64  # UTC, or trace time if unknown
    end_ns: Int64
    items: Float64  # NaN if not counted
    warmup: Bool
    throttled: Bool | None = None  # the GPU was throttled; None if unknown
    barrier_opened_ns: int | None = None  # None without a start barrier

    @property
    def count(self) -> int:
        """Number of batches."""
        return len(self.warmup)

    @property
    def count_minus_warmup(self) -> int:
        """Number of batches without warm-up."""
        return int((~self.warmup).sum())


@dataclass(frozen=True)
class Entries:
    """Sums of each entry of `data`, in written order; including recorders.

    `sums` has the keys of `TIMES`, `count`, `items`, `items_left` and, for entries around batches, `TIME_left`, without
    warm-up. `holds_batches`: whether there are batches inside; for a recorder, batches without a range around them.
    """

    names: list[str]
    name: Int64
    index: Int64
    depth: Int64
    parent: Int64
    sums: Mapping[str, Float64]
    is_batch: Bool
    is_inside: Bool
    holds_batches: Bool
    warmup: Bool
    reasons: tuple[str, ...] | None
    throttled: Int64  # bits of `reasons`

    def __len__(self) -> int:
        return len(self.name)


@dataclass(frozen=True)
class EntryTable:
    """A tree of ranges with their numbers, in columns; one row per entry, outer before inner.

    `depth` is 0 for recorders. An entry's key is `names[name]`, followed by `_index` unless that is `NO_INDEX`.
    `numbers`: by key, the rows with that number, and the values: floats (NaN is null), flags, or for
    `throttle_reasons` the bits of `reasons`.
    """

    names: list[str]
    name: Int64
    index: Int64
    depth: Int64
    numbers: Mapping[str, tuple[Int64, Float64 | Bool | Int64]]
    reasons: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.name)


@dataclass(frozen=True)
class OutsideStage:
    """A stage outside all batches: its times (ms), one value per occurrence."""

    path: Path
    times: Mapping[str, Float64]


@dataclass(frozen=True)
class FirstCuda:
    """First CUDA calls of a trace; UTC nanoseconds."""

    first_call_unix_ns: int
    first_work_end_unix_ns: int | None  # end of the first call that needs a context: an allocation, a copy, a launch


@dataclass(frozen=True)
class GpuWork:
    """Busy times of a process's GPU by stage, UTC ns, merged."""

    stages: tuple[str, ...] = ()  # paths of benchmark.json
    busy: tuple[tuple[Int64, Int64], ...] = ()
    reason: str | None = None  # why they are unknown


@dataclass(frozen=True)
class ProcessResult:
    """The result of one measured process."""

    names: list[str]  # recorders, or domains of plain NVTX
    make_entries: Callable[[], Entries]
    values: Mapping[Path, BatchValues]  # all batches, the basis of means and statistics over processes
    mean_data: Tree
    stats_minus_warmup: Tree
    loops: list[BatchLoop]
    clock_is_utc: bool
    findings: list[Finding]
    outside: list[OutsideStage] = field(default_factory=list)  # all stages if there are no batches
    of_others: frozenset[Path] = frozenset()  # stages not made by their batch's recorder
    meta: dict[str, Any] = field(default_factory=dict)
    first_cuda: FirstCuda | None = None  # None without such calls or UTC time
    diagnosis: Diagnosis | None = None  # None if not requested
    gpu_work: tuple[GpuWork, ...] = ()  # by GPU, in the manifest's order; empty if not requested

    @cached_property
    def entries(self) -> Entries:
        """All ranges, every batch under its own name; built on first use, because they may be large."""
        return self.make_entries()

    @cached_property
    def values_minus_warmup(self) -> dict[Path, dict[str, Float64]]:
        """Values of batches without warm-up, by path and key; for batches also `total_items`."""
        found = {}
        for path, of in self.values.items():
            found[path] = {key: column[~of.warmup] for key, column in of.values.items()}
            if of.is_batch:
                found[path]["total_items"] = found[path]["items"]
        return found
