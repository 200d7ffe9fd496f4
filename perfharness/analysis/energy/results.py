"""Energy in benchmark.json and benchmark_mean.json: joules, or null with a reason (docs/guides/telemetry.md)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class IdlePower:
    """Power of the idle GPU before the run."""

    power_mean_w: float | None
    error_w: float | None
    seconds: float | None
    reason: str | None


@dataclass(frozen=True)
class StageEnergy:
    """Energy of a stage in the measured window, while its GPU work ran; idle power included.

    `energy_j` is null if the sensor is too slow for the stage; the bounds may still be known.
    """

    stage: str
    busy_s: float  # includes pauses below one millisecond
    energy_j: float | None
    energy_j_low: float | None
    energy_j_high: float | None
    power_mean_w: float | None
    energy_per_batch_j: float | None
    energy_per_item_j: float | None
    reason: str | None


@dataclass(frozen=True)
class ProcessEnergy:
    """Energy of a process's GPUs over its measured window; null if it shares a GPU with another process."""

    gpu_uuids: list[str]
    shared_with: list[str]
    energy_j: float | None
    error_j: float | None
    idle_j: float | None
    energy_above_idle_j: float | None
    energy_per_batch_j: float | None
    energy_per_item_j: float | None
    batches: int
    items: float | None
    batch_energy_j: list[float | None]  # null if shorter than 20 updates of the sensor; empty if all are
    reason: str | None


@dataclass(frozen=True)
class GpuEnergy:
    """Energy of one GPU over the measured window, and from the first process's start to the last one's end (`run`)."""

    uuid: str
    source: str | None  # metric of telemetry.parquet
    update_period_ms: float | None
    seconds: float | None
    energy_j: float | None
    error_j: float | None  # half-width of the 95 % interval, from the sensor's sampling
    power_mean_w: float | None
    energy_run_j: float | None
    idle: IdlePower
    idle_j: float | None
    energy_above_idle_j: float | None
    stages: list[StageEnergy]  # of all processes; the last is `waiting`, time without traced GPU work
    stages_reason: str | None
    reason: str | None
    node: int | None = None  # its machine; null: there is one


@dataclass(frozen=True)
class RunEnergy:
    """`energy` of benchmark_mean.json: the sum over the GPUs."""

    energy_j: float | None
    error_j: float | None
    energy_per_batch_j: float | None
    energy_per_item_j: float | None
    energy_run_j: float | None
    gpus: list[GpuEnergy]
    processes: dict[str, ProcessEnergy]
    reason: str | None
