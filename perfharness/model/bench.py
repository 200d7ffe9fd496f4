"""Cases of a benchmark suite and their results.

Times are milliseconds, sizes bytes, energies joules. Missing values are None, with the reason in `reasons` by field.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from perfharness.model.base import Record

Precision = Literal["fp32", "tf32", "fp16", "bf16", "int8"]
LatencyPercentile = Literal["p50", "p90", "p95", "p99"]
Direction = Literal["higher", "lower"]  # better values of a metric
LatencyFigure = Literal["mean", "p50", "p90", "p95", "p99"]
CaseStatus = Literal["ok", "unavailable", "out-of-memory", "memory-limit", "failed", "timeout", "not-run"]


class TensorSpec(Record):
    """An input or output; `shape` has None for open dimensions, `dtype` is NumPy's name."""

    name: str
    shape: tuple[int | None, ...]
    dtype: str


class Cell(Record):
    """A configuration to measure at one or several batch sizes."""

    model: str
    backend: str
    mode: str
    precision: Precision | None  # None if the model does not show it
    device: Literal["cpu", "cuda"]
    variant: str = ""  # settings of the backend in the suite, such as `threads=2`
    gpu: str | None = None  # name, with index if several have that name; None on the CPU
    gpu_index: int | None = None  # NVML index


class BenchCase(Cell):
    """A cell at one batch size; `case_id` is a file name, unique in a suite."""

    case_id: str
    batch_size: int


NO_CASE = BenchCase(case_id="", model="", backend="", mode="", precision="fp32", device="cpu", batch_size=1)
"""Placeholder case."""


class Estimate(Record):
    """A number with its 95 % interval, or the `reason` for having none."""

    value: float
    low: float | None = None
    high: float | None = None
    reason: str | None = None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both ends, or None if one is unknown."""
        return None if self.low is None or self.high is None else (self.low, self.high)


class LatencyStats(Record):
    """Milliseconds per iteration. Percentiles are None for too few iterations."""

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
    stable: bool | None = None  # the median had stabilised at the end; None if not requested
    drift_percent: float | None = None  # median of the last third over the first; None for chance or below 2 %


class MemoryUse(Record):
    """Peaks while the case ran, and the size of the model."""

    device_peak_bytes: int | None = None  # the larger of the two below
    device_allocator_bytes: int | None = None  # reserved by the framework's allocator
    device_process_bytes: int | None = None  # of the process, from the driver, with the CUDA context; sampled
    device_source: str | None = None  # source of `device_process_bytes`
    host_peak_bytes: int | None = None  # resident, libraries included
    model_file_bytes: int | None = None
    parameter_bytes: int | None = None  # parameters in the case's precision, if the framework reports it
    model_device_bytes: int | None = None  # growth during model loading; may include the CUDA context
    model_host_bytes: int | None = None
    device_total_bytes: int | None = None  # of the GPU or MIG instance
    limit_bytes: int | None = None
    limit_held_by: str | None = None


class StartUp(Record):
    """Milliseconds until the first result; `build` (of an engine, or compilation) is not part of the others."""

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
    """Comparison of outputs with a baseline or ground truth, by metric name."""

    against: str
    samples: int
    metrics: dict[str, float | None]
    lost_classes: dict[str, float] = Field(default_factory=dict)
    reasons: dict[str, str] = Field(default_factory=dict)


class EqualityRecord(Record):
    """Comparison of a case's outputs with the baseline's, at the same batch size and on the same inputs.

    Largest differences and smallest cosine over all outputs; None for outputs without one (zeros, not finite, empty).
    """

    reference: str
    equal: bool | None  # None if not comparable, with `reason`
    absolute_tolerance: float
    relative_tolerance: float
    max_absolute: float | None = None
    max_relative: float | None = None
    cosine: float | None = None
    worst_output: str | None = None
    reason: str | None = None


class CaseProcess(Record):
    """End of a case's process."""

    exit_code: int | None = None
    signal: str | None = None
    timed_out: bool = False
    reported: bool = True  # whether it reported its end
    phase: str = ""  # last phase it began
    attempts: int = 1


class CaseResult(Record):
    """The result of a case."""

    case: BenchCase
    status: CaseStatus
    reason: str | None = None  # why it is not `ok`, and the next step
    inputs: list[TensorSpec] = Field(default_factory=list)
    outputs: list[TensorSpec] = Field(default_factory=list)
    versions: dict[str, str] = Field(default_factory=dict)
    latency: LatencyStats | None = None  # wall clock: host to device, execute, device to host, synchronised
    execute_latency: LatencyStats | None = None  # `execute` only, by device events
    items_per_second: Estimate | None = None  # batch size / mean latency
    tokens_per_second: Estimate | None = None
    telemetry_items_per_second: float | None = None  # in the telemetry pass (utilisation, power, energy, clocks)
    utilization_percent: float | None = None
    cpu_percent: float | None = None  # of the case's process in the telemetry pass; 100 is one core
    io_wait_percent: float | None = None  # of the machine: cores waiting for a disk
    energy_per_item_j: Estimate | None = None
    power_mean_w: float | None = None
    clock_drop_percent: float | None = None  # of the SM clock, from before to after the timed rounds
    settings: dict[str, str] = Field(default_factory=dict)  # set by the backend (`Session.settings`)
    memory: MemoryUse = Field(default_factory=MemoryUse)
    startup: StartUp = Field(default_factory=StartUp)
    layers: list[LayerRecord] = Field(default_factory=list)
    accuracy: AccuracyRecord | None = None
    equality: EqualityRecord | None = None
    reasons: dict[str, str] = Field(default_factory=dict)  # by field that is None or empty
    process: CaseProcess | None = None
    spec_sha256: str | None = None  # of everything that determines the measurement, for `--resume`
    started_unix_ns: int | None = None
    duration_s: float | None = None


class MachineRecord(Record):
    """The machine of a suite, for comparing results of several."""

    hostname: str
    machine_id: str | None = None  # digest of the operating system's id
    cpu: str | None = None
    gpus: list[str] = Field(default_factory=list)
    driver: str | None = None
    python: str | None = None
    perfharness: str | None = None
