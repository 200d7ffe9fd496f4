"""What limits a stage: the fourteen causes, and what is reported of one.

Times are milliseconds per batch without the warm-up, shares 0 to 1. None was not measured.
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
"""Recorder and keys of the entries around and of one, the outermost first."""

WarmupState = Literal["enough", "too-short", "never-steady", "cannot-tell"]


class Code(str, Enum):
    """What limits a stage."""

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
    """The kind of work, by the kernel's name."""

    TENSOR_CORE = "tensor-core"
    FP32 = "fp32-matrix"  # without tensor cores
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
    """What limits the GPU's own work."""

    COMPUTE = "compute"
    MEMORY = "memory"
    UNDERFILLED = "underfilled"
    COMMUNICATION = "communication"  # kernels that exchange data with other GPUs, or wait there for late ones
    CANNOT_TELL = "cannot-tell"


@dataclass(frozen=True)
class RooflinePoint:
    """What nsys's counters saw a stage's kernels do on one GPU, against that GPU's peak. Only tensor cores count."""

    gpu: int
    tensor_share: float
    flop_per_s: float  # a tensor operation counts as a multiply-add of 16-bit types: two operations
    peak_flop_per_s: float  # at the clock that the GPU ran at
    bytes_per_s: float  # of the GPU's memory, read and written
    peak_bytes_per_s: float
    flop_per_byte: float | None  # None: no bytes
    ceiling_flop_per_s: float  # the roofline at `flop_per_byte`


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
    occupancy: float | None  # share of the GPU's warps that can be resident at most
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
    source_gpu: int | None  # None, as below: not a copy between two GPUs, or not in the trace
    target_gpu: int | None
    host_memory: str | None
    count: float
    bytes: float | None
    time_ms: float
    gb_per_s: float | None  # bytes by the time that the copies took


@dataclass(frozen=True)
class GpuLimits:
    """What limits the stage's own work on the GPU, without copies from and to the host. Times are sums of operations.

    `basis` is `counters`, `shape` (grid and multiprocessors), `bandwidth` (bytes by time), `names` (of kernels).
    """

    limit: GpuLimit
    basis: Literal["counters", "shape", "bandwidth", "names"] | None
    work_ms: float
    by_name_ms: dict[str, float]  # kernel time by `KernelKind`, without the underfilled and the short ones
    underfilled_ms: float | None
    """Kernels that leave half of the multiprocessors without a block while alone on the GPU, but no communication."""
    short_ms: float  # other kernels, so short that starting and ending is a good part of them
    tail_ms: float | None  # lost in last waves that fill the GPU in part, if all blocks take equally long
    moved_gb_per_s: float | None  # of copies inside the GPU (read and written) and memsets, while they ran
    moved_peak_share: float | None
    at_peak_ms: float | None  # of those, what ran near the memory's bandwidth
    evidence: list[str]
    missing: list[str]
    roofline: list[RooflinePoint] = field(default_factory=list)  # of each GPU with counters and known peaks


@dataclass(frozen=True)
class GpuCounters:
    """nsys's counters of one GPU while the stage's kernels ran; shares of the peak, 0 to 1.

    None: the card or the tracer does not have it, or the time is too short for the readings; `missing` says which.
    """

    gpu: int
    missing: list[str]
    seconds: float = 0.0  # of readings in the stage's time on the GPU
    sm_active: float | None = None
    occupancy: float | None = None
    tensor: float | None = None
    dram: float | None = None
    uncertainty: float | None = None  # half the width of the range that each share lies in
    errors: dict[str, float] = field(default_factory=dict)  # the same by name of the share
    sm_clock_mhz: float | None = None  # mean: the peak of the tensor cores is at that clock


@dataclass(frozen=True)
class Place:
    """A function of the user's own code, and its line that takes most of its time, called libraries included."""

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
    saves_ms: float | None  # by mending it, per batch, at most; None: not known
    what: str
    step: str
    least: float  # the share that makes it the verdict
    place: Place | None = None  # where in the code
    detail: str | None = None  # the GPU's limit of `gpu-bound`; what `waiting` is for


@dataclass(frozen=True)
class FunctionShare:
    """A function on the sampled stacks of a stage; shares are of the samples' time."""

    function: str
    file: str
    line: int  # where most of its own time passed
    self_share: float  # at the top of the stack
    total_share: float  # anywhere on it


@dataclass(frozen=True)
class StageDiagnosis:
    """Why a stage takes its time. `causes[0]` is the verdict; there is always one."""

    path: Path
    batches: int
    wall_ms: float  # of the measured pass, over all batches
    gpu_busy_ms: float | None
    activities: Mapping[Activity, float]  # shares of the stage's time in the profiling pass, or the only one
    samples: int  # that `activities` and `functions` rest on
    causes: list[Cause]
    slowdown: float | None = None  # time in the profiling pass by that in the measured one; None: one pass
    is_changed: bool = False  # its part of the batch is another one in the profiling pass
    functions: list[FunctionShare] = field(default_factory=list)
    limits: GpuLimits | None = None
    kernels: list[KernelGroup] = field(default_factory=list)
    copies: list[CopyGroup] = field(default_factory=list)
    counters: list[GpuCounters] = field(default_factory=list)

    @property
    def verdict(self) -> Cause:
        """What limits it."""
        return self.causes[0]


@dataclass(frozen=True)
class WarmupDiagnosis:
    """Whether the warm-up cut of one loop is enough."""

    loop: Path
    batches: int
    warmup_batches: int
    steady_from: int | None  # index of the first steady batch; None: never, or too short to tell
    state: WarmupState
    level_ms: float | None
    tolerance_ms: float | None
    reason: str | None


@dataclass(frozen=True)
class Diagnosis:
    """The diagnosis of one process. `gpus`: those that its operations ran on, as the trace describes them."""

    stages: list[StageDiagnosis]
    warmup: list[WarmupDiagnosis]
    gpus: list[GpuDevice] = field(default_factory=list)

    def batch_around(self, path: Path) -> StageDiagnosis | None:
        """The batch that a stage is in, or is."""
        loop = next((one.loop for one in self.warmup if path[: len(one.loop)] == one.loop), None)
        return next((stage for stage in self.stages if stage.path == loop), None)

    def to_json(self) -> dict[str, Any]:
        """As it stands under `diagnosis` in benchmark.json."""
        return {"unit": "milliseconds", **rounded(asdict(self))}
