"""`manifest.json`: what was planned, what ran, on what, how it ended. Written by the launcher, read by the analysis.

Validated models, for the file is read back, perhaps by a later version or on another machine. Unknown keys are left
out, not refused; names never lead out of the run folder, numbers are finite.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator
from typing_extensions import Self

from perfharness.model.base import Record
from perfharness.model.checks import (
    FiniteJson,
    Int64,
    MaskedArguments,
    MeasuredFolder,
    Seconds,
    TraceName,
    UnixNs,
)
from perfharness.model.conventions import printable
from perfharness.model.findings import Finding
from perfharness.model.measured import MeasuredProcess

MANIFEST_NAME = "manifest.json"
BENCHMARK_NAME = "benchmark.json"
BENCHMARK_MEAN_NAME = "benchmark_mean.json"
LOAD_NAME = "load.json"
MLPERF_NAME = "mlperf.json"
BENCH_NAME = "bench.json"
EXPLAIN_NAME = "explain"
"""Folder of the profiling pass in the folder of the measured run: a whole run folder."""

MANIFEST_VERSION = 1

TracerKind = Literal["nsys", "embedded", "ranges", "none"]
"""`ranges`: the ranges of the script and nothing else, by the embedded tracer's log; no calls, no GPU work."""


class _Model(Record, allow_inf_nan=False):
    @field_validator("*", mode="after")
    @classmethod
    def _can_be_written(cls, value: Any) -> Any:
        """Paths and arguments may have bytes that are no UTF-8, which JSON has no room for."""
        if isinstance(value, str):
            return printable(value)
        if isinstance(value, list):
            return [printable(item) if isinstance(item, str) else item for item in value]
        return value


class GpuRecord(_Model):
    """A GPU as NVML reports it."""

    index: Int64
    uuid: str
    name: str | None = None
    memory_total_bytes: Int64 | None = None
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
    cpu_count: Int64 | None = None
    python: str | None = None
    perfharness: str | None = None
    nvtx: str | None = None
    driver: str | None = None
    cuda_driver: str | None = None
    packages: dict[str, str] = Field(default_factory=dict)
    """Versions of the numeric libraries and frameworks that the measured interpreter would import."""

    gpus: list[GpuRecord] = Field(default_factory=list)


class SourceRecord(_Model):
    """What was measured."""

    git_commit: str | None = None
    """That is checked out where the script is; `git_reason`: why it is not known."""

    git_dirty: bool | None = None
    """Whether tracked files differ from it."""

    git_reason: str | None = None
    script_sha256: str | None = None


class PlacementRecord(_Model):
    """Where a process ran."""

    cpus: str | None = None
    """CPUs that it could run on when it began, as the kernel writes them (`0-7,16-23`); None: it was gone too soon."""

    bound: bool = False
    """Whether the launch bound it; otherwise these are the launcher's own CPUs."""

    how: str = ""
    problems: list[str] = Field(default_factory=list)
    """What could not be done."""


OF_THE_LAUNCHED = (
    "user_s", "system_s", "max_rss_bytes", "cpu_run_s", "cpu_ready_s", "runnable_threads", "cpus_allowed"
)  # fmt: skip
"""Fields of `ProcessRecord` that no process that it started has."""


class ProcessRecord(_Model):
    """One launched process."""

    index: Int64
    """Over all GPUs, from 0. (The X of `proc_X_gpu_Y` counts the processes of one GPU, as in CV-CUDA's samples.)"""

    gpu_index: Int64
    """On the machine: the Y of `proc_X_gpu_Y`; 0 on a machine without a GPU."""

    gpu_uuid: str | None = None
    gpu_uuids: list[str] = Field(default_factory=list)
    """Of a group of GPUs (`gpus-per-process`): all of them, of which `gpu_index` and `gpu_uuid` are the first."""

    folder: MeasuredFolder
    """Relative to the run folder."""

    command: MaskedArguments
    """The whole command line, the tracer's part included."""

    pid: Int64 | None = None
    exit_code: Int64 | None = None
    signal: str | None = None
    """Name of the signal that ended it, e.g. `SIGKILL`."""

    ended: Literal["ok", "failed", "timeout", "interrupted", "not_started", "cut_off"]
    """`cut_off`: not known, for the launcher was killed before the process ended."""

    start_unix_ns: UnixNs | None = None
    duration_s: Seconds | None = None
    trace: TraceName | None = None
    """File name of the trace in the folder, or None where none was written. Of a process that it started, relative to
    the folder of the launched one."""

    user_s: float | None = None
    system_s: float | None = None
    """CPU time of the process and of the children it waited for."""

    max_rss_bytes: Int64 | None = None
    """The kernel's peak of the process, or of the largest child that it waited for."""

    cpu_run_s: float | None = None
    """CPU time of all threads of the process and of what it started, from the scheduler; None: it was not sampled."""

    cpu_ready_s: float | None = None
    """How long these threads were ready to run without a CPU, added up."""

    runnable_threads: float | None = None
    """Threads that ran or were ready to run at once: 90th percentile of the readings."""

    cpus_allowed: Int64 | None = None
    """CPUs that the process may use."""

    placement: PlacementRecord | None = None
    measured: list[MeasuredProcess] | None = None
    """The processes of its tree that made ranges or GPU work: itself, ranks by number, others by start; itself where
    none did. None in files of earlier versions, where all of a trace is one process."""

    @property
    def given_gpus(self) -> list[str]:
        """UUIDs of the GPUs, or MIG instances, that it was given."""
        return self.gpu_uuids or ([] if self.gpu_uuid is None else [self.gpu_uuid])

    @property
    def used_gpus(self) -> list[str]:
        """Of those, the ones that its trace has work on; all of them where it has none, or names others."""
        named = set() if self.measured_self is None else set(self.measured_self.gpus)
        return [uuid for uuid in self.given_gpus if uuid in named] or self.given_gpus

    @property
    def launched_folder(self) -> str:
        """Of the launched process that this one is, or belongs to."""
        return self.folder.partition("/")[0]

    @property
    def measured_self(self) -> MeasuredProcess | None:
        """Of a record in `RunManifest.measured_processes`: who it is; None in files of earlier versions."""
        return self.measured[0] if self.measured is not None else None

    @property
    def left_traces(self) -> bool:
        """Whether it, or a process that it started, left a trace."""
        return self.trace is not None or any(one.trace is not None for one in self.measured or ())

    def trace_path(self, run_dir: Path) -> Path | None:
        """Its trace, which may be shared with other processes of the same tree; None: it left none."""
        return None if self.trace is None else run_dir / self.launched_folder / self.trace

    def measured_processes(self) -> list[ProcessRecord]:
        """A record of each measured process of its tree: the same launch, with its own folder, pid and trace."""
        if self.measured is None:
            return [self]
        return [
            self.model_copy(
                update={
                    "folder": one.folder,
                    "pid": one.pid,
                    "trace": one.trace,
                    "measured": [one],
                    **({} if one.folder == self.folder else dict.fromkeys(OF_THE_LAUNCHED)),
                }
            )
            for one in self.measured
        ]


class StartBarrierRecord(_Model):
    """How the processes came to their first measured batches. Times are UTC."""

    timeout_s: float
    opened_unix_ns: UnixNs | None = None
    """When all could go on; None: no process arrived."""

    arrived_unix_ns: dict[str, UnixNs | None] = Field(default_factory=dict)
    """When each process came, by its folder; None: it never did."""


class SettingsRecord(_Model):
    """The settings of a launch that came from a file."""

    file: str
    names: list[str]
    """As in the file; those given on the command line or in a call as well are left out."""


class RunManifest(_Model):
    """One run."""

    schema_version: int = MANIFEST_VERSION
    run_id: str
    complete: bool = True
    """False while the launch is under way, and for good where the launcher was killed."""

    created: str
    """UTC, ISO 8601."""

    command: MaskedArguments
    """The command line of perfharness itself."""

    script: str
    module: bool = False
    """Whether `script` is the name of a module, as after `python -m`."""

    script_arguments: MaskedArguments = Field(default_factory=list)
    settings: SettingsRecord | None = None
    """None where no file was used."""

    num_processes_per_gpu: Int64
    """Or per group of GPUs."""

    gpus_per_process: Int64 = 1
    warmup_batches: Int64
    domain: str | None = None
    batch_pattern: str | None = None
    cpu_bind: str | None = None
    placement_reason: str | None = None
    """Why the processes were bound to CPUs, or were not."""

    parallel: Literal["auto", "data", "model"] = "auto"
    """Whether ranks have items of their own, or all work on the same ones; auto: find out."""

    capture_batches: str | None = None
    """Of each loop, as `FIRST:LAST`; None: all batches were traced."""

    explaining: bool = False
    """Whether this is the profiling pass of the run in the folder around it."""

    explained: bool = False
    """Whether a profiling pass of this run was put into its folder."""

    working_dir: str | None = None
    """Where the launch ran: what relative paths of `command` are relative to."""

    source: SourceRecord | None = None
    """None in files of earlier versions."""

    tracer: TracerRecord
    environment: EnvironmentRecord
    processes: list[ProcessRecord]
    start_barrier: StartBarrierRecord | None = None
    """None where there was one process only, or the barrier was switched off."""

    companions: FiniteJson = Field(default_factory=dict)
    """The records of the launch's conditions, by name: `clocks`, `telemetry`, `yardstick` (load of the machine), …"""

    findings: list[Finding] = Field(default_factory=list)
    """What the launcher itself found; the analysis adds its own to `benchmark_mean.json`."""

    @property
    def measured_processes(self) -> list[ProcessRecord]:
        """A record of each measured process of the run, in the order of its results; see `ProcessRecord.measured`."""
        return [one for process in self.processes for one in process.measured_processes()]

    @model_validator(mode="after")
    def _folders_differ(self) -> Self:
        folders = [process.folder for process in self.processes]
        below = [(process.folder, one.folder) for process in self.processes for one in process.measured or ()]
        if len(set(folders)) < len(folders) or len(set(below)) < len(below):
            raise ValueError("two processes have the same folder")
        if any(folder != launched and folder.partition("/")[0] != launched for launched, folder in below):
            raise ValueError("a measured process is in the folder of another launched one")
        return self
