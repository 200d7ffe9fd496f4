"""Equal rows to equal numbers, without a sort: what grouping of columns is made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from perfharness.model.result import Float64
from perfharness.model.trace import Bool, Integers

Column = npt.NDArray[Any]

PART = 1 << 20
"""Rows looked at at a time, where a column in between for all of them would be felt."""

SMALL_TABLE = 1 << 16
"""A table of this many values costs nothing, however few rows there are."""


@dataclass(frozen=True)
class Groups:
    """`code[i]` is the group of row i, in order of first appearance; `first[g]` is the first row of group g."""

    code: Integers
    first: Integers

    def __len__(self) -> int:
        return len(self.first)


def parts_of(count: int) -> Iterator[slice]:
    """So many rows, a part at a time."""
    for begin in range(0, count, PART):
        yield slice(begin, begin + PART)


def group_rows(*columns: Integers) -> Groups:
    """Group rows that are equal in all columns. Linear, whatever the values: by a table of them where they lie close
    together, by hashing (Arrow's dictionary encoding) where they do not.
    """
    groups = number_rows(*columns)
    # In 64 bits, for callers that count on with them.
    return Groups(groups.code.astype(np.int64), groups.first.astype(np.int64))


def number_rows(*columns: Integers) -> Groups:
    """The same in 32 bits, for many rows."""
    combined = columns[0]
    for column in columns[1:]:
        combined = _combine(combined, column)
    code, count = _encode(combined)
    return Groups(code, _first_rows(code, count))


def group_pairs(small: Integers, rising: Integers) -> Groups:
    """The same for two columns of which the second does not fall where the first is equal, which saves the hashing.

    Args:
        small: few different values.
        rising: any number of different values; where they fall, rows are grouped as `group_rows` does.
    """
    count = len(small)
    narrow = small.astype(np.int16) if count and small.min() >= 0 and small.max() < 1 << 15 else small
    order = np.argsort(narrow, kind="stable").astype(np.int32)
    s, r = narrow[order], rising[order]
    same = s[1:] == s[:-1]
    if (same & (r[1:] < r[:-1])).any():
        return group_rows(small, rising)
    fresh = np.r_[np.ones(min(count, 1), dtype=np.bool_), ~(same & (r[1:] == r[:-1]))]
    if fresh.all():
        every = np.arange(count, dtype=np.int32)
        return Groups(every, every)
    is_first = np.zeros(count, dtype=np.bool_)
    is_first[order[fresh]] = True
    number = np.cumsum(is_first, dtype=np.int32) - 1
    code = np.empty(count, dtype=np.int32)
    code[order] = number[order[fresh]][np.cumsum(fresh, dtype=np.int32) - 1]
    return Groups(code, np.flatnonzero(is_first))


def rows_by_code(code: Integers, wanted: Bool) -> tuple[Integers, Integers]:
    """The wanted rows, those of each code together and in their order; and how many each code has.

    A part at a time: a sort of the whole column would take several times its memory.
    """
    size = int(code.max(initial=-1)) + 1
    parts = list(parts_of(len(code)))
    counts = np.zeros(size, dtype=np.int64)
    for part in parts:
        counts += np.bincount(code[part][wanted[part]], minlength=size)
    place = np.cumsum(counts) - counts
    rows = np.empty(int(counts.sum()), dtype=np.int32)
    for part in parts:
        at = np.flatnonzero(wanted[part])
        codes = code[part][at]
        order = np.argsort(codes.astype(np.int16) if size <= 1 << 15 else codes, kind="stable")
        codes = codes[order]
        heads = np.flatnonzero(np.r_[True, codes[1:] != codes[:-1]][: len(codes)])
        lengths = np.diff(np.r_[heads, len(codes)])
        rows[np.arange(len(codes)) + np.repeat(place[codes[heads]] - heads, lengths)] = at[order] + part.start
        place[codes[heads]] += lengths
    return rows, counts


def rows_of_levels(level: Integers) -> list[Integers]:
    """The rows of each level, each level's in their order; one sort, however many levels there are."""
    order = np.argsort(level, kind="stable").astype(np.int32)
    bounds = np.cumsum(np.bincount(level))
    return np.split(order, bounds[:-1]) if len(bounds) else []


def _first_rows(code: Integers, count: int) -> Integers:
    first = np.zeros(count, dtype=np.int32)
    first[code[::-1]] = np.arange(len(code) - 1, -1, -1, dtype=np.int32)  # of several writes the last one stays
    return first


def _combine(left: Integers, right: Integers) -> Integers:
    """One number for each pair of values, the same for equal pairs."""
    if not len(left):
        return left.astype(np.int64)
    low, high, other_low, other_high = (int(bound) for bound in (left.min(), left.max(), right.min(), right.max()))
    if other_low == other_high:
        return left
    if low == high:
        return right
    if (high - low + 1) * (other_high - other_low + 1) >= 1 << 62:
        # Too far apart to be laid out side by side: number them first.
        (left, high), (right, other_high) = _encode(left), _encode(right)
        low = other_low = 0
        other_high -= 1
    combined = left.astype(np.int64)
    combined -= low
    combined *= other_high - other_low + 1
    combined += right
    combined -= other_low
    return combined


def _encode(column: Integers) -> tuple[Integers, int]:
    if len(column):
        low = min(int(column.min()), 0)  # what need not be moved is not copied
        span = int(column.max()) - low + 1
        if span <= 2 * len(column) + SMALL_TABLE:
            return _encode_by_table(column - low if low else column, span)
    encoded = pa.array(column).dictionary_encode()
    return encoded.indices.to_numpy().astype(np.int32), len(encoded.dictionary)


def _encode_by_table(place: Integers, span: int) -> tuple[Integers, int]:
    first = np.full(span, -1, dtype=np.int32)
    first[place[::-1]] = np.arange(len(place) - 1, -1, -1, dtype=np.int32)
    used = np.flatnonzero(first >= 0)
    used = used[np.argsort(first[used], kind="stable")]
    number = first  # the same memory, for what comes next
    number[used] = np.arange(len(used), dtype=np.int32)
    return number[place], len(used)


def sum_by_code(code: Integers, values: Float64, count: int) -> Float64:
    """Sum of the values of each of `count` groups; 0 for a group without rows, NaN where a value is NaN."""
    return np.bincount(code, weights=values, minlength=count).astype(np.float64, copy=False)


def count_by_code(code: Integers, count: int) -> Float64:
    """How many rows each of `count` groups has."""
    return np.bincount(code, minlength=count).astype(np.float64)


def taken(values: Column, at: Integers | slice) -> Column:
    """`values[at]`; a column that is one value, repeated without memory of its own, stays so."""
    if len(values) and values.strides == (0,):
        count = len(range(*at.indices(len(values)))) if isinstance(at, slice) else len(at)
        return np.broadcast_to(values[0], count)
    return values[at]


def distinct(values: Integers) -> list[int]:
    """The values that occur, rising. Equal ones mostly stand together, which saves the sort."""
    if not len(values):
        return []
    if values.strides == (0,):
        return [int(values[0])]
    heads = values[np.r_[True, values[1:] != values[:-1]]]
    found: list[int] = np.unique(heads).tolist()
    return found
