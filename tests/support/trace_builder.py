"""Small synthetic traces in nsys's sqlite schema, from a few lines of a test."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perfharness.model import nsys_schema as schema

NVTX_COLUMNS = (
    "start", "end", "eventType", "rangeId", "category", "text", "globalTid", "endGlobalTid", "textId",
    "domainId", "int64Value",
)  # fmt: skip

H200: dict[str, Any] = {
    "name": "NVIDIA H200", "uuid": "c991c9e1-438a-1801-63fb-810fae305a5c", "smCount": 132, "clockRate": 1_980_000_000,
    "memoryBandwidth": 4_814_304_000_000, "totalMemory": 150_109_880_320, "l2CacheSize": 62_914_560,
    "maxWarpsPerSm": 64, "maxBlocksPerSm": 32, "maxRegistersPerSm": 65_536, "maxShmemPerSm": 233_472,
    "computeMajor": 9, "computeMinor": 0,
}  # fmt: skip
"""Row of TARGET_INFO_GPU by nsys 2025.3, as far as it is read."""


class TraceBuilder:
    """Collects events, then writes them. Times are integers in ns; everything is in one process by default.

    Args:
        cuda_traced: the trace's own statement, as nsys writes it; None: without one.
        gpu: whether the trace has a GPU.
    """

    def __init__(self, *, cuda_traced: bool | None = True, gpu: bool = True) -> None:
        self.tables: dict[str, list[dict[str, Any]]] = {}
        self._strings: dict[str, int] = {}
        self._categories: dict[tuple[int, int, str], int] = {}
        self._domains: dict[tuple[int, str], int] = {}
        self._next_correlation = 1
        if cuda_traced is not None:
            self.capture(CAPTURE_EVENT_TYPE="NvtxEvents")
            self.capture(COLLECT_CUDA_TRACE=str(cuda_traced).lower())
        if gpu:
            self.row("TARGET_INFO_GPU", id=0, name="Test GPU")

    def row(self, table: str, **columns: Any) -> int:
        """Add a row to any table; returns its row id."""
        rows = self.tables.setdefault(table, [])
        rows.append(columns)
        return len(rows)

    def capture(self, **values: str) -> None:
        """Rows of META_DATA_CAPTURE."""
        for name, value in values.items():
            self.row("META_DATA_CAPTURE", name=name, value=value)

    def string(self, value: str) -> int:
        """Id of a string in StringIds."""
        if value not in self._strings:
            self._strings[value] = len(self._strings) + 1
            self.row(schema.TABLE_STRINGS, id=self._strings[value], value=value)
        return self._strings[value]

    def range(
        self,
        name: str,
        start: int,
        end: int | None,
        *,
        pid: int = 100,
        tid: int = 100,
        domain: str | None = None,
        category: str | None = None,
        payload: int | None = None,
        start_end: bool = False,
        end_tid: int | None = None,
        text: bool = False,
    ) -> int:
        """A range; `text` stores the name in the event itself instead of in StringIds. Returns its row id."""
        return self._event(
            schema.NVTX_START_END_RANGE if start_end else schema.NVTX_PUSH_POP_RANGE,
            name, start, end, pid, tid, domain, category, payload, text=text,
            endGlobalTid=None if end_tid is None else schema.global_tid(pid, end_tid),
        )  # fmt: skip

    def mark(
        self, name: str, at: int, *, pid: int = 100, tid: int = 100, domain: str | None = None,
        category: str | None = None, payload: int | None = None,
    ) -> int:  # fmt: skip
        """A mark; returns its row id."""
        return self._event(schema.NVTX_MARK_EVENT, name, at, None, pid, tid, domain, category, payload)

    def call(
        self, name: str, start: int, end: int, *, pid: int = 100, tid: int = 100, correlation: int | None = None,
        result: int = 0,
    ) -> int:  # fmt: skip
        """A CUDA API call; returns its correlation id."""
        if correlation is None:
            correlation, self._next_correlation = self._next_correlation, self._next_correlation + 1
        self.row(
            schema.TABLE_API, start=start, end=end, globalTid=schema.global_tid(pid, tid), correlationId=correlation,
            nameId=self.string(name), returnValue=result, eventClass=schema.EVENT_CLASS_RUNTIME,
        )  # fmt: skip
        return correlation

    def operation(
        self, start: int, end: int, correlation: int, *, table: str = schema.TABLE_KERNEL, pid: int = 100,
        stream: int = 7, device: int = 0, **columns: Any,
    ) -> None:  # fmt: skip
        """A GPU operation; `columns` are further ones of its table."""
        self.row(
            table, start=start, end=end, globalPid=schema.global_tid(pid, 0), correlationId=correlation,
            deviceId=device, streamId=stream, **columns,
        )  # fmt: skip

    def kernel(
        self, call: tuple[int, int], run: tuple[int, int], *, pid: int = 100, tid: int = 100, stream: int = 7,
        device: int = 0, name: str | None = None, grid: int | None = None, block: int = 128, registers: int = 32,
        shared_bytes: int = 0,
    ) -> int:  # fmt: skip
        """A launch call (start, end) and the kernel (start, end) that it started; returns the correlation id.

        With a name or a grid, the kernel has all columns of nsys.
        """
        correlation = self.call("cudaLaunchKernel_v7000", *call, pid=pid, tid=tid)
        details: dict[str, Any] = {}
        if name is not None or grid is not None:
            code = self.string(name or "kernel")
            details = {
                "shortName": code, "demangledName": code, "gridX": grid or 1, "gridY": 1, "gridZ": 1, "blockX": block,
                "blockY": 1, "blockZ": 1, "registersPerThread": registers, "staticSharedMemory": shared_bytes,
                "dynamicSharedMemory": 0,
            }  # fmt: skip
        self.operation(*run, correlation, pid=pid, stream=stream, device=device, **details)
        return correlation

    def gpu_metric_names(self, names: Sequence[str], *, gpu: int = 0) -> int:
        """Metrics that are sampled, their ids in this order from 0 on; returns the type id of the GPU's readings."""
        type_id = 0x6E74_0000_0000_0000 | gpu  # the last eight bits are the GPU
        for number, name in enumerate(names):
            self.row(
                "TARGET_INFO_GPU_METRICS", typeId=type_id, sourceId=type_id >> 8, typeName=f"GPU Metrics [{gpu}]",
                metricId=number, metricName=name,
            )  # fmt: skip
        return type_id

    def gpu_metric_reading(self, at: int, values: Sequence[int | None], *, type_id: int) -> None:
        """A reading of all metrics that are sampled, at the begin of its period; None: without a row."""
        for number, value in enumerate(values):
            if value is not None:
                self.row(
                    "GPU_METRICS", rawTimestamp=at + 5_000_000_000, timestamp=at, typeId=type_id, metricId=number,
                    value=value,
                )  # fmt: skip

    def write(self, path: Path) -> Path:
        """Write the file; tables have the columns of their rows."""
        path.unlink(missing_ok=True)
        self.tables.setdefault(schema.TABLE_STRINGS, [{"id": 0, "value": ""}])
        connection = sqlite3.connect(path)
        connection.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF")  # nobody else reads it yet
        with connection:
            for table, rows in self.tables.items():
                columns = list(dict.fromkeys(column for row in rows for column in row))
                quoted = ", ".join(f'"{column}"' for column in columns)
                connection.execute(f"CREATE TABLE {table} ({quoted})")
                connection.executemany(
                    f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})",
                    [tuple(row.get(column) for column in columns) for row in rows],
                )
        connection.close()
        return path

    def _event(
        self, kind: int, name: str, start: int, end: int | None, pid: int, tid: int, domain: str | None,
        category: str | None, payload: int | None, *, text: bool = False, **more: Any,
    ) -> int:  # fmt: skip
        domain_id = self._domain(pid, tid, domain)
        thread = schema.global_tid(pid, tid)
        columns: dict[str, Any] = dict.fromkeys(NVTX_COLUMNS)
        columns |= {
            "start": start, "end": end, "eventType": kind, "globalTid": thread, "domainId": domain_id,
            "int64Value": payload,
            "category": self._category(pid, tid, domain_id, category),
        }  # fmt: skip
        columns |= {"text": name} if text else {"textId": self.string(name)}
        return self.row(schema.TABLE_NVTX, **columns | more)

    def _domain(self, pid: int, tid: int, domain: str | None) -> int:
        if domain is None:
            return 0
        if (pid, domain) not in self._domains:
            self._domains[pid, domain] = len(self._domains) + 1
            self.row(
                schema.TABLE_NVTX, start=0, eventType=schema.NVTX_DOMAIN_CREATE, text=domain,
                globalTid=schema.global_tid(pid, tid), domainId=self._domains[pid, domain],
            )  # fmt: skip
        return self._domains[pid, domain]

    def _category(self, pid: int, tid: int, domain_id: int, category: str | None) -> int | None:
        if category is None:
            return None
        key = (pid, domain_id, category)
        if key not in self._categories:
            self._categories[key] = len(self._categories) + 1
            self.row(
                schema.TABLE_NVTX, start=0, eventType=schema.NVTX_CATEGORY_EVENT, text=category, domainId=domain_id,
                category=self._categories[key], globalTid=schema.global_tid(pid, tid),
            )  # fmt: skip
        return self._categories[key]
