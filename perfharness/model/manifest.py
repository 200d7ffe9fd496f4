"""`manifest.json`: plan, processes, machine and outcome of a run. Written by the launcher, read by the analysis.

The file may come from a later version or another machine: unknown keys are ignored, names stay inside the run folder,
numbers are finite.
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
from perfharness.model.machines import gpu_name, node_name

MANIFEST_NAME = "manifest.json"
STAGING_PREFIX = ".perfharness-run-"  # folder of a run that is being written, or whose launcher was killed
BENCHMARK_NAME = "benchmark.json"
BENCHMARK_MEAN_NAME = "benchmark_mean.json"
LOAD_NAME = "load.json"
MLPERF_NAME = "mlperf.json"
BENCH_NAME = "bench.json"
SERIES_NAME = "series.json"
EXPLAIN_NAME = "explain"  # run folder of the profiling pass, inside that of the measured run
MANIFEST_VERSION = 1

TracerKind = Literal["nsys", "embedded", "ranges", "none"]
"""`ranges`: only the script's ranges, from the embedded tracer's log; no calls, no GPU work."""


def is_part_of(asked: str | None, folder: str) -> bool:
    """Whether the folder belongs to the requested process (None for all) or to one that it started."""
    return asked is None or folder == asked or folder.startswith(f"{asked}/")


class _Model(Record, allow_inf_nan=False):
    @field_validator("*", mode="after")
    @classmethod
    def _can_be_written(cls, value: Any) -> Any:
        """Escape invalid UTF-8 in paths and arguments, which JSON cannot represent."""
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

    @property
    def title(self) -> str:
        """Its name in messages of its own machine."""
        return gpu_name(self.index, self.uuid)


class TracerRecord(_Model):
    """The tracer of the processes."""

    kind: TracerKind
    version: str | None = None
    path: str | None = None
    reason: str | None = None  # why `auto` selected it


class EnvironmentRecord(_Model):
    """Machine and software; without environment variables, which may contain secrets."""

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
    """Version of the measured code."""

    git_commit: str | None = None  # of the checkout with the script
    git_dirty: bool | None = None  # whether tracked files differ from it
    git_reason: str | None = None  # why the commit is unknown
    script_sha256: str | None = None


class PlacementRecord(_Model):
    """CPUs of a process."""

    cpus: str | None = None  # allowed at its start (`0-7,16-23`); None if it ended too soon
    bound: bool = False  # by the launch; otherwise the launcher's own CPUs
    how: str = ""
    problems: list[str] = Field(default_factory=list)


class RankRecord(Record):
    """The rank of a process in a program of several, as its environment tells it, or its library."""

    rank: Int64
    local_rank: Int64 | None = None
    world_size: Int64 | None = None
    source: str  # name of the variable, or of the library


class ProcessFacts(Record):
    """Facts that a process reports about itself in `recorder.json` or its trace. Times are UTC."""

    pid: int
    parent_pid: int | None = None
    ancestors: list[Int64] = Field(default_factory=list)  # pids, nearest first
    started_unix_ns: UnixNs | None = None  # creation of its recorder or log, or its fork
    start_ticks: Int64 | None = None  # kernel start time, in clock ticks since boot
    rank: RankRecord | None = None

    @property
    def above(self) -> list[int]:
        """Known pids of the processes above it, nearest first."""
        return self.ancestors or ([] if self.parent_pid is None else [self.parent_pid])


class MeasuredProcess(Record):
    """A process, in the tree of a launched process, that made ranges or GPU work."""

    folder: MeasuredFolder  # of its results: the launched process's folder, or directly inside
    launched_index: Int64
    pid: Int64
    trace_pid: Int64 | None = None  # in its trace, if different, as in a container
    parent_pid: Int64 | None = None
    rank: Int64 | None = None  # None also for children of a rank, such as workers of a data loader
    local_rank: Int64 | None = None
    world_size: Int64 | None = None
    rank_source: str | None = None  # name of the environment variable, or of the library
    started_ns: UnixNs | None = None  # when its recorder or log was made, or its first event; UTC
    gpus: list[str] = Field(default_factory=list)  # UUIDs of the GPUs that its trace has work on
    trace: TraceName | None = None
    """In the folder of the launched process; several processes may share one (nsys)."""


OF_THE_LAUNCHED = (
    "user_s", "system_s", "max_rss_bytes", "cpu_run_s", "cpu_ready_s", "runnable_threads", "cpus_allowed"
)  # fmt: skip
"""Fields of `ProcessRecord` that children of a launched process do not have."""


class ProcessRecord(_Model):
    """One launched process."""

    index: Int64  # over all GPUs, from 0; the X of `proc_X_gpu_Y` counts the processes of one GPU
    gpu_index: Int64  # on the machine, the Y of `proc_X_gpu_Y`; 0 without a GPU
    gpu_uuid: str | None = None
    gpu_uuids: list[str] = Field(default_factory=list)  # all GPUs, if several (`gpus-per-process`)
    folder: MeasuredFolder
    command: MaskedArguments  # including the tracer
    pid: Int64 | None = None
    exit_code: Int64 | None = None
    signal: str | None = None  # such as `SIGKILL`
    ended: Literal["ok", "failed", "timeout", "interrupted", "not_started", "cut_off"]
    """`cut_off`: unknown, because the launcher was killed first."""
    start_unix_ns: UnixNs | None = None
    duration_s: Seconds | None = None
    trace: TraceName | None = None  # in the launched process's folder; None if missing
    user_s: float | None = None  # CPU time, including awaited children
    system_s: float | None = None
    max_rss_bytes: Int64 | None = None  # kernel's peak, of itself or its largest awaited child
    cpu_run_s: float | None = None  # CPU time of all threads of its tree; None, as below, if not sampled
    cpu_ready_s: float | None = None  # total time of these threads ready without a CPU
    runnable_threads: float | None = None  # threads running or ready at once: 90th percentile of the readings
    cpus_allowed: Int64 | None = None
    placement: PlacementRecord | None = None
    node: Int64 = 0  # rank of its machine
    measured: list[MeasuredProcess] = Field(default_factory=list)
    """Measured processes of its tree: itself, ranks by number, others by start. Empty until it has ended."""

    @property
    def given_gpus(self) -> list[str]:
        """UUIDs of its assigned GPUs or MIG instances."""
        return self.gpu_uuids or ([] if self.gpu_uuid is None else [self.gpu_uuid])

    @property
    def used_gpus(self) -> list[str]:
        """Assigned GPUs with work in its trace; all if it has none or names others."""
        named = {uuid for one in self.measured[:1] for uuid in one.gpus}
        return [uuid for uuid in self.given_gpus if uuid in named] or self.given_gpus

    @property
    def launched_folder(self) -> str:
        """Folder of the launched process that it is or belongs to."""
        return self.folder.partition("/")[0]

    @property
    def measured_self(self) -> MeasuredProcess:
        """Its identity, for a record in `RunManifest.measured_processes`."""
        return self.measured[0]

    @property
    def rank(self) -> int | None:
        """Its rank, for a record in `RunManifest.measured_processes`."""
        return self.measured[0].rank

    @property
    def left_traces(self) -> bool:
        """Whether it or a child has a trace."""
        return self.trace is not None or any(one.trace is not None for one in self.measured)

    def trace_path(self, run_dir: Path) -> Path | None:
        """Its trace, possibly shared with other processes of its tree; None if missing."""
        return None if self.trace is None else run_dir / self.launched_folder / self.trace

    def measured_processes(self) -> list[ProcessRecord]:
        """A record per measured process of its tree, else of itself, with that one's folder, pid and trace."""
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
    """Arrival of the processes at their first measured batches; UTC."""

    timeout_s: float
    opened_unix_ns: UnixNs | None = None  # None if no process arrived
    arrived_unix_ns: dict[str, UnixNs | None] = Field(default_factory=dict)  # by folder; None if it never did


class NodeRecord(_Model):
    """One machine of several. Its UTC + `clock_offset_ns` is node 0's, within `clock_error_ns`."""

    rank: Int64
    count: Int64  # nodes of the launch
    launch: str  # common id of the launch
    clock_offset_ns: Int64 = 0
    clock_error_ns: Int64 = 0  # from round trips and `clock_drift_ns`
    clock_drift_ns: Int64 = 0  # change of the offset from before to after the run
    opened_unix_ns: UnixNs | None = None  # when its processes passed the start barrier, on node 0's clock
    environment: EnvironmentRecord = Field(default_factory=EnvironmentRecord)
    container_start_unix_ns: Int64 | None = None
    companions: FiniteJson = Field(default_factory=dict)  # these three as in the manifest of one machine

    @property
    def name(self) -> str:
        """Its number and host, in messages."""
        return node_name(self.rank, self.environment.hostname)


class SettingsRecord(_Model):
    """Settings of a launch from a file, without those overridden by the command or call."""

    file: str
    names: list[str]


class RunManifest(_Model):
    """One run."""

    schema_version: int = MANIFEST_VERSION
    run_id: str
    complete: bool = True  # False during the launch, and if the launcher was killed
    created: str  # UTC, ISO 8601
    container_start_unix_ns: Int64 | None = None  # None outside containers
    command: MaskedArguments  # of perfharness itself
    script: str
    module: bool = False  # `script` is a module name, as for `python -m`
    script_arguments: MaskedArguments = Field(default_factory=list)
    settings: SettingsRecord | None = None
    num_processes_per_gpu: Int64  # or per group of GPUs
    gpus_per_process: Int64 = 1
    warmup_batches: Int64
    domain: str | None = None
    batch_pattern: str | None = None
    cpu_bind: str | None = None
    placement_reason: str | None = None  # why the processes were bound to CPUs or not
    parallel: Literal["auto", "data", "model"] = "auto"  # ranks have items of their own, or share them
    capture_batches: str | None = None  # per loop, as `FIRST:LAST`; None for all batches
    explaining: bool = False  # this is a profiling pass, inside the folder of its run
    explained: bool = False  # its folder contains a profiling pass
    working_dir: str | None = None  # base of relative paths in `command`
    source: SourceRecord | None = None
    tracer: TracerRecord
    environment: EnvironmentRecord
    processes: list[ProcessRecord]
    start_barrier: StartBarrierRecord | None = None  # None for a single process, or if disabled
    companions: FiniteJson = Field(default_factory=dict)  # conditions by name: `clocks`, `telemetry`, …
    findings: list[Finding] = Field(default_factory=list)  # of the launcher; the analysis adds its own to the mean
    node: NodeRecord | None = None  # this is one node's part, not joined yet
    nodes: list[NodeRecord] = Field(default_factory=list)  # joined nodes; empty for one machine

    def node_of(self, process: ProcessRecord) -> NodeRecord | None:
        """The node of a process; None for one machine."""
        return next((one for one in self.nodes if one.rank == process.node), None)

    def machine_of(self, process: ProcessRecord) -> NodeRecord | RunManifest:
        """The record of a process's machine: its node, or this manifest for one machine."""
        return self.node_of(process) or self

    @property
    def missing_nodes(self) -> list[int]:
        """Ranks of nodes whose parts are not joined here."""
        count = self.nodes[0].count if self.nodes else 0
        return sorted(set(range(count)) - {one.rank for one in self.nodes})

    @property
    def all_processes_well(self) -> bool:
        """Whether all processes ended with 0 and left traces, if traced."""
        is_traced = self.tracer.kind != "none"
        return all(one.ended == "ok" and (one.left_traces or not is_traced) for one in self.processes)

    @property
    def measured_processes(self) -> list[ProcessRecord]:
        """A record per measured process, in the order of the results."""
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
