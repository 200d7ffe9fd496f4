"""What benchmark.json and benchmark_mean.json hold: the models that `export --schema` prints.

The files are written from columns and dictionaries, which take a fraction of the memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.annotated_handlers import GetJsonSchemaHandler

from perfharness.analysis.diagnosis import RunDiagnosis
from perfharness.analysis.energy.results import ProcessEnergy, RunEnergy
from perfharness.analysis.metrics.results import ProcessMetrics, RunMetrics
from perfharness.analysis.ranks import RunRanks
from perfharness.analysis.stages.startup import Startup
from perfharness.model.diagnosis import Diagnosis
from perfharness.model.findings import Finding
from perfharness.model.result import Statistics

Number = float | None
Count = Annotated[int, Field(ge=1)]
NotNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]


LEFT_OUT: Any = None
"""Default of what may be missing, and is never null for that."""


@dataclass(frozen=True)
class InUnit:
    """A result to which the writer adds its unit."""

    unit: Literal["milliseconds", "joules"]

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> Any:
        """The schema of the result with its unit."""
        made = handler(schema)
        whole = handler.resolve_ref_schema(made)
        whole["properties"] = {"unit": {"const": self.unit}, **whole["properties"]}
        whole["required"] = ["unit", *whole["required"]]
        return made


class _Model(BaseModel):
    model_config = ConfigDict(defer_build=True, extra="forbid", use_attribute_docstrings=True)


class _Open(BaseModel):
    model_config = ConfigDict(defer_build=True, extra="allow", use_attribute_docstrings=True)


class Range(_Open):
    """A range and its children by name. A child whose name clashes with a metric or a batch gets the suffix
    " (range)".
    """

    __pydantic_extra__: dict[str, Range]

    cpu_time: Number = LEFT_OUT
    """from push to pop without the wait at the start barrier, summed over occurrences (ms)"""

    gpu_time: Number = LEFT_OUT
    """projected: from the first to the last GPU operation started inside; 0: none; null: not traced (ms)"""

    gpu_busy_time: Number = LEFT_OUT
    """length of the union of the GPU operations started inside (ms)"""

    cpu_time_per_item: Number = LEFT_OUT
    """cpu_time per item of the batch around it, or of the batches inside it (ms)"""

    gpu_time_per_item: Number = LEFT_OUT
    gpu_busy_time_per_item: Number = LEFT_OUT
    cpu_time_minus_warmup: Number = LEFT_OUT
    """cpu_time without the warm-up batches inside (ms)"""

    gpu_time_minus_warmup: Number = LEFT_OUT
    gpu_busy_time_minus_warmup: Number = LEFT_OUT
    cpu_time_per_item_minus_warmup: Number = LEFT_OUT
    """cpu_time_minus_warmup per item of total_items_minus_warmup (ms)"""

    gpu_time_per_item_minus_warmup: Number = LEFT_OUT
    gpu_busy_time_per_item_minus_warmup: Number = LEFT_OUT
    count: NotNegative = LEFT_OUT
    """occurrences of this name under this parent (a mean in trees of means)"""

    total_items: NotNegative | None = LEFT_OUT
    """items of the batch, or of the batches inside"""

    total_items_minus_warmup: NotNegative | None = LEFT_OUT
    """the same without warm-up batches"""

    warmup: bool = LEFT_OUT
    """only batches: excluded by -w"""

    throttled: bool = LEFT_OUT
    """only batches of sampled runs: GPU clocks were throttled"""

    throttle_reasons: list[str] = LEFT_OUT
    """only throttled batches: NVML's reasons, or sm_clock_low, memory_clock_low where it gave none"""

    batches: Count = LEFT_OUT
    """only mean_data: in how many batches the entry occurs"""


RangeTree = dict[str, Range]


class Stats(_Open):
    """The same tree, each number as statistics."""

    __pydantic_extra__: dict[str, Stats]

    cpu_time: Statistics = LEFT_OUT
    gpu_time: Statistics = LEFT_OUT
    gpu_busy_time: Statistics = LEFT_OUT
    cpu_time_per_item: Statistics = LEFT_OUT
    gpu_time_per_item: Statistics = LEFT_OUT
    gpu_busy_time_per_item: Statistics = LEFT_OUT
    count: Statistics = LEFT_OUT
    total_items: Statistics = LEFT_OUT


@dataclass(frozen=True)
class Occurrences(Statistics):
    """One value an occurrence (ms)."""

    total: Number
    """Sum over the occurrences (ms)."""


class OutsideStage(_Model):
    """A stage in no batch and around none."""

    path: list[str]
    """recorder and keys"""

    count: Count
    """occurrences"""

    cpu_time: Occurrences
    gpu_time: Occurrences
    gpu_busy_time: Occurrences


class Clock(_Open):
    """The trace's clock on UTC, and its error (docs/guides/telemetry.md)."""

    source: Literal["marks", "tracer", "session_start"]
    unix_origin_ns: int
    error_ns: Annotated[int, Field(ge=0)]
    drift_ns: int | None
    session_start_off_ns: int | None


class Meta(_Open):
    """How a result came about."""

    schema_version: Literal[1]
    measurement_unit: Literal["milliseconds"]
    warmup_batches: Annotated[int, Field(ge=0)]
    findings: list[Finding]
    names: list[str]
    versions: dict[str, Any]
    tracer: dict[str, Any]
    sources: dict[str, Any]
    data_file: Literal["ranges.parquet"] = LEFT_OUT
    """the ranges, a row each: `parent` (a row), `depth`, `key` and its numbers"""


class ProcessMeta(Meta):
    """How the result of a process came about."""

    device: Any
    total_batches: Any
    total_batches_minus_warmup: Any
    clock: Clock | None = LEFT_OUT


class RunMeta(Meta):
    """How the result of a run came about."""

    processes: Any
    environment: Any


class _Results(_Model):
    mean_data: RangeTree
    """the tree of one batch by recorder, or NVTX domain: means over all batches, of all processes"""

    outside_batches: list[OutsideStage] = LEFT_OUT
    """stages outside of any batch: in other threads, tasks or processes, or before or after the loop; warm-up counts"""

    stats_minus_warmup: Stats
    """the same tree without warm-up: statistics over the batches of all processes together"""


class Benchmark(_Results):
    """One measured process. Times are milliseconds; null was not measured, and a finding says why."""

    data: RangeTree = LEFT_OUT
    """all ranges by recorder, or NVTX domain; more than 20,000 are in `ranges.parquet`, which `meta.data_file` names"""

    diagnosis: Annotated[Diagnosis, InUnit("milliseconds")] = LEFT_OUT
    meta: ProcessMeta
    process_metrics: ProcessMetrics | None = LEFT_OUT
    energy: Annotated[ProcessEnergy, InUnit("joules")] | None = LEFT_OUT
    startup: Startup = LEFT_OUT
    """from the start of the process to its first batch, in parts"""


class Rate(_Open):
    """Items per second over a window; null with the reason where there is none."""

    items_per_second: NotNegative | None
    unit: Literal["items/s"]
    window_ms: NotNegative | None
    items: NotNegative | None
    periods: NotNegative | None
    """from batch to batch; on the border of the window the part inside counts"""

    loop: str = LEFT_OUT
    reason: str | None


class InWindow(_Open):
    """A process's part of the common window."""

    items: NotNegative
    items_per_second: NotNegative


class ProcessRate(Rate):
    """Rate over the process's own steady state; share and in_window are of the common window."""

    share: Share | None
    """of all items in the window; of ranks that share items, the share of all of them"""

    in_window: InWindow | None


class Concurrency(_Model):
    """How many processes were inside a batch at the same time."""

    processes: Count
    mean_processes: NotNegative
    """mean number of processes inside a batch that is no warm-up"""

    all_processes_share: Share
    """share of the window in which all processes were inside such a batch"""


class Throughput(Rate):
    """Items per second while all processes were in steady state; null with the reason where there is no such time."""

    counted_once: list[list[str]] = LEFT_OUT
    """ranks that share the same items, which are counted once"""

    processes: dict[str, ProcessRate]
    concurrency: Concurrency | None
    """over the window; null where there is none"""


class BenchmarkMean(_Results):
    """All processes of a run. Times are milliseconds; null was not measured, and a finding says why."""

    mean_all_batches: RangeTree = LEFT_OUT
    """all ranges by recorder, or NVTX domain; more than 20,000 are in `ranges.parquet`, which `meta.data_file` names"""

    throughput: Throughput

    meta: RunMeta
    diagnosis: Annotated[RunDiagnosis, InUnit("milliseconds")] = LEFT_OUT
    gpu_metrics: RunMetrics = LEFT_OUT
    energy: Annotated[RunEnergy, InUnit("joules")] = LEFT_OUT
    ranks: Annotated[RunRanks, InUnit("milliseconds")] = LEFT_OUT
    """two or more ranks: communication, waiting for the last one, and its cause"""
