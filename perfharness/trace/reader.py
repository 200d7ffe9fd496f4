"""A trace, nsys's sqlite or Parquet or the embedded tracer's sqlite, into a `Trace`, or into events that pass by.

Columns are taken by name, tables may be absent, row order is never trusted; one reader serves all.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np

from perfharness.model import nsys_schema as schema
from perfharness.model.trace import NO_CALLS, GpuOperations, Int64, NvtxRanges, Trace, TraceDetails, TraceMeta, joined
from perfharness.trace.details import OPERATION_COLUMNS, read_detailed
from perfharness.trace.inherited import ParentPids
from perfharness.trace.metadata import read_meta
from perfharness.trace.names import NameTable
from perfharness.trace.nvtx import Nvtx, read_nvtx
from perfharness.trace.open_source import open_source
from perfharness.trace.parallel import Readers
from perfharness.trace.source import TraceSource
from perfharness.trace.stream import OPERATION_TABLES, TraceStream, read_calls
from perfharness.trace.validate import check_operations, check_ranges

NO_PARENTS: ParentPids = MappingProxyType({})


def open_trace(path: Path, *, details: bool = False, parents: ParentPids = NO_PARENTS) -> Trace:
    """Read the whole trace; with `details`, also what only diagnosis and exports need (`Trace.details`).

    `parents`: the process tree, as far as it is known, in which the ids of forked processes are looked up.

    Raises `TraceNotFoundError` where there is no file, `TraceFormatError` where it is no whole trace.
    """
    with open_source(path) as source, Readers(path) as readers:
        names = NameTable.read(source)
        nvtx = read_nvtx(readers, path, source.windows(schema.TABLE_NVTX), names, parents)
        check_ranges(path, nvtx.ranges)
        windows = source.windows(schema.TABLE_API)
        api = joined([NO_CALLS, *readers.map(read_calls(path, window, names) for window in windows)])
        found: TraceDetails | None = None
        if details:
            operations, found = read_detailed(readers, source, path, names)
        else:
            operations = _read_operations(source, path)
        end_ns = max(nvtx.last_ns, *(int(column.max()) for column in (api.end_ns, operations.end_ns) if len(column)), 0)
        return Trace(
            ranges=_closed(nvtx.ranges, end_ns),
            marks=nvtx.marks,
            api=api,
            operations=operations,
            names=names.values,
            meta=_with_findings(read_meta(source, has_cuda_rows=len(api) > 0 or len(operations) > 0), nvtx),
            end_ns=end_ns,
            details=found,
        )


def open_stream(path: Path, *, parents: ParentPids = NO_PARENTS) -> TraceStream:
    """Read the ranges; calls and operations are read, block by block, each time they are asked for.

    `parents` as for `open_trace`.

    Raises as `open_trace` does, where calls or operations contradict themselves when they are asked for.
    """
    with open_source(path) as source, Readers(path) as readers:
        names = NameTable.read(source)
        nvtx = read_nvtx(readers, path, source.windows(schema.TABLE_NVTX), names, parents)
        check_ranges(path, nvtx.ranges)
        windows = {table: source.windows(table) for table in (schema.TABLE_API, *OPERATION_TABLES.values())}
        ranges = nvtx.ranges
        if ranges.is_open.any():
            ranges = _closed(ranges, _last_time(source, nvtx))
        return TraceStream(
            path=path,
            ranges=ranges,
            marks=nvtx.marks,
            name_table=names,
            meta=_with_findings(read_meta(source, has_cuda_rows=any(windows.values())), nvtx),
            windows=windows,
        )


def open_operations(path: Path) -> GpuOperations:
    """Read what the GPU did, and nothing else. Raises as `open_trace` does."""
    with open_source(path) as source:
        return _read_operations(source, path)


def _with_findings(meta: TraceMeta, nvtx: Nvtx) -> TraceMeta:
    return replace(meta, findings=(*meta.findings, *nvtx.findings))


def _closed(ranges: NvtxRanges, end_ns: int) -> NvtxRanges:
    """Ranges never closed end where the trace ends."""
    if not ranges.is_open.any():
        return ranges
    return replace(ranges, end_ns=np.where(ranges.is_open, np.maximum(end_ns, ranges.start_ns), ranges.end_ns))


def _last_time(source: TraceSource, nvtx: Nvtx) -> int:
    last = nvtx.last_ns
    for table in (schema.TABLE_API, *OPERATION_TABLES.values()):
        for window in source.windows(table):
            end = source.integers(table, ["end"], window=window)["end"]
            last = max(last, int(end.max(initial=last)))
    return last


def _read_operations(source: TraceSource, path: Path) -> GpuOperations:
    parts: dict[str, list[Int64]] = {column: [np.empty(0, dtype=np.int64)] for column in [*OPERATION_COLUMNS, "kind"]}
    for kind, table in OPERATION_TABLES.items():
        if source.has(table):
            rows = source.integers(table, OPERATION_COLUMNS)
            for column in OPERATION_COLUMNS:
                parts[column].append(rows[column])
            parts["kind"].append(np.full(len(rows["start"]), kind, dtype=np.int64))
    whole = {column: np.concatenate(arrays) for column, arrays in parts.items()}
    check_operations(path, whole["start"], whole["end"], whole["globalPid"])
    return GpuOperations(
        start_ns=whole["start"],
        end_ns=whole["end"],
        process=whole["globalPid"],
        correlation=whole["correlationId"],
        kind=whole["kind"],
        device=whole["deviceId"],
        stream=whole["streamId"],
    )
