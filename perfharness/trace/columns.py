"""Columns as the trace holds them: from Arrow into NumPy, checked, as narrow as they may be."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfharness.errors import TraceFormatError
from perfharness.model.trace import Bool, Int64, Integers
from perfharness.trace.source import MISSING

_Table = TypeVar("_Table", bound=Any)


def int64_array(column: pa.ChunkedArray) -> Int64:
    """A NumPy array of an Arrow integer column; NULL is `MISSING`, and unsigned 64 bits are read as signed ones."""
    if pa.types.is_uint64(column.type):
        column = pa.chunked_array([chunk.view(pa.int64()) for chunk in column.chunks], pa.int64())
    if len(column) and column.null_count == len(column):
        return np.broadcast_to(np.int64(MISSING), len(column))
    if column.null_count:
        missing = arrow_array(np.full(len(column), MISSING))
        column = pa.chunked_array([pc.coalesce(column.cast(pa.int64()).combine_chunks(), missing)])
    parts = [np.from_dlpack(chunk) for chunk in column.chunks]
    return np.asarray(parts[0] if len(parts) == 1 else np.concatenate(parts or [np.empty(0)]), dtype=np.int64)


def arrow_array(values: Integers) -> pa.Array:
    """Integers as an Arrow array, without a copy; `pa.array` would import pandas where that is installed (0.3 s)."""
    buffers = [None, pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), buffers)


def narrow(values: Integers, *types: type[np.signedinteger[Any]]) -> Integers:
    """Integers in the first of these types that holds them all, by default 32 bits; else as they are."""
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    for narrower in types or (np.int32,):
        if np.iinfo(narrower).min <= low and high <= np.iinfo(narrower).max:
            return values.astype(narrower, copy=False)
    return values


def rows_of(table: _Table, wanted: Bool) -> _Table:
    """Some of the rows of a dataclass whose fields are columns."""
    at = np.flatnonzero(wanted)
    changed: _Table = replace(table, **{field.name: getattr(table, field.name)[at] for field in fields(table)})
    return changed


def check_events(path: Path, what: str, start: Int64, end: Int64, owner: Int64) -> None:
    """Raises `TraceFormatError` where events have no time, or no thread or process, or end before they begin."""
    if not len(start) or (int(start.min()) != MISSING and int(owner.min()) != MISSING and not (end < start).any()):
        return
    incomplete = (start == MISSING) | (end == MISSING) | (owner == MISSING)
    for wrong, fault in ((incomplete, "have no time or no thread"), (end < start, "end before they begin")):
        count = int(np.count_nonzero(wrong))
        if count:
            raise TraceFormatError(
                f"{path} contradicts itself: {count} of {len(start)} {what} {fault}. The file is damaged; "
                "export it again with `nsys export --type sqlite`."
            )
