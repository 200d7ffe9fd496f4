"""Write or extend a trace file in nsys's schema. Tables are created with their first rows."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from perfharness.model import nsys_schema as schema

SCHEMA_VERSION = (3, 20, 3)
"""Version of nsys's export schema."""

ROWS_PER_INSERT = 100_000

_OPERATION = (
    "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, "
    "greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER"
)

TABLES = {
    schema.TABLE_STRINGS: "id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL",
    schema.TABLE_NVTX: (
        "start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER, category INTEGER, "
        "color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER, "
        "uint64Value INTEGER, int64Value INTEGER, doubleValue REAL, uint32Value INTEGER, int32Value INTEGER, "
        "floatValue REAL, jsonTextId INTEGER, jsonText TEXT, binaryData TEXT"
    ),
    schema.TABLE_KERNEL: (
        f"{_OPERATION}, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER, "
        "launchType INTEGER, cacheConfig INTEGER, registersPerThread INTEGER NOT NULL, gridX INTEGER NOT NULL, "
        "gridY INTEGER NOT NULL, gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL, blockY INTEGER NOT NULL, "
        "blockZ INTEGER NOT NULL, staticSharedMemory INTEGER NOT NULL, dynamicSharedMemory INTEGER NOT NULL, "
        "localMemoryPerThread INTEGER NOT NULL, localMemoryTotal INTEGER NOT NULL, gridId INTEGER NOT NULL, "
        "sharedMemoryExecuted INTEGER, graphNodeId INTEGER, sharedMemoryLimitConfig INTEGER"
    ),
    schema.TABLE_MEMCPY: (
        f"{_OPERATION}, bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL, deprecatedSrcId INTEGER, srcKind INTEGER, "
        "dstKind INTEGER, srcDeviceId INTEGER, srcContextId INTEGER, dstDeviceId INTEGER, dstContextId INTEGER, "
        "migrationCause INTEGER, graphNodeId INTEGER, virtualAddress INTEGER, copyCount INTEGER"
    ),
    schema.TABLE_MEMSET: (
        f"{_OPERATION}, value INTEGER NOT NULL, bytes INTEGER NOT NULL, graphNodeId INTEGER, memKind INTEGER"
    ),
    schema.TABLE_GRAPH: f"{_OPERATION}, graphId INTEGER NOT NULL, graphExecId INTEGER NOT NULL",
    schema.TABLE_API: (
        "start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, globalTid INTEGER, "
        "correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL, callchainId INTEGER"
    ),
    schema.TABLE_SYNCHRONIZATION: (
        "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER, contextId INTEGER NOT NULL, "
        "greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, "
        "deprecatedSyncType INTEGER, syncType INTEGER NOT NULL, eventId INTEGER NOT NULL, eventSyncId INTEGER"
    ),
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs INTEGER, utcTime TEXT, localTime TEXT",
    "TARGET_INFO_SYSTEM_ENV": (
        "globalVid INTEGER, devStateName TEXT NOT NULL, name TEXT NOT NULL, nameEnum INTEGER NOT NULL, "
        "value TEXT NOT NULL"
    ),
    "TARGET_INFO_GPU": (
        "vmId INTEGER NOT NULL, id INTEGER NOT NULL, name TEXT, busLocation TEXT, isDiscrete INTEGER, "
        "l2CacheSize INTEGER, totalMemory INTEGER, memoryBandwidth INTEGER, clockRate INTEGER, smCount INTEGER, "
        "pwGpuId INTEGER, uuid TEXT, luid INTEGER, chipName TEXT, cuDevice INTEGER, computeMajor INTEGER, "
        "computeMinor INTEGER, smMajor INTEGER, smMinor INTEGER, threadsPerWarp INTEGER, asyncEngines INTEGER, "
        "maxWarpsPerSm INTEGER, maxBlocksPerSm INTEGER, maxRegistersPerSm INTEGER, maxShmemPerSm INTEGER"
    ),
    "TARGET_INFO_CUDA_DEVICE": "gpuId INTEGER, cudaId INTEGER NOT NULL, pid INTEGER NOT NULL",
    "ANALYSIS_DETAILS": (
        "globalVid INTEGER NOT NULL, duration INTEGER NOT NULL, startTime INTEGER NOT NULL, stopTime INTEGER NOT NULL"
    ),
    "PROCESSES": "globalPid INTEGER, pid INTEGER, name TEXT",
    "ThreadNames": "nameId INTEGER NOT NULL, priority INTEGER, globalTid INTEGER",
    "META_DATA_CAPTURE": "name TEXT NOT NULL, value TEXT",
    "META_DATA_EXPORT": "name TEXT NOT NULL, value TEXT",
    schema.TABLE_PERFHARNESS: "name TEXT NOT NULL, value TEXT",
}


def _enumeration(prefix: str, values: str, first: int = 0) -> dict[int, tuple[str, str]]:
    """Name and label by number, from comma-separated `NAME` or `NAME=Label`."""
    named = (value.partition("=") for value in values.split(", "))
    return {number: (prefix + name, label or name) for number, (name, _, label) in enumerate(named, start=first)}


ENUMERATIONS: dict[str, dict[int, tuple[str, str]]] = {
    "ENUM_NSYS_EVENT_TYPE": {
        number: (name, name)
        for number, name in (
            (schema.NVTX_CATEGORY_EVENT, "NvtxCategory"),
            (schema.NVTX_MARK_EVENT, "NvtxMark"),
            (schema.NVTX_PUSH_POP_RANGE, "NvtxPushPopRange"),
            (schema.NVTX_START_END_RANGE, "NvtxStartEndRange"),
            (schema.NVTX_DOMAIN_CREATE, "NvtxDomainCreate"),
        )
    },
    "ENUM_NSYS_EVENT_CLASS": {
        schema.EVENT_CLASS_RUNTIME: ("TRACE_PROCESS_EVENT_CUDA_RUNTIME", "CUDA runtime"),
        schema.EVENT_CLASS_DRIVER: ("TRACE_PROCESS_EVENT_CUDA_DRIVER", "CUDA driver"),
    },
    "ENUM_CUDA_MEMCPY_OPER": _enumeration(
        "CUDA_MEMCPY_KIND_",
        "UNKNOWN=Unknown, HTOD=Host-to-Device, DTOH=Device-to-Host, HTOA=Host-to-Array, ATOH=Array-to-Host, "
        "ATOA=Array-to-Array, ATOD=Array-to-Device, DTOA=Device-to-Array, DTOD=Device-to-Device, HTOH=Host-to-Host, "
        "PTOP=Peer-to-Peer",
    ),
    "ENUM_CUDA_MEM_KIND": _enumeration(
        "CUDA_MEMOPR_MEMORY_KIND_",
        "PAGEABLE=Pageable, PINNED=Pinned, DEVICE=Device, ARRAY=Array, MANAGED=Managed, DEVICE_STATIC=Device Static, "
        "MANAGED_STATIC=Managed Static, UNKNOWN=Unknown",
    ),
    "ENUM_CUPTI_SYNC_TYPE": _enumeration(
        "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_",
        "UNKNOWN=Unknown, EVENT_SYNCHRONIZE=Event sync, STREAM_WAIT_EVENT=Stream wait sync, "
        "STREAM_SYNCHRONIZE=Stream sync, CONTEXT_SYNCHRONIZE=Context sync",
    ),
    "ENUM_CUDA_KERNEL_LAUNCH_TYPE": _enumeration(
        "CUDA_KERNEL_LAUNCH_TYPE_",
        "UNKNOWN=Unknown, REGULAR=Regular, COOPERATIVE_SINGLE_DEVICE=Coop Single Device, "
        "COOPERATIVE_MULTI_DEVICE=Coop Multi Device",
    ),
    "ENUM_DIAGNOSTIC_SEVERITY_LEVEL": _enumeration("", "Info, Warning, Error", first=1),
}

MEMORY_KIND_UNKNOWN = 7
"""nsys counts memory kinds from 0, with unknown (CUPTI: 0) last."""


class TraceFile:
    """A context manager that commits. After an exception, a new file is invalid and an existing one unchanged.

    Args:
        new: whether to create the file; otherwise extend it.
    """

    def __init__(self, path: Path, *, new: bool = True) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._is_new = new
        if new:
            # The file is renamed when complete, so it needs no journal and no fsync.
            for pragma in ("journal_mode=OFF", "synchronous=OFF", "locking_mode=EXCLUSIVE"):
                self._connection.execute(f"PRAGMA {pragma}")
        self._connection.execute("BEGIN IMMEDIATE")
        self._made: set[str] = set()
        self._strings: dict[str, int] = {}
        self._strings_written = 0
        if not new:
            self._made = {name for (name,) in self._connection.execute("SELECT name FROM sqlite_master")}
            if schema.TABLE_STRINGS in self._made:
                query = f"SELECT value, id FROM {schema.TABLE_STRINGS} ORDER BY id"
                self._strings = dict(self._connection.execute(query))
            self._strings_written = len(self._strings)
        self.next_range_id = 1
        if schema.TABLE_NVTX in self._made:
            (last,) = self._connection.execute(f"SELECT max(rangeId) FROM {schema.TABLE_NVTX}").fetchone()
            self.next_range_id += last or 0

    def __enter__(self) -> TraceFile:
        for name, values in ENUMERATIONS.items() if self._is_new else ():
            self._connection.execute(f"CREATE TABLE {name} (id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT)")
            rows = [(number, *texts) for number, texts in values.items()]
            self._connection.executemany(f"INSERT INTO {name} VALUES (?, ?, ?)", rows)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._connection.execute("COMMIT")
        finally:
            self._connection.close()

    def string_id(self, text: str) -> int:
        """ID of a string in `StringIds`."""
        return self._strings.setdefault(text, len(self._strings) + 1)

    def make(self, table: str) -> None:
        """Create a table unless it exists."""
        if table not in self._made:
            self._made.add(table)
            self._connection.execute(f"CREATE TABLE {table} ({TABLES[table]})")

    def insert(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Insert rows; without rows, do not create the table."""
        rows = list(rows)
        if rows:
            self.make(table)
            self._connection.executemany(_statement(table, columns), rows)

    def insert_columns(self, table: str, columns: dict[str, Any], count: int) -> None:
        """Insert `count` rows from columns: arrays (masked values are NULL), or one value for all rows."""
        if count == 0:
            return
        self.make(table)
        columns = {name: values for name, values in columns.items() if values is not None}
        statement = _statement(table, list(columns))
        for start in range(0, count, ROWS_PER_INSERT):
            stop = min(start + ROWS_PER_INSERT, count)
            parts = [
                values[start:stop].tolist() if isinstance(values, np.ndarray) else [values] * (stop - start)
                for values in columns.values()
            ]
            self._connection.executemany(statement, zip(*parts, strict=True))

    def write_strings(self) -> None:
        """Write the new strings to `StringIds`."""
        new = itertools.islice(self._strings.items(), self._strings_written, None)
        self.insert(schema.TABLE_STRINGS, ("id", "value"), [(number, text) for text, number in new])
        self._strings_written = len(self._strings)

    def values(self, table: str, name: str) -> list[str]:
        """Return the values of a name in a table with columns `name` and `value`."""
        if table not in self._made:
            return []
        return [value for (value,) in self._connection.execute(f"SELECT value FROM {table} WHERE name = ?", (name,))]


def _statement(table: str, columns: Sequence[str]) -> str:
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
