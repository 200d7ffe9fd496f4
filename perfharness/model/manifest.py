"""`manifest.json`: what was planned, what ran, on what, how it ended. Written by the launcher, read by the analysis.

The file may come from a later version or another machine: unknown keys are left out, names never lead out of the run
folder, numbers are finite.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator
from typing_extensions import Self

from perfharness.model.base import Record
from perfharness.model.checks import FiniteJson, Int64, MaskedArguments, MeasuredFolder, Seconds, TraceName, UnixNs
from perfharness.model.conventions import printable
from perfharness.model.findings import Finding

MANIFEST_NAME = "manifest.json"
STAGING_PREFIX = ".perfharness-run-"  # folder of a run that is being written, or whose launcher was killed
BENCHMARK_NAME = "benchmark.json"
BENCHMARK_MEAN_NAME = "benchmark_mean.json"
LOAD_NAME = "load.json"
MLPERF_NAME = "mlperf.json"
BENCH_NAME = "bench.json"
SERIES_NAME = "series.json"
EXPLAIN_NAME = "explain"  # folder of the profiling pass in that of the measured run: a whole run folder
MANIFEST_VERSION = 1

TracerKind = Literal["nsys", "embedded", "ranges", "none"]
"""`ranges`: only the script's ranges, by the embedded tracer's log; no calls, no GPU work."""


def is_part_of(asked: str | None, folder: str) -> bool:
    """Whether the folder is the one asked for (None: all), or of a process that this one started."""
    return asked is None or folder == asked or folder.startswith(f"{asked}/")


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
    reason: str | None = None  # why `auto` chose it


class EnvironmentRecord(_Model):
    """The machine and the software; no environment variables, which may hold secrets."""

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
    packages: dict[str, str] = Field(default_factory=dict)  # numeric libraries of the measured interpreter
    gpus: list[GpuRecord] = Field(default_factory=list)


class SourceRecord(_Model):
    """What was measured."""

    git_commit: str | None = None  # checked out where the script is
    git_dirty: bool | None = None  # tracked files differ from it
    git_reason: str | None = None  # why the commit is not known
    script_sha256: str | None = None


class PlacementRecord(_Model):
    """Where a process ran."""

    cpus: str | None = None  # that it could run on when it began (`0-7,16-23`); None: it was gone too soon
    bound: bool = False  # by the launch; otherwise these are the launcher's own CPUs
    how: str = ""
    problems: list[str] = Field(default_factory=list)


class RankRecord(Record):
    """The rank of a process in a program of several, as its environment tells it."""

    rank: Int64
    local_rank: Int64 | None = None
    world_size: Int64 | None = None
    source: str  # name of the variable


class ProcessFacts(Record):
    """What a process says of itself, in `recorder.json` or in its trace. Times are UTC."""

    pid: int
    parent_pid: int | None = None
    ancestors: list[Int64] = Field(default_factory=list)  # pids, the nearest first
    started_unix_ns: UnixNs | None = None  # when its recorder or log was made, or it was forked
    start_ticks: Int64 | None = None  # when the kernel started it, in clock ticks since the machine's start
    rank: RankRecord | None = None

    @property
    def above(self) -> list[int]:
        """Pids of the processes above it, as far as they are known, the nearest first."""
        return self.ancestors or ([] if self.parent_pid is None else [self.parent_pid])


class MeasuredProcess(Record):
    """One process of the tree of a launched process that made ranges or GPU work."""

    folder: MeasuredFolder  # of its results: that of the launched process, or directly in it
    launched_index: Int64
    pid: Int64
    trace_pid: Int64 | None = None  # in its trace, where that is another, as in a container
    parent_pid: Int64 | None = None
    rank: Int64 | None = None  # None too for what a rank starts, such as workers of a data loader
    local_rank: Int64 | None = None
    world_size: Int64 | None = None
    rank_source: str | None = None  # name of the environment variable
    started_ns: UnixNs | None = None  # when its recorder or log was made, or its first event; UTC
    gpus: list[str] = Field(default_factory=list)  # UUIDs of the GPUs that its trace has work on
    trace: TraceName | None = None
    """In the folder of the launched process; several processes may share one (nsys)."""


OF_THE_LAUNCHED = (
    "user_s", "system_s", "max_rss_bytes", "cpu_run_s", "cpu_ready_s", "runnable_threads", "cpus_allowed"
)  # fmt: skip
"""Fields of `ProcessRecord` that no process that it started has."""


class ProcessRecord(_Model):
    """One launched process."""

    index: Int64  # over all GPUs, from 0; the X of `proc_X_gpu_Y` counts the processes of one GPU
    gpu_index: Int64  # on the machine: the Y of `proc_X_gpu_Y`; 0 without a GPU
    gpu_uuid: str | None = None
    gpu_uuids: list[str] = Field(default_factory=list)  # of several GPUs (`gpus-per-process`): all of them
    folder: MeasuredFolder
    command: MaskedArguments  # the tracer's part included
    pid: Int64 | None = None
    exit_code: Int64 | None = None
    signal: str | None = None  # that ended it, e.g. `SIGKILL`
    ended: Literal["ok", "failed", "timeout", "interrupted", "not_started", "cut_off"]
    """`cut_off`: not known, because the launcher was killed first."""
    start_unix_ns: UnixNs | None = None
    duration_s: Seconds | None = None
    trace: TraceName | None = None  # in the folder of the launched process; None: none was written
    user_s: float | None = None  # CPU time, with that of children it waited for
    system_s: float | None = None
    max_rss_bytes: Int64 | None = None  # the kernel's peak of it, or of the largest child it waited for
    cpu_run_s: float | None = None  # CPU time of all threads of its tree; None, as below: not sampled
    cpu_ready_s: float | None = None  # for how long these threads were ready to run without a CPU, added up
    runnable_threads: float | None = None  # threads running or ready at once: 90th percentile of the readings
    cpus_allowed: Int64 | None = None
    placement: PlacementRecord | None = None
    node: Int64 = 0  # the rank of its machine
    measured: list[MeasuredProcess] = Field(default_factory=list)
    """Measured processes of its tree: itself, ranks by number, others by start. Empty until it has ended."""

    @property
    def given_gpus(self) -> list[str]:
        """UUIDs of the GPUs, or MIG instances, that it was given."""
        return self.gpu_uuids or ([] if self.gpu_uuid is None else [self.gpu_uuid])

    @property
    def used_gpus(self) -> list[str]:
        """The given GPUs that its trace has work on; all of them where it has none, or names others."""
        named = {uuid for one in self.measured[:1] for uuid in one.gpus}
        return [uuid for uuid in self.given_gpus if uuid in named] or self.given_gpus

    @property
    def launched_folder(self) -> str:
        """Folder of the launched process that this one is, or belongs to."""
        return self.folder.partition("/")[0]

    @property
    def measured_self(self) -> MeasuredProcess:
        """Who it is, of a record in `RunManifest.measured_processes`."""
        return self.measured[0]

    @property
    def rank(self) -> int | None:
        """Its rank, of a record in `RunManifest.measured_processes`."""
        return self.measured[0].rank

    @property
    def left_traces(self) -> bool:
        """Whether it, or a process that it started, left a trace."""
        return self.trace is not None or any(one.trace is not None for one in self.measured)

    def trace_path(self, run_dir: Path) -> Path | None:
        """Its trace, which it may share with other processes of its tree; None: it left none."""
        return None if self.trace is None else run_dir / self.launched_folder / self.trace

    def measured_processes(self) -> list[ProcessRecord]:
        """A record of each measured process of its tree: the same launch, with its own folder, pid and trace.

        Of itself if none measured anything.
        """
        itself = MeasuredProcess(folder=self.folder, launched_index=self.index, pid=self.pid or 0, trace=self.trace)
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
            for one in self.measured or [itself]
        ]


class StartBarrierRecord(_Model):
    """How the processes came to their first measured batches; UTC."""

    timeout_s: float
    opened_unix_ns: UnixNs | None = None  # None: no process arrived
    arrived_unix_ns: dict[str, UnixNs | None] = Field(default_factory=dict)  # by folder; None: it never did


class NodeRecord(_Model):
    """One machine of a launch on several. Its UTC + `clock_offset_ns` is node 0's, by at most `clock_error_ns`."""

    rank: Int64
    count: Int64  # nodes of the launch
    launch: str  # the same for all nodes of a launch
    clock_offset_ns: Int64 = 0
    clock_error_ns: Int64 = 0  # of the round trips, and `clock_drift_ns`
    clock_drift_ns: Int64 = 0  # how far the offset moved from before the run until after it
    opened_unix_ns: UnixNs | None = None  # when its processes passed the start barrier, on node 0's clock
    environment: EnvironmentRecord = Field(default_factory=EnvironmentRecord)
    container_start_unix_ns: Int64 | None = None
    companions: FiniteJson = Field(default_factory=dict)  # these three as in the manifest of one machine

    @property
    def name(self) -> str:
        """Its number and host, in messages."""
        host = self.environment.hostname
        return f"node {self.rank}" if host is None else f"node {self.rank} ({host})"


class SettingsRecord(_Model):
    """The settings of a launch that came from a file, without those also given in the command or call."""

    file: str
    names: list[str]


class RunManifest(_Model):
    """One run."""

    schema_version: int = MANIFEST_VERSION
    run_id: str
    complete: bool = True  # False while the launch is under way, and if the launcher was killed
    created: str  # UTC, ISO 8601
    container_start_unix_ns: Int64 | None = None  # None: the launch is in no container
    command: MaskedArguments  # of perfharness itself
    script: str
    module: bool = False  # `script` is the name of a module, as after `python -m`
    script_arguments: MaskedArguments = Field(default_factory=list)
    settings: SettingsRecord | None = None
    num_processes_per_gpu: Int64  # or per group of GPUs
    gpus_per_process: Int64 = 1
    warmup_batches: Int64
    domain: str | None = None
    batch_pattern: str | None = None
    cpu_bind: str | None = None
    placement_reason: str | None = None  # why the processes were bound to CPUs, or were not
    parallel: Literal["auto", "data", "model"] = "auto"  # ranks have items of their own, or all work on the same ones
    capture_batches: str | None = None  # of each loop, as `FIRST:LAST`; None: all batches were traced
    explaining: bool = False  # this is the profiling pass of the run in the folder around it
    explained: bool = False  # its folder holds a profiling pass
    working_dir: str | None = None  # what relative paths of `command` are relative to
    source: SourceRecord | None = None
    tracer: TracerRecord
    environment: EnvironmentRecord
    processes: list[ProcessRecord]
    start_barrier: StartBarrierRecord | None = None  # None: one process only, or switched off
    companions: FiniteJson = Field(default_factory=dict)  # records of conditions by name: `clocks`, `telemetry`, …
    findings: list[Finding] = Field(default_factory=list)  # the launcher's; the analysis adds its own to the mean
    node: NodeRecord | None = None  # this is the part of one node, not joined with the others yet
    nodes: list[NodeRecord] = Field(default_factory=list)  # those whose parts are joined here; empty: one machine

    def node_of(self, process: ProcessRecord) -> NodeRecord | None:
        """The node that a process ran on; None: there is one machine."""
        return next((one for one in self.nodes if one.rank == process.node), None)

    def machine_of(self, process: ProcessRecord) -> NodeRecord | RunManifest:
        """What holds the record of the machine that a process ran on: its node, or this where there is one machine."""
        return self.node_of(process) or self

    @property
    def missing_nodes(self) -> list[int]:
        """Ranks of the nodes whose parts are not joined here."""
        count = self.nodes[0].count if self.nodes else 0
        return sorted(set(range(count)) - {one.rank for one in self.nodes})

    @property
    def measured_processes(self) -> list[ProcessRecord]:
        """A record of each measured process of the run, in the order of its results."""
        return [one for process in self.processes for one in process.measured_processes()]

    @model_validator(mode="after")
    def _folders_differ(self) -> Self:
        folders = [process.folder for process in self.processes]
        below = [(process.folder, one.folder) for process in self.processes for one in process.measured]
        if len(set(folders)) < len(folders) or len(set(below)) < len(below):
            raise ValueError("two processes have the same folder")
        if any(folder != launched and folder.partition("/")[0] != launched for launched, folder in below):
            raise ValueError("a measured process is in the folder of another launched one")
        return self
