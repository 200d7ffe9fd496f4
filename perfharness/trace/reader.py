"""A trace, nsys's sqlite or Parquet or the embedded tracer's sqlite, into a `Trace`.

Columns are taken by name, tables may be absent, row order is never trusted; one reader serves all.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np

from perfharness.model.trace import NvtxRanges, Trace
from perfharness.trace.events import read_calls, read_operations, read_os_calls, read_synchronizations
from perfharness.trace.inherited import ParentPids
from perfharness.trace.metadata import read_meta
from perfharness.trace.names import NameTable
from perfharness.trace.nvtx import read_nvtx
from perfharness.trace.readers import Readers
from perfharness.trace.validate import check_ranges

NO_PARENTS: ParentPids = MappingProxyType({})


def open_trace(path: Path, *, parents: ParentPids = NO_PARENTS) -> Trace:
    """Read the whole trace.

    `parents`: the process tree, as far as it is known, by which the ids of forked processes are resolved.

    Raises `TraceNotFoundError` where there is no file, `TraceFormatError` where it is no whole trace.
    """
    with Readers(path) as readers:
        names = NameTable.read(readers.source)
        nvtx = read_nvtx(readers, path, names, parents)
        check_ranges(path, nvtx.ranges)
        api = read_calls(readers, path, names)
        operations, details = read_operations(readers, path, names)
        meta = read_meta(readers.source, has_cuda_rows=len(api) > 0 or len(operations) > 0)
        end_ns = max(nvtx.last_ns, int(api.end_ns.max(initial=0)), int(operations.end_ns.max(initial=0)))
        return Trace(
            ranges=_closed(nvtx.ranges, end_ns),
            marks=nvtx.marks,
            api=api,
            operations=operations,
            details=details,
            synchronizations=read_synchronizations(readers),
            os_calls=read_os_calls(readers, names),
            names=names.values,
            meta=replace(meta, findings=(*meta.findings, *nvtx.findings)),
            end_ns=end_ns,
        )


def _closed(ranges: NvtxRanges, end_ns: int) -> NvtxRanges:
    """Ranges never closed end where the trace ends."""
    if not ranges.is_open.any():
        return ranges
    return replace(ranges, end_ns=np.where(ranges.is_open, np.maximum(end_ns, ranges.start_ns), ranges.end_ns))
