"""Converts a sqlite trace to a Parquet folder like nsys's export, for tests without a GPU.

The layout is nsys's own (2023.4 and 2024.2), compared with real exports.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

ROWS_A_GROUP = 2048

UNSIGNED = frozenset({
    "bytes", "category", "contextId", "copyKind", "demangledName", "domainId", "duration", "endGlobalTid", "globalPid",
    "globalTid", "globalVid", "graphNodeId", "greenContextId", "luid", "mangledName", "memoryBandwidth", "nameId",
    "originalGraphNodeId", "pid", "rangeId", "shortName", "startTime", "stopTime", "streamId", "totalMemory",
    "uint64Value", "utcEpochNs", "virtualAddress",
})  # fmt: skip
SHORT = frozenset({
    "blockX", "blockY", "blockZ", "cuDevice", "dynamicSharedMemory", "gridX", "gridY", "gridZ", "int32Value",
    "localMemoryPerThread", "localMemoryTotal", "nameEnum", "severity", "source", "staticSharedMemory",
    "timestampType",
})  # fmt: skip
FLAGS = frozenset({"isDiscrete", "isGreenContext"})
EXCEPTIONS = {
    ("StringIds", "id"): pa.int32(),
    ("TARGET_INFO_CUDA_CONTEXT_INFO", "contextId"): pa.int64(),
    ("TARGET_INFO_CUDA_STREAM", "contextId"): pa.int64(),
    ("TARGET_INFO_CUDA_STREAM", "streamId"): pa.int64(),
    ("ThreadNames", "priority"): pa.uint64(),
    ("NVTX_EVENTS", "floatValue"): pa.float32(),
}


def export_parquet(database: Path, folder: Path) -> Path:
    """Write every table of a sqlite trace to a folder; returns the folder."""
    folder.mkdir()
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            write_table(_read(connection, table), folder, table)
    return folder


def write_table(rows: pa.Table, folder: Path, name: str) -> None:
    """One file of such a folder."""
    pq.write_table(
        rows, folder / f"{name}.parquet", version="1.0", compression="NONE", row_group_size=ROWS_A_GROUP,
        store_schema=False,
    )  # fmt: skip


def _read(connection: sqlite3.Connection, table: str) -> pa.Table:
    layout = connection.execute(f"PRAGMA table_info({table})").fetchall()
    rows = connection.execute(f"SELECT * FROM {table} ORDER BY rowid").fetchall()
    columns: list[tuple[Any, ...]] = list(zip(*rows, strict=True)) if rows else [()] * len(layout)
    fields, arrays = [], []
    for (_, name, declared, not_null, *_), values in zip(layout, columns, strict=True):
        declared = declared or ("TEXT" if any(isinstance(value, str) for value in values) else "")
        kind = _type(table, name, declared)
        fields.append(pa.field(name, kind, nullable=not not_null))
        arrays.append(_array(values, kind))
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _type(table: str, column: str, declared: str) -> pa.DataType:
    if (table, column) in EXCEPTIONS:
        return EXCEPTIONS[table, column]
    if declared.upper() == "TEXT" or (not declared and column in {"name", "text"}):
        return pa.string()
    if declared.upper() == "REAL":
        return pa.float64()
    for names, kind in ((UNSIGNED, pa.uint64()), (SHORT, pa.int32()), (FLAGS, pa.bool_())):
        if column in names:
            return kind
    return pa.int64()


def _array(values: tuple[Any, ...], kind: pa.DataType) -> pa.Array:
    if pa.types.is_uint64(kind):
        return pa.array(values, pa.int64()).view(kind)
    if pa.types.is_boolean(kind):
        return pa.array([None if value is None else bool(value) for value in values], kind)
    return pa.array(values, kind)
