"""The mean of several processes' entries, in columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from perfharness.analysis.entries import PER_ITEM, divide, preorder, rounded
from perfharness.analysis.grouping import count_by_code, group_rows, sum_by_code
from perfharness.model.result import EntryTable, Float64, NumberColumn
from perfharness.model.trace import Int64


def mean_of_entries(tables: Sequence[EntryTable]) -> EntryTable:
    """Each number the mean over the tables whose entry has it; null where one of them could not measure it.

    Times per item are ratios of the means, that is, of totals. Entries are the same where their keys and those of all
    entries around them are. They stand in the order of the first table that has them. A flag is true where it is true
    in all.
    """
    if len(tables) == 1:
        return tables[0]
    names, name = _merged_names(tables)
    index = np.concatenate([table.index for table in tables] or [np.empty(0, dtype=np.int64)])
    depth = np.concatenate([table.depth for table in tables] or [np.empty(0, dtype=np.int64)])
    parent = _parents(tables)
    merged, first, merged_parent = _merge(name, index, depth, parent)
    order, new_depth = preorder(merged_parent, first)
    row_of = np.empty(len(order), dtype=np.int64)
    row_of[order] = np.arange(len(order))
    at = first[order]
    row = row_of[merged]
    every = [np.full(len(table), np.nan) if table.items is None else table.items for table in tables]
    items = sum_by_code(row, np.concatenate([np.empty(0), *every]), len(first))
    items /= count_by_code(row, len(first))
    numbers = _ratios_of_totals(_mean_numbers(tables, row, len(first)), items)
    return EntryTable(names, name[at], index[at], new_depth, numbers, items)


def _merged_names(tables: Sequence[EntryTable]) -> tuple[list[str], Int64]:
    code: dict[str, int] = {}
    parts = [np.empty(0, dtype=np.int64)]
    for table in tables:
        own = np.asarray([code.setdefault(name, len(code)) for name in table.names], dtype=np.int64)
        parts.append(own[table.name])
    return list(code), np.concatenate(parts)


def _parents(tables: Sequence[EntryTable]) -> Int64:
    """The row around each entry, -1 for none, rows of all tables counted on."""
    parts, begin = [np.empty(0, dtype=np.int64)], 0
    for table in tables:
        parent = table.parents()
        parts.append(np.where(parent >= 0, parent + begin, -1))
        begin += len(table)
    return np.concatenate(parts)


def _merge(name: Int64, index: Int64, depth: Int64, parent: Int64) -> tuple[Int64, Int64, Int64]:
    """The merged entry of each row; of each merged entry the first row and the merged entry around it."""
    merged = np.zeros(len(name), dtype=np.int64)
    firsts, parents = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    found = 0
    for level in range(int(depth.max(initial=-1)) + 1):
        at = np.flatnonzero(depth == level)
        above = merged[parent[at]] if level else np.full(len(at), -1, dtype=np.int64)
        groups = group_rows(above, name[at], index[at])
        merged[at] = groups.code + found
        firsts.append(at[groups.first])
        parents.append(above[groups.first])
        found += len(groups)
    return merged, np.concatenate(firsts), np.concatenate(parents)


def _mean_numbers(tables: Sequence[EntryTable], row: Int64, count: int) -> list[NumberColumn]:
    """Every column that a table has. `row` is the merged row of each row of all tables."""
    begins = np.cumsum([0, *(len(table) for table in tables)])
    columns: dict[str, list[tuple[NumberColumn, Int64]]] = {}
    for table, begin in zip(tables, begins[:-1].tolist(), strict=True):
        for column in table.numbers:
            columns.setdefault(column.key, []).append((column, row[column.rows + begin]))
    return [_mean_column(parts, count) for parts in columns.values()]


def _ratios_of_totals(numbers: list[NumberColumn], items: Float64) -> list[NumberColumn]:
    """Times per item made anew from times and items; `items` are those of each row."""
    dense: dict[str, Float64] = {}
    for column in numbers:
        dense[column.key] = np.full(len(items), np.nan)
        dense[column.key][column.rows] = column.values
    found = []
    for column in numbers:
        time, per_item, rest = column.key.partition(PER_ITEM)
        if per_item:
            over = dense[f"total_items{rest}"] if rest else items
            column = replace(column, values=rounded(divide(dense[time + rest][column.rows], over[column.rows])))
        found.append(column)
    return found


def _mean_column(parts: list[tuple[NumberColumn, Int64]], count: int) -> NumberColumn:
    like = parts[0][0]
    at = np.concatenate([rows for _, rows in parts])
    values: Float64 = np.concatenate([column.values for column, _ in parts])
    rows_with = count_by_code(at, count)
    rows = np.flatnonzero(rows_with)
    if like.kind == "labels":
        return _all_labels(like.key, parts, rows)
    mean = sum_by_code(at, values, count)[rows] / rows_with[rows]
    mean = {"all": np.floor, "any": np.ceil}.get(like.kind, rounded)(mean)
    return NumberColumn(like.key, rows, mean, like.kind)


def _all_labels(key: str, parts: list[tuple[NumberColumn, Int64]], rows: Int64) -> NumberColumn:
    """Every label that one of the tables has, sorted."""
    labels = tuple(sorted({label for column, _ in parts for label in column.labels}))
    bits = np.zeros(len(rows), dtype=np.int64)
    for column, at in parts:
        for position, label in enumerate(column.labels):
            has = (column.values.astype(np.int64) >> position) & 1
            bits[np.searchsorted(rows, at)] |= has << labels.index(label)
    return NumberColumn(key, rows, bits.astype(np.float64), "labels", labels)
