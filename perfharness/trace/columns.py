"""Columns as NumPy arrays, checked and as narrow as possible."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from perfharness.errors import TraceFormatError
from perfharness.model.columns import Bool, Int64, Integers

_Table = TypeVar("_Table", bound=Any)

MISSING = -(2**62)
"""NULL in an integer column; no time, id or payload in a trace is this small."""


def arrow_array(values: Integers) -> pa.Array:
    """Integers as an Arrow array, without a copy. `pa.array` would import pandas if installed (0.3 s)."""
    buffers = [None, pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), buffers)


def narrow(values: Integers, *types: type[np.signedinteger[Any]]) -> Integers:
    """Convert to the first of these types (default 32 bits) that holds all values; else unchanged."""
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    for narrower in types or (np.int32,):
        if np.iinfo(narrower).min <= low and high <= np.iinfo(narrower).max:
            return values.astype(narrower, copy=False)
    return values


def rows_of(table: _Table, wanted: Bool) -> _Table:
    """Select rows of a dataclass of columns."""
    at = np.flatnonzero(wanted)
    changed: _Table = replace(table, **{field.name: getattr(table, field.name)[at] for field in fields(table)})
    return changed


def check_events(path: Path, what: str, start: Int64, end: Int64, owner: Int64) -> None:
    """Raise `TraceFormatError` for events without time, thread or process, or that end before they begin."""
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
