"""What only diagnosis and exports need of a trace: kernel names and shapes, copies' bytes and memory, waits.

Read together with the base columns, window by window, so that details are those of their row in any order of rows.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from perfharness.model import nsys_schema as schema
from perfharness.model.trace import (
    GpuOperationKind,
    GpuOperations,
    Int64,
    OperationDetails,
    Synchronizations,
    TraceDetails,
)
from perfharness.trace.names import NameTable
from perfharness.trace.os_calls import read_os_calls
from perfharness.trace.parallel import Readers
from perfharness.trace.source import MISSING, TraceSource, Window
from perfharness.trace.stream import OPERATION_TABLES
from perfharness.trace.validate import check_operations

UNKNOWN = -1
OPERATION_COLUMNS = ["start", "end", "globalPid", "correlationId", "deviceId", "streamId"]

KERNEL_COLUMNS = [
    "shortName", "demangledName", "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ", "registersPerThread",
    "staticSharedMemory", "dynamicSharedMemory", "graphNodeId",
]  # fmt: skip
COPY_COLUMNS = ["bytes", "copyKind", "srcKind", "dstKind", "graphNodeId", "srcDeviceId", "dstDeviceId"]
MEMSET_COLUMNS = ["bytes", "memKind", "graphNodeId"]
GRAPH_COLUMNS = ["graphExecId"]
DETAILS = {
    GpuOperationKind.KERNEL: KERNEL_COLUMNS,
    GpuOperationKind.MEMCPY: COPY_COLUMNS,
    GpuOperationKind.MEMSET: MEMSET_COLUMNS,
    GpuOperationKind.GRAPH: GRAPH_COLUMNS,
}
SYNCHRONIZATION_COLUMNS = ["start", "end", "globalPid", "correlationId", "syncType", "deviceId", "streamId"]

ANY_STREAM = 0xFFFFFFFF
"""CUPTI's stream id of a wait that is not on one stream."""


def read_detailed(
    readers: Readers, source: TraceSource, path: Path, names: NameTable
) -> tuple[GpuOperations, TraceDetails]:
    """All GPU operations with their details, read together and so aligned, and the waits that the trace recorded."""
    blocks = [
        (kind, list(readers.map(_window(table, kind, names, window) for window in source.windows(table))))
        for kind, table in OPERATION_TABLES.items()
    ]
    kinds = [(kind, sum(len(block["start"]) for block in of_kind)) for kind, of_kind in blocks]
    parts = [block for _, of_kind in blocks for block in of_kind]
    count = sum(size for _, size in kinds)

    def joined(name: str) -> Int64:
        column = np.full(count, UNKNOWN, dtype=np.int64)
        begin = 0
        for part in parts:
            end = begin + len(part["start"])
            if name in part:
                column[begin:end] = part[name]
            begin = end
        return column

    operations = GpuOperations(
        start_ns=joined("start"),
        end_ns=joined("end"),
        process=joined("globalPid"),
        correlation=joined("correlationId"),
        kind=np.repeat([kind for kind, _ in kinds], [size for _, size in kinds]).astype(np.int64),
        device=joined("deviceId"),
        stream=joined("streamId"),
    )
    check_operations(path, operations.start_ns, operations.end_ns, operations.process)
    details = OperationDetails(
        name=joined("name"),
        full_name=joined("full_name"),
        grid=np.stack([joined(f"grid{axis}") for axis in "XYZ"], axis=1),
        block=np.stack([joined(f"block{axis}") for axis in "XYZ"], axis=1),
        registers=joined("registersPerThread"),
        shared_bytes=joined("shared_bytes"),
        copy_kind=joined("copyKind"),
        bytes=joined("bytes"),
        source=joined("srcKind"),
        target=joined("dstKind"),
        graph_exec=joined("graphExecId"),
        graph_node=joined("graphNodeId"),
        source_device=joined("srcDeviceId"),
        target_device=joined("dstDeviceId"),
    )
    return operations, TraceDetails(details, _synchronizations(source), read_os_calls(source, names))


def _window(
    table: str, kind: GpuOperationKind, names: NameTable, window: Window
) -> Callable[[TraceSource], dict[str, Int64]]:
    """Reads some rows of a table of operations: its columns by name, unknown values of details as -1."""

    def read(source: TraceSource) -> dict[str, Int64]:
        rows = source.integers(table, [*OPERATION_COLUMNS, *DETAILS[kind]], window=window)
        found = {name: values if name in OPERATION_COLUMNS else _known(values) for name, values in rows.items()}
        if kind is GpuOperationKind.KERNEL:
            found["name"] = names.codes_of_ids(found.pop("shortName"))
            found["full_name"] = names.codes_of_ids(found.pop("demangledName"))
            static, dynamic = found.pop("staticSharedMemory"), found.pop("dynamicSharedMemory")
            both = np.maximum(static, 0) + np.maximum(dynamic, 0)
            found["shared_bytes"] = np.where(static < 0, UNKNOWN, both)
        if kind is GpuOperationKind.MEMSET:
            found["dstKind"] = found.pop("memKind")
        return found

    return read


def _known(values: Int64) -> Int64:
    missing = values == MISSING
    return np.where(missing, UNKNOWN, values) if missing.any() else values


def _synchronizations(source: TraceSource) -> Synchronizations:
    if source.has(schema.TABLE_SYNCHRONIZATION):
        rows = source.integers(schema.TABLE_SYNCHRONIZATION, SYNCHRONIZATION_COLUMNS)
    else:
        rows = {column: np.empty(0, dtype=np.int64) for column in SYNCHRONIZATION_COLUMNS}
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
