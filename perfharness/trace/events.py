"""Columns of CUDA calls, GPU operations, and waits in the operating system."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from perfharness.model import nsys_schema as schema
from perfharness.model.columns import Integers
from perfharness.model.trace import ApiCalls, GpuOperationKind, GpuOperations, OperationDetails, OsCalls, OsWaitKind
from perfharness.trace.columns import MISSING, check_events, narrow
from perfharness.trace.names import NameTable, by_name

UNKNOWN = -1
CALL_COLUMNS = ["start", "end", "globalTid", "correlationId", "nameId", "returnValue"]
OPERATION_COLUMNS = ["start", "end", "globalPid", "correlationId", "deviceId", "streamId"]
OS_CALL_COLUMNS = ["start", "end", "globalTid", "nameId"]

OPERATION_TABLES = {
    GpuOperationKind.KERNEL: schema.TABLE_KERNEL,
    GpuOperationKind.MEMCPY: schema.TABLE_MEMCPY,
    GpuOperationKind.MEMSET: schema.TABLE_MEMSET,
    GpuOperationKind.GRAPH: schema.TABLE_GRAPH,
}

DETAILS = {
    GpuOperationKind.KERNEL: [
        "shortName", "demangledName", "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ", "registersPerThread",
        "staticSharedMemory", "dynamicSharedMemory", "graphNodeId",
    ],
    GpuOperationKind.MEMCPY: ["bytes", "copyKind", "srcKind", "dstKind", "graphNodeId", "srcDeviceId", "dstDeviceId"],
    GpuOperationKind.MEMSET: ["bytes", "memKind", "graphNodeId"],
    GpuOperationKind.GRAPH: ["graphExecId"],
}  # fmt: skip
"""Columns specific to one kind of operation."""


TABLE_OSRT = "OSRT_API"

OS_CALLS = (
    (OsWaitKind.LOCK, r"pthread_(cond_\w*wait|(mutex|spin)_\w*lock$|rwlock_\w*(rd|wr)lock|\w*join\w*|barrier_wait)"),
    (OsWaitKind.LOCK, r"sem_\w*wait|futex"),
    (OsWaitKind.SLEEP, r"(u|nano|clock_nano)?sleep$|pause$|sigwait|sigtimedwait"),
    (OsWaitKind.PROCESS, r"wait(pid|id|3|4)?$"),
    (OsWaitKind.FILE, r"p?(read|write)v?(64)?$|f(read|write|gets|sync|datasync)|f?open(at)?(64)?$|flock$"),
    (OsWaitKind.SOCKET, r"(recv|send)\w*$|accept4?$|connect$|p?poll$|p?select$|epoll_p?wait"),
)
"""Kind and function names, from nsys's documentation. `ioctl` belongs to CUDA and is left out."""


def make_calls(rows: dict[str, Integers], path: Path, names: NameTable) -> ApiCalls:
    """Build all CUDA calls. Raises `TraceFormatError` if they are inconsistent."""
    check_events(path, "CUDA calls", rows["start"], rows["end"], rows["globalTid"])
    return ApiCalls(
        start_ns=rows["start"],
        end_ns=rows["end"],
        thread=rows["globalTid"],
        correlation=narrow(rows["correlationId"]),
        name=narrow(names.codes_of_ids(rows["nameId"])),
        return_value=narrow(np.maximum(rows["returnValue"], 0)),  # missing values mean success
    )


def make_operations(
    rows_of: dict[GpuOperationKind, dict[str, Integers]], path: Path, names: NameTable
) -> tuple[GpuOperations, OperationDetails]:
    """Build all GPU operations, by kind, with details. Raises `TraceFormatError` if they are inconsistent.

    Missing details are -1.
    """
    tables = [_operations(rows, names) for rows in rows_of.values()]
    sizes = [len(rows["start"]) for rows in tables]

    def joined(name: str) -> Integers:
        unknown = (np.broadcast_to(np.int8(UNKNOWN), size) for size in sizes)
        parts = [rows.pop(name, column) for rows, column in zip(tables, unknown, strict=True)]
        return np.concatenate([part for part in parts if len(part)] or parts)

    def detail(name: str) -> Integers:
        return narrow(joined(name), np.int8, np.int16, np.int32)

    operations = GpuOperations(
        start_ns=joined("start"),
        end_ns=joined("end"),
        process=joined("globalPid"),
        correlation=narrow(joined("correlationId")),
        kind=np.repeat(np.asarray(list(rows_of), dtype=np.int8), sizes),
        device=narrow(joined("deviceId")),
        stream=narrow(joined("streamId")),
    )
    check_events(path, "GPU operations", operations.start_ns, operations.end_ns, operations.process)
    details = OperationDetails(
        name=detail("name"),
        full_name=detail("full_name"),
        grid=np.stack([detail(f"grid{axis}") for axis in "XYZ"], axis=1),
        block=np.stack([detail(f"block{axis}") for axis in "XYZ"], axis=1),
        registers=detail("registersPerThread"),
        shared_bytes=detail("shared_bytes"),
        copy_kind=detail("copyKind"),
        bytes=detail("bytes"),
        source=detail("srcKind"),
        target=detail("dstKind"),
        graph_exec=detail("graphExecId"),
        graph_node=detail("graphNodeId"),
        source_device=detail("srcDeviceId"),
        target_device=detail("dstDeviceId"),
    )
    return operations, details


def _operations(rows: dict[str, Integers], names: NameTable) -> dict[str, Integers]:
    """Columns of one table of operations by name; unknown details are -1."""
    for name in rows.keys() - set(OPERATION_COLUMNS):
        rows[name] = _known(rows[name])
    if "shortName" in rows:
        rows["name"] = names.codes_of_ids(rows.pop("shortName"))
        rows["full_name"] = names.codes_of_ids(rows.pop("demangledName"))
        static, dynamic = rows.pop("staticSharedMemory"), rows.pop("dynamicSharedMemory")
        both = np.add(np.maximum(static, 0), np.maximum(dynamic, 0), dtype=np.int64)
        rows["shared_bytes"] = np.where(static < 0, UNKNOWN, both)
    if "memKind" in rows:
        rows["dstKind"] = rows.pop("memKind")
    return rows


def _known(values: Integers) -> Integers:
    missing = values == MISSING
    return np.where(missing, UNKNOWN, values) if missing.any() else values


def make_os_calls(rows: dict[str, Integers], names: NameTable) -> OsCalls:
    """Waiting calls of all threads."""
    name = names.codes_of_ids(rows["nameId"])
    compiled = [(kind, re.compile(pattern)) for kind, pattern in OS_CALLS]
    kind = by_name(names.values, name, lambda text: next((kind for kind, found in compiled if found.match(text)), -1))
    whole = (rows["start"] != MISSING) & (rows["end"] >= rows["start"]) & (rows["globalTid"] != MISSING)
    keep = whole & (kind >= 0)
    return OsCalls(rows["start"][keep], rows["end"][keep], rows["globalTid"][keep], kind[keep], name[keep])
