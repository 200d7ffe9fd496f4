"""Models of benchmark.json and benchmark_mean.json, for `export --schema`.

The files are written from columns and dictionaries, which need much less memory.
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
"""Default of a key that may be missing. A missing key is never written as null."""


@dataclass(frozen=True)
class InUnit:
    """A result written with its unit."""

    unit: Literal["milliseconds", "joules"]

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> Any:
        """Schema of the result with its unit."""
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
    """A range and its children. A child whose name clashes with a metric or batch gets the suffix " (range)"."""

    __pydantic_extra__: dict[str, Range]

    cpu_time: Number = LEFT_OUT
    """time from push to pop without the wait at the start barrier, summed over occurrences (ms)"""

    gpu_time: Number = LEFT_OUT
    """time from the first to the last GPU operation started inside (ms); 0 without any, null if not traced"""

    gpu_busy_time: Number = LEFT_OUT
    """length of the union of GPU operations started inside (ms)"""

    cpu_time_per_item: Number = LEFT_OUT
    """cpu_time per item of the enclosing batch, or of the batches inside (ms)"""

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
    """total_items without warm-up batches"""

    warmup: bool = LEFT_OUT
    """batches only: dropped by -w"""

    throttled: bool = LEFT_OUT
    """batches with telemetry only: GPU clocks were throttled"""

    throttle_reasons: list[str] = LEFT_OUT
    """throttled batches only: reasons of NVML, or sm_clock_low, memory_clock_low if it gave none"""

    batches: Count = LEFT_OUT
    """mean_data only: number of batches with this entry"""


RangeTree = dict[str, Range]


class Stats(_Open):
    """The tree of ranges with statistics for each number."""

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
    """Statistics over occurrences (ms)."""

    total: Number
    """Sum over the occurrences (ms)."""


class OutsideStage(_Model):
    """A stage that is not inside a batch and contains none."""

    path: list[str]
    """recorder and keys"""

    count: Count
    """occurrences"""

    cpu_time: Occurrences
    gpu_time: Occurrences
    gpu_busy_time: Occurrences


class Clock(_Open):
    """Clock of the trace on UTC, and its error (docs/guides/telemetry.md)."""

    source: Literal["marks", "tracer", "session_start"]
    unix_origin_ns: int
    error_ns: Annotated[int, Field(ge=0)]
    drift_ns: int | None
    session_start_off_ns: int | None


class Meta(_Open):
    """Origin of a result."""

    schema_version: Literal[1]
    measurement_unit: Literal["milliseconds"]
    warmup_batches: Annotated[int, Field(ge=0)]
    findings: list[Finding]
    names: list[str]
    versions: dict[str, Any]
    tracer: dict[str, Any]
    sources: dict[str, Any]
    data_file: Literal["ranges.parquet"] = LEFT_OUT
    """table of ranges: `parent` (row number), `depth`, `key` and numbers"""


class ProcessMeta(Meta):
    """Origin of the result of a process."""

    device: Any
    total_batches: Any
    total_batches_minus_warmup: Any
    clock: Clock | None = LEFT_OUT


class RunMeta(Meta):
    """Origin of the result of a run."""

    processes: Any
    environment: Any


class _Results(_Model):
    mean_data: RangeTree
    """tree of one batch by recorder or NVTX domain: means over all batches of all processes"""

    outside_batches: list[OutsideStage] = LEFT_OUT
    """stages outside of batches (other threads, tasks, processes; before or after the loop), with warm-up"""

    stats_minus_warmup: Stats
    """tree of one batch: statistics over all batches of all processes, without warm-up"""


class Benchmark(_Results):
    """One measured process. Times are milliseconds; null means not measured (see findings)."""

    data: RangeTree = LEFT_OUT
    """all ranges by recorder or NVTX domain; more than 20,000 are in `meta.data_file` instead"""

    diagnosis: Annotated[Diagnosis, InUnit("milliseconds")] = LEFT_OUT
    meta: ProcessMeta
    process_metrics: ProcessMetrics | None = LEFT_OUT
    energy: Annotated[ProcessEnergy, InUnit("joules")] | None = LEFT_OUT
    startup: Startup = LEFT_OUT
    """time from the start of the process to its first batch, in parts"""


class Rate(_Open):
    """Items per second over a window, or null and the reason."""

    items_per_second: NotNegative | None
    unit: Literal["items/s"]
    window_ms: NotNegative | None
    items: NotNegative | None
    periods: NotNegative | None
    """periods from batch to batch; at the borders of the window, the part inside counts"""

    loop: str = LEFT_OUT
    reason: str | None


class InWindow(_Open):
    """Share of a process in the common window."""

    items: NotNegative
    items_per_second: NotNegative


class ProcessRate(Rate):
    """Rate over the steady state of the process; share and in_window refer to the common window."""

    share: Share | None
    """share of all items in the window; ranks that share items have a common share"""

    in_window: InWindow | None


class Concurrency(_Model):
    """Number of processes inside a batch at the same time."""

    processes: Count
    mean_processes: NotNegative
    """mean number of processes inside a batch, without warm-up"""

    all_processes_share: Share
    """share of the window with all processes inside such a batch"""


class Throughput(Rate):
    """Items per second while all processes were in steady state, or null and the reason."""

    counted_once: list[list[str]] = LEFT_OUT
    """ranks with the same items, which are counted once"""

    processes: dict[str, ProcessRate]
    concurrency: Concurrency | None
    """over the window, or null without one"""


class BenchmarkMean(_Results):
    """All processes of a run. Times are milliseconds; null means not measured (see findings)."""

    mean_all_batches: RangeTree = LEFT_OUT
    """all ranges by recorder or NVTX domain; more than 20,000 are in `meta.data_file` instead"""

    throughput: Throughput

    meta: RunMeta
    diagnosis: Annotated[RunDiagnosis, InUnit("milliseconds")] = LEFT_OUT
    gpu_metrics: RunMetrics = LEFT_OUT
    energy: Annotated[RunEnergy, InUnit("joules")] = LEFT_OUT
    ranks: Annotated[RunRanks, InUnit("milliseconds")] = LEFT_OUT
    """communication of two or more ranks, their waits for the last one, and the cause"""
