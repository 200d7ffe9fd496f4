"""A trace in columns: every trace source is read into this, and the analysis knows nothing else.

All columns of a table have the same length; times are int64 nanoseconds on the trace's own clock. Names are codes into
`Trace.names`, so that no Python object exists per event.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any, Literal, TypeVar

import numpy as np

from perfharness.model.columns import Bool as Bool
from perfharness.model.columns import Columns
from perfharness.model.columns import Int64 as Int64
from perfharness.model.columns import Integers as Integers
from perfharness.model.findings import Finding
from perfharness.model.host_samples import HostEvents
from perfharness.model.nsys_schema import ID_MASK as ID_MASK
from perfharness.model.nsys_schema import PID_SHIFT as PID_SHIFT

PROCESS_MASK = ~ID_MASK
Ids = TypeVar("Ids", int, Int64)


def pid_of(thread: Ids) -> Ids:
    """Process ids of serialised thread ids, or process ids."""
    return (thread >> PID_SHIFT) & ID_MASK


def tid_of(thread: Int64) -> Int64:
    """Thread ids (low 24 bits) of serialised thread ids."""
    return thread & ID_MASK


class Style(IntEnum):
    """How a range was made: a stack's push/pop, or a start that any thread may end."""

    PUSH_POP = 0
    START_END = 1


class GpuOperationKind(IntEnum):
    """What ran on the GPU. A graph is one replay of a CUDA graph, recorded as a whole."""

    KERNEL = 0
    MEMCPY = 1
    MEMSET = 2
    GRAPH = 3


@dataclass(frozen=True)
class NvtxRanges(Columns):
    """NVTX ranges, in no order that can be relied on."""

    row: Integers  # row id in the trace's NVTX table
    start_ns: Int64
    end_ns: Int64  # of a range never closed: where the trace ends
    thread: Int64
    style: Integers
    name: Integers
    domain: Integers  # name code; -1: none
    category: Integers  # name code; -1: none
    payload: Integers
    has_payload: Bool
    is_open: Bool  # never closed
    crosses_threads: Bool  # ended on another thread, so that no GPU work can be attributed to it


@dataclass(frozen=True)
class NvtxMarks(Columns):
    """NVTX marks: moments with a name, a category and perhaps a payload."""

    time_ns: Int64
    thread: Int64
    name: Integers
    domain: Integers
    category: Integers
    payload: Integers
    has_payload: Bool


@dataclass(frozen=True)
class ApiCalls(Columns):
    """CUDA runtime and driver API calls."""

    start_ns: Int64
    end_ns: Int64
    thread: Int64
    correlation: Integers  # unique within a process
    name: Integers
    return_value: Integers


@dataclass(frozen=True)
class GpuOperations(Columns):
    """Kernels, copies, memsets and graph replays."""

    start_ns: Int64
    end_ns: Int64
    process: Int64  # thread id with the thread's part zero
    correlation: Integers
    kind: Integers
    device: Integers
    stream: Integers


class MemoryKind(IntEnum):
    """Where one side of a copy lies, numbered as nsys does (ENUM_CUDA_MEM_KIND)."""

    PAGEABLE = 0
    PINNED = 1
    DEVICE = 2
    ARRAY = 3
    MANAGED = 4
    DEVICE_STATIC = 5
    MANAGED_STATIC = 6
    UNKNOWN = 7


class CopyKind(IntEnum):
    """Direction of a copy, numbered as nsys does (ENUM_CUDA_MEMCPY_OPER)."""

    UNKNOWN = 0
    HOST_TO_DEVICE = 1
    DEVICE_TO_HOST = 2
    HOST_TO_ARRAY = 3
    ARRAY_TO_HOST = 4
    ARRAY_TO_ARRAY = 5
    ARRAY_TO_DEVICE = 6
    DEVICE_TO_ARRAY = 7
    DEVICE_TO_DEVICE = 8
    HOST_TO_HOST = 9
    PEER_TO_PEER = 10
    UNIFIED_HOST_TO_DEVICE = 11
    UNIFIED_DEVICE_TO_HOST = 12
    UNIFIED_DEVICE_TO_DEVICE = 13


@dataclass(frozen=True)
class OperationDetails(Columns):
    """What else the trace knows of each GPU operation; columns aligned with `Trace.operations`.

    -1 where a column means nothing for that kind of operation, or the trace lacks it.
    """

    name: Integers  # name code of a kernel
    full_name: Integers  # the same, demangled
    grid: Integers  # shape (operations, 3), x first
    block: Integers  # shape (operations, 3), x first
    registers: Integers
    shared_bytes: Integers  # static and dynamic
    copy_kind: Integers  # `CopyKind`
    bytes: Integers  # of copies and memsets
    source: Integers  # `MemoryKind`
    target: Integers  # `MemoryKind`, of memsets too
    graph_exec: Integers  # executable graph of a replay
    graph_node: Integers  # node of an operation in a graph that was traced node by node
    source_device: Integers  # of a copy between GPUs, as the process numbers them
    target_device: Integers


class OsWaitKind(IntEnum):
    """What a thread waits for in the operating system."""

    LOCK = 0
    SLEEP = 1
    PROCESS = 2
    FILE = 3
    SOCKET = 4  # network, and waiting until one of several sockets or pipes is ready


@dataclass(frozen=True)
class OsCalls(Columns):
    """Calls of the operating system in which a thread waits. They may lie in each other."""

    start_ns: Int64
    end_ns: Int64
    thread: Int64
    kind: Integers  # `OsWaitKind`
    name: Integers


class GpuMetric(str, Enum):
    """Counters of nsys (`--gpu-metrics-devices`): shares of the hardware's peak over the period of a reading."""

    GR_ACTIVE = "gr_active"  # the graphics and compute engine has work
    SM_ACTIVE = "sm_active"  # multiprocessors with a warp
    OCCUPANCY = "occupancy"  # warps in flight
    TENSOR = "tensor"  # the tensor pipes are active
    DRAM_READ = "dram_read"
    DRAM_WRITE = "dram_write"  # of the same peak as reads: the sum is the share of the bandwidth


@dataclass(frozen=True)
class GpuDevice:
    """A GPU as one process numbers it (`GpuOperations.device`). What the trace lacks is None."""

    pid: int | None  # None: every process numbers it so
    number: int
    name: str | None = None
    uuid: str | None = None  # without the prefix `GPU-`
    compute_capability: tuple[int, int] | None = None
    sm_count: int | None = None
    clock_hz: int | None = None  # the highest
    memory_bytes_per_s: int | None = None  # the peak
    memory_bytes: int | None = None
    l2_bytes: int | None = None
    max_warps_per_sm: int | None = None
    max_blocks_per_sm: int | None = None
    max_registers_per_sm: int | None = None
    max_shared_bytes_per_sm: int | None = None


@dataclass(frozen=True)
class GpuMetrics(Columns):
    """One row per reading of one GPU, ordered by GPU and time; a reading is the mean over its period.

    Periods of a GPU do not overlap; a gap between them is lost readings.
    """

    start_ns: Int64
    end_ns: Int64
    gpu: Integers  # index in `gpus`
    gpus: list[GpuDevice]  # `number` is nsys's, not the process's
    percent: dict[GpuMetric, Integers]  # 0 to 100, rounded by nsys; -1: not in this reading
    clock_mhz: Integers | None = None  # of the multiprocessors, -1: not in this reading; None: not sampled


ClockSource = Literal["marks", "tracer", "session_start"]


@dataclass(frozen=True)
class TraceClock:
    """UTC at moments of a trace, and how sure it is.

    Args:
        source: `marks` of a recorder; the `tracer` itself stamps with the monotonic clock; or only the `session_start`,
            which is UTC and independent of the monotonic clock.
        trace_ns: moments of the trace's own clock, in order; one or more.
        unix_ns: UTC at these moments.
        error_ns: by how much UTC may be off.
        drift_ns: how much the offset differs between the first and the last moment; None where there is only one.
        session_start_off_ns: the trace's session start less UTC of trace time 0 by this tie; None where it has none.
    """

    source: ClockSource
    trace_ns: Int64
    unix_ns: Int64
    error_ns: int
    drift_ns: int | None = None
    session_start_off_ns: int | None = None

    @property
    def unix_origin_ns(self) -> int:
        """UTC of trace time 0, by the offset at the first moment."""
        return int(self.unix_ns[0] - self.trace_ns[0])

    def to_unix(self, trace_ns: Int64) -> Int64:
        """UTC of moments of the trace: by the offsets on both sides, weighed by distance; beyond them, by the last."""
        offsets = self.unix_ns - self.trace_ns - self.unix_origin_ns
        moved = np.interp(trace_ns, self.trace_ns, offsets)
        unix_ns: Int64 = trace_ns + self.unix_origin_ns + np.rint(moved).astype(np.int64)
        return unix_ns

    def to_json(self) -> dict[str, Any]:
        """As it stands in `meta` of the results."""
        return {
            "source": self.source,
            "unix_origin_ns": self.unix_origin_ns,
            "error_ns": self.error_ns,
            "drift_ns": self.drift_ns,
            "session_start_off_ns": self.session_start_off_ns,
        }


GpuCoverage = Literal["traced", "no_gpu_work", "untraced"]
"""`traced`: GPU work would be in the trace. `no_gpu_work`: there was none to trace. `untraced`: there may have been."""


@dataclass(frozen=True)
class TraceMeta:
    """Where a trace comes from, and its metadata."""

    tracer: Literal["nsys", "embedded"]
    tracer_version: str | None
    gpu_coverage: GpuCoverage
    gpu_coverage_reason: str
    session_start_unix_ns: int | None  # UTC of trace time 0; by `clock` where that is known
    has_all_calls: bool = False  # CUDA calls that start no GPU work are in the trace too
    monotonic_origin_ns: int | None = None  # CLOCK_MONOTONIC at trace time 0, where the tracer stamps with it
    clock: TraceClock | None = None  # None: no more than the trace's start time is known
    device_names: tuple[str, ...] = ()
    devices: tuple[GpuDevice, ...] = ()
    driver: str | None = None
    cuda_driver: int | None = None  # as CUDA writes it: 13000 is 13.0
    findings: tuple[Finding, ...] = ()  # problems that the trace records: dropped records, diagnostics
    cuda_cut_off: frozenset[int] = frozenset()  # pids of processes whose last CUDA events are lost


@dataclass(frozen=True)
class Trace:
    """Everything that the analysis reads.

    Rows of `ranges`, of `api` and of `operations` are three index spaces; a column of indices into one of them
    has its name (`index`, `call`, `operation`).
    """

    ranges: NvtxRanges
    marks: NvtxMarks
    api: ApiCalls
    operations: GpuOperations
    details: OperationDetails
    os_calls: OsCalls | None  # None: not recorded
    names: list[str]
    meta: TraceMeta
    end_ns: int  # of the last thing in the trace
    lock_events: HostEvents | None = None  # interpreter lock (nsys `python-gil`); None: not recorded
    gpu_metrics: GpuMetrics | None = None  # None: not recorded
