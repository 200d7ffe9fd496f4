"""A benchmark suite in data: what a case is, and its result.

Times are milliseconds, sizes bytes, energies joules. What was not measured is None; `reasons` says why, by field.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from perfharness.model.base import Record

Precision = Literal["fp32", "tf32", "fp16", "bf16", "int8"]
LatencyPercentile = Literal["p50", "p90", "p95", "p99"]
Direction = Literal["higher", "lower"]  # which values of a metric are better
LatencyFigure = Literal["mean", "p50", "p90", "p95", "p99"]
CaseStatus = Literal["ok", "unavailable", "out-of-memory", "memory-limit", "failed", "timeout", "not-run"]


class TensorSpec(Record):
    """An input or output: `shape` has None where the model leaves a dimension open; `dtype` is NumPy's name."""

    name: str
    shape: tuple[int | None, ...]
    dtype: str


class Cell(Record):
    """What is measured at one or several batch sizes."""

    model: str
    backend: str
    mode: str
    precision: Precision | None  # None: of a model that does not show it
    device: Literal["cpu", "cuda"]
    variant: str = ""  # settings of the backend that the suite names, as `threads=2`
    gpu: str | None = None  # its name, with its index where the suite uses several of that name; None on the CPU
    gpu_index: int | None = None  # as NVML counts


class BenchCase(Cell):
    """A cell at one batch size; `case_id` is a file name, unique in a suite."""

    case_id: str
    batch_size: int


NO_CASE = BenchCase(case_id="", model="", backend="", mode="", precision="fp32", device="cpu", batch_size=1)
"""Where a case is needed and none is there."""


class Estimate(Record):
    """A number with its 95 % interval; `reason` is why it has none."""

    value: float
    low: float | None = None
    high: float | None = None
    reason: str | None = None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both ends; None where one of them is not known."""
        return None if self.low is None or self.high is None else (self.low, self.high)


class LatencyStats(Record):
    """Milliseconds per iteration. Percentiles are None where there are too few iterations."""

    iterations: int
    warmup_iterations: int
    mean: Estimate
    std: float | None
    median: Estimate
    p50: float | None
    p90: Estimate | None
    p95: Estimate | None
    p99: Estimate | None
    min: float
    max: float
    stable: bool | None = None  # the median had settled when measuring stopped; None: not asked for
    drift_percent: float | None = None  # median of the last third above the first; None: chance, or below 2 %


class MemoryUse(Record):
    """Peaks while the case ran, and the model's own size."""

    device_peak_bytes: int | None = None  # the larger of the two below
    device_allocator_bytes: int | None = None  # reserved by the framework's allocator
    device_process_bytes: int | None = None  # of the process by the driver, CUDA context included; sampled
    device_source: str | None = None  # of `device_process_bytes`
    host_peak_bytes: int | None = None  # resident, libraries included
    model_file_bytes: int | None = None
    parameter_bytes: int | None = None  # of the parameters in the precision of the case, where the framework reports it
    model_device_bytes: int | None = None  # growth while the model was loaded; may include the CUDA context
    model_host_bytes: int | None = None
    device_total_bytes: int | None = None  # of the GPU, or of the MIG instance
    limit_bytes: int | None = None
    limit_held_by: str | None = None


class StartUp(Record):
    """Milliseconds from nothing to the first result; `build`, of an engine or a compilation, is in no other part."""

    process_ms: float | None = None  # interpreter and perfharness's own imports
    import_ms: float | None = None  # of the framework
    build_ms: float | None = None
    load_ms: float | None = None
    allocate_ms: float | None = None
    first_inference_ms: float | None = None
    file_cache: Literal["cold", "warm", "unknown"] = "unknown"


class LayerRecord(Record):
    """Mean time of a layer in one inference."""

    name: str
    milliseconds: float


class AccuracyRecord(Record):
    """How outputs compare with a baseline or with ground truth: metric name -> value."""

    against: str
    samples: int
    metrics: dict[str, float | None]
    lost_classes: dict[str, float] = Field(default_factory=dict)
    reasons: dict[str, str] = Field(default_factory=dict)


class EqualityRecord(Record):
    """A case's outputs against those of the baseline at the same batch size, on the same inputs.

    Largest differences and smallest cosine of all outputs; None: an output has none (all zeros, not finite, empty).
    """

    reference: str
    equal: bool | None  # None: not comparable, for `reason`
    absolute_tolerance: float
    relative_tolerance: float
    max_absolute: float | None = None
    max_relative: float | None = None
    cosine: float | None = None
    worst_output: str | None = None
    reason: str | None = None


class CaseProcess(Record):
    """How the process of a case ended."""

    exit_code: int | None = None
    signal: str | None = None
    timed_out: bool = False
    reported: bool = True  # it reported its end
    phase: str = ""  # the last one that it began
    attempts: int = 1


class CaseResult(Record):
    """The result of a case."""

    case: BenchCase
    status: CaseStatus
    reason: str | None = None  # why it is not `ok`, with the next step
    inputs: list[TensorSpec] = Field(default_factory=list)
    outputs: list[TensorSpec] = Field(default_factory=list)
    versions: dict[str, str] = Field(default_factory=dict)
    latency: LatencyStats | None = None  # wall clock: host to device, execute, device to host, synchronised
    execute_latency: LatencyStats | None = None  # of `execute` alone, by the device's events
    items_per_second: Estimate | None = None  # batch size / mean latency
    tokens_per_second: Estimate | None = None
    telemetry_items_per_second: float | None = None  # of the telemetry pass: utilisation, power, energy, clocks
    utilization_percent: float | None = None
    cpu_percent: float | None = None  # of the case's process in the telemetry pass; 100: one core
    io_wait_percent: float | None = None  # of the machine: cores that wait for a disk
    energy_per_item_j: Estimate | None = None
    power_mean_w: float | None = None
    clock_drop_percent: float | None = None  # of the SM clock, from right before the timed rounds to right after
    settings: dict[str, str] = Field(default_factory=dict)  # that the backend set (`Session.settings`)
    memory: MemoryUse = Field(default_factory=MemoryUse)
    startup: StartUp = Field(default_factory=StartUp)
    layers: list[LayerRecord] = Field(default_factory=list)
    accuracy: AccuracyRecord | None = None
    equality: EqualityRecord | None = None
    reasons: dict[str, str] = Field(default_factory=dict)  # field -> why it is None or empty
    process: CaseProcess | None = None
    spec_sha256: str | None = None  # of all that decided what was measured, for `--resume`
    started_unix_ns: int | None = None
    duration_s: float | None = None


class MachineRecord(Record):
    """Where a suite ran, for results of several machines side by side."""

    hostname: str
    machine_id: str | None = None  # digest of the operating system's own id
    cpu: str | None = None
    gpus: list[str] = Field(default_factory=list)
    driver: str | None = None
    python: str | None = None
    perfharness: str | None = None
