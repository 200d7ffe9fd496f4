"""Read a trace from nsys or the embedded tracer into a `Trace`.

Columns are selected by name, tables may be missing, and row order does not matter; one reader serves all.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

from perfharness.model import nsys_schema as schema
from perfharness.model.trace import Trace
from perfharness.trace.events import (
    CALL_COLUMNS,
    DETAILS,
    OPERATION_COLUMNS,
    OPERATION_TABLES,
    OS_CALL_COLUMNS,
    TABLE_OSRT,
    make_calls,
    make_operations,
    make_os_calls,
)
from perfharness.trace.gpu_metrics import read_gpu_metrics
from perfharness.trace.interpreter_lock import split_interpreter_lock
from perfharness.trace.metadata import read_meta
from perfharness.trace.names import NameTable
from perfharness.trace.nvtx import NVTX_COLUMNS, PAYLOADS, closed, make_nvtx
from perfharness.trace.sqlite import ROW_ID, TraceFile

READERS = 2
NO_PARENTS: Mapping[int, int] = MappingProxyType({})


def open_trace(path: Path, *, parents: Mapping[int, int] = NO_PARENTS, with_details: bool = True) -> Trace:
    """Read the whole trace.

    Args:
        path: path of the trace.
        parents: known parents by pid, to resolve ids of forked processes.
        with_details: read details of GPU operations, which takes a third of the time.

    Raises `TraceNotFoundError` if the file is missing, `TraceFormatError` if it is not a complete trace.
    """
    with TraceFile(path) as file, ThreadPoolExecutor(READERS) as pool:
        trace = _read(file, pool, parents, with_details=with_details)
    with suppress(AttributeError):  # glibc keeps memory freed by threads: a quarter of an analysis's memory
        ctypes.CDLL(None).malloc_trim(0)
    return trace


def _read(file: TraceFile, pool: ThreadPoolExecutor, parents: Mapping[int, int], *, with_details: bool) -> Trace:
    # Tables are read in this order, while finished ones are converted to columns.
    events = pool.submit(file.integers, schema.TABLE_NVTX, NVTX_COLUMNS, PAYLOADS)
    operations = {
        kind: pool.submit(file.integers, table, [*OPERATION_COLUMNS, *(DETAILS[kind] if with_details else [])])
        for kind, table in OPERATION_TABLES.items()
    }
    texts = pool.submit(file.strings, schema.TABLE_NVTX, ROW_ID, "text", unless="textId")
    calls = pool.submit(file.integers, schema.TABLE_API, CALL_COLUMNS)
    os_calls = pool.submit(file.integers, TABLE_OSRT, OS_CALL_COLUMNS)

    names = NameTable.read(file)
    nvtx = make_nvtx(events.result(), texts.result(), file.path, names, parents)
    api = make_calls(calls.result(), file.path, names)
    rows_of = {kind: rows.result() for kind, rows in operations.items()}
    gpu_operations, details = make_operations(rows_of, file.path, names)
    meta = read_meta(file, has_cuda_rows=len(api) > 0 or len(gpu_operations) > 0)
    end_ns = max(nvtx.last_ns, int(api.end_ns.max(initial=0)), int(gpu_operations.end_ns.max(initial=0)))
    ranges, lock_events = closed(nvtx.ranges, end_ns), None
    if meta.tracer == "nsys":
        ranges, lock_events = split_interpreter_lock(ranges, names.values)
    return Trace(
        ranges=ranges,
        marks=nvtx.marks,
        api=api,
        operations=gpu_operations,
        details=details,
        os_calls=make_os_calls(os_calls.result(), names) if file.has(TABLE_OSRT) else None,
        names=names.values,
        meta=meta,
        end_ns=end_ns,
        lock_events=lock_events,
        gpu_metrics=read_gpu_metrics(file),
    )
