"""Arrow columns of NumPy arrays: without a copy where there is no null, names once each."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from perfharness.model.trace import Bool, Int64


def whole(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Integers in 64 bits, however narrow they are held: tables of all traces have the same types."""
    return values.astype(np.int64, copy=False) if values.dtype.kind == "i" else values


def nullable(values: npt.NDArray[Any], is_null: Bool) -> pa.Array:
    """A column with nulls; where there are none, a view of `values`, if they have 64 bits."""
    values = whole(values)
    return pa.array(values, mask=is_null) if is_null.any() else pa.array(values)


def unknown_is_null(values: Int64) -> pa.Array:
    """A column with -1 as null."""
    return nullable(values, values < 0)


def names_of(codes: Int64, names: list[str]) -> pa.DictionaryArray:
    """A dictionary-encoded column; only names that occur are in the dictionary, code -1 is null."""
    used, place = np.unique(codes, return_inverse=True)
    number: dict[str, int] = {}  # two codes may stand for equal strings, and a dictionary must hold each once
    index_of = np.asarray(
        [number.setdefault(names[code], len(number)) if code >= 0 else -1 for code in used], dtype=np.int32
    )
    index = index_of[place.ravel()]
    return pa.DictionaryArray.from_arrays(pa.array(index, mask=index < 0), pa.array(list(number), type=pa.string()))


def constant(value: str, count: int) -> pa.DictionaryArray:
    """A dictionary-encoded column of one value."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, dtype=np.int32)), pa.array([value], pa.string()))


def unix_times(start_ns: Int64, session_start_unix_ns: int | None) -> pa.Array:
    """UTC nanoseconds of trace times; all null where the trace has no start time."""
    if session_start_unix_ns is None:
        return pa.nulls(len(start_ns), pa.int64())
    return pa.array(start_ns + session_start_unix_ns)
