"""CUDA API functions and GPU operations by name: the activity of a call, and what it starts."""

from __future__ import annotations

import re

import numpy as np

from perfharness.model.activity import CODES, Activity
from perfharness.model.columns import Bool, Int64, Integers
from perfharness.model.trace import CopyKind, GpuOperationKind, Trace
from perfharness.trace.names import by_name

ACTIVITY_OF = (
    (Activity.COMPILE, r"cu(Library|Module)(Load|Get|Unload|Enum)|cuLink|cudaLibrary|nvrtc"),
    (Activity.COMPILE, r"cuInit$|cuDevicePrimaryCtxRetain|cudaSetDevice|cudaInitDevice|cuCtxCreate|cudaFunc[GS]et"),
    (Activity.SYNC, r"(cuda|cu)(Device|Ctx|Stream|Event|Thread)Synchronize"),
    (Activity.COPY, r"(cuda|cu)Memcpy|(cuda|cu)MemPrefetch"),
    (Activity.LAUNCH, r"(cuda|cu)(Launch|GraphLaunch|Memset)|cuStream(Wait|Write)Value|cuStreamBatchMemOp"),
    (Activity.ALLOC, r"(cuda|cu)(Malloc|Free|Host(Alloc|Register|Unregister)|MemPool)"),
    (Activity.ALLOC, r"cuMem(Alloc|Free|Create|Map|Unmap|Release|Address|Host|FreeHost|SetAccess)"),
)
"""Activity and pattern for the start of function names; the first match counts, others are `other`."""

STARTS_KERNEL = r"cudaLaunch(Cooperative)?Kernel|cuLaunch(Cooperative)?Kernel|cudaGraphLaunch|cuGraphLaunch"
STARTS_COPY = r"cu(da)?Memcpy"
STARTS_MEMSET = r"cu(da)?Memset"
BEGINS_CAPTURE = r"cu(da)?StreamBeginCapture"
ENDS_CAPTURE = r"cu(da)?StreamEndCapture"
NEEDS_CONTEXT = (
    r"cuda(Malloc|Memcpy|Memset|Launch|HostAlloc|Free|StreamCreate|EventCreate|GraphLaunch|DeviceSynchronize)"
    r"|cu(CtxCreate|CtxSynchronize|DevicePrimaryCtxRetain|Mem(Alloc|cpy|set|Create)|Launch|StreamCreate|EventCreate"
    r"|ModuleLoad|LibraryLoad)"
)
"""Runtime and driver calls that create a missing context, or fail without one."""


def activity_of(name: str) -> Activity:
    """Activity of a function, by name."""
    return next((activity for activity, pattern in ACTIVITY_OF if re.match(pattern, name)), Activity.OTHER)


def calls_named(trace: Trace, pattern: str) -> Bool:
    """Mask of calls whose names start with the pattern."""
    begins = re.compile(pattern)
    return by_name(trace.names, trace.api.name, lambda name: begins.match(name) is not None).astype(np.bool_)


def call_activities(trace: Trace) -> Integers:
    """Activity code of each call."""
    return by_name(trace.names, trace.api.name, lambda name: CODES[activity_of(name)])


DIRECTIONS = {
    CopyKind.HOST_TO_DEVICE: "host to device",
    CopyKind.DEVICE_TO_HOST: "device to host",
    CopyKind.DEVICE_TO_DEVICE: "device to device",
    CopyKind.PEER_TO_PEER: "peer to peer",
    CopyKind.HOST_TO_HOST: "host to host",
}


def operation_names(trace: Trace) -> tuple[list[str], Int64]:
    """Names, and each operation's code: the kernel's name, or a copy's direction."""
    details = trace.details
    kind = trace.operations.kind
    own = [*("kernel", "copy", "memset", "graph replay"), *(f"copy {text}" for text in DIRECTIONS.values())]
    code = len(trace.names) + kind.astype(np.int64)
    if len(details) < len(kind):  # details were not read
        return [*trace.names, *own], code
    for number, direction in enumerate(DIRECTIONS):
        code[(kind == GpuOperationKind.MEMCPY) & (details.copy_kind == direction)] = len(trace.names) + 4 + number
    return [*trace.names, *own], np.where(details.name >= 0, details.name, code)
