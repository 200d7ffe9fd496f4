"""The results of a run: the trees of benchmark.json and benchmark_mean.json before they are written."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from perfharness.model.diagnosis import Diagnosis
from perfharness.model.findings import Finding
from perfharness.model.manifest import BENCHMARK_MEAN_NAME as BENCHMARK_MEAN_NAME
from perfharness.model.manifest import BENCHMARK_NAME as BENCHMARK_NAME
from perfharness.model.trace import Bool, Int64

Float64 = npt.NDArray[np.float64]

SCHEMA_VERSION = 1

Tree = dict[str, Any]
"""Names to sub-trees and keys to numbers, nested as the ranges are; times in ms."""

Path = tuple[str, ...]
"""Recorder and keys of the entries around and of one, the outermost first."""

TIMES = ("cpu_time", "gpu_time", "gpu_busy_time")

RESERVED_KEYS = frozenset(
    {"count", "total_items", "total_items_minus_warmup", "warmup", "throttled", "throttle_reasons", "batches"}
    | {"start_barrier_wait"}
    | {f"{time}{suffix}" for time in TIMES for suffix in ("", "_per_item", "_minus_warmup", "_per_item_minus_warmup")}
)
"""Keys of numbers in an entry; no entry inside it has one of them as its key."""

NO_INDEX = -1
"""Index of an entry whose key has none behind its name."""


def path_text(path: Path) -> str:
    """A path in one text: its keys joined by slashes, with a backslash before slashes and backslashes in them."""
    return "/".join(key.replace("\\", "\\\\").replace("/", "\\/") for key in path)


def path_of(text: str) -> Path:
    """The path that `path_text` wrote."""
    keys = re.findall(r"(?:^|/)((?:[^/\\]|\\.)*)", text, re.DOTALL)
    return tuple(re.sub(r"\\(.)", r"\1", key, flags=re.DOTALL) for key in keys)


def last_key(text: str) -> str:
    """The last key of a path that `path_text` wrote."""
    found = re.fullmatch(r"(?:(?:[^/\\]|\\.)*/)*((?:[^/\\]|\\.)*)", text, re.DOTALL)
    return re.sub(r"\\(.)", r"\1", found[1] if found else text, flags=re.DOTALL)


@dataclass(frozen=True)
class Statistics:
    """Summary of one number over batches without warm-up: sample standard deviation, percentiles by linear
    interpolation; None where there are too few values (p90 10, p95 20, p99 100, std 2) or one was not measured.
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
    """One value per batch, by key, in order of the batches; NaN: not measured. `warmup` marks those excluded."""

    values: Mapping[str, Float64]
    warmup: Bool

    def without_warmup(self) -> dict[str, Float64]:
        """The values of the batches that are not excluded."""
        return {key: column[~self.warmup] for key, column in self.values.items()}


@dataclass(frozen=True)
class BatchLoop:
    """The batches of one loop of one process, in order of start; columns of one length.

    `path` is recorder, ranges and batch name; `items` is NaN for a batch that counted none; times are UTC nanoseconds,
    or the trace's own where it has no UTC time.
    """

    path: Path
    start_ns: Int64
    end_ns: Int64
    items: Float64
    warmup: Bool
    throttled: Bool | None = None
    """Batches during which the GPU was throttled; None where that is not known."""

    barrier_opened_ns: int | None = None
    """When the start barrier of the process opened; None where it waited for none."""

    barrier_wait_ns: int = 0
    """How long it was waited for in front of a batch of this loop."""

    barrier_has_workers: bool = False
    """Whether the process had other threads or child processes meanwhile, which may have prepared batches."""

    traced_from_ns: int | None = None
    """When the trace begins: before it, nothing can have been prepared. None: when the loop begins."""

    @property
    def count(self) -> int:
        """How many batches."""
        return len(self.warmup)

    @property
    def count_minus_warmup(self) -> int:
        """How many of them are not excluded."""
        return int((~self.warmup).sum())


MAX_ENTRIES = 20_000
"""A table of more entries is not written as JSON: it could not be loaded."""

RANGES_NAME = "ranges.parquet"
"""Name of such a table, next to the file that it belongs to."""

NumberKind = Literal["number", "whole", "all", "any", "labels"]


@dataclass(frozen=True)
class NumberColumn:
    """One number, by its key, of the entries that have it: `rows`, in rising order. NaN is null.

    `kind`: a `number` is rounded as `analysis.statistics.figure` says, a `whole` one is written without digits after
    the point where it has none; `all` and `any` are true or false, and so is their mean over processes; `labels` are
    those of the column's `labels` whose bits are set.
    """

    key: str
    rows: Int64
    values: Float64
    kind: NumberKind = "number"
    labels: tuple[str, ...] = ()

    def labels_of(self, bits: int) -> list[str]:
        """The labels whose bits are set."""
        return [label for position, label in enumerate(self.labels) if bits >> position & 1]

    def json_values(self) -> list[float | int | bool | list[str] | None]:
        """The values as they stand in JSON."""
        known = ~np.isnan(self.values)
        found = np.full(len(self.values), None, dtype=object)
        if self.kind in ("all", "any"):
            found[known] = self.values[known] != 0
        elif self.kind == "labels":
            return [self.labels_of(int(value)) if value == value else None for value in self.values.tolist()]
        else:
            found[known] = self.values[known]
        if self.kind == "whole":
            whole = (self.values == np.floor(self.values)) & (np.abs(self.values) < 2**63)
            found[whole] = self.values[whole].astype(np.int64)
        values: list[float | int | bool | list[str] | None] = found.tolist()
        return values


@dataclass(frozen=True)
class EntryTable:
    """A tree of ranges with their numbers, in columns; one row an entry, in the order in which they are written.

    An entry stands before those inside it; `depth` is 0 for recorders. Its key is `names[name]`, followed by `_index`
    where that is not `NO_INDEX`. Numbers of an entry come before the entries inside it, in the order of `numbers`.
    """

    names: list[str]
    name: Int64
    index: Int64
    depth: Int64
    numbers: list[NumberColumn]
    items: Float64 | None = None
    """What the times per item of each row are the row's times over, NaN where there are none; None: there are none."""

    def __len__(self) -> int:
        return len(self.name)

    def parents(self) -> Int64:
        """The row of the entry around each, -1 for recorders."""
        rows, parent = np.arange(len(self)), np.full(len(self), -1, dtype=np.int64)
        for depth in range(1, int(self.depth.max(initial=0)) + 1):
            above = np.maximum.accumulate(np.where(self.depth == depth - 1, rows, 0))
            parent = np.where(self.depth == depth, above, parent)
        return parent

    def to_tree(self) -> Tree:
        """The same as dictionaries, which take a kilobyte an entry."""
        entries: list[Tree] = [{} for _ in range(len(self))]
        for column in self.numbers:
            for row, value in zip(column.rows.tolist(), column.json_values(), strict=True):
                entries[row][column.key] = value
        around: list[Tree] = [{}]
        for entry, name, index, depth in zip(
            entries, self.name.tolist(), self.index.tolist(), self.depth.tolist(), strict=True
        ):
            del around[depth + 1 :]
            around[depth][self.names[name] if index == NO_INDEX else f"{self.names[name]}_{index}"] = entry
            around.append(entry)
        return around[0]


@dataclass(frozen=True)
class OutsideStage:
    """A stage outside of any batch: its times (ms), one value an occurrence; `where`: how often, by position."""

    path: Path
    start_ns: Int64
    """UTC, where the process's clock is."""

    times: Mapping[str, Float64]
    where: Mapping[str, int]


@dataclass(frozen=True)
class FirstCuda:
    """The first CUDA calls that a trace holds; UTC nanoseconds.

    `first_work_end` is the end of the first call that cannot do without a context: an allocation, a copy, a launch, a
    stream, a module.
    """

    first_call_unix_ns: int
    first_work_end_unix_ns: int | None


@dataclass(frozen=True)
class GpuWork:
    """Busy times of a process's GPU by stage, UTC ns, merged; `stages` are the paths of benchmark.json.

    `reason`: why they are not known.
    """

    stages: tuple[str, ...] = ()
    busy: tuple[tuple[Int64, Int64], ...] = ()
    reason: str | None = None

    def all_busy(self) -> tuple[Int64, Int64]:
        """All of it, as starts and ends."""
        starts = [start for start, _ in self.busy] or [np.empty(0, dtype=np.int64)]
        ends = [end for _, end in self.busy] or [np.empty(0, dtype=np.int64)]
        return np.concatenate(starts), np.concatenate(ends)


@dataclass(frozen=True)
class ProcessResult:
    """The result of one measured process.

    `values_minus_warmup` holds, per path and key, one value for each batch that is not excluded: what statistics over
    several processes are pooled from. `make_entries` makes `entries`.
    """

    names: list[str]
    """Recorders, or domains of plain NVTX, that the result is about."""

    make_entries: Callable[[], EntryTable]
    mean_data: Tree
    stats_minus_warmup: Tree
    values_minus_warmup: Mapping[Path, dict[str, Float64]]
    items: Mapping[Path, float]
    """Of all batches in which a path occurs: what `mean_data` per item is the total time over. NaN: not counted."""

    loops: list[BatchLoop]
    clock_is_utc: bool
    findings: list[Finding]
    outside: list[OutsideStage] = field(default_factory=list)
    batchless: list[OutsideStage] = field(default_factory=list)
    """Of a process without batches all stages: they are outside of the batches of other processes, if these have any.
    """

    meta: dict[str, Any] = field(default_factory=dict)
    first_cuda: FirstCuda | None = None
    """None where the trace has no such call, or no UTC time."""

    diagnosis: Diagnosis | None = None
    """None where it was not asked for."""

    gpu_work: tuple[GpuWork, ...] = ()
    """On each of its GPUs, in the order of the manifest; empty: it was not looked at."""

    """None where it was not asked for: it is what joins the trace to the sensors of a run."""

    @cached_property
    def entries(self) -> EntryTable:
        """All ranges, every batch under its own name; made when first asked for, for it may be larger than the rest."""
        return self.make_entries()

    @cached_property
    def data(self) -> Tree:
        """Every range under its own name, every batch with its index, as dictionaries."""
        return self.entries.to_tree()
