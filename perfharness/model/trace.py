"""A trace in columns: the common form of all trace sources, and the only one that the analysis knows.

Columns of a table have the same length; times are int64 nanoseconds on the trace's own clock. Names are codes into
`Trace.names`, so that there is no Python object per event.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any, Literal, TypeVar

import numpy as np

from perfharness.model.columns import Bool, Columns, Int64, Integers
from perfharness.model.findings import Finding
from perfharness.model.host_samples import HostEvents
from perfharness.model.nsys_schema import ID_MASK as ID_MASK
from perfharness.model.nsys_schema import PID_SHIFT as PID_SHIFT

PROCESS_MASK = ~ID_MASK
Ids = TypeVar("Ids", int, Int64)


def pid_of(thread: Ids) -> Ids:
    """Process ids from serialised thread or process ids."""
    return (thread >> PID_SHIFT) & ID_MASK


def tid_of(thread: Int64) -> Int64:
    """Thread ids (low 24 bits) from serialised thread ids."""
    return thread & ID_MASK


class Style(IntEnum):
    """Style of a range: push/pop on a stack, or start/end, which any thread may end."""

    PUSH_POP = 0
    START_END = 1


class GpuOperationKind(IntEnum):
    """Kind of GPU work. A graph is one replay of a CUDA graph, recorded as a whole."""

    KERNEL = 0
    MEMCPY = 1
    MEMSET = 2
    GRAPH = 3


@dataclass(frozen=True)
class NvtxRanges(Columns):
    """NVTX ranges, in no particular order."""

    row: Integers  # row id in the trace's NVTX table
    start_ns: Int64
    end_ns: Int64  # end of the trace for a range never closed
    thread: Int64
    style: Integers
    name: Integers
    domain: Integers  # name code; -1 for none
    category: Integers  # name code; -1 for none
    payload: Integers
    has_payload: Bool
    is_open: Bool  # never closed
    crosses_threads: Bool  # ended on another thread, so GPU work cannot be attributed


@dataclass(frozen=True)
class NvtxMarks(Columns):
    """NVTX marks: times with a name, a category and optionally a payload."""

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
    process: Int64  # thread id with thread bits zero
    correlation: Integers
    kind: Integers
    device: Integers
    stream: Integers


class MemoryKind(IntEnum):
    """Memory at one end of a copy, numbered as in nsys (ENUM_CUDA_MEM_KIND)."""

    PAGEABLE = 0
    PINNED = 1
    DEVICE = 2
    ARRAY = 3
    MANAGED = 4
    DEVICE_STATIC = 5
    MANAGED_STATIC = 6
    UNKNOWN = 7


class CopyKind(IntEnum):
    """Direction of a copy, numbered as in nsys (ENUM_CUDA_MEMCPY_OPER)."""

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
    """Further columns per GPU operation, aligned with `Trace.operations`.

    -1 if not applicable to the operation, or missing in the trace.
    """

    name: Integers  # name code of a kernel
    full_name: Integers  # demangled
    grid: Integers  # shape (operations, 3), x first
    block: Integers  # shape (operations, 3), x first
    registers: Integers
    shared_bytes: Integers  # static and dynamic
    copy_kind: Integers  # `CopyKind`
    bytes: Integers  # of copies and memsets
    source: Integers  # `MemoryKind`
    target: Integers  # `MemoryKind`, also of memsets
    graph_exec: Integers  # executable graph of a replay
    graph_node: Integers  # graph node of an operation, if traced node by node
    source_device: Integers  # of a copy between GPUs, as numbered by the process
    target_device: Integers


class OsWaitKind(IntEnum):
    """Kind of wait in the operating system."""

    LOCK = 0
    SLEEP = 1
    PROCESS = 2
    FILE = 3
    SOCKET = 4  # network, and polling several sockets or pipes


@dataclass(frozen=True)
class OsCalls(Columns):
    """Operating system calls in which a thread waits; they may be nested."""

    start_ns: Int64
    end_ns: Int64
    thread: Int64
    kind: Integers  # `OsWaitKind`
    name: Integers


class GpuMetric(str, Enum):
    """Counters of nsys (`--gpu-metrics-devices`): shares of the hardware's peak over a reading's period."""

    GR_ACTIVE = "gr_active"  # the graphics and compute engine has work
    SM_ACTIVE = "sm_active"  # multiprocessors with a warp
    OCCUPANCY = "occupancy"  # warps in flight
    TENSOR = "tensor"  # the tensor pipes are active
    DRAM_READ = "dram_read"
    DRAM_WRITE = "dram_write"  # same peak as reads, so their sum is the share of the bandwidth


@dataclass(frozen=True)
class GpuDevice:
    """A GPU as numbered by one process (`GpuOperations.device`). None for data missing in the trace."""

    pid: int | None  # None if all processes number it so
    number: int
    name: str | None = None
    uuid: str | None = None  # without the prefix `GPU-`
    compute_capability: tuple[int, int] | None = None
    sm_count: int | None = None
    clock_hz: int | None = None  # highest
    memory_bytes_per_s: int | None = None  # peak
    memory_bytes: int | None = None
    l2_bytes: int | None = None
    max_warps_per_sm: int | None = None
    max_blocks_per_sm: int | None = None
    max_registers_per_sm: int | None = None
    max_shared_bytes_per_sm: int | None = None


@dataclass(frozen=True)
class GpuMetrics(Columns):
    """One row per reading of one GPU, ordered by GPU and time; a reading is the mean over its period.

    Periods of a GPU do not overlap; gaps are lost readings.
    """

    start_ns: Int64
    end_ns: Int64
    gpu: Integers  # index in `gpus`
    gpus: list[GpuDevice]  # `number` is nsys's, not the process's
    percent: dict[GpuMetric, Integers]  # 0 to 100, rounded by nsys; -1 if not in this reading
    clock_mhz: Integers | None = None  # of the multiprocessors, -1 if not in this reading; None if not sampled


ClockSource = Literal["marks", "tracer", "session_start"]


@dataclass(frozen=True)
class TraceClock:
    """UTC at some times of a trace, with its error.

    Args:
        source: `marks` of a recorder; the `tracer`, if it uses the monotonic clock; or only the `session_start`, which
            is UTC and independent of the monotonic clock.
        trace_ns: one or more times on the trace's own clock, in order.
        unix_ns: UTC at these times.
        error_ns: largest error of UTC.
        drift_ns: change of the offset from the first to the last time; None for a single one.
        session_start_off_ns: session start in the trace minus UTC of trace time 0; None if it has none.
    """

    source: ClockSource
    trace_ns: Int64
    unix_ns: Int64
    error_ns: int
    drift_ns: int | None = None
    session_start_off_ns: int | None = None

    @property
    def unix_origin_ns(self) -> int:
        """UTC of trace time 0, using the first offset."""
        return int(self.unix_ns[0] - self.trace_ns[0])

    def to_unix(self, trace_ns: Int64) -> Int64:
        """UTC of trace times, with offsets interpolated, and constant outside."""
        offsets = self.unix_ns - self.trace_ns - self.unix_origin_ns
        moved = np.interp(trace_ns, self.trace_ns, offsets)
        unix_ns: Int64 = trace_ns + self.unix_origin_ns + np.rint(moved).astype(np.int64)
        return unix_ns

    def to_json(self) -> dict[str, Any]:
        """The tree for `meta` of the results."""
        return {
            "source": self.source,
            "unix_origin_ns": self.unix_origin_ns,
            "error_ns": self.error_ns,
            "drift_ns": self.drift_ns,
            "session_start_off_ns": self.session_start_off_ns,
        }


GpuCoverage = Literal["traced", "no_gpu_work", "untraced"]
"""`traced`: the trace has any GPU work. `no_gpu_work`: there was none. `untraced`: there may have been some."""


@dataclass(frozen=True)
class TraceMeta:
    """Source and metadata of a trace."""

    tracer: Literal["nsys", "embedded"]
    tracer_version: str | None
    gpu_coverage: GpuCoverage
    gpu_coverage_reason: str
    session_start_unix_ns: int | None  # UTC of trace time 0, from `clock` if known
    has_all_calls: bool = False  # includes CUDA calls that start no GPU work
    monotonic_origin_ns: int | None = None  # CLOCK_MONOTONIC at trace time 0, if the tracer uses it
    clock: TraceClock | None = None  # None if at most the start time is known
    device_names: tuple[str, ...] = ()
    devices: tuple[GpuDevice, ...] = ()
    driver: str | None = None
    cuda_driver: int | None = None  # in CUDA's notation: 13000 is 13.0
    findings: tuple[Finding, ...] = ()  # problems recorded in the trace: dropped records, diagnostics
    cuda_cut_off: frozenset[int] = frozenset()  # pids of processes without their last CUDA events


@dataclass(frozen=True)
class Trace:
    """All input of the analysis.

    Rows of `ranges`, `api` and `operations` are three index spaces; index columns are named after theirs (`index`,
    `call`, `operation`).
    """

    ranges: NvtxRanges
    marks: NvtxMarks
    api: ApiCalls
    operations: GpuOperations
    details: OperationDetails
    os_calls: OsCalls | None  # None if not recorded
    names: list[str]
    meta: TraceMeta
    end_ns: int  # of the last event in the trace
    lock_events: HostEvents | None = None  # interpreter lock (nsys `python-gil`); None if not recorded
    gpu_metrics: GpuMetrics | None = None  # None if not recorded
