"""Energy in benchmark.json and benchmark_mean.json: joules, with 95 % intervals (docs/guides/energy.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

AttributionMethod = Literal["regression", "bounds", "no_gpu_work", "none"]


@dataclass(frozen=True)
class SensorEnergy:
    """What one sensor measured over one stretch of time; None with the reason. `error_j` is half of the interval."""

    source: str
    """The metric of telemetry.parquet."""

    energy_j: float | None
    error_j: float | None
    power_mean_w: float | None
    seconds: float | None
    update_period_ms: float | None
    reason: str | None


@dataclass(frozen=True)
class IdlePower:
    """Power of the GPU while nothing ran on it: asleep before the run, or awake during it; None with the reason."""

    source: str | None
    power_mean_w: float | None
    error_w: float | None
    seconds: float | None
    reason: str | None


@dataclass(frozen=True)
class StageEnergy:
    """A stage's energy over the measured window: while its GPU work ran, idle power included.

    `energy_above_idle_j` leaves the idle power before the run out, `energy_above_awake_j` the power that the GPU draws
    between kernels. `method`, what the number is: `regression`, separable from all others; `bounds`, null, only the
    interval is known, with the reason, and `together` names the others of which that is so; `no_gpu_work`, measured to
    be 0; `none`, not measured, with the reason.
    """

    stage: str
    busy_s: float
    method: AttributionMethod
    energy_j: float | None
    energy_j_low: float | None
    energy_j_high: float | None
    energy_above_idle_j: float | None
    energy_above_awake_j: float | None
    power_mean_w: float | None
    energy_per_batch_j: float | None
    energy_per_item_j: float | None
    together: list[str]
    reason: str | None


@dataclass(frozen=True)
class JointEnergy:
    """What stages spent together that the sensor cannot separate.

    `energy_above_awake_j` leaves out what the GPU draws between kernels; None where that is not known.
    """

    stages: list[str]
    busy_s: float
    energy_j: float
    energy_j_low: float
    energy_j_high: float
    energy_above_awake_j: float | None


@dataclass(frozen=True)
class StageAttribution:
    """Energy of the window by stage; `waiting` is the time in which no traced GPU work ran. They add up to `energy_j`.

    `sensor_lag_ms`, `sensor_window_ms` and `sensor_smoothed_ms`: how late the sensor is, how much time a value of it
    speaks of and the time constant of its low-pass filter (0: none), as what explains its steps best. `awake`: power
    of the GPU in the window while it did nothing, clocks up and a context there.
    """

    source: str | None
    energy_j: float | None
    seconds: float | None
    steps: int
    sensor_lag_ms: float | None
    sensor_window_ms: float | None
    sensor_smoothed_ms: float | None
    stages: list[StageEnergy]
    joint: list[JointEnergy]
    awake: IdlePower
    reason: str | None


@dataclass(frozen=True)
class OccurrenceEnergy:
    """Energy of single batches that are long enough for the sensor, in order of start, None for those that are not.

    Empty, with the reason, where none is.
    """

    shortest_window_ms: float | None
    measured_batches: int
    batch_energy_j: list[float | None]
    reason: str | None


@dataclass(frozen=True)
class ProcessEnergy:
    """A process's part of its GPU's energy over the measured window.

    Alone on its GPU it has all of it. Of several, each has what is above the GPU's awake power (above its idle power,
    where that is not known) by its share of the busy time (`share_above_idle`), and the rest in equal parts. Of a
    process with several GPUs, energies are sums over these, and `gpu_uuid` and `share_above_idle` are null.
    """

    gpu_uuid: str | None
    gpu_uuids: list[str]
    shared_with: list[str]
    share_above_idle: float | None
    energy_j: float | None
    error_j: float | None
    idle_j: float | None
    energy_above_idle_j: float | None
    energy_per_batch_j: float | None
    energy_per_item_j: float | None
    batches: int
    items: float | None
    occurrences: OccurrenceEnergy
    reason: str | None


@dataclass(frozen=True)
class GpuEnergy:
    """One GPU's energy: over the run (first process started to last one ended) and over the measured window.

    `disagreement_j` is how far integrated power is from the counter beyond both errors, over the measured window.
    """

    uuid: str
    run: list[SensorEnergy]
    window: list[SensorEnergy]
    disagreement_j: float | None
    idle: IdlePower
    idle_j: float | None
    energy_above_idle_j: float | None
    attribution: StageAttribution
    reason: str | None


@dataclass(frozen=True)
class RunEnergy:
    """`energy` of benchmark_mean.json. `energy_j` is that of all GPUs over the measured window, of
    each by the sensor whose error is least.
    """

    energy_j: float | None
    error_j: float | None
    energy_per_batch_j: float | None
    energy_per_item_j: float | None
    energy_run_j: float | None
    gpus: list[GpuEnergy]
    processes: dict[str, ProcessEnergy]
    reason: str | None
