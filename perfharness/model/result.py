"""The results of a run: the trees of benchmark.json and benchmark_mean.json before they are written."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from perfharness.model.columns import Bool, Int64
from perfharness.model.columns import Float64 as Float64
from perfharness.model.diagnosis import Diagnosis
from perfharness.model.diagnosis import Path as Path
from perfharness.model.findings import Finding
from perfharness.model.manifest import BENCHMARK_MEAN_NAME as BENCHMARK_MEAN_NAME
from perfharness.model.manifest import BENCHMARK_NAME as BENCHMARK_NAME

SCHEMA_VERSION = 1

Tree = dict[str, Any]
"""Names to sub-trees and keys to numbers, nested as the ranges are; times in ms."""

TIMES = ("cpu_time", "gpu_time", "gpu_busy_time")
RESERVED_KEYS = frozenset(
    {"count", "total_items", "total_items_minus_warmup", "warmup", "throttled", "throttle_reasons", "batches"}
    | {f"{time}{suffix}" for time in TIMES for suffix in ("", "_per_item", "_minus_warmup", "_per_item_minus_warmup")}
)
"""Keys of numbers in an entry; no entry inside it has one of them as its key."""

PER_ITEM = "_per_item"  # ends the keys of times per item, or precedes `_minus_warmup`
NO_INDEX = -1  # index of an entry whose key has none behind its name


def path_text(path: Path) -> str:
    """A path in one text: its keys joined by slashes, with a backslash before slashes and backslashes in them."""
    return "/".join(key.replace("\\", "\\\\").replace("/", "\\/") for key in path)


def path_of(text: str) -> Path:
    """The path that `path_text` wrote."""
    keys = re.findall(r"(?:^|/)((?:[^/\\]|\\.)*)", text, re.DOTALL)
    return tuple(re.sub(r"\\(.)", r"\1", key, flags=re.DOTALL) for key in keys)


def last_key(text: str) -> str:
    """The last key of a path that `path_text` wrote."""
    return path_of(text)[-1]


@dataclass(frozen=True)
class Statistics:
    """Summary of one number over batches without warm-up: sample standard deviation, interpolated percentiles.

    None: too few values (p90 10, p95 20, p99 100, std 2), or one was not measured.
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

    def to_json(self) -> dict[str, float | int | None]:
        """As it stands in the files."""
        return dict(vars(self))


@dataclass(frozen=True)
class BatchValues:
    """One value per batch in which a path occurs, by key, summed over its occurrences.

    Keys are those of `TIMES` (ms, NaN: not measured), `count`, and `items` of the batch (NaN: not counted).
    """

    values: Mapping[str, Float64]
    warmup: Bool
    is_batch: bool  # the path is that of the batch itself


@dataclass(frozen=True)
class BatchLoop:
    """The batches of one loop of one process, in order of start; columns of one length."""

    path: Path  # recorder, ranges and batch name
    start_ns: Int64  # UTC, or the trace's own time where it has none
    end_ns: Int64
    items: Float64  # NaN: not counted
    warmup: Bool
    throttled: Bool | None = None  # the GPU was throttled meanwhile; None: not known
    barrier_opened_ns: int | None = None  # None: no start barrier

    @property
    def count(self) -> int:
        """How many batches."""
        return len(self.warmup)

    @property
    def count_minus_warmup(self) -> int:
        """How many of them are not excluded."""
        return int((~self.warmup).sum())


@dataclass(frozen=True)
class Entries:
    """Sums of each entry of `data`, in the order in which they are written; recorders included.

    `sums` has the keys of `TIMES`, `count`, `items`, `items_left` and, for entries around batches, `TIME_left`, without
    warm-up. `holds_batches`: whether batches lie below; of a recorder, batches without a range around them.
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
    """A tree of ranges with their numbers, in columns; one row per entry, each before those inside it.

    `depth` is 0 for recorders. An entry's key is `names[name]`, followed by `_index` if that is not `NO_INDEX`.
    `numbers` has by key the rows that have the number, and the values: floats (NaN is null), flags, or, of
    `throttle_reasons`, the bits of `reasons`.
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
    """A stage outside of any batch: its times (ms), one value per occurrence."""

    path: Path
    times: Mapping[str, Float64]


@dataclass(frozen=True)
class FirstCuda:
    """The first CUDA calls that a trace holds; UTC nanoseconds."""

    first_call_unix_ns: int
    first_work_end_unix_ns: int | None  # end of the first call that needs a context: an allocation, a copy, a launch


@dataclass(frozen=True)
class GpuWork:
    """Busy times of a process's GPU by stage, UTC ns, merged."""

    stages: tuple[str, ...] = ()  # paths of benchmark.json
    busy: tuple[tuple[Int64, Int64], ...] = ()
    reason: str | None = None  # why they are not known

    def all_busy(self) -> tuple[Int64, Int64]:
        """All of it, as starts and ends."""
        starts = [start for start, _ in self.busy] or [np.empty(0, dtype=np.int64)]
        ends = [end for _, end in self.busy] or [np.empty(0, dtype=np.int64)]
        return np.concatenate(starts), np.concatenate(ends)


@dataclass(frozen=True)
class ProcessResult:
    """The result of one measured process."""

    names: list[str]  # recorders, or domains of plain NVTX
    make_entries: Callable[[], Entries]
    values: Mapping[Path, BatchValues]  # all batches: what means and statistics, of several processes too, are made of
    mean_data: Tree
    stats_minus_warmup: Tree
    loops: list[BatchLoop]
    clock_is_utc: bool
    findings: list[Finding]
    outside: list[OutsideStage] = field(default_factory=list)  # without batches: all stages
    of_others: frozenset[Path] = frozenset()  # stages that the recorder of their batch did not make
    meta: dict[str, Any] = field(default_factory=dict)
    first_cuda: FirstCuda | None = None  # None: no such call, or no UTC time
    diagnosis: Diagnosis | None = None  # None: not asked for
    gpu_work: tuple[GpuWork, ...] = ()  # by GPU, in the manifest's order; empty: not asked for

    @cached_property
    def entries(self) -> Entries:
        """All ranges, every batch under its own name; made when first asked for, for it may be larger than the rest."""
        return self.make_entries()

    @cached_property
    def values_minus_warmup(self) -> dict[Path, dict[str, Float64]]:
        """The values of the batches that are not excluded, by path and key; of batches also `total_items`."""
        found = {}
        for path, of in self.values.items():
            found[path] = {key: column[~of.warmup] for key, column in of.values.items()}
            if of.is_batch:
                found[path]["total_items"] = found[path]["items"]
        return found
