"""Make Arrow columns of NumPy arrays, without copies if they have no nulls."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from perfharness.model.columns import Bool, Int64


def whole(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Widen integers to 64 bits, so that tables of all traces have the same types."""
    return values.astype(np.int64, copy=False) if values.dtype.kind == "i" else values


def nullable(values: npt.NDArray[Any], is_null: Bool) -> pa.Array:
    """Make a column with nulls, or a view of 64-bit values without nulls."""
    values = whole(values)
    return pa.array(values, mask=is_null) if is_null.any() else pa.array(values)


def unknown_is_null(values: Int64) -> pa.Array:
    """Make a column with null for negative values."""
    return nullable(values, values < 0)


def names_of(codes: Int64, names: list[str]) -> pa.DictionaryArray:
    """Make a dictionary-encoded column with only the used names; code -1 is null."""
    used, place = np.unique(codes, return_inverse=True)
    number: dict[str, int] = {}  # several codes may have equal names
    index_of = np.asarray(
        [number.setdefault(names[code], len(number)) if code >= 0 else -1 for code in used], dtype=np.int32
    )
    index = index_of[place.ravel()]
    return pa.DictionaryArray.from_arrays(pa.array(index, mask=index < 0), pa.array(list(number), type=pa.string()))


def constant(value: str, count: int) -> pa.DictionaryArray:
    """Make a dictionary-encoded column of one value."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, dtype=np.int32)), pa.array([value], pa.string()))


def unix_times(start_ns: Int64, session_start_unix_ns: int | None) -> pa.Array:
    """Convert trace times to UTC nanoseconds; null if the start of the trace is unknown."""
    if session_start_unix_ns is None:
        return pa.nulls(len(start_ns), pa.int64())
    return pa.array(start_ns + session_start_unix_ns)
