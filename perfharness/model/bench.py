"""A benchmark suite in data: what a case is, and its result. Read back from `bench.json`, so validated.

Times are milliseconds, sizes bytes, energies joules. What was not measured is None, its reason is in `reasons`, by the
field's name.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from perfharness.model.base import Record

Precision = Literal["fp32", "tf32", "fp16", "bf16", "int8"]
LatencyPercentile = Literal["p50", "p90", "p95", "p99"]
Direction = Literal["higher", "lower"]
"""Which values of a metric are better."""

LatencyFigure = Literal["mean", "p50", "p90", "p95", "p99"]
CaseStatus = Literal["ok", "unavailable", "out-of-memory", "memory-limit", "failed", "timeout", "not-run"]


class TensorSpec(Record):
    """An input or output: `shape` has None where the model leaves a dimension open; `dtype` is NumPy's name."""

    name: str
    shape: tuple[int | None, ...]
    dtype: str


class BenchCase(Record):
    """One cell of models x backends x modes x precisions x batch sizes; `case_id` is a file name, unique in a suite.

    `variant` are the settings of the backend that the suite names, as `threads=2`: a backend may be there with several.
    """

    case_id: str
    model: str
    backend: str
    mode: str
    precision: Precision
    device: Literal["cpu", "cuda"]
    batch_size: int
    variant: str = ""


NO_CASE = BenchCase(case_id="", model="", backend="", mode="", precision="fp32", device="cpu", batch_size=1)
"""Where a case is needed and none is there."""


class Estimate(Record):
    """A number with its 95 % interval; `reason` is why it has none. An exact number has itself for both ends."""

    value: float
    low: float | None = None
    high: float | None = None
    reason: str | None = None

    @classmethod
    def exact(cls, value: float) -> Estimate:
        """Of a number that was counted, not estimated."""
        return cls(value=value, low=value, high=value)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both ends; None where one of them is not known."""
        return None if self.low is None or self.high is None else (self.low, self.high)


def _estimate(value: object) -> object:
    """Of a file from when p90 had no interval."""
    return Estimate(value=value) if isinstance(value, int | float) else value


class LatencyStats(Record):
    """Milliseconds of one iteration. Percentiles are None where there are too few iterations to mean anything."""

    iterations: int
    warmup_iterations: int
    mean: Estimate
    std: float | None
    median: Estimate
    p50: float | None
    p90: Annotated[Estimate | None, BeforeValidator(_estimate)]
    p95: Estimate | None
    p99: Estimate | None
    min: float
    max: float
    stable: bool | None = None
    """Whether the median had settled when measuring stopped; None where that was not asked for."""

    drift_percent: float | None = None
    """How much the median of the last third is above that of the first.

    None where that may be chance or is below 2 %.
    """


class MemoryUse(Record):
    """Peaks while the case ran, and the model's own size."""

    device_peak_bytes: int | None = None
    """The larger of the two below."""

    device_allocator_bytes: int | None = None
    """What the framework's allocator had reserved at most."""

    device_process_bytes: int | None = None
    """What the driver counts for the process, its CUDA context included; seen now and then, so no peak of moments."""

    device_source: str | None = None
    """Where `device_process_bytes` is from."""

    host_peak_bytes: int | None = None
    """Resident, from the start of the process on; libraries are in it."""

    model_file_bytes: int | None = None
    model_device_bytes: int | None = None
    """By how much the process's device memory grew when the model was loaded; a CUDA context made then is in it."""

    model_host_bytes: int | None = None
    """Likewise resident memory of the host."""

    limit_bytes: int | None = None
    limit_held_by: str | None = None
    """What enforces the limit."""


class StartUp(Record):
    """Milliseconds from nothing to the first result; `build`, of an engine or a compilation, is in no other part."""

    process_ms: float | None = None
    """From the start of the process to the first line of ours: interpreter, perfharness's own imports."""

    import_ms: float | None = None
    """Of the framework."""

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
    """A case's outputs against those of the suite's reference, on the same inputs, before any speed was measured.

    Of all outputs together: the largest differences, the smallest cosine, None where an output has none (all zeros, not
    finite, empty). `equal` is None where they could not be
    compared, for the `reason` given.
    """

    reference: str
    equal: bool | None
    absolute_tolerance: float
    relative_tolerance: float
    max_absolute: float | None = None
    max_relative: float | None = None
    cosine: float | None = None
    worst_output: str | None = None
    reason: str | None = None


class CaseProcess(Record):
    """How the process of a case ended, as its parent saw it."""

    exit_code: int | None = None
    signal: str | None = None
    timed_out: bool = False
    interrupted: bool = False
    reported: bool = True
    """Whether it wrote its own result; one that did not may have found the disk full, say."""

    attempts: int = 1


class CaseResult(Record):
    """The result of a case."""

    case: BenchCase
    status: CaseStatus
    reason: str | None = None
    """Why it is not `ok`, one sentence with the next step."""

    inputs: list[TensorSpec] = Field(default_factory=list)
    outputs: list[TensorSpec] = Field(default_factory=list)
    versions: dict[str, str] = Field(default_factory=dict)
    latency: LatencyStats | None = None
    """Host to device, execute, device to host, synchronised: wall clock."""

    execute_latency: LatencyStats | None = None
    """The device's own time of `execute`, from its events."""

    items_per_second: Estimate | None = None
    """One round after another: batch size / mean latency."""

    tokens_per_second: Estimate | None = None
    telemetry_items_per_second: float | None = None
    """Of the telemetry pass, which utilisation, power and energy are of; `items_per_second` is not."""

    utilization_percent: float | None = None
    energy_per_item_j: Estimate | None = None
    power_mean_w: float | None = None
    clock_drop_percent: float | None = None
    """By how much the clock of the multiprocessors was lower right after the timed rounds than right before."""

    settings: dict[str, str] = Field(default_factory=dict)
    """What the backend set (`Session.settings`)."""

    memory: MemoryUse = Field(default_factory=MemoryUse)
    startup: StartUp = Field(default_factory=StartUp)
    layers: list[LayerRecord] = Field(default_factory=list)
    accuracy: AccuracyRecord | None = None
    equality: EqualityRecord | None = None
    reasons: dict[str, str] = Field(default_factory=dict)
    """Field -> why it is None or empty."""

    process: CaseProcess | None = None
    spec_sha256: str | None = None
    """Of all that decided what was measured, so that `--resume` can detect a changed suite."""

    started_unix_ns: int | None = None
    duration_s: float | None = None


class MachineRecord(Record):
    """Where a suite ran, for results of several machines side by side."""

    hostname: str
    machine_id: str | None = None
    """A digest of the operating system's own id of the machine."""

    cpu: str | None = None
    gpus: list[str] = Field(default_factory=list)
    driver: str | None = None
    python: str | None = None
    perfharness: str | None = None
