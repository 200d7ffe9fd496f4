"""`manifest.json`: what was planned, what ran, on what, how it ended. Written by the launcher, read by the analysis.

Validated models, for the file is read back, perhaps by a later version. Unknown keys are left out, not refused.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from perfharness.model.findings import Finding, Severity

MANIFEST_NAME = "manifest.json"
MANIFEST_VERSION = 1

TracerKind = Literal["nsys", "embedded", "none"]


class _Model(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class FindingRecord(_Model):
    """A `Finding` as it stands in a file."""

    code: str
    severity: Severity
    message: str
    cure: str = ""
    process: str | None = None

    def to_finding(self) -> Finding:
        """The finding itself."""
        return Finding(self.code, self.severity, self.message, self.cure, self.process)


class GpuRecord(_Model):
    """A GPU as NVML tells of it."""

    index: int
    uuid: str
    name: str | None = None
    memory_total_bytes: int | None = None
    mig: bool = False


class TracerRecord(_Model):
    """What traced the processes."""

    kind: TracerKind
    version: str | None = None
    path: str | None = None
    reason: str | None = None
    """Why this one was taken, where `auto` chose."""


class EnvironmentRecord(_Model):
    """The machine and the software; no environment variables, for they carry secrets."""

    hostname: str | None = None
    os: str | None = None
    kernel: str | None = None
    cpu: str | None = None
    cpu_count: int | None = None
    python: str | None = None
    perfharness: str | None = None
    nvtx: str | None = None
    driver: str | None = None
    cuda_driver: str | None = None
    gpus: list[GpuRecord] = Field(default_factory=list)


class PlacementRecord(_Model):
    """Where a process ran."""

    cpus: str | None = None
    """CPUs that it could run on when it began, as the kernel writes them (`0-7,16-23`); None: it was gone too soon."""

    memory_node: int | None = None
    """Node that its memory comes from while there is any; None: as the kernel chooses."""

    bound: bool = False
    """Whether the launch bound it; otherwise these are the launcher's own CPUs."""

    how: str = ""
    problems: list[str] = Field(default_factory=list)
    """What could not be done."""


class ProcessRecord(_Model):
    """One measured process."""

    index: int
    """Over all GPUs, from 0. (The X of `proc_X_gpu_Y` counts the processes of one GPU, as in CV-CUDA's samples.)"""

    gpu_index: int
    """On the machine: the Y of `proc_X_gpu_Y`; 0 on a machine without a GPU."""

    gpu_uuid: str | None = None
    folder: str
    """Relative to the run folder."""

    command: list[str]
    """The whole command line, the tracer's part included."""

    pid: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    """Name of the signal that ended it, e.g. `SIGKILL`."""

    ended: Literal["ok", "failed", "timeout", "interrupted", "not_started"]
    start_unix_ns: int | None = None
    duration_s: float | None = None
    trace: str | None = None
    """File name of the trace in the folder, or None where none was written."""

    user_s: float | None = None
    system_s: float | None = None
    """CPU time of the process and of the children it waited for."""

    max_rss_bytes: int | None = None
    placement: PlacementRecord | None = None


class StartBarrierRecord(_Model):
    """How the processes came to their first measured batches. Times are UTC."""

    timeout_s: float
    opened_unix_ns: int | None = None
    """When all could go; None: nobody came."""

    arrived_unix_ns: dict[str, int | None] = Field(default_factory=dict)
    """When each process came, by its folder; None: it never did."""


class RunManifest(_Model):
    """One run."""

    schema_version: int = MANIFEST_VERSION
    run_id: str
    created: str
    """UTC, ISO 8601."""

    command: list[str]
    """The command line of perfharness itself."""

    script: str
    script_arguments: list[str] = Field(default_factory=list)
    num_processes_per_gpu: int
    warmup_batches: int
    domain: str | None = None
    batch_pattern: str | None = None
    cpu_bind: str | None = None
    placement_reason: str | None = None
    """Why the processes were bound to CPUs, or were not."""

    reject_throttled: bool = False
    """Whether batches during which the GPU's clocks were kept down are left out of the statistics."""

    tracer: TracerRecord
    environment: EnvironmentRecord
    processes: list[ProcessRecord]
    start_barrier: StartBarrierRecord | None = None
    """None where there was one process only, or the barrier was switched off."""

    companions: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """What those that ran beside the processes tell of themselves, by name: `clocks`, `telemetry`, …"""

    findings: list[FindingRecord] = Field(default_factory=list)
    """What the launcher itself found; the analysis adds its own to `benchmark_mean.json`."""
