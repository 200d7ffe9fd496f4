"""Why a stage takes the time it takes: what diagnosis finds, before it is written or printed.

Times are milliseconds and, like counts and bytes, means over one batch without the warm-up, unless a name states
otherwise. None was not measured; `missing` has the reason.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any, Literal

from perfharness.model.findings import Finding
from perfharness.model.rounding import figure
from perfharness.model.trace import GpuDevice

Path = tuple[str, ...]

WarmupState = Literal["enough", "too-short", "never-steady", "cannot-tell"]


class Verdict(str, Enum):
    """What limits a stage."""

    GPU_BOUND = "gpu-bound"
    COPY_BOUND = "copy-bound"
    PAGEABLE_COPIES = "pageable-copies"
    SMALL_COPIES = "small-copies"
    LAUNCH_BOUND = "launch-bound"
    DISPATCH_BOUND = "dispatch-bound"
    SYNCHRONIZATION_BOUND = "synchronization-bound"
    IMPLICIT_SYNCHRONIZATION = "implicit-synchronization"
    ALLOCATOR_CHURN = "allocator-churn"
    CPU_BOUND = "cpu-bound"
    GARBAGE_COLLECTION = "garbage-collection"
    GIL_CONTENTION = "gil-contention"
    CPU_CONTENTION = "cpu-contention"
    CPU_QUOTA = "cpu-quota"
    CPU_STEAL = "cpu-steal"
    RECOMPILATION = "recompilation"
    DATA_LOADER_STARVATION = "data-loader-starvation"
    FILE_WAIT = "file-wait"
    NETWORK_WAIT = "network-wait"
    WAITING_ON_STAGE = "waiting-on-stage"
    WAITING_ON_PROCESS = "waiting-on-process"
    WAITING_ON_RANK = "waiting-on-rank"
    WAITING_ON_SYSTEM = "waiting-on-system"
    FIRST_USE = "first-use"
    CANNOT_TELL = "cannot-tell"


class HostActivity(str, Enum):
    """What a host thread does: inside a kind of CUDA call, or outside of any."""

    LAUNCH = "launch"
    SYNCHRONIZE = "synchronize"
    ALLOCATE = "allocate"
    COPY = "copy"
    LOAD = "load"
    OTHER = "other"
    OUTSIDE = "outside"


class KernelKind(str, Enum):
    """The kind of work, by the kernel's name."""

    TENSOR_CORE = "tensor-core"
    MATRIX = "matrix"
    MEMORY = "memory"
    COMMUNICATION = "communication"
    UNKNOWN = "unknown"


class OccupancyLimiter(str, Enum):
    """What limits the resident warps of a kernel; `warps`: nothing, the multiprocessors are full."""

    GRID = "grid"
    WARPS = "warps"
    BLOCKS = "blocks"
    REGISTERS = "registers"
    SHARED_MEMORY = "shared-memory"


class GpuLimit(str, Enum):
    """What limits the GPU's own work; the last one where the trace does not show it."""

    COMPUTE = "compute"
    MEMORY = "memory"
    UNDERFILLED = "underfilled"
    COMMUNICATION = "communication"
    """Kernels that exchange data with other GPUs, or wait in that for GPUs that come late."""
    CANNOT_TELL = "cannot-tell"


@dataclass(frozen=True)
class RooflinePoint:
    """What nsys's counters saw a stage's kernels do on one GPU, against what that GPU can do.

    Only tensor cores are counted. `ceiling_flop_per_s` is the roofline at `flop_per_byte` (None: no bytes).
    """

    gpu: int
    tensor_share: float
    flop_per_s: float
    """Each tensor operation counted as a multiply-add of 16-bit types, two operations."""
    peak_flop_per_s: float
    """At the clock that the GPU ran at."""
    bytes_per_s: float
    """Of the GPU's memory, read and written."""
    peak_bytes_per_s: float
    flop_per_byte: float | None
    ceiling_flop_per_s: float


@dataclass(frozen=True)
class KernelGroup:
    """Launches of one kernel on one GPU with one grid and block. `share` is of the stage's kernel time, 0 to 1.

    `kind` is derived from the name. `occupancy` is the share of the GPU's warps that can be resident at most, `limiter`
    what keeps it from being more, `waves` how often the grid fills the GPU (docs/guides/diagnosis.md).
    """

    name: str
    gpu: int
    """Index in `gpus`."""
    kind: KernelKind
    grid: tuple[int, int, int] | None
    block: tuple[int, int, int] | None
    registers: int | None
    shared_bytes: int | None
    waves: float | None
    occupancy: float | None
    limiter: OccupancyLimiter | None
    count: float
    time_ms: float
    mean_us: float
    share: float
    counters: GpuCounters | None = None
    """Where the trace has counters (nsys)."""
    roofline: RooflinePoint | None = None


@dataclass(frozen=True)
class CopyGroup:
    """Copies of one direction, GPU and kind of host memory. `gb_per_s`: bytes by the time that the copies took."""

    direction: str
    gpu: int
    """Index in `gpus` of the GPU whose copy it was."""
    source_gpu: int | None
    """Of a copy between two GPUs: where from, and where to; None for every other, and where the trace lacks it."""
    target_gpu: int | None
    host_memory: str | None
    count: float
    bytes: float | None
    time_ms: float
    gb_per_s: float | None


@dataclass(frozen=True)
class GpuLimits:
    """What the stage's own work on the GPU is limited by, as far as counters or else the trace show. Copies from and to
    the host are no part of it.

    `basis` is `counters`, `shape` (grid and multiprocessors), `bandwidth` (bytes by time), `names` (what kernels are
    called), or None. Times are sums of operations, as `work_ms` is.
    """

    limit: GpuLimit
    basis: Literal["counters", "shape", "bandwidth", "names"] | None
    work_ms: float
    by_name_ms: dict[str, float]
    """Kernel time by `KernelKind`, without the underfilled and the short ones."""
    underfilled_ms: float | None
    """Of kernels that leave half of the multiprocessors without a block, while no other kernel ran on that GPU; not of
    those that exchange data with other GPUs, which need few."""
    short_ms: float
    """Of the other kernels, those so short that starting and ending is a good part of them."""
    tail_ms: float | None
    """Lost in last waves that fill the GPU in part, if all blocks of a grid take equally long."""
    moved_gb_per_s: float | None
    """Of copies inside the GPU (read and written) and memsets, by the time they took."""
    moved_peak_share: float | None
    at_peak_ms: float | None
    """Of those copies and memsets, what ran near the memory's bandwidth."""
    evidence: list[str]
    missing: list[str]
    roofline: list[RooflinePoint] = field(default_factory=list)
    """Of each GPU with counters whose peaks are known."""


@dataclass(frozen=True)
class GpuWork:
    """The GPU operations that the stage started. `share` is kernel time of all its operations' time."""

    kernel_count: float
    kernel_time_ms: float
    kernel_share: float | None
    top_kernels: list[KernelGroup]
    copies: list[CopyGroup]
    memset_count: float
    memset_time_ms: float
    memset_bytes: float | None
    graph_launch_count: float
    graph_time_ms: float
    busy_ms: float
    projected_ms: float
    operation_time_ms: float
    streams: int
    stream_overlap_ms: float
    """Time by which its operations together exceed their union: how much ran concurrently."""
    copy_with_compute_ms: float
    """Time of its copies during which kernels ran."""
    shared_with_processes_ms: float | None
    """Time of its operations during which other processes of the run were at work on the same GPU."""
    limits: GpuLimits


@dataclass(frozen=True)
class GpuDuringStage:
    """One GPU that the stage uses while the host was in the stage, whichever thread started the work.

    `gpu` is its index in `gpus`, None where nothing ran on any GPU; `own_busy_ms` is of the stage's own operations on
    it, also after the stage's end.
    """

    gpu: int | None
    busy_ms: float
    own_busy_ms: float
    idle_ms: float
    gaps: float
    gap_p50_us: float | None
    longest_gap_ms: float | None
    host_meanwhile_ms: dict[str, float | None]
    """What the host did while the GPU was idle, by `HostActivity`."""


@dataclass(frozen=True)
class Wait:
    """One long synchronisation, and the operation that ended last before it returned."""

    call: str
    time_ms: float
    batch: int | None
    waited_for: str | None
    waited_for_stage: str | None
    operation_ms: float | None


@dataclass(frozen=True)
class HostWork:
    """The host's side of the stage. `activity_ms` by `HostActivity`, calls inside calls counted once."""

    activity_ms: dict[str, float | None]
    calls: dict[str, float | None]
    blocking_calls: float
    """Synchronising calls, and copies that returned only when they were done."""
    blocking_ms: float
    blocked_ms: dict[str, float | None]
    """Of the time outside of CUDA calls: blocked in the operating system, by `OsWaitKind` (lock, sleep, process, file,
    socket); None where its calls were not recorded."""
    launch_latency_us: float | None
    """Median from the begin of the call to the begin of its operation."""
    queueing_us: float | None
    """Mean part of that during which the stream was still at work on earlier operations."""
    longest_waits: list[Wait]


@dataclass(frozen=True)
class FunctionTime:
    """A function of the stage's threads. `line` is the one that most of its own time was spent at.

    Times are host time of the measured pass, shared out as the profiling pass's samples are; `error_ms` is half the
    95 % interval of `self_ms` from the number of samples.
    """

    function: str
    file: str
    line: int
    self_ms: float
    cumulative_ms: float
    error_ms: float
    callee: str | None = None
    """Of `gil_holders`: the library's function in which most of its own time passed; None: none."""

    def scaled(self, by: float) -> FunctionTime:
        """With all times multiplied."""
        times = self.self_ms * by, self.cumulative_ms * by, self.error_ms * by
        return replace(self, self_ms=times[0], cumulative_ms=times[1], error_ms=times[2])


@dataclass(frozen=True)
class HostProfile:
    """Where the stage's time went, by sampled stacks.

    `state_ms` by the lower-case name of `HostState`; None where the system does not show it.
    """

    samples: int
    on_cpu_ms: float | None
    state_ms: dict[str, float | None]
    top_functions: list[FunctionTime]
    collections: float | None
    """Runs of the garbage collector a batch."""
    collection_ms: float | None
    gil_holders: list[FunctionTime]
    """What other threads did while this stage's threads waited for the interpreter lock: their innermost functions
    outside of libraries, whose time holds that of the libraries below them; `cumulative_ms` is 0.
    """
    missing: list[str]
    minor_faults: float | None = None
    major_faults: float | None = None
    """Page faults a batch that read from a disk, and those that did not (`minor_faults`)."""
    voluntary_switches: float | None = None
    involuntary_switches: float | None = None
    """Times a batch that its threads lost the CPU, and gave it up to wait (`voluntary_switches`)."""
    recorder_ms: float | None = None
    """Of the stage's time, what perfharness itself took to open and close ranges: no function's own time."""
    cpus_used: float | None = None
    """CPUs that the process and its forked children had meanwhile, threads of native libraries and other stages too."""
    cpus: int | None = None
    """Cores that it may run on in the stage."""
    longest: FunctionTime | None = None
    """The function outside of libraries in which most of the host time passed, whatever the thread did there."""


@dataclass(frozen=True)
class GpuCounters:
    """nsys's counters of one GPU over exactly the time in which the stage's kernels ran; shares of the peak, 0 to 1.

    None: the card or the tracer does not have it, or the stage's time on the GPU is too short for the readings;
    `missing` has the reason.
    """

    gpu: int
    missing: list[str]
    seconds: float = 0.0
    """Of readings that lie in the stage's time on the GPU."""
    sm_active: float | None = None
    occupancy: float | None = None
    tensor: float | None = None
    dram: float | None = None
    uncertainty: float | None = None
    """Half the width of the range that each share lies in, whatever the readings leave open; None: not known."""
    errors: dict[str, float] = field(default_factory=dict)
    """The same of each share, by its name."""
    sm_clock_mhz: float | None = None
    """Mean clock of the multiprocessors meanwhile: the peak of the tensor cores is at that clock."""


@dataclass(frozen=True)
class Cause:
    """Why, in a form that a person can act on: what it is, where in the code, what to try, what that would save.

    `code` is that of the verdict it would be (docs/guides/causes.md). `share` is of the stage's host time or span.
    `where` is the line that does it, None with the reason in `where_reason`. `saves_ms` a batch at most, None where
    nothing bounds it. Texts are of the pass that counted it: of the measured one, where that records all of it.
    """

    code: str
    what: str
    share: float
    where: FunctionTime | None
    where_reason: str | None
    try_this: str
    saves_ms: float | None
    share_at_most: float | None = None
    """Where a profiling pass shows the cause that is not trusted in its proportions: `share` is the least, this the
    most that it can be. None: `share` is a measured figure."""


@dataclass(frozen=True)
class Explained:
    """How the profiling pass relates to the measured one, for a stage.

    `slowdown`: its host time by that of the measured pass. `trusted`: whether its proportions may be laid onto the
    measured pass; else `reason`.
    """

    slowdown: float | None
    trusted: bool
    reason: str | None = None


@dataclass(frozen=True)
class StageVerdict:
    """What limits the stage, the figures it rests on, one next step, and what was missing to be sure."""

    verdict: Verdict
    evidence: list[str]
    next_step: str
    missing: list[str] = field(default_factory=list)
    limit: GpuLimit | None = None
    """Of `gpu-bound`: what limits the GPU's work; None with every other verdict."""
    steady: Verdict | None = None
    """Of `first-use`, and of CPUs that the machine keeps (`cpu-quota`, `cpu-steal`): what limits the
    stage otherwise, one of its causes; None where nothing with a name does, and with every other verdict."""


@dataclass(frozen=True)
class StageCost:
    """What the stage costs the whole, by a replay of the trace (docs/guides/diagnosis.md). Null, with the reason."""

    pipeline_ms: float | None
    without_stage_ms: float | None
    saving_share: float | None
    reason: str | None = None


@dataclass(frozen=True)
class StageDiagnosis:
    """One stage. `items` is None where batches counted none; `host` and `gpu` are None where nothing is left."""

    path: Path
    batches: int
    items: int | None
    cpu_ms: float | None
    cpu_ms_per_item: float | None
    gpu_busy_ms_per_item: float | None
    kernels_per_item: float | None
    gpu: GpuWork | None
    gpu_during: list[GpuDuringStage]
    host: HostWork | None
    verdict: StageVerdict
    cost: StageCost
    causes: list[Cause] = field(default_factory=list)
    """The most valuable first; the verdict is that of the first, where there is one."""
    profile: HostProfile | None = None
    counters: list[GpuCounters] = field(default_factory=list)
    explained: Explained | None = None
    """None without a profiling pass."""
    queued_ms: float | None = None
    """Of `cpu_ms`, waiting for a free CPU, as if that were spread evenly between two readings of a thread; null where
    they were not read."""


@dataclass(frozen=True)
class WarmupDiagnosis:
    """Whether the warm-up cut of one loop is enough.

    `steady_from` is the index of the first steady batch, from 0; of a loop that drifts, and so is never steady, where
    its slow beginning ends.
    """

    loop: Path
    batches: int
    warmup_batches: int
    steady_from: int | None
    state: WarmupState
    level_ms: float | None
    tolerance_ms: float | None
    reason: str | None


@dataclass(frozen=True)
class Diagnosis:
    """The diagnosis of one process."""

    stages: list[StageDiagnosis]
    warmup: list[WarmupDiagnosis]
    missing: list[str]
    """What the trace does not hold, so that some numbers are null."""
    findings: list[Finding]
    gpus: list[GpuDevice] = field(default_factory=list)
    """The GPUs that operations ran on, with what the trace records of them."""

    def to_json(self) -> dict[str, Any]:
        """As it stands under `diagnosis` in benchmark.json."""
        tree = rounded(asdict(self))
        tree["findings"] = [finding.to_json() for finding in self.findings]
        return {"unit": "milliseconds", **tree}


def rounded(value: Any) -> Any:
    """Plain JSON values of dataclasses' contents: enumerations by value, numbers as in all files."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {key: rounded(below) for key, below in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(below) for below in value]
    return figure(value) if isinstance(value, float) else value
