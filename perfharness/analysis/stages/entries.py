"""`data` of benchmark.json and `mean_all_batches`: every range under its own name, every batch with its index.

Entries are columns until they are written. The mean over processes is computed from the processes' sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from perfharness.analysis.stages.per_batch import per_item
from perfharness.analysis.stages.roles import StageTable
from perfharness.analysis.stages.times import StageTimes
from perfharness.analysis.timeline.grouping import (
    count_by_code,
    distinct,
    group_nested,
    rows_of_levels,
    sum_by_code,
    unique,
)
from perfharness.analysis.timeline.intervals import NO_PARENT
from perfharness.model.columns import Bool, Float64, Int64, Integers
from perfharness.model.result import NO_INDEX, PER_ITEM, TIMES, Entries, EntryTable, Path
from perfharness.model.rounding import BELOW, DECIMALS


def make_entries(stages: StageTable, times: StageTimes, throttled: Mapping[str, Bool] | None) -> Entries:
    """Sum up each entry. `throttled`: mask of affected stages by reason, None if unknown. Recorders come first, with
    items but no times.
    """
    groups, owners = stages.entries, distinct(stages.owner)
    root, roots, count = np.searchsorted(owners, stages.owner), len(owners), len(owners) + len(groups)
    entry, first = groups.code + np.int32(roots), groups.first
    sums = {time: sum_by_code(entry, times.times[time], count) for time in TIMES}
    sums["count"] = count_by_code(entry, count)
    inside = np.flatnonzero(times.batch >= 0)
    pairs = unique(entry[inside].astype(np.int64) * len(entry) + times.batch[inside])  # a batch counts once
    sums["items"] = sum_by_code(pairs // max(len(entry), 1), times.items[pairs % max(len(entry), 1)], count)
    below, holds_batches, _ = _batches_below(stages, times, entry, sums)
    sums |= below
    is_inside, warmup = np.zeros(count, dtype=np.bool_), np.ones(count, dtype=np.bool_)
    is_inside[entry[inside]] = True
    warmup[entry[~times.warmup]] = warmup[:roots] = False
    bits = np.zeros(count, dtype=np.int64)
    reasons = None if throttled is None else tuple(sorted(throttled))
    for bit, reason in enumerate(reasons or ()):
        bits[entry[(throttled or {})[reason] & stages.is_batch]] |= 1 << bit

    alone = np.flatnonzero(stages.is_batch & (stages.parent < 0))
    left = alone[~times.warmup[alone]]
    for column in sums.values():
        column[:roots] = np.nan
    sums["items"][:roots] = sum_by_code(root[alone], times.items[alone], roots)
    sums["items_left"][:roots] = sum_by_code(root[left], times.items[left], roots)
    holds_batches[root[alone]] = True
    earliest = np.full(count, np.iinfo(np.int64).max)
    for of in (root, entry):
        np.minimum.at(earliest, of, stages.start_ns)
    around = np.append(entry, NO_PARENT)[stages.parent[first]]
    above = np.r_[np.full(roots, NO_PARENT), np.where(around >= 0, around, root[first])]
    order, depth = preorder(above, earliest)
    place = np.empty(count + 1, dtype=np.int64)
    place[order], place[-1] = np.arange(count), NO_PARENT
    is_batch = stages.is_batch[first]
    index = np.where(is_batch, stages.batch_index[first].astype(np.int64), NO_INDEX)
    names, name = [*stages.names, *stages.owners], stages.name[first].astype(np.int64)
    for at in np.flatnonzero(is_batch & (index < 0)).tolist():
        name[at], index[at] = len(names), NO_INDEX
        names.append(f"{stages.names[stages.name[first[at]]]}_{stages.batch_index[first[at]]}")
    return Entries(
        names=names,
        name=np.r_[np.asarray(owners, dtype=np.int64) + len(stages.names), name][order],
        index=np.r_[np.full(roots, NO_INDEX), index][order],
        depth=depth,
        parent=place[above[order]],
        sums={key: column[order] for key, column in sums.items()},
        is_batch=np.r_[np.zeros(roots, dtype=np.bool_), is_batch][order],
        is_inside=is_inside[order],
        holds_batches=holds_batches[order],
        warmup=warmup[order],
        reasons=reasons,
        throttled=bits[order],
    )


def names_with_negative_time(stages: StageTable, times: StageTimes) -> list[str]:
    """Names of entries with a negative time without warm-up (set to NaN), because warm-up batches overlap."""
    groups = stages.entries
    sums = {time: sum_by_code(groups.code, times.times[time], len(groups)) for time in TIMES}
    _, _, negative = _batches_below(stages, times, groups.code, {**sums, "items": np.zeros(len(groups))})
    return [stages.names[name] for name in stages.name[groups.first[negative]].tolist()]


def _batches_below(
    stages: StageTable, times: StageTimes, entry: Integers, sums: dict[str, Float64]
) -> tuple[dict[str, Float64], Bool, Bool]:
    """Items and times without warm-up of entries around batches, and masks of these entries and of negative times. Adds
    the items of entries around batches to `sums`.
    """
    count = len(sums["items"])
    batches, left, items, items_left = np.zeros((4, count))
    warm = {time: np.zeros(count) for time in TIMES}
    batch = times.outermost_batches()
    above = stages.parent[batch]
    while (some := above >= 0).any():
        batch, above = batch[some], above[some]
        at, is_warm = entry[above], times.warmup[batch]
        batches += count_by_code(at, count)
        left += count_by_code(at[~is_warm], count)
        items += sum_by_code(at, times.items[batch], count)
        items_left += sum_by_code(at[~is_warm], times.items[batch[~is_warm]], count)
        for time in TIMES:
            warm[time] += sum_by_code(at[is_warm], times.times[time][batch[is_warm]], count)
        above = stages.parent[above]
    holds = batches > 0
    sums["items"] = np.where(holds, items, sums["items"])
    found = {"items_left": items_left}
    negative = np.zeros(count, dtype=np.bool_)
    for time in TIMES:
        rest = np.where(left > 0, sums[time] - warm[time], np.nan)
        below_zero = holds & (rest < -1e-6)  # rounding errors are below a picosecond
        negative |= below_zero
        found[f"{time}_left"] = np.where(below_zero, np.nan, np.maximum(rest, 0))
    return found, holds, negative


def preorder(parent: Int64, rank: Int64) -> tuple[Int64, Int64]:
    """Order rows of a forest depth first, children by rank; and depths. Parents (-1: none) have lower rows."""
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
        begin = np.where(parent[at] >= 0, position[parent[at]] + 1, 0)
        ordered = np.lexsort((at, rank[at], begin))
        before = np.cumsum(size[at[ordered]]) - size[at[ordered]]
        is_first = np.r_[True, np.diff(begin[ordered]) != 0][: len(at)]
        before -= np.maximum.accumulate(np.where(is_first, before, 0))
        position[at[ordered]] = begin[ordered] + before
    order = np.empty(count, dtype=np.int64)
    order[position] = np.arange(count)
    return order, depth[order]


def entry_table(entries: Entries) -> EntryTable:
    """Numbers of each entry, rounded for writing."""
    numbers: dict[str, tuple[Int64, Float64 | Bool | Int64]] = {}

    def add(applies: Bool, **columns: Any) -> None:
        rows = np.flatnonzero(applies)
        for key, column in columns.items():
            values = column[rows]
            numbers[key] = (
                rows,
                rounded(values.astype(np.float64, copy=False)) if values.dtype == np.float64 else values,
            )

    sums, is_range, around = entries.sums, entries.depth > 0, entries.holds_batches
    add(is_range, **{key: sums[key] for key in (*TIMES, "count")})
    add(entries.is_batch | around, total_items=sums["items"])
    per = {f"{time}{PER_ITEM}": per_item(sums[time], sums["items"]) for time in TIMES}
    add(entries.is_inside | (around & is_range), **per)
    for time in TIMES:
        left = sums[f"{time}_left"]
        without = {f"{time}_minus_warmup": left}
        without[f"{time}{PER_ITEM}_minus_warmup"] = per_item(left, sums["items_left"])
        add(around & is_range, **without)
    add(around, total_items_minus_warmup=sums["items_left"])
    add(entries.is_batch, warmup=entries.warmup)
    if entries.reasons is not None:
        add(entries.is_batch, throttled=entries.throttled > 0)
        add(entries.throttled > 0, throttle_reasons=entries.throttled)
    return EntryTable(entries.names, entries.name, entries.index, entries.depth, numbers, entries.reasons or ())


def mean_entries(processes: Sequence[Entries]) -> Entries:
    """Mean of each sum over the processes that have the entry, ordered as in the first process with it. Entries are
    equal if their keys and those of all entries around them are. A batch is warm-up if it is in all processes,
    throttled if it is in any.
    """
    if len(processes) == 1:
        return processes[0]
    code: dict[str, int] = {}
    codes = [np.asarray([code.setdefault(name, len(code)) for name in one.names], dtype=np.int64) for one in processes]
    name = np.concatenate([own[one.name] for own, one in zip(codes, processes, strict=True)])
    index, depth = (np.concatenate([getattr(one, key) for one in processes]) for key in ("index", "depth"))
    begins = np.cumsum([0, *(len(one.name) for one in processes)])[:-1]
    parent = np.concatenate(
        [np.where(one.parent >= 0, one.parent + begin, NO_PARENT) for one, begin in zip(processes, begins, strict=True)]
    )
    groups = group_nested(rows_of_levels(depth), parent, name, index)
    first, count = groups.first, len(groups)
    merged = np.append(groups.code, NO_PARENT)
    order, new_depth = preorder(merged[parent[first]], first)
    place = np.empty(count + 1, dtype=np.int64)
    place[order], place[-1] = np.arange(count), NO_PARENT
    row, at = place[groups.code], first[order]
    having = count_by_code(row, count)
    keys = processes[0].sums
    sums = {key: sum_by_code(row, np.concatenate([one.sums[key] for one in processes]), count) for key in keys}
    reasons = sorted({reason for one in processes for reason in one.reasons or ()})
    bits = np.zeros(count, dtype=np.int64)
    for one, begin in zip(processes, begins.tolist(), strict=True):
        for bit, reason in enumerate(one.reasons or ()):
            has = (one.throttled >> bit & 1) << reasons.index(reason)
            np.bitwise_or.at(bits, row[begin : begin + len(has)], has)

    def any_of(flag: str, wanted: bool = True) -> Bool:
        flags = np.concatenate([getattr(one, flag) for one in processes])
        return np.asarray(np.bincount(row, weights=flags == wanted, minlength=count) > 0)

    return Entries(
        names=list(code),
        name=name[at],
        index=index[at],
        depth=new_depth,
        parent=place[merged[parent[at]]],
        sums={key: column / having for key, column in sums.items()},
        is_batch=any_of("is_batch"),
        is_inside=any_of("is_inside"),
        holds_batches=any_of("holds_batches"),
        warmup=~any_of("warmup", wanted=False),
        reasons=None if all(one.reasons is None for one in processes) else tuple(reasons),
        throttled=bits,
    )


def rounded(values: Float64) -> Float64:
    """Round each value like `rounding.figure`."""
    digits = DECIMALS + len(BELOW) - np.searchsorted(BELOW, np.abs(values), side="right")
    powers = np.power(10.0, np.arange(DECIMALS + len(BELOW) + 1))
    scale = powers[np.where(values == 0, DECIMALS, digits)]
    scaled = values * scale
    whole = np.rint(scaled)
    found = whole / scale
    # The product is rounded as well, which matters halfway between two figures.
    middle = np.flatnonzero(np.abs(np.abs(scaled - whole) - 0.5) <= 2 * np.spacing(np.abs(scaled)))
    found[middle] = list(map(round, values[middle].tolist(), digits[middle].tolist()))
    return np.asarray(found + 0.0, dtype=np.float64)


def sums_of_ranges(processes: Sequence[Entries]) -> dict[Path, dict[str, float | None]]:
    """Count and times per path over all processes, batches of a path combined; None if not measured."""
    found: dict[Path, dict[str, float]] = {}
    for one in processes:
        columns = {key: one.sums[key].tolist() for key in ("count", *TIMES)}
        path: list[str] = []
        for row, (name, depth) in enumerate(zip(one.name.tolist(), one.depth.tolist(), strict=True)):
            path[depth:] = [one.names[name]]
            if depth:  # a recorder is not a range
                sums = found.setdefault(tuple(path), dict.fromkeys(columns, 0.0))
                for key, column in columns.items():
                    sums[key] += column[row]
    return {path: {key: None if sum_ != sum_ else sum_ for key, sum_ in sums.items()} for path, sums in found.items()}
