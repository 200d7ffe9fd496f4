"""Stages and their numbers into the trees of benchmark.json.

`data` has every batch under its own name (`batch_0`); the trees of one batch (`mean_data`, `stats_minus_warmup`) leave
the index out. A name that occurs more than once under its parent is one entry whose times are sums.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfharness.analysis.judgement import judge_stages, negative_without_warmup
from perfharness.analysis.keys import group_rows
from perfharness.analysis.measures import TIMES, Float64, Measures, by_level, measure, name_paths
from perfharness.analysis.range_table import RangeTable
from perfharness.analysis.stages import NOT_COUNTED, StageTable
from perfharness.analysis.statistics import summarise
from perfharness.model.result import BatchLoop, Path, ProcessResult, Tree
from perfharness.model.trace import Int64, Trace

RESERVED_KEYS = frozenset(
    {"count", "total_items", "total_items_minus_warmup", "warmup", "batches"}
    | {f"{time}{suffix}" for time in TIMES for suffix in ("", "_per_item", "_minus_warmup", "_per_item_minus_warmup")}
)
"""A range with such a name is written as `name (range)`, for its entry would be taken for a number."""


def tabulate(trace: Trace, table: RangeTable, stages: StageTable, warmup_batches: int) -> ProcessResult:
    """The whole result of one process's trace. `meta` is left to the caller, who knows the rest of it."""
    measures = measure(stages, table, warmup_batches)
    paths = name_paths(stages)
    batch_values = _values_per_batch(stages, measures, paths)
    findings = [*table.findings, *stages.findings, *judge_stages(stages, measures.warmup, warmup_batches)]
    data, negative = _data_tree(stages, measures, table.ranges.start_ns[stages.index])
    if negative:
        findings.append(negative_without_warmup(negative))
    utc = trace.meta.session_start_unix_ns
    minus_warmup = _select(batch_values, minus_warmup=True)
    return ProcessResult(
        data=data,
        mean_data=_mean_tree(_select(batch_values, minus_warmup=False)),
        stats_minus_warmup=statistics_tree(minus_warmup),
        values_minus_warmup=minus_warmup,
        loops=_loops(stages, measures, table, utc or 0),
        clock_is_utc=utc is not None,
        findings=findings,
    )


def number(value: float) -> float | None:
    """A number for JSON: NaN, which stands for what could not be measured, is None; a millionth of a ms is 1 ps."""
    return None if np.isnan(value) else round(float(value), 6)


def entry_key(name: str) -> str:
    """The key of a range in a tree."""
    return f"{name} (range)" if name in RESERVED_KEYS else name


# -- data: every batch by its own name ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Totals:
    """Per stage: sums over the outermost batches below it, NaN where a batch counted no items."""

    batches: Float64
    batches_minus_warmup: Float64
    items: Float64
    items_minus_warmup: Float64
    warmup_times: dict[str, Float64]


def _data_tree(stages: StageTable, measures: Measures, start_ns: Int64) -> tuple[Tree, list[str]]:
    """The tree, and the names of ranges whose time without warm-up came out negative."""
    node, parent_node = _data_nodes(stages)
    count = int(node.max(initial=-1)) + 1
    first = np.full(count, len(stages), dtype=np.int64)
    np.minimum.at(first, node, np.arange(len(stages)))
    numbers = _node_numbers(stages, measures, node, count)
    totals = _holder_totals(stages, measures)
    holder_numbers, negative = _holder_numbers(totals, node, count, numbers)
    tree: Tree = {}
    entries: list[Tree] = [{} for _ in range(count)]
    earliest = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(earliest, node, start_ns)
    for place in np.argsort(earliest, kind="stable"):
        row = first[place]
        entries[place].update(numbers[place] | holder_numbers.get(int(place), {}))
        above = (
            entries[parent_node[place]] if parent_node[place] >= 0 else tree.setdefault(_owner_name(stages, row), {})
        )
        above[_data_key(stages, row)] = entries[place]
    _add_rootless_totals(tree, stages, measures)
    return tree, [stages.names[stages.name[first[place]]] for place in negative]


def _data_nodes(stages: StageTable) -> tuple[Int64, Int64]:
    """A number for each entry of the tree, per stage; and the number of the entry above, per entry."""
    node = np.zeros(len(stages), dtype=np.int64)
    parents: list[Int64] = []
    next_number = 0
    for at in by_level(stages):
        has_parent = stages.parent[at] >= 0
        above = np.where(has_parent, node[stages.parent[at]], -1)
        index = np.where(stages.is_batch[at], stages.batch_index[at], NOT_COUNTED)
        groups = group_rows(stages.owner[at], above, stages.name[at], stages.is_batch[at].astype(np.int64), index)
        node[at] = groups.code + next_number
        parents.append(above[groups.first])
        next_number += len(groups)
    return node, np.concatenate(parents) if parents else np.empty(0, dtype=np.int64)


def _data_key(stages: StageTable, row: int) -> str:
    name: str = stages.names[stages.name[row]]
    return f"{name}_{stages.batch_index[row]}" if stages.is_batch[row] else entry_key(name)


def _owner_name(stages: StageTable, row: int) -> str:
    owner: str = stages.owners[stages.owner[row]]
    return owner


def _node_numbers(stages: StageTable, measures: Measures, node: Int64, count: int) -> list[Tree]:
    """Times, counts and what is per item, for each entry."""
    occurrences = np.bincount(node, minlength=count)
    sums = {time: np.bincount(node, weights=values, minlength=count) for time, values in measures.times.items()}
    # An entry's items are those of the batches around it, each batch once.
    inside = np.flatnonzero(measures.batch >= 0)
    pairs, first = np.unique(np.stack([node[inside], measures.batch[inside]]), axis=1, return_index=True)
    items = np.bincount(pairs[0], weights=measures.items[inside[first]], minlength=count)
    is_inside = np.zeros(count, dtype=np.bool_)
    is_inside[node[inside]] = True
    is_batch, warm = np.zeros(count, dtype=np.bool_), np.ones(count, dtype=np.bool_)
    is_batch[node[stages.is_batch]] = True
    warm[node[~measures.warmup]] = False
    numbers: list[Tree] = []
    for place in range(count):
        entry: Tree = {time: number(sums[time][place]) for time in TIMES}
        entry["count"] = int(occurrences[place])
        if is_batch[place]:
            entry["total_items"] = _whole(items[place])
        if is_inside[place]:
            entry |= {f"{time}_per_item": _per_item(sums[time][place], items[place]) for time in TIMES}
        if is_batch[place]:
            entry["warmup"] = bool(warm[place])
        numbers.append(entry)
    return numbers


def _whole(items: float) -> int | None:
    return None if np.isnan(items) else int(items)


def _per_item(time: float, items: float) -> float | None:
    return number(time / items) if items > 0 else None


def _holder_totals(stages: StageTable, measures: Measures) -> _Totals:
    count = len(stages)
    totals = _Totals(
        np.zeros(count), np.zeros(count), np.zeros(count), np.zeros(count), {time: np.zeros(count) for time in TIMES}
    )
    batches = np.flatnonzero(measures.outer_batch == np.arange(count))
    above = stages.parent[batches]
    while (some := above >= 0).any():
        at, batch = above[some], batches[some]
        warm = measures.warmup[batch]
        np.add.at(totals.batches, at, 1)
        np.add.at(totals.items, at, measures.items[batch])
        np.add.at(totals.batches_minus_warmup, at[~warm], 1)
        np.add.at(totals.items_minus_warmup, at[~warm], measures.items[batch[~warm]])
        for time in TIMES:
            np.add.at(totals.warmup_times[time], at[warm], measures.times[time][batch[warm]])
        batches, above = batch, stages.parent[at]
    return totals


def _holder_numbers(totals: _Totals, node: Int64, count: int, numbers: list[Tree]) -> tuple[dict[int, Tree], list[int]]:
    """What the entries around batches add, by entry; and the entries whose rest is negative."""
    summed = {
        name: np.bincount(node, weights=values, minlength=count)
        for name, values in (
            ("batches", totals.batches), ("rest", totals.batches_minus_warmup), ("items", totals.items),
            ("items_rest", totals.items_minus_warmup), *totals.warmup_times.items(),
        )
    }  # fmt: skip
    added: dict[int, Tree] = {}
    negative = []
    for place in np.flatnonzero(summed["batches"] > 0):
        items, rest = summed["items"][place], summed["items_rest"][place]
        entry: Tree = {"total_items": _whole(items)}
        own = {time: np.nan if (t := numbers[place][time]) is None else t for time in TIMES}
        entry |= {f"{time}_per_item": _per_item(own[time], items) for time in TIMES}
        for time in TIMES:
            left = own[time] - summed[time][place] if summed["rest"][place] else np.nan
            if left < 0:
                negative.append(int(place))
                left = np.nan
            entry[f"{time}_minus_warmup"] = number(left)
            entry[f"{time}_per_item_minus_warmup"] = _per_item(left, rest)
        entry["total_items_minus_warmup"] = _whole(rest)
        added[int(place)] = entry
    return added, negative


def _add_rootless_totals(tree: Tree, stages: StageTable, measures: Measures) -> None:
    """Batches without a range around them are counted at their recorder, which has no time of its own."""
    rootless = np.flatnonzero(stages.is_batch & (stages.parent < 0))
    for owner in np.unique(stages.owner[rootless]):
        mine = rootless[stages.owner[rootless] == owner]
        entry = tree[stages.owners[owner]]
        entry["total_items"] = _whole(measures.items[mine].sum())
        entry["total_items_minus_warmup"] = _whole(measures.items[mine[~measures.warmup[mine]]].sum())


# -- the tree of one batch --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _BatchValues:
    """One value per batch in which a path occurs, in order of the batches."""

    path: Path
    values: dict[str, list[float | None]]
    warmup: list[bool]


def _values_per_batch(stages: StageTable, measures: Measures, paths: Int64) -> list[_BatchValues]:
    inside = np.flatnonzero(measures.batch >= 0)
    if not len(inside):
        return []
    pairs, inverse = np.unique(np.stack([paths[inside], measures.batch[inside]]), axis=1, return_inverse=True)
    inverse = inverse.ravel()
    path, batch = pairs
    sums = {time: np.bincount(inverse, weights=values[inside]) for time, values in measures.times.items()}
    occurrences = np.bincount(inverse)
    items = measures.items[batch]
    found = []
    for number_of_path in np.unique(path):
        at = np.flatnonzero(path == number_of_path)
        row = int(inside[np.flatnonzero(paths[inside] == number_of_path)[0]])
        values: dict[str, list[float | None]] = {time: [number(v) for v in sums[time][at]] for time in TIMES}
        values["count"] = [int(n) for n in occurrences[at]]
        if stages.is_batch[row]:
            values["total_items"] = [_whole(n) for n in items[at]]
        for time in TIMES:
            values[f"{time}_per_item"] = [_per_item(t, n) for t, n in zip(sums[time][at], items[at], strict=True)]
        found.append(_BatchValues(path_names(stages, row), values, measures.warmup[batch[at]].tolist()))
    return found


def path_names(stages: StageTable, row: int) -> Path:
    """Recorder and names from the outermost range down to this one, batch indices left out."""
    names: list[str] = []
    at = row
    while at >= 0:
        names.append(entry_key(stages.names[stages.name[at]]))
        at = int(stages.parent[at])
    return (_owner_name(stages, row), *reversed(names))


def _select(batch_values: list[_BatchValues], *, minus_warmup: bool) -> dict[Path, dict[str, list[float | None]]]:
    selected: dict[Path, dict[str, list[float | None]]] = {}
    for entry in batch_values:
        keep = [not (minus_warmup and warm) for warm in entry.warmup]
        selected[entry.path] = {
            key: [value for value, wanted in zip(values, keep, strict=True) if wanted]
            for key, values in entry.values.items()
        }
    return selected


def place_at(tree: Tree, path: Path) -> Tree:
    """The sub-tree at this path, made where it is missing."""
    for name in path:
        tree = tree.setdefault(name, {})
    return tree


def _mean_tree(values: dict[Path, dict[str, list[float | None]]]) -> Tree:
    """Each number the mean over all batches in which the entry occurs; `batches` says in how many."""
    tree: Tree = {}
    for path, keys in values.items():
        entry = place_at(tree, path)
        for key, column in keys.items():
            measured = [value for value in column if value is not None]
            entry[key] = round(sum(measured) / len(column), 6) if column and len(measured) == len(column) else None
        entry["batches"] = len(next(iter(keys.values())))
    return tree


def statistics_tree(values: dict[Path, dict[str, list[float | None]]]) -> Tree:
    """The same tree with each number as statistics over the batches."""
    tree: Tree = {}
    for path, keys in values.items():
        place_at(tree, path).update({key: summarise(column).to_json() for key, column in keys.items()})
    return tree


def _loops(stages: StageTable, measures: Measures, table: RangeTable, origin_ns: int) -> list[BatchLoop]:
    found = []
    outermost = stages.is_batch & (measures.outer_batch == np.arange(len(stages)))
    for loop in np.unique(measures.loop[outermost]):
        rows = np.flatnonzero(outermost & (measures.loop == loop))
        start, end = table.ranges.start_ns[stages.index[rows]], table.ranges.end_ns[stages.index[rows]]
        order = np.argsort(start, kind="stable")
        found.append(
            BatchLoop(
                path=path_names(stages, int(rows[0])),
                start_ns=[origin_ns + int(t) for t in start[order]],
                end_ns=[origin_ns + int(t) for t in end[order]],
                items=[_whole(n) for n in measures.items[rows][order]],
                warmup=measures.warmup[rows][order].tolist(),
            )
        )
    return found
