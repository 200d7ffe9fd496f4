"""A trace in columns: what every trace source is read into, and all that the analysis knows of it.

All columns of a table have the same length; times are int64 nanoseconds on the trace's own clock. Names are codes into
`Trace.names`, so that no Python object exists per event.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, TypeVar

from perfharness.model.columns import Bool as Bool
from perfharness.model.columns import Int64 as Int64
from perfharness.model.columns import Integers as Integers
from perfharness.model.findings import Finding
from perfharness.model.gpu_device import GpuDevice as GpuDevice
from perfharness.model.gpu_metrics import GpuMetrics
from perfharness.model.host_samples import HostEvents
from perfharness.model.trace_clock import TraceClock


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
class NvtxRanges:
    """NVTX ranges, in no order that can be relied on.

    `row` is the row id in the trace's NVTX table; `end_ns` of a range never closed is where the trace ends, and
    `is_open` marks it; `domain` and `category` are name codes (-1: none); `payload` counts where `has_payload`.
    `crosses_threads`: a start/end range that ended on another thread, so that no GPU work can be attributed to it.
    """

    row: Integers
    start_ns: Int64
    end_ns: Int64
    thread: Int64
    style: Integers
    name: Integers
    domain: Integers
    category: Integers
    payload: Integers
    has_payload: Bool
    is_open: Bool
    crosses_threads: Bool

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True)
class NvtxMarks:
    """NVTX marks: moments with a name, a category and perhaps a payload."""

    time_ns: Int64
    thread: Int64
    name: Integers
    domain: Integers
    category: Integers
    payload: Integers
    has_payload: Bool

    def __len__(self) -> int:
        return len(self.time_ns)


@dataclass(frozen=True)
class ApiCalls:
    """CUDA runtime and driver API calls. `correlation` is unique within a process."""

    start_ns: Int64
    end_ns: Int64
    thread: Int64
    correlation: Integers
    name: Integers
    return_value: Integers

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True)
class GpuOperations:
    """Kernels, copies, memsets and graph replays. `process` is the thread id with the thread's part zero."""

    start_ns: Int64
    end_ns: Int64
    process: Int64
    correlation: Integers
    kind: Integers
    device: Integers
    stream: Integers

    def __len__(self) -> int:
        return len(self.start_ns)


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
class OperationDetails:
    """What else the trace knows of each GPU operation; columns aligned with `Trace.operations`.

    -1 where a column means nothing for that kind of operation, or the trace lacks it. `name` and `full_name` are
    name codes of a kernel, short and demangled; `grid` and `block` have shape (operations, 3), x first;
    `shared_bytes` is static and dynamic shared memory together; `copy_kind` is a `CopyKind`, `source` and `target`
    are `MemoryKind`s (a memset has a target only); `bytes` counts for copies and memsets; `graph_exec` is the
    executable graph of a graph replay, `graph_node` the node that a kernel, copy or memset was in a graph (traced
    node by node); `source_device` and `target_device` the GPUs of a copy from one to another, as the process numbers
    them.
    """

    name: Integers
    full_name: Integers
    grid: Integers
    block: Integers
    registers: Integers
    shared_bytes: Integers
    copy_kind: Integers
    bytes: Integers
    source: Integers
    target: Integers
    graph_exec: Integers
    graph_node: Integers
    source_device: Integers
    target_device: Integers

    def __len__(self) -> int:
        return len(self.name)


class OsWaitKind(IntEnum):
    """What a thread waits for in the operating system."""

    LOCK = 0
    SLEEP = 1
    PROCESS = 2
    FILE = 3
    SOCKET = 4
    """Network, and waiting until one of several sockets or pipes is ready."""


@dataclass(frozen=True)
class OsCalls:
    """Calls of the operating system in which a thread waits; `kind` is an `OsWaitKind`. They may lie in each other."""

    start_ns: Int64
    end_ns: Int64
    thread: Int64
    kind: Integers
    name: Integers

    def __len__(self) -> int:
        return len(self.start_ns)


GpuCoverage = Literal["traced", "no_gpu_work", "untraced"]
"""`traced`: GPU work would be in the trace. `no_gpu_work`: there was none to trace. `untraced`: there may have been."""


@dataclass(frozen=True)
class TraceMeta:
    """Where a trace comes from, and its metadata."""

    tracer: Literal["nsys", "embedded"]
    tracer_version: str | None
    gpu_coverage: GpuCoverage
    gpu_coverage_reason: str
    session_start_unix_ns: int | None
    """UTC time of trace time 0, or None where the trace lacks it."""

    has_all_calls: bool = False
    """Whether CUDA calls that start no GPU work are in the trace too: by nsys, and in the embedded tracer's profiling
    pass."""

    monotonic_origin_ns: int | None = None
    """CLOCK_MONOTONIC at trace time 0, where the tracer stamps with that clock and records that."""

    clock: TraceClock | None = None
    """How UTC was found, where more than the trace's start time was known; `session_start_unix_ns` is then by it."""

    device_names: tuple[str, ...] = ()
    devices: tuple[GpuDevice, ...] = ()
    driver: str | None = None
    cuda_driver: int | None = None
    """As CUDA writes it: 13000 is 13.0."""

    findings: tuple[Finding, ...] = ()
    """Problems that the trace records: dropped records, diagnostics."""

    cuda_cut_off: frozenset[int] = frozenset()
    """Pids, as a trace has them, of processes whose last CUDA events the tracer could not collect."""


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
    os_calls: OsCalls | None
    """None: the operating system's calls were not recorded."""

    names: list[str]
    meta: TraceMeta
    end_ns: int
    """Time of the last thing in the trace."""

    lock_events: HostEvents | None = None
    """Who held the interpreter lock, and who waited for it (nsys `python-gil`); None: not recorded."""

    gpu_metrics: GpuMetrics | None = None
    """Counters of the GPUs (nsys `--gpu-metrics-devices`); None: not recorded."""


PID_SHIFT = 24
ID_MASK = 0xFFFFFF
PROCESS_MASK = ~ID_MASK


Ids = TypeVar("Ids", int, Int64)


def pid_of(thread: Ids) -> Ids:
    """Process ids of serialised thread ids, or process ids."""
    return (thread >> PID_SHIFT) & ID_MASK


def tid_of(thread: Int64) -> Int64:
    """Thread ids (low 24 bits) of serialised thread ids."""
    return thread & ID_MASK
