"""A trace, nsys's sqlite or Parquet or the embedded tracer's sqlite, into a `Trace`.

Columns are taken by name, tables may be absent, row order is never trusted; one reader serves all.
"""

from __future__ import annotations

from dataclasses import replace
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
    SYNCHRONIZATION_COLUMNS,
    TABLE_OSRT,
    TIMES_AND_OWNERS,
    make_calls,
    make_operations,
    make_os_calls,
    make_synchronizations,
)
from perfharness.trace.gpu_metrics import read_gpu_metrics
from perfharness.trace.inherited import ParentPids
from perfharness.trace.interpreter_lock import split_interpreter_lock
from perfharness.trace.metadata import read_meta
from perfharness.trace.names import NameTable
from perfharness.trace.nvtx import NVTX_COLUMNS, PAYLOAD_COLUMNS, closed, make_nvtx
from perfharness.trace.readers import Readers
from perfharness.trace.source import ROW_ID

NO_PARENTS: ParentPids = MappingProxyType({})


def open_trace(path: Path, *, parents: ParentPids = NO_PARENTS, with_details: bool = True) -> Trace:
    """Read the whole trace.

    Args:
        path: of the trace.
        parents: the process tree, as far as it is known, by which the ids of forked processes are resolved.
        with_details: with the details of GPU operations, a third of the time; without, all of them are unknown.

    Raises `TraceNotFoundError` where there is no file, `TraceFormatError` where it is no whole trace.
    """
    with Readers(path) as readers:
        # All is asked for at the start: the readers go on while what has come is made into a trace.
        events = readers.integers(
            schema.TABLE_NVTX, NVTX_COLUMNS, row_id=True, first_of={"payload": PAYLOAD_COLUMNS}, wide=TIMES_AND_OWNERS
        )
        texts = readers.strings(schema.TABLE_NVTX, ROW_ID, "text", unless="textId")
        calls = readers.integers(schema.TABLE_API, CALL_COLUMNS, wide=TIMES_AND_OWNERS)
        operations = {
            kind: readers.integers(
                table, [*OPERATION_COLUMNS, *(DETAILS[kind] if with_details else [])], wide=TIMES_AND_OWNERS
            )
            for kind, table in OPERATION_TABLES.items()
        }
        synchronizations = readers.integers(schema.TABLE_SYNCHRONIZATION, SYNCHRONIZATION_COLUMNS)
        os_calls = readers.integers(TABLE_OSRT, OS_CALL_COLUMNS)

        names = NameTable.read(readers.source)
        nvtx = make_nvtx(events(), texts(), path, names, parents)
        api = make_calls(calls(), path, names)
        gpu_operations, details = make_operations({kind: rows() for kind, rows in operations.items()}, path, names)
        meta = read_meta(readers.source, has_cuda_rows=len(api) > 0 or len(gpu_operations) > 0)
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
            synchronizations=make_synchronizations(synchronizations()),
            os_calls=make_os_calls(os_calls(), names) if readers.source.has(TABLE_OSRT) else None,
            names=names.values,
            meta=replace(meta, findings=(*meta.findings, *nvtx.findings)),
            end_ns=end_ns,
            lock_events=lock_events,
            gpu_metrics=read_gpu_metrics(readers),
        )
