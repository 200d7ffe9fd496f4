"""What only diagnosis and exports need of a trace: kernel names and shapes, copies' bytes and memory, waits.

Read after the base columns and aligned with them by what identifies an operation, so that it does not depend on the
order in which either was read.
"""

from __future__ import annotations

import numpy as np

from perfharness.model import nsys_schema as schema
from perfharness.model.trace import (
    Bool,
    GpuOperationKind,
    GpuOperations,
    Int64,
    OperationDetails,
    Synchronizations,
    TraceDetails,
)
from perfharness.trace.names import NameTable
from perfharness.trace.os_calls import read_os_calls
from perfharness.trace.source import MISSING, TraceSource

UNKNOWN = -1
KEY_COLUMNS = ["start", "end", "globalPid", "correlationId", "deviceId", "streamId"]

FEW_KEY_COLUMNS = ["start", "correlationId"]
"""Where these are those of the base columns, row by row, so is the order of rows."""

KERNEL_COLUMNS = [
    "shortName", "demangledName", "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ", "registersPerThread",
    "staticSharedMemory", "dynamicSharedMemory", "graphNodeId",
]  # fmt: skip
COPY_COLUMNS = ["bytes", "copyKind", "srcKind", "dstKind", "graphNodeId", "srcDeviceId", "dstDeviceId"]
MEMSET_COLUMNS = ["bytes", "memKind", "graphNodeId"]
GRAPH_COLUMNS = ["graphExecId"]
SYNCHRONIZATION_COLUMNS = ["start", "end", "globalPid", "correlationId", "syncType", "deviceId", "streamId"]

ANY_STREAM = 0xFFFFFFFF
"""CUPTI's stream id of a wait that is not on one stream."""

Columns = dict[str, Int64]


def read_details(source: TraceSource, names: NameTable, operations: GpuOperations) -> TraceDetails:
    """Details of these operations, aligned with them, and the waits that the trace recorded."""
    count = len(operations)
    at = {kind: _rows_of(operations.kind == kind) for kind in GpuOperationKind}
    kernel = _columns(source, schema.TABLE_KERNEL, KERNEL_COLUMNS, operations, at[GpuOperationKind.KERNEL])
    copy = _columns(source, schema.TABLE_MEMCPY, COPY_COLUMNS, operations, at[GpuOperationKind.MEMCPY])
    memset = _columns(source, schema.TABLE_MEMSET, MEMSET_COLUMNS, operations, at[GpuOperationKind.MEMSET])
    graph = _columns(source, schema.TABLE_GRAPH, GRAPH_COLUMNS, operations, at[GpuOperationKind.GRAPH])

    def spread(*parts: tuple[GpuOperationKind, Int64]) -> Int64:
        if len(parts) == 1 and len(parts[0][1]) == count:
            return parts[0][1]
        column = np.full(count, UNKNOWN, dtype=np.int64)
        for kind, values in parts:
            column[at[kind]] = values
        return column

    kernels, copies, memsets = GpuOperationKind.KERNEL, GpuOperationKind.MEMCPY, GpuOperationKind.MEMSET
    shared = np.maximum(kernel["staticSharedMemory"], 0) + np.maximum(kernel["dynamicSharedMemory"], 0)
    return TraceDetails(
        operations=OperationDetails(
            name=spread((kernels, names.codes_of_ids(kernel["shortName"]))),
            full_name=spread((kernels, names.codes_of_ids(kernel["demangledName"]))),
            grid=np.stack([spread((kernels, kernel[f"grid{axis}"])) for axis in "XYZ"], axis=1),
            block=np.stack([spread((kernels, kernel[f"block{axis}"])) for axis in "XYZ"], axis=1),
            registers=spread((kernels, kernel["registersPerThread"])),
            shared_bytes=spread((kernels, np.where(kernel["staticSharedMemory"] < 0, UNKNOWN, shared))),
            copy_kind=spread((copies, copy["copyKind"])),
            bytes=spread((copies, copy["bytes"]), (memsets, memset["bytes"])),
            source=spread((copies, copy["srcKind"])),
            target=spread((copies, copy["dstKind"]), (memsets, memset["memKind"])),
            source_device=spread((copies, copy["srcDeviceId"])),
            target_device=spread((copies, copy["dstDeviceId"])),
            graph_exec=spread((GpuOperationKind.GRAPH, graph["graphExecId"])),
            graph_node=spread(
                (kernels, kernel["graphNodeId"]), (copies, copy["graphNodeId"]), (memsets, memset["graphNodeId"])
            ),
        ),
        synchronizations=_synchronizations(source),
        os_calls=read_os_calls(source, names),
    )


def _rows_of(mask: Bool) -> slice | Int64:
    """Where the mask is set, as a slice where that is one stretch, which is quicker to read and to write."""
    at = np.flatnonzero(mask)
    if len(at) and int(at[-1]) - int(at[0]) + 1 == len(at):
        return slice(int(at[0]), int(at[-1]) + 1)
    return at


def _columns(
    source: TraceSource, table: str, wanted: list[str], operations: GpuOperations, mine: slice | Int64
) -> Columns:
    """These columns of a table in the order of `operations[mine]`, unknown values as -1."""
    start, correlation = operations.start_ns[mine], operations.correlation[mine]
    if not source.has(table) or not len(start):
        return {column: np.full(len(start), UNKNOWN, dtype=np.int64) for column in wanted}
    rows = source.integers(table, [*FEW_KEY_COLUMNS, *wanted])
    if all(np.array_equal(rows[name], own) for name, own in zip(FEW_KEY_COLUMNS, (start, correlation), strict=True)):
        return {column: _known(rows[column]) for column in wanted}
    rows |= source.integers(table, KEY_COLUMNS)
    keys = (
        operations.start_ns, operations.end_ns, operations.process, operations.correlation, operations.device,
        operations.stream,
    )  # fmt: skip
    place = _places([rows[column] for column in KEY_COLUMNS], [key[mine] for key in keys])
    return {column: _known(rows[column][place]) for column in wanted}


def _places(table_keys: list[Int64], keys: list[Int64]) -> Int64:
    """Where in the table each row of `keys` stands. Both hold the same rows."""
    place = np.empty(len(keys[0]), dtype=np.int64)
    place[np.lexsort(keys)] = np.lexsort(table_keys)[: len(place)]
    return place


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
