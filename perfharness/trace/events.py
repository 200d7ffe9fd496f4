"""CUDA calls, GPU operations, synchronisations and waits in the operating system, each table into columns."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from perfharness.model import nsys_schema as schema
from perfharness.model.trace import (
    ApiCalls,
    GpuOperationKind,
    GpuOperations,
    Int64,
    Integers,
    OperationDetails,
    OsCalls,
    OsWaitKind,
    Synchronizations,
)
from perfharness.trace.names import NameTable
from perfharness.trace.readers import Readers
from perfharness.trace.source import MISSING
from perfharness.trace.validate import check_calls, check_operations, narrow

UNKNOWN = -1
CALL_COLUMNS = ["start", "end", "globalTid", "correlationId", "nameId", "returnValue"]
OPERATION_COLUMNS = ["start", "end", "globalPid", "correlationId", "deviceId", "streamId"]
SYNCHRONIZATION_COLUMNS = ["start", "end", "globalPid", "correlationId", "syncType", "deviceId", "streamId"]

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
"""Columns that only operations of this kind have."""

ANY_STREAM = 0xFFFFFFFF
"""CUPTI's stream id of a wait that is not on one stream."""

TABLE_OSRT = "OSRT_API"

OS_CALLS = (
    (OsWaitKind.LOCK, r"pthread_(cond_\w*wait|(mutex|spin)_\w*lock$|rwlock_\w*(rd|wr)lock|\w*join\w*|barrier_wait)"),
    (OsWaitKind.LOCK, r"sem_\w*wait|futex"),
    (OsWaitKind.SLEEP, r"(u|nano|clock_nano)?sleep$|pause$|sigwait|sigtimedwait"),
    (OsWaitKind.PROCESS, r"wait(pid|id|3|4)?$"),
    (OsWaitKind.FILE, r"p?(read|write)v?(64)?$|f(read|write|gets|sync|datasync)|p?poll$|p?select$|epoll_p?wait"),
    (OsWaitKind.FILE, r"(recv|send)\w*$|accept4?$|connect$|f?open(at)?(64)?$|flock$"),
)
"""Kind and the names of its functions, as nsys's documentation lists them. `ioctl` is CUDA's own, and left out."""


def read_calls(readers: Readers, path: Path, names: NameTable) -> ApiCalls:
    """All CUDA calls. Raises `TraceFormatError` where they contradict themselves."""
    rows = readers.integers(schema.TABLE_API, CALL_COLUMNS)
    check_calls(path, rows["start"], rows["end"], rows["globalTid"])
    return ApiCalls(
        start_ns=rows["start"],
        end_ns=rows["end"],
        thread=rows["globalTid"],
        correlation=rows["correlationId"],
        name=narrow(names.codes_of_ids(rows["nameId"])),
        return_value=narrow(np.maximum(rows["returnValue"], 0)),  # where this version has none, all went well
    )


def read_operations(readers: Readers, path: Path, names: NameTable) -> tuple[GpuOperations, OperationDetails]:
    """All GPU operations with their details. Raises `TraceFormatError` where they contradict themselves."""
    tables = [_operations(readers, kind, names) for kind in OPERATION_TABLES]
    sizes = [len(rows["start"]) for rows in tables]

    def joined(name: str) -> Int64:
        return np.concatenate(
            [rows.pop(name, np.broadcast_to(UNKNOWN, size)) for rows, size in zip(tables, sizes, strict=True)]
        )

    def detail(name: str) -> Integers:
        return narrow(joined(name))

    operations = GpuOperations(
        start_ns=joined("start"),
        end_ns=joined("end"),
        process=joined("globalPid"),
        correlation=joined("correlationId"),
        kind=np.repeat(list(OPERATION_TABLES), sizes).astype(np.int64),
        device=joined("deviceId"),
        stream=joined("streamId"),
    )
    check_operations(path, operations.start_ns, operations.end_ns, operations.process)
    details = OperationDetails(
        name=detail("name"),
        full_name=detail("full_name"),
        grid=np.stack([detail(f"grid{axis}") for axis in "XYZ"], axis=1),
        block=np.stack([detail(f"block{axis}") for axis in "XYZ"], axis=1),
        registers=detail("registersPerThread"),
        shared_bytes=detail("shared_bytes"),
        copy_kind=detail("copyKind"),
        bytes=joined("bytes"),
        source=detail("srcKind"),
        target=detail("dstKind"),
        graph_exec=detail("graphExecId"),
        graph_node=detail("graphNodeId"),
        source_device=detail("srcDeviceId"),
        target_device=detail("dstDeviceId"),
    )
    return operations, details


def _operations(readers: Readers, kind: GpuOperationKind, names: NameTable) -> dict[str, Int64]:
    """One table of operations: its columns by name, unknown values of details as -1."""
    rows = readers.integers(OPERATION_TABLES[kind], [*OPERATION_COLUMNS, *DETAILS[kind]])
    for name in DETAILS[kind]:
        rows[name] = _known(rows[name])
    if kind is GpuOperationKind.KERNEL:
        rows["name"] = names.codes_of_ids(rows.pop("shortName"))
        rows["full_name"] = names.codes_of_ids(rows.pop("demangledName"))
        static, dynamic = rows.pop("staticSharedMemory"), rows.pop("dynamicSharedMemory")
        rows["shared_bytes"] = np.where(static < 0, UNKNOWN, np.maximum(static, 0) + np.maximum(dynamic, 0))
    if kind is GpuOperationKind.MEMSET:
        rows["dstKind"] = rows.pop("memKind")
    return rows


def _known(values: Int64) -> Int64:
    missing = values == MISSING
    return np.where(missing, UNKNOWN, values) if missing.any() else values


def read_synchronizations(readers: Readers) -> Synchronizations:
    """The waits that the tracer recorded as such."""
    rows = readers.integers(schema.TABLE_SYNCHRONIZATION, SYNCHRONIZATION_COLUMNS)
    stream = _known(rows["streamId"])
    return Synchronizations(
        start_ns=rows["start"],
        end_ns=rows["end"],
        process=rows["globalPid"],
        correlation=rows["correlationId"],
        kind=np.maximum(rows["syncType"], 0),
        device=_known(rows["deviceId"]),
        stream=np.where(stream == ANY_STREAM, UNKNOWN, stream),
    )


def read_os_calls(readers: Readers, names: NameTable) -> OsCalls | None:
    """The waiting calls of all threads; None where the operating system's calls were not recorded."""
    if not readers.source.has(TABLE_OSRT):
        return None
    rows = readers.integers(TABLE_OSRT, ["start", "end", "globalTid", "nameId"])
    name = names.codes_of_ids(rows["nameId"])
    compiled = [(kind, re.compile(pattern)) for kind, pattern in OS_CALLS]
    kind_of = np.full(len(names.values) + 1, -1, dtype=np.int64)
    for code in np.unique(name[name >= 0]).tolist():
        text = names.values[code]
        kind_of[code] = next((kind for kind, pattern in compiled if pattern.match(text)), -1)
    kind = kind_of[name]
    whole = (rows["start"] != MISSING) & (rows["end"] >= rows["start"]) & (rows["globalTid"] != MISSING)
    keep = whole & (kind >= 0)
    return OsCalls(rows["start"][keep], rows["end"][keep], rows["globalTid"][keep], kind[keep], name[keep])
