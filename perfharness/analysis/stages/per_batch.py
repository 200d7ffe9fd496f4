"""Sums per batch of everything in it, times per item, and statistics over batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from perfharness.analysis.stages.roles import StageTable
from perfharness.analysis.stages.times import StageTimes
from perfharness.analysis.statistics import summarise
from perfharness.analysis.timeline.grouping import count_by_code, group_rows, sum_by_code
from perfharness.model.result import PER_ITEM, TIMES, BatchValues, Float64, Path, Tree
from perfharness.model.rounding import figure
from perfharness.model.trace import Bool

ValuesByPath = Mapping[Path, BatchValues]


def per_item(times: Float64, items: Float64) -> Float64:
    """Times per item; NaN where there are no items, or one of both is not known. The only place that divides them."""
    found = np.full(np.shape(times), np.nan)
    np.divide(times, items, out=found, where=np.asarray(items) > 0)
    return found


def values_per_batch(stages: StageTable, times: StageTimes) -> dict[Path, BatchValues]:
    """One value per batch in which a path occurs, by path; a batch's own path before those inside it."""
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
    """The values of all processes together."""
    if len(processes) == 1:
        return dict(processes[0])
    found = {}
    for path in dict.fromkeys(path for values in processes for path in values):
        parts = [values[path] for values in processes if path in values]
        found[path] = BatchValues(
            {key: np.concatenate([part.values[key] for part in parts]) for key in parts[0].values},
            np.concatenate([part.warmup for part in parts]),
            is_batch=any(part.is_batch for part in parts),
        )
    return found


def numbers(values: BatchValues, kept: Bool) -> dict[str, Float64]:
    """The numbers of an entry by key, one value per kept batch."""
    columns = {key: column[kept] for key, column in values.values.items()}
    items = columns.pop("items")
    if values.is_batch:
        columns["total_items"] = items
    return columns | {f"{time}{PER_ITEM}": per_item(columns[time], items) for time in TIMES}


def _mean(values: BatchValues, key: str, kept: Bool) -> float:
    """The mean over batches; per item, the ratio of totals; NaN if one of them is not known."""
    columns = {name: column[kept] for name, column in values.values.items()}
    if key.endswith(PER_ITEM):
        return float(per_item(columns[key.removesuffix(PER_ITEM)].sum(), columns["items"].sum()))
    column = columns["items" if key == "total_items" else key]
    return float(column.mean()) if len(column) else float("nan")


def mean_tree(processes: Sequence[ValuesByPath]) -> Tree:
    """Each number's mean over all batches of all processes; `batches` is per process that has the entry."""
    tree: Tree = {}
    for path, values in pooled(processes).items():
        every = np.ones(len(values.warmup), dtype=np.bool_)
        mean = {key: json_number(_mean(values, key, every)) for key in numbers(values, every)}
        per_process = len(every) / sum(path in one for one in processes)
        subtree_at(tree, path).update(mean, batches=int(per_process) if per_process.is_integer() else per_process)
    return tree


def statistics_tree(processes: Sequence[ValuesByPath]) -> Tree:
    """Statistics of each number over all batches without warm-up."""
    tree: Tree = {}
    for path, values in pooled(processes).items():
        kept = ~values.warmup
        subtree_at(tree, path).update(
            {
                key: summarise(column, _mean(values, key, kept) if key.endswith(PER_ITEM) else None).to_json()
                for key, column in numbers(values, kept).items()
            }
        )
    return tree


def json_number(value: float) -> float | None:
    """A number as it is written; NaN, which was not measured, is None."""
    return None if np.isnan(value) else figure(value)


def subtree_at(tree: Tree, path: Path) -> Tree:
    """The sub-tree at this path, made where it is missing."""
    for name in path:
        tree = tree.setdefault(name, {})
    return tree
