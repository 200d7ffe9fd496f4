"""`data` of benchmark.json: every range under its own name, every batch with its index.

Everything stays in columns, one row an entry, until the file is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from perfharness.analysis.stages.roles import NOT_COUNTED, StageTable
from perfharness.analysis.stages.stage_times import NS_PER_MS, StageTimes
from perfharness.analysis.timeline.grouping import count_by_code, group_rows, sum_by_code, unique
from perfharness.analysis.timeline.intervals import NO_PARENT
from perfharness.model.result import NO_INDEX, TIMES, EntryTable, Float64, NumberColumn, NumberKind
from perfharness.model.rounding import BELOW, DECIMALS, figure
from perfharness.model.trace import Bool, Int64, Integers


def json_number(value: float) -> float | None:
    """A number for JSON: NaN, which stands for what could not be measured, is None."""
    return None if np.isnan(value) else figure(value)


PER_ITEM = "_per_item"
"""In the keys of times per item, behind the time's own."""


def divide(times: Float64, items: Float64) -> Float64:
    """Times per item; NaN where there are no items, or they were not counted."""
    per_item = np.full(len(times), np.nan)
    np.divide(times, items, out=per_item, where=items > 0)
    return per_item


KINDS: Final[Mapping[str, NumberKind]] = {
    "count": "whole", "total_items": "whole", "total_items_minus_warmup": "whole", "warmup": "all", "throttled": "any",
    "throttle_reasons": "labels",
}  # fmt: skip
"""Of keys that are no times."""


@dataclass(frozen=True)
class Columns:
    """Numbers of entries by key; a number stands in an entry only where `applies`."""

    applies: Bool
    values: Mapping[str, Float64]


Grouped = tuple[Integers, Int64, Int64]
"""The entry of each stage; the first stage of each entry, and the entry above it."""


def group_entries(stages: StageTable) -> Grouped:
    """Group stages into entries."""
    node = np.zeros(len(stages), dtype=np.int32)
    firsts, parents = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    next_number = 0
    for at in stages.rows_of_levels:
        parent = stages.parent[at]
        above = np.where(parent >= 0, node[parent], np.int32(NO_PARENT))
        index = np.where(stages.is_batch[at], stages.batch_index[at], np.int32(NOT_COUNTED))
        groups = group_rows(stages.owner[at], above, stages.name[at], stages.is_batch[at].astype(np.int64), index)
        node[at] = groups.code + next_number
        firsts.append(at[groups.first])
        parents.append(above[groups.first])
        next_number += len(groups)
    return node, np.concatenate(firsts), np.concatenate(parents)


def names_with_negative_time(stages: StageTable, stage_times: StageTimes, grouped: Grouped) -> list[str]:
    """Names of entries whose time without warm-up comes out below zero; it is NaN there."""
    node, first, _ = grouped
    sums = {time: sum_by_code(node, stage_times.times[time], len(first)) for time in TIMES}
    _, negative = _around_batches(stages, stage_times, node, sums)
    return [stages.names[stages.name[row]] for row in first[negative]]


def make_entries(stages: StageTable, stage_times: StageTimes, grouped: Grouped) -> EntryTable:
    """The numbers of each entry."""
    node, first, parent = grouped
    count = len(first)
    sums = {time: sum_by_code(node, stage_times.times[time], count) for time in TIMES}
    items, is_inside = _items(stage_times, node, count)
    is_batch = np.zeros(count, dtype=np.bool_)
    is_batch[node[stages.is_batch]] = True
    warm = np.ones(count)
    warm[node[~stage_times.warmup]] = 0
    around, _ = _around_batches(stages, stage_times, node, sums)
    earliest = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(earliest, node, stages.start_ns)
    occurrences = count_by_code(node, count)
    waited = np.zeros(count)
    if stages.barrier_wait_ns.any():
        waited = sum_by_code(node, stages.barrier_wait_ns / NS_PER_MS, count)
    groups = [
        Columns(np.ones(count, dtype=np.bool_), {**sums, "count": occurrences}),
        Columns(is_batch, {"total_items": items}),
        Columns(is_inside, {f"{time}_per_item": divide(sums[time], items) for time in TIMES}),
        around,
        Columns(waited > 0, {"start_barrier_wait": waited}),
        Columns(is_batch, {"warmup": warm}),
    ]
    labels: tuple[str, ...] = ()
    if stage_times.throttled is not None:
        labels = tuple(sorted(stage_times.throttled))
        reasons = _reasons([stage_times.throttled[label] for label in labels], node, count)
        groups.append(Columns(is_batch, {"throttled": (reasons > 0).astype(np.float64)}))
        groups.append(Columns(reasons > 0, {"throttle_reasons": reasons}))
    per_item = np.where(is_inside, items, np.where(around.applies, around.values["total_items"], np.nan))
    return _table(stages, first, parent, earliest, groups, labels, _rootless_totals(stages, stage_times), per_item)


def _table(
    stages: StageTable,
    first: Int64,
    parent: Int64,
    earliest: Int64,
    groups: list[Columns],
    labels: tuple[str, ...],
    rootless: dict[str, tuple[Int64, Float64]],
    items: Float64,
) -> EntryTable:
    """Entries below their recorders, in order of start."""
    owners, owner = np.unique(stages.owner[first], return_inverse=True)
    above = np.where(parent >= 0, parent + len(owners), owner)
    owner_earliest = np.full(len(owners), np.iinfo(np.int64).max)
    np.minimum.at(owner_earliest, owner, earliest)
    order, depth = preorder(
        np.concatenate([np.full(len(owners), -1, dtype=np.int64), above]), np.concatenate([owner_earliest, earliest])
    )
    row_of = np.empty(len(order), dtype=np.int64)
    row_of[order] = np.arange(len(order))
    row_of_entry, row_of_owner = row_of[len(owners) :], row_of[: len(owners)]
    is_batch = stages.is_batch[first]
    # Keys of stages, names of batches, which their index makes keys, recorders, and keys of batches below 0.
    paths = stages.paths
    batch_index = np.where(is_batch, stages.batch_index[first].astype(np.int64), 0)
    below_zero = np.flatnonzero(batch_index < 0)
    names = [*paths.keys, *stages.names, *stages.owners]
    name = np.where(is_batch, len(paths) + stages.name[first], paths.code[first])
    name[below_zero] = len(names) + np.arange(len(below_zero))
    names += [f"{stages.names[stages.name[first[at]]]}_{batch_index[at]}" for at in below_zero.tolist()]
    name = np.concatenate([owners + len(paths) + len(stages.names), name])
    index = np.where(is_batch & (batch_index >= 0), batch_index, NO_INDEX)
    index = np.concatenate([np.full(len(owners), NO_INDEX, dtype=np.int64), index])
    numbers: list[NumberColumn] = []
    for group in groups:
        at = np.flatnonzero(group.applies)
        rows = row_of_entry[at]
        by_row = np.argsort(rows)
        for key, values in group.values.items():
            numbers.append(number_column(key, rows[by_row], values[at[by_row]], labels))
    for key, (owner_numbers, totals) in rootless.items():
        rows = row_of_owner[np.searchsorted(owners, owner_numbers)]
        by_row = np.argsort(rows)
        numbers.append(number_column(key, rows[by_row], totals[by_row]))
    items_by_row = np.full(len(order), np.nan)
    items_by_row[row_of_entry] = items
    return EntryTable(names, name[order], index[order], depth, numbers, items_by_row)


def number_column(key: str, rows: Int64, values: Float64, labels: tuple[str, ...] = ()) -> NumberColumn:
    """A column of the table; times are rounded. `labels` are those of `throttle_reasons`."""
    kind = KINDS.get(key, "number")
    return NumberColumn(
        key, rows, rounded(values) if kind == "number" else values, kind, labels if kind == "labels" else ()
    )


def _reasons(throttled: list[Bool], node: Integers, count: int) -> Float64:
    """For each entry the reasons for which it was throttled, a bit each."""
    bits = np.zeros(count, dtype=np.int64)
    for position, touched in enumerate(throttled):
        bits[node[touched]] |= 1 << position
    return bits.astype(np.float64)


def rounded(values: Float64) -> Float64:
    """Each as `figure` has it, to the last bit, except -0.0."""
    found, doubtful = _rounded(values, 10.0**DECIMALS)
    # Times are whole nanoseconds, so few of the small numbers have more digits than that: times of an item.
    small = np.flatnonzero((np.abs(values) < BELOW[-1]) & (found != values))
    digits = DECIMALS + len(BELOW) - np.searchsorted(BELOW, np.abs(values[small]), side="right")
    scale: Float64 = np.power(10.0, digits)
    found[small], doubtful[small] = _rounded(values[small], scale)
    for at in np.flatnonzero(doubtful).tolist():
        found[at] = figure(values[at])
    return found + 0.0


def _rounded(values: Float64, scale: Float64 | float) -> tuple[Float64, Bool]:
    """Rounded, and where the product is rounded too, so that may decide, or digits are lost."""
    scaled = values * scale
    whole = np.rint(scaled)
    size = np.abs(scaled)
    return whole / scale, (np.abs(np.abs(scaled - whole) - 0.5) <= 2 * np.spacing(size)) | (size >= 2**52)


def preorder(parent: Int64, rank: Int64) -> tuple[Int64, Int64]:
    """Rows of a forest in the order of a walk: each before its children, those by rank, then by row; and their depths.

    `parent` is -1 for roots; a row's parent stands before it.
    """
    count = len(parent)
    levels: list[Int64] = []
    depth = np.full(count, -1, dtype=np.int64)
    at = np.flatnonzero(parent < 0)
    while len(at):
        depth[at] = len(levels)
        levels.append(at)
        at = np.flatnonzero((depth < 0) & (depth[parent] == len(levels) - 1))
    size = np.ones(count, dtype=np.int64)
    for at in reversed(levels[1:]):
        size += np.bincount(parent[at], weights=size[at], minlength=count).astype(np.int64)
    position = np.zeros(count, dtype=np.int64)
    for at in levels:
        above = parent[at]
        begin = np.where(above >= 0, position[above] + 1, 0)
        ordered = np.lexsort((at, rank[at], begin))
        before = np.cumsum(size[at[ordered]]) - size[at[ordered]]
        is_first = np.r_[True, np.diff(begin[ordered]) != 0][: len(at)]
        before -= np.maximum.accumulate(np.where(is_first, before, 0))
        position[at[ordered]] = begin[ordered] + before
    order = np.empty(count, dtype=np.int64)
    order[position] = np.arange(count)
    return order, depth[order]


def _items(stage_times: StageTimes, node: Integers, count: int) -> tuple[Float64, Bool]:
    """Items of the batches around each entry, each batch once; and whether there are such batches."""
    inside = np.flatnonzero(stage_times.batch >= 0).astype(np.int32)
    is_inside = np.zeros(count, dtype=np.bool_)
    is_inside[node[inside]] = True
    pairs = unique(node[inside].astype(np.int64) * len(node) + stage_times.batch[inside])
    return sum_by_code(pairs // len(node), stage_times.items[pairs % len(node)], count), is_inside


def _around_batches(
    stages: StageTable, stage_times: StageTimes, node: Integers, sums: dict[str, Float64]
) -> tuple[Columns, Int64]:
    """What entries around batches add: items, and their own times less those of the warm-up batches inside."""
    count = len(next(iter(sums.values())))
    totals = _sums_over_batches_below(stages, stage_times, node, count)
    items, items_left = totals["items"], totals["items_left"]
    values: dict[str, Float64] = {"total_items": items}
    negative = np.zeros(count, dtype=np.bool_)
    for time in TIMES:
        left = np.where(totals["batches_left"] > 0, sums[time] - totals[time], np.nan)
        # A sum of floats may miss zero by less than a picosecond.
        below_zero = left < -1e-6
        negative |= below_zero
        left = np.where(below_zero, np.nan, np.maximum(left, 0))
        values[f"{time}_per_item"] = divide(sums[time], items)
        values[f"{time}_minus_warmup"] = left
        values[f"{time}_per_item_minus_warmup"] = divide(left, items_left)
    values["total_items_minus_warmup"] = items_left
    applies = totals["batches"] > 0
    return Columns(applies, values), np.flatnonzero(negative & applies)


def _sums_over_batches_below(
    stages: StageTable, stage_times: StageTimes, node: Integers, count: int
) -> dict[str, Float64]:
    """Per entry, sums over the outermost batches anywhere below it; times are those of warm-up batches."""
    totals = {name: np.zeros(count) for name in ("batches", "batches_left", "items", "items_left", *TIMES)}
    batch = stage_times.outermost_batches()
    above = stages.parent[batch]
    while (some := above >= 0).any():
        batch, above = batch[some], above[some]
        at, warm = node[above], stage_times.warmup[batch]

        totals["batches"] += count_by_code(at, count)
        totals["batches_left"] += count_by_code(at[~warm], count)
        totals["items"] += sum_by_code(at, stage_times.items[batch], count)
        totals["items_left"] += sum_by_code(at[~warm], stage_times.items[batch[~warm]], count)
        for time in TIMES:
            totals[time] += sum_by_code(at[warm], stage_times.times[time][batch[warm]], count)
        above = stages.parent[above]
    return totals


def _rootless_totals(stages: StageTable, stage_times: StageTimes) -> dict[str, tuple[Int64, Float64]]:
    """Batches without a range around them are counted at their recorder, which has no time of its own.

    By key, owners and what they have.
    """
    rootless = np.flatnonzero(stages.is_batch & (stages.parent < 0))
    owners, code = np.unique(stages.owner[rootless], return_inverse=True)
    items, left = stage_times.items[rootless], ~stage_times.warmup[rootless]
    return {
        "total_items": (owners, sum_by_code(code, items, len(owners))),
        "total_items_minus_warmup": (owners, sum_by_code(code[left], items[left], len(owners))),
    }
