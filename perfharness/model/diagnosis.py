"""Causes that limit a stage, and their report.

Times are milliseconds per batch without warm-up, shares 0 to 1. None means not measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, Literal

from perfharness.model.activity import Activity
from perfharness.model.rounding import rounded
from perfharness.model.trace import GpuDevice

Path = tuple[str, ...]
"""Recorder and keys of an entry and those around it, from the outermost."""

WarmupState = Literal["enough", "too-short", "never-steady", "cannot-tell"]


class Code(str, Enum):
    """Cause that limits a stage."""

    COMPILATION = "compilation"
    GPU_BOUND = "gpu-bound"
    SMALL_COPIES = "small-copies"
    COPY_BOUND = "copy-bound"
    GARBAGE_COLLECTION = "garbage-collection"
    GIL_CONTENTION = "gil-contention"
    CPU_CONTENTION = "cpu-contention"
    DATA_LOADER = "data-loader"
    WAITING = "waiting"
    ALLOCATOR_CHURN = "allocator-churn"
    SYNCHRONIZATION = "synchronization"
    LAUNCH_BOUND = "launch-bound"
    CPU_BOUND = "cpu-bound"
    UNKNOWN = "unknown"


class KernelKind(str, Enum):
    """Kind of work, by the kernel's name."""

    TENSOR_CORE = "tensor-core"
    FP32 = "fp32-matrix"  # without tensor cores
    MATRIX = "matrix"
    MEMORY = "memory"
    COMMUNICATION = "communication"
    UNKNOWN = "unknown"


class OccupancyLimiter(str, Enum):
    """Limit of a kernel's resident warps; `warps` if the multiprocessors are full."""

    GRID = "grid"
    WARPS = "warps"
    BLOCKS = "blocks"
    REGISTERS = "registers"
    SHARED_MEMORY = "shared-memory"


class GpuLimit(str, Enum):
    """Limit of the GPU's own work."""

    COMPUTE = "compute"
    MEMORY = "memory"
    UNDERFILLED = "underfilled"
    COMMUNICATION = "communication"  # kernels that exchange data with, or wait for, other GPUs
    CANNOT_TELL = "cannot-tell"


@dataclass(frozen=True)
class RooflinePoint:
    """Rate of a stage's kernels on one GPU from nsys's counters, against its peak. Only tensor cores count."""

    gpu: int
    tensor_share: float
    flop_per_s: float  # a tensor operation counts as a 16-bit multiply-add, two operations
    peak_flop_per_s: float  # at the measured clock
    bytes_per_s: float  # of the GPU's memory, read and written
    peak_bytes_per_s: float
    flop_per_byte: float | None  # None without bytes
    ceiling_flop_per_s: float  # roofline at `flop_per_byte`


@dataclass(frozen=True)
class KernelGroup:
    """Launches of one kernel on one GPU with one grid and block (docs/guides/diagnosis.md)."""

    name: str
    gpu: int  # index in `gpus`
    kind: KernelKind
    grid: tuple[int, int, int] | None
    block: tuple[int, int, int] | None
    registers: int | None
    shared_bytes: int | None
    waves: float | None  # how often the grid fills the GPU
    occupancy: float | None  # share of the GPU's warps that can be resident
    limiter: OccupancyLimiter | None
    count: float
    time_ms: float
    mean_us: float
    share: float  # of the stage's kernel time
    counters: GpuCounters | None = None  # nsys only
    roofline: RooflinePoint | None = None


@dataclass(frozen=True)
class CopyGroup:
    """Copies of one direction, GPU and kind of host memory."""

    direction: str
    gpu: int  # index in `gpus`
    source_gpu: int | None  # None, as below, if not a copy between two GPUs or not in the trace
    target_gpu: int | None
    host_memory: str | None
    count: float
    bytes: float | None
    time_ms: float
    gb_per_s: float | None  # while the copies ran


@dataclass(frozen=True)
class GpuLimits:
    """Limit of the stage's own GPU work, without copies from and to the host. Times are sums of operations.

    `basis`: `counters`, `shape` (grid and multiprocessors), `bandwidth` (bytes over time) or `names` (of kernels).
    """

    limit: GpuLimit
    basis: Literal["counters", "shape", "bandwidth", "names"] | None
    work_ms: float
    by_name_ms: dict[str, float]  # kernel time by `KernelKind`, without underfilled and short ones
    underfilled_ms: float | None
    """Kernels, except communication, that leave half of the multiprocessors idle while alone on the GPU."""
    short_ms: float  # other kernels that mostly start and end
    tail_ms: float | None  # lost in partial last waves, if all blocks take equally long
    moved_gb_per_s: float | None  # of memsets and copies inside the GPU (read and written), while they ran
    moved_peak_share: float | None
    at_peak_ms: float | None  # part of these near the memory's bandwidth
    evidence: list[str]
    missing: list[str]
    roofline: list[RooflinePoint] = field(default_factory=list)  # per GPU with counters and known peaks


@dataclass(frozen=True)
class GpuCounters:
    """nsys's counters of one GPU while the stage's kernels ran; shares of the peak, 0 to 1.

    None if the card or tracer lacks it, or the time is too short for the readings; see `missing`.
    """

    gpu: int
    missing: list[str]
    seconds: float = 0.0  # readings in the stage's time on the GPU
    sm_active: float | None = None
    occupancy: float | None = None
    tensor: float | None = None
    dram: float | None = None
    uncertainty: float | None = None  # largest half-width of the shares' bounds
    errors: dict[str, float] = field(default_factory=dict)  # half-width by name of the share
    sm_clock_mhz: float | None = None  # mean, for the peak of the tensor cores


@dataclass(frozen=True)
class Place:
    """A function of the user's code and its longest line, including called libraries."""

    function: str
    file: str
    line: int
    function_share: float  # of the stage's time
    line_share: float


@dataclass(frozen=True)
class Cause:
    """A cause of a stage's time."""

    code: Code
    share: float  # of the stage's time
    saves_ms: float | None  # upper limit per batch; None if unknown
    what: str
    step: str
    least: float  # share that makes it the verdict
    place: Place | None = None
    detail: str | None = None  # GPU limit of `gpu-bound`; kind of `waiting`


@dataclass(frozen=True)
class FunctionShare:
    """A function on the sampled stacks of a stage; shares of the samples' time."""

    function: str
    file: str
    line: int  # with most of its own time
    self_share: float  # at the top of the stack
    total_share: float  # anywhere on it


@dataclass(frozen=True)
class StageDiagnosis:
    """Causes of a stage's time. `causes[0]` is the verdict and always exists."""

    path: Path
    batches: int
    wall_ms: float  # in the measured pass, over all batches
    gpu_busy_ms: float | None
    activities: Mapping[Activity, float]  # shares of the stage's time in the profiling pass, or the only pass
    samples: int  # behind `activities` and `functions`
    causes: list[Cause]
    slowdown: float | None = None  # time in the profiling pass over the measured pass; None with one pass
    is_changed: bool = False  # its share of the batch differs in the profiling pass
    functions: list[FunctionShare] = field(default_factory=list)
    limits: GpuLimits | None = None
    kernels: list[KernelGroup] = field(default_factory=list)
    copies: list[CopyGroup] = field(default_factory=list)
    counters: list[GpuCounters] = field(default_factory=list)

    @property
    def verdict(self) -> Cause:
        """The cause that limits it."""
        return self.causes[0]


@dataclass(frozen=True)
class WarmupDiagnosis:
    """Whether the warm-up cut of one loop is long enough."""

    loop: Path
    batches: int
    warmup_batches: int
    steady_from: int | None  # index of the first steady batch; None if never, or too short to tell
    state: WarmupState
    level_ms: float | None
    tolerance_ms: float | None
    reason: str | None


@dataclass(frozen=True)
class Diagnosis:
    """Diagnosis of one process. `gpus`: those of its operations, as described in the trace."""

    stages: list[StageDiagnosis]
    warmup: list[WarmupDiagnosis]
    gpus: list[GpuDevice] = field(default_factory=list)

    def batch_around(self, path: Path) -> StageDiagnosis | None:
        """The batch around a stage, or the stage if it is one."""
        loop = next((one.loop for one in self.warmup if path[: len(one.loop)] == one.loop), None)
        return next((stage for stage in self.stages if stage.path == loop), None)

    def to_json(self) -> dict[str, Any]:
        """The tree under `diagnosis` in benchmark.json."""
        return {"unit": "milliseconds", **rounded(asdict(self))}
