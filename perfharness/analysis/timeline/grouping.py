"""Group equal rows of columns without sorting."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfharness.model.columns import Bool, Float64, Int64, Integers
from perfharness.trace.columns import arrow_array

SMALL_TABLE = 1 << 16
"""Table size that is cheap for any number of rows."""


@dataclass(frozen=True)
class Groups:
    """`code[i]` is the group of row i, in order of first appearance; `first[g]` is the first row of group g."""

    code: Integers
    first: Int64

    def __len__(self) -> int:
        return len(self.first)


def group_rows(*columns: Integers) -> Groups:
    """Group equal rows in linear time: by a table of values if their range is small, else by hashing (Arrow)."""
    combined = columns[0]
    for column in columns[1:]:
        combined = _combine(combined, column)
    return Groups(*_encode(combined))


def group_nested(levels: list[Integers], parent: Integers, *columns: Integers) -> Groups:
    """Group rows equal in all columns and with parents (-1 for none) in the same group; outer groups come first.
    `levels`: rows of each level, from the outermost.
    """
    code = np.full(len(parent) + 1, -1, dtype=np.int32)
    firsts, count = [np.empty(0, dtype=np.int64)], 0
    for rows in levels:
        groups = group_rows(code[parent[rows]], *(column[rows] for column in columns))
        code[rows] = groups.code + count
        firsts.append(rows[groups.first])
        count += len(groups)
    return Groups(code[:-1], np.concatenate(firsts))


def rows_by_code(code: Integers, wanted: Bool) -> list[Int64]:
    """Selected rows of each code, in order."""
    rows = np.flatnonzero(wanted)
    codes = code[rows]
    narrow = codes.astype(np.int16) if codes.max(initial=0) < 1 << 15 else codes
    counts = np.bincount(codes, minlength=int(code.max(initial=-1)) + 1)
    return np.split(rows[np.argsort(narrow, kind="stable")], np.cumsum(counts)[:-1]) if len(counts) else []


def row_order(*keys: Integers) -> Int64 | None:
    """Order of rows by these keys, then by row; None if they are ordered, as in most traces."""
    later = np.zeros(max(len(keys[0]) - 1, 0), dtype=np.bool_)
    equal = ~later
    for key in keys:
        later |= equal & (key[1:] > key[:-1])
        equal &= key[1:] == key[:-1]
    return None if (later | equal).all() else np.lexsort(keys[::-1])


def rows_of_levels(level: Integers) -> list[Integers]:
    """Rows of each level, in order, with a single sort."""
    order = np.argsort(level, kind="stable").astype(np.int32)
    bounds = np.cumsum(np.bincount(level))
    return np.split(order, bounds[:-1]) if len(bounds) else []


def occurrences(*columns: Integers) -> Int64:
    """Number of earlier rows with the same values."""
    code = group_rows(*columns).code
    order = np.argsort(code, kind="stable")
    first = np.searchsorted(code[order], np.arange(int(code.max(initial=-1)) + 1))
    found = np.empty(len(code), dtype=np.int64)
    found[order] = np.arange(len(code)) - first[code[order]]
    return found


def _combine(left: Integers, right: Integers) -> Integers:
    """A number for each pair of values, equal for equal pairs."""
    if not len(left):
        return left.astype(np.int64)
    low, span, other_low, other_span = *_bounds(left), *_bounds(right)
    if other_span == 1:
        return left
    if span == 1:
        return right
    table = 2 * len(left) + SMALL_TABLE
    if span * other_span >= 1 << 62 or max(span, other_span) <= table < span * other_span:
        # Encode first if the combined range exceeds 64 bits or a table of pairs.
        (left, first), (right, other_first) = _encode(left), _encode(right)
        low, span, other_low, other_span = 0, len(first), 0, len(other_first)
    combined = left.astype(np.int64)
    combined -= low
    combined *= other_span
    combined += right
    combined -= other_low
    return combined


def _bounds(column: Integers) -> tuple[int, int]:
    """Smallest value and size of the range."""
    low = int(column.min())
    return low, int(column.max()) - low + 1


def _encode(column: Integers) -> tuple[Integers, Int64]:
    """Code of each value in order of first appearance (32 bits), and the first row of each code."""
    if not len(column):
        return column.astype(np.int32), np.empty(0, np.int64)
    low, span = _bounds(column)
    if span == 1:
        return np.zeros(len(column), dtype=np.int32), np.zeros(1, dtype=np.int64)
    if low > 0:  # avoids the copy for shifting
        low, span = 0, low + span
    if span > 2 * len(column) + SMALL_TABLE:
        encoded = arrow_array(column).dictionary_encode()
        code = np.from_dlpack(encoded.indices).astype(np.int32, copy=False)
        return code, _first_rows(code, len(encoded.dictionary)).astype(np.int64)
    position = np.subtract(column, low, dtype=np.int64) if low else column
    first_row = _first_rows(position, span)
    used = np.flatnonzero(first_row >= 0)
    used = used[np.argsort(first_row[used], kind="stable")]
    first = first_row[used].astype(np.int64)
    number = first_row  # reuses the memory
    number[used] = np.arange(len(used), dtype=np.int32)
    return number[position], first


def _first_rows(code: Integers, count: int) -> Integers:
    """First row of each of `count` codes, -1 for none."""
    first = np.full(count, -1, dtype=np.int32)
    first[code[::-1]] = np.arange(len(code) - 1, -1, -1, dtype=np.int32)  # the last write stays
    return first


def sum_by_code(code: Integers, values: Float64 | Integers | Bool, count: int) -> Float64:
    """Sum of values per group; 0 for a group without rows, NaN if any value is NaN."""
    return np.bincount(code, weights=values, minlength=count).astype(np.float64, copy=False)


def count_by_code(code: Integers, count: int) -> Float64:
    """Number of rows per group."""
    return np.bincount(code, minlength=count).astype(np.float64)


def unique(values: Integers) -> Integers:
    """Distinct values, ascending. Faster than `np.unique` for values that are mostly ordered runs."""
    heads: Integers = values[np.r_[True, values[1:] != values[:-1]][: len(values)]]
    if (heads[1:] > heads[:-1]).all():
        return heads
    in_order = np.sort(heads)
    return in_order[np.r_[True, in_order[1:] != in_order[:-1]]]


def distinct(values: Integers) -> list[int]:
    """Distinct values as a list, ascending."""
    found: list[int] = unique(values).tolist()
    return found
