"""`scaling.json`: what a sweep over the number of processes found. Validated models, for the file is read back."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from perfharness.model.checks import MaskedArguments

SCALING_NAME = "scaling.json"
SCALING_VERSION = 1


class _Model(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class GpuPoint(_Model):
    """One GPU during one launch of the sweep, over its measured window."""

    uuid: str
    busy_share: float | None
    """Part of the window in which work of this launch ran on it."""

    power_w: float | None
    """Mean."""


class ScalingRow(_Model):
    """One launch of the sweep. What was not measured is None; `reason` says why."""

    num_processes: int
    """Per GPU."""

    num_processes_total: int | None = None
    folder: str
    """Of its run, beside this file."""

    status: Literal["ok", "failed", "not_run"]
    """`failed`: a process did not end well, so that what is left was measured with fewer processes, and is left out."""

    reason: str | None = None
    items_per_second: float | None = None
    window_ms: float | None = None
    mean_processes_inside_a_batch: float | None = None
    latency_p50_ms: float | None = None
    latency_p99_ms: float | None = None
    """Of a batch on the host, pooled over the processes."""

    gpus: list[GpuPoint] = Field(default_factory=list)
    gpus_reason: str | None = None
    """Why there is nothing about the GPUs."""

    findings: list[str] = Field(default_factory=list)
    """Codes of the warnings and errors of its run."""


class ScalingPoint(_Model):
    """A row, and what it is against the smallest number of processes that was measured."""

    row: ScalingRow
    speedup: float | None
    efficiency: float | None
    """Throughput per process against that of the base; 1 is ideal."""

    slowdown: float | None
    """How many times fewer items a process finishes in the same time."""

    latency_ratio: float | None
    """Median latency of a batch against that of the base."""


class Knee(_Model):
    """Where a further process stops being worth it."""

    num_processes: int | None
    """None: not in the range, or not to be told."""

    method: str
    threshold: float
    reason: str


class Scaling(_Model):
    """The file."""

    schema_version: int = SCALING_VERSION
    created: str
    """UTC, ISO 8601."""

    command: MaskedArguments
    script: str
    script_arguments: MaskedArguments = Field(default_factory=list)
    num_gpus: int
    warmup_batches: int
    loop: str | None = None
    """The loop of batches that latency and throughput are about."""

    base_num_processes: int | None
    """What the others are compared with."""

    points: list[ScalingPoint]
    knee: Knee
