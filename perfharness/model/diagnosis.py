"""What limits a stage: the fourteen causes, and what is reported of one.

Times are milliseconds per batch without the warm-up, shares 0 to 1. None was not measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, Literal

from perfharness.model.activity import Activity
from perfharness.model.findings import Finding
from perfharness.model.rounding import figure
from perfharness.model.trace import GpuDevice

Path = tuple[str, ...]

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
class Place:
    """A function of the user's own code, and its line that takes most of its time.

    Shares are of the stage's time; both hold the time of the libraries that are called there.
    """

    function: str
    file: str
    line: int
    function_share: float
    line_share: float


@dataclass(frozen=True)
class Cause:
    """A cause of a stage's time.

    `share` is of the stage's time, `saves_ms` what mending it saves per batch at most (None: not known). `detail` is
    the GPU's limit of `gpu-bound`, and what `waiting` is for. `place` is where in the code, None: not known.
    """

    code: Code
    share: float
    saves_ms: float | None
    what: str
    step: str
    least: float
    """The share that makes it the verdict."""
    place: Place | None = None
    detail: str | None = None


@dataclass(frozen=True)
class FunctionShare:
    """A function on the sampled stacks of a stage. `line`: where most of its own time passed.

    Shares are of the samples' time: `self_share` at the top of the stack, `total_share` anywhere on it.
    """

    function: str
    file: str
    line: int
    self_share: float
    total_share: float


@dataclass(frozen=True)
class StageDiagnosis:
    """Why a stage takes its time. `causes[0]` is the verdict; there is always one.

    `wall_ms` is per batch and of the measured pass, over all batches. `activities` are shares of the stage's time in
    the profiling pass, or with one pass in that one, `samples` how many they rest on; `functions` are of these samples.
    `slowdown`: the stage's time in the profiling pass by that in the measured pass, None with one pass. `is_changed`:
    its part of the batch is another one there. `limits`, `kernels`, `copies` and `counters` are of its GPU work.
    """

    path: Path
    batches: int
    wall_ms: float
    gpu_busy_ms: float | None
    activities: Mapping[Activity, float]
    samples: int
    causes: list[Cause]
    slowdown: float | None = None
    is_changed: bool = False
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
    """Whether the warm-up cut of one loop is enough.

    `steady_from` is the index of the first steady batch, from 0; None: it is never steady, or too short to tell.
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
    """The diagnosis of one process. `gpus`: those that its operations ran on, as the trace describes them."""

    stages: list[StageDiagnosis]
    warmup: list[WarmupDiagnosis]
    findings: list[Finding] = field(default_factory=list)
    gpus: list[GpuDevice] = field(default_factory=list)

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
        return {rounded(key): rounded(below) for key, below in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(below) for below in value]
    return figure(value) if isinstance(value, float) else value
