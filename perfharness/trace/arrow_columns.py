"""Arrow columns as NumPy's."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfharness.model.trace import Int64
from perfharness.trace.source import MISSING


def int64_array(column: pa.ChunkedArray) -> Int64:
    """A NumPy array of an Arrow integer column; NULL is `MISSING`, and unsigned 64 bits are read as signed ones."""
    if pa.types.is_uint64(column.type):
        column = pa.chunked_array([chunk.view(pa.int64()) for chunk in column.chunks], pa.int64())
    if len(column) and column.null_count == len(column):
        return np.broadcast_to(np.int64(MISSING), len(column))
    if column.null_count:
        column = pc.fill_null(column.cast(pa.int64()), MISSING)
    return np.asarray(column.to_numpy(), dtype=np.int64)
