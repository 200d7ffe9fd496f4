"""Sums per batch, times per item, and statistics over batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import numpy as np

from perfharness.analysis.stages.roles import StageTable
from perfharness.analysis.stages.times import StageTimes
from perfharness.analysis.statistics import summarise
from perfharness.analysis.timeline.grouping import count_by_code, group_rows, sum_by_code
from perfharness.model.columns import Bool, Float64
from perfharness.model.result import PER_ITEM, TIMES, BatchValues, Path, Tree
from perfharness.model.rounding import figure

ValuesByPath = Mapping[Path, BatchValues]


def per_item(times: Float64, items: Float64) -> Float64:
    """Times per item; NaN for no items or unknown values. All such divisions use this function."""
    found = np.full(np.shape(times), np.nan)
    np.divide(times, items, out=found, where=np.asarray(items) > 0)
    return found


def values_per_batch(stages: StageTable, times: StageTimes) -> dict[Path, BatchValues]:
    """One value per batch in which a path occurs, by path; a batch comes before its contents."""
    inside = np.flatnonzero(times.batch >= 0)
    groups = group_rows(stages.paths.code[inside], times.batch[inside])
    first = inside[groups.first]
    columns = {time: sum_by_code(groups.code, times.times[time][inside], len(groups)) for time in TIMES}
    columns["count"] = count_by_code(groups.code, len(groups))
    columns["items"] = times.items[first]
    path = stages.paths.code[first]
    order = np.argsort(path, kind="stable")
    found = {}
    for rows in np.split(order, np.flatnonzero(np.diff(path[order])) + 1) if len(order) else ():
        one = first[rows[0]]
        values = {key: column[rows] for key, column in columns.items()}
        found[stages.paths.of_row(one)] = BatchValues(
            values=values, warmup=times.warmup[times.batch[first[rows]]], is_batch=bool(stages.is_batch[one])
        )
    return found


def pooled(processes: Sequence[ValuesByPath]) -> dict[Path, BatchValues]:
    """Join the values of all processes."""
    found = {}
    for path in dict.fromkeys(path for values in processes for path in values):
        parts = [values[path] for values in processes if path in values]
        found[path] = BatchValues(
            {key: np.concatenate([part.values[key] for part in parts]) for key in parts[0].values},
            np.concatenate([part.warmup for part in parts]),
            is_batch=any(part.is_batch for part in parts),
        )
    return found


def numbers(values: BatchValues, kept: Bool | slice) -> dict[str, tuple[Float64, float]]:
    """Values per kept batch and their mean, by key; means per item are ratios of totals."""
    columns = {key: column[kept] for key, column in values.values.items()}
    items = columns.pop("items")
    total = items.sum()
    if values.is_batch:
        columns["total_items"] = items
    found = {key: (column, float(column.mean()) if len(column) else float("nan")) for key, column in columns.items()}
    for time in TIMES:
        column = columns[time]
        found[f"{time}{PER_ITEM}"] = per_item(column, items), float(per_item(column.sum(), total))
    return found


def mean_tree(processes: Sequence[ValuesByPath]) -> Tree:
    """Mean of each number over all batches of all processes; `batches` is per process that has the entry."""
    tree: Tree = {}
    for path, values in pooled(processes).items():
        of_key = numbers(values, slice(None)).items()
        mean = {key: None if np.isnan(mean) else figure(mean) for key, (_, mean) in of_key}
        per_process = len(values.warmup) / sum(path in one for one in processes)
        subtree_at(tree, path).update(mean, batches=int(per_process) if per_process.is_integer() else per_process)
    return tree


def statistics_tree(processes: Sequence[ValuesByPath]) -> Tree:
    """Statistics of each number over all batches without warm-up."""
    tree: Tree = {}
    for path, values in pooled(processes).items():
        for key, (column, mean) in numbers(values, ~values.warmup).items():
            of_totals = mean if key.endswith(PER_ITEM) else None
            subtree_at(tree, path)[key] = asdict(summarise(column, of_totals))
    return tree


def subtree_at(tree: Tree, path: Path) -> Tree:
    """Get or create the sub-tree at a path."""
    for name in path:
        tree = tree.setdefault(name, {})
    return tree
