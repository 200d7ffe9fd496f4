"""Equal rows to equal numbers, without a sort: what grouping of columns is made of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from perfharness.model.result import Float64
from perfharness.model.trace import Int64


@dataclass(frozen=True)
class Groups:
    """`code[i]` is the group of row i, in order of first appearance; `first[g]` is the first row of group g."""

    code: Int64
    first: Int64

    def __len__(self) -> int:
        return len(self.first)


def group_rows(*columns: Int64) -> Groups:
    """Group rows that are equal in all columns. Hashing (Arrow's dictionary encoding): linear, whatever the values."""
    combined = columns[0]
    for column in columns[1:]:
        combined = _combine(combined, column)
    code, count = _encode(combined)
    first = np.zeros(count, dtype=np.int64)
    first[code[::-1]] = np.arange(len(code) - 1, -1, -1)  # of several writes to one place the last one stays
    return Groups(code, first)


def _combine(left: Int64, right: Int64) -> Int64:
    """One number for each pair of values, the same for equal pairs."""
    if not len(left):
        return left
    low, high, other_low, other_high = (int(bound) for bound in (left.min(), left.max(), right.min(), right.max()))
    if (high - low + 1) * (other_high - other_low + 1) >= 1 << 62:
        # Too far apart to be laid out side by side: number them first.
        (left, _), (right, count) = _encode(left), _encode(right)
        return left * count + right
    return (left - low) * (other_high - other_low + 1) + (right - other_low)


def _encode(column: Int64) -> tuple[Int64, int]:
    encoded = pa.array(column).dictionary_encode()
    return encoded.indices.to_numpy().astype(np.int64), len(encoded.dictionary)


def sum_by_code(code: Int64, values: Float64, count: int) -> Float64:
    """Sum of the values of each of `count` groups; 0 for a group without rows, NaN where a value is NaN."""
    return np.bincount(code, weights=values, minlength=count).astype(np.float64, copy=False)


def count_by_code(code: Int64, count: int) -> Float64:
    """How many rows each of `count` groups has."""
    return np.bincount(code, minlength=count).astype(np.float64)
