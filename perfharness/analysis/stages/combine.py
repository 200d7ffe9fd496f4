"""Several processes' results into one: means of trees, statistics of pooled values, throughput of the run."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from perfharness.analysis.stages.entries import PER_ITEM, divide, preorder, rounded
from perfharness.analysis.stages.outside import outside_of_all, outside_tree
from perfharness.analysis.stages.paths import free_key
from perfharness.analysis.stages.tabulate import statistics_tree, subtree_at
from perfharness.analysis.stages.throughput import ALL_SEPARATE, Sharing, throughput
from perfharness.analysis.timeline.grouping import count_by_code, group_rows, sum_by_code
from perfharness.model.result import EntryTable, Float64, NumberColumn, Path, ProcessResult, Tree
from perfharness.model.rounding import figure
from perfharness.model.trace import Int64


def combine(
    results: dict[str, ProcessResult],
    *,
    with_data: bool = True,
    failed: Mapping[str, str] | None = None,
    sharing: Sharing = ALL_SEPARATE,
    helpers: Container[str] = (),
) -> Tree:
    """The body of benchmark_mean.json; `meta` is left to the caller.

    Args:
        results: by the processes' folder names.
        with_data: with `mean_all_batches`, which takes longer than all the rest where there are many batches.
        failed: how processes failed, by folder name; a run with one of them has no throughput.
        sharing: which processes work on the same items.
        helpers: processes without batches that work for others of them: no throughput is theirs.
    """
    working = {name: result for name, result in results.items() if name not in helpers}
    all_batches = (
        {"mean_all_batches": mean_of_entries([result.entries for result in results.values()])} if with_data else {}
    )
    distinct = _with_distinct_keys(list(results.values()))
    return {
        **all_batches,
        "mean_data": _mean_data(distinct),
        "stats_minus_warmup": _pooled_statistics(distinct),
        "outside_batches": outside_tree(outside_of_all(list(results.values()))),
        "throughput": throughput(
            {name: result.loops for name, result in (working or results).items()},
            clock_is_utc=all(result.clock_is_utc for result in results.values()),
            failed=failed,
            sharing=sharing,
        ),
    }


def _with_distinct_keys(results: list[ProcessResult]) -> list[ProcessResult]:
    """The results, with a key of its own for what is a stage where other processes have a batch of that name."""
    kinds: dict[Path, set[bool]] = {}
    for result in results:
        for path in result.values_minus_warmup:
            kinds.setdefault(path, set()).add(_is_batch(result, path))
    clashes = {path for path, found in kinds.items() if len(found) > 1}
    if not clashes:
        return results
    renamed = {path: _free_path(path, kinds) for path in clashes}
    return [_renamed(result, renamed) for result in results]


def _free_path(path: Path, used: Container[Path]) -> Path:
    return (*path[:-1], free_key(path[-1], lambda key: (*path[:-1], key) in used))


def _is_batch(result: ProcessResult, path: Path) -> bool:
    return "total_items" in _at(result.mean_data, path)


def _renamed(result: ProcessResult, renamed: Mapping[Path, Path]) -> ProcessResult:
    """The result with the stages among these paths, and what is inside them, under other keys."""

    def new(path: Path) -> Path:
        prefixes = [path[:length] for length in range(1, len(path) + 1)]
        return tuple(
            renamed[prefix][-1] if prefix in renamed and not _is_batch(result, prefix) else prefix[-1]
            for prefix in prefixes
        )

    mean_data: Tree = {}
    for path in result.values_minus_warmup:
        numbers = {key: value for key, value in _at(result.mean_data, path).items() if not isinstance(value, dict)}
        subtree_at(mean_data, new(path)).update(numbers)
    return replace(
        result,
        mean_data=mean_data,
        values_minus_warmup={new(path): values for path, values in result.values_minus_warmup.items()},
        items={new(path): items for path, items in result.items.items()},
    )


def _pooled_statistics(results: list[ProcessResult]) -> Tree:
    """Statistics of all processes' values together; of one process they are its own."""
    if len(results) == 1:
        return results[0].stats_minus_warmup
    paths = list(dict.fromkeys(path for result in results for path in result.values_minus_warmup))
    return statistics_tree((path, _pool(results, path)) for path in paths)


def _pool(results: list[ProcessResult], path: Path) -> dict[str, Float64]:
    parts: dict[str, list[Float64]] = {}
    for result in results:
        if path in result.values_minus_warmup:
            for key, values in result.values_minus_warmup[path].items():
                parts.setdefault(key, []).append(values)
    return {key: np.concatenate(values) for key, values in parts.items()}


def _mean_data(results: list[ProcessResult]) -> Tree:
    """The mean of the processes' trees; times per item are ratios of totals."""
    mean = mean_of_trees([result.mean_data for result in results])
    for path in dict.fromkeys(path for result in results for path in result.items):
        entry = _at(mean, path)
        with_it = [(_at(result.mean_data, path), result.items[path]) for result in results if path in result.items]
        items = sum(count for _, count in with_it)
        for key in [key for key in entry if key.endswith(PER_ITEM)]:
            times = [own[key.removesuffix(PER_ITEM)] for own, _ in with_it]
            known = items > 0 and None not in times
            total = sum(time * own["batches"] for time, (own, _) in zip(times, with_it, strict=True)) if known else 0
            entry[key] = figure(total / items) if known else None
    return mean


def _at(tree: Tree, path: Path) -> Tree:
    for key in path:
        tree = tree.get(key, {})
    return tree


def mean_of_trees(trees: list[Tree]) -> Tree:
    """Each number the mean over the trees that have it; null where one of them could not measure it."""
    mean: Tree = {}
    for key in dict.fromkeys(key for tree in trees for key in tree):
        values = [tree[key] for tree in trees if key in tree]
        if isinstance(values[0], dict):
            mean[key] = mean_of_trees(values)
        else:
            mean[key] = any(values) if key == "throttled" else _mean(values)
    return mean


def _mean(values: list[Any]) -> Any:
    if any(value is None for value in values):
        return None
    if isinstance(values[0], list):  # reasons
        return sorted({reason for value in values for reason in value})
    if isinstance(values[0], bool):
        return all(values)
    mean = sum(values) / len(values)
    return int(mean) if all(isinstance(value, int) for value in values) and mean == int(mean) else figure(mean)


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
