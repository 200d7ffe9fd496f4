"""`data` of benchmark.json: every range under its own name, every batch with its index.

Numbers are computed in columns, one row an entry; the tree of dictionaries is built only when somebody wants it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from perfharness.analysis.keys import count_by_code, group_rows, sum_by_code
from perfharness.analysis.measures import NS_PER_MS, TIMES, Measures, by_level
from perfharness.analysis.stages import NOT_COUNTED, StageTable
from perfharness.model.result import Float64, Tree
from perfharness.model.trace import Bool, Int64

RESERVED_KEYS = frozenset(
    {"count", "total_items", "total_items_minus_warmup", "warmup", "throttled", "throttle_reasons", "batches"}
    | {"start_barrier_wait"}
    | {f"{time}{suffix}" for time in TIMES for suffix in ("", "_per_item", "_minus_warmup", "_per_item_minus_warmup")}
)
"""A range with such a name is written as `name (range)`, for its entry would be taken for a number."""


def number(value: float) -> float | None:
    """A number for JSON: NaN, which stands for what could not be measured, is None; a millionth of a ms is 1 ps."""
    return None if np.isnan(value) else round(float(value), 6)


def whole(items: float) -> int | None:
    """An item count for JSON; NaN is None."""
    return None if np.isnan(items) else int(items)


def divide(times: Float64, items: Float64) -> Float64:
    """Times per item; NaN where there are no items, or they were not counted."""
    per_item = np.full(len(times), np.nan)
    np.divide(times, items, out=per_item, where=items > 0)
    return per_item


def entry_key(name: str) -> str:
    """The key of a range in a tree."""
    return f"{name} (range)" if name in RESERVED_KEYS else name


@dataclass(frozen=True)
class Columns:
    """Numbers of entries by key; a number stands in an entry only where `applies`."""

    applies: Bool
    values: Mapping[str, Float64]


@dataclass(frozen=True)
class Entries:
    """The entries of the tree, in columns; `first` is the first stage of each, `parent` the entry above or -1.

    `groups` are what entries of one kind have: all, those in batches, batches, those around batches, those around a
    wait at the start barrier.
    `negative` lists entries whose time without warm-up came out below zero (it is NaN there).
    """

    stages: StageTable
    first: Int64
    parent: Int64
    order: Int64
    groups: list[Columns]
    warmup: Columns
    rootless: dict[int, Tree]
    negative: Int64
    throttled: Mapping[str, Int64] | None = None
    """Entries of batches that were throttled, by reason; None where that is not known."""

    def negative_names(self) -> list[str]:
        """Names of the ranges of `negative`."""
        return [self.stages.names[self.stages.name[row]] for row in self.first[self.negative]]

    def to_tree(self) -> Tree:
        """Recorder name -> nested ranges with their numbers."""
        tree: Tree = {}
        entries: list[Tree] = [{} for _ in range(len(self.first))]
        for group in self.groups:
            at = np.flatnonzero(group.applies)
            for key, values in group.values.items():
                convert = whole if key in WHOLE_KEYS else number
                for place, value in zip(at.tolist(), values[at].tolist(), strict=True):
                    entries[place][key] = convert(value)
        for place in np.flatnonzero(self.warmup.applies).tolist():
            entries[place]["warmup"] = bool(self.warmup.values["warmup"][place])
        if self.throttled is not None:
            self._mark_throttled(entries, self.throttled)
        for place in self.order.tolist():
            row = int(self.first[place])
            owner = tree.setdefault(self.stages.owners[self.stages.owner[row]], {})
            above = entries[self.parent[place]] if self.parent[place] >= 0 else owner
            above[self._key(row)] = entries[place]
        for owner_number, totals in self.rootless.items():
            tree[self.stages.owners[owner_number]].update(totals)
        return tree

    def _mark_throttled(self, entries: list[Tree], throttled: Mapping[str, Int64]) -> None:
        for place in np.flatnonzero(self.warmup.applies).tolist():
            entries[place]["throttled"] = False
        for reason, places in throttled.items():
            for place in places.tolist():
                entries[place]["throttled"] = True
                entries[place].setdefault("throttle_reasons", []).append(reason)

    def _key(self, row: int) -> str:
        name: str = self.stages.names[self.stages.name[row]]
        return f"{name}_{self.stages.batch_index[row]}" if self.stages.is_batch[row] else entry_key(name)


WHOLE_KEYS = frozenset({"count", "total_items", "total_items_minus_warmup"})


def make_entries(stages: StageTable, measures: Measures, start_ns: Int64) -> Entries:
    """Group stages into entries and compute the numbers of each. `start_ns` is aligned with the stages."""
    node, first, parent = _group(stages)
    count = len(first)
    sums = {time: sum_by_code(node, values, count) for time, values in measures.times.items()}
    items, is_inside = _items(measures, node, count)
    is_batch = np.zeros(count, dtype=np.bool_)
    is_batch[node[stages.is_batch]] = True
    warm = np.ones(count)
    warm[node[~measures.only_warmup]] = 0
    around, negative = _around_batches(stages, measures, node, sums)
    earliest = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(earliest, node, start_ns)
    occurrences = count_by_code(node, count)
    waited = sum_by_code(node, stages.barrier_wait_ns / NS_PER_MS, count)
    return Entries(
        stages=stages,
        first=first,
        parent=parent,
        order=np.argsort(earliest, kind="stable"),
        groups=[
            Columns(np.ones(count, dtype=np.bool_), {**sums, "count": occurrences}),
            Columns(is_batch, {"total_items": items}),
            Columns(is_inside, {f"{time}_per_item": divide(sums[time], items) for time in TIMES}),
            around,
            Columns(waited > 0, {"start_barrier_wait": waited}),
        ],
        warmup=Columns(is_batch, {"warmup": warm}),
        rootless=_rootless_totals(stages, measures),
        negative=negative,
        throttled=None
        if measures.throttled is None
        else {reason: np.unique(node[touched]) for reason, touched in measures.throttled.items()},
    )


def _group(stages: StageTable) -> tuple[Int64, Int64, Int64]:
    """The entry of each stage; the first stage of each entry, and the entry above it."""
    node = np.zeros(len(stages), dtype=np.int64)
    firsts, parents = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    next_number = 0
    for at in by_level(stages):
        above = np.where(stages.parent[at] >= 0, node[stages.parent[at]], -1)
        index = np.where(stages.is_batch[at], stages.batch_index[at], NOT_COUNTED)
        groups = group_rows(stages.owner[at], above, stages.name[at], stages.is_batch[at].astype(np.int64), index)
        node[at] = groups.code + next_number
        firsts.append(at[groups.first])
        parents.append(above[groups.first])
        next_number += len(groups)
    return node, np.concatenate(firsts), np.concatenate(parents)


def _items(measures: Measures, node: Int64, count: int) -> tuple[Float64, Bool]:
    """Items of the batches around each entry, each batch once; and whether there are such batches."""
    inside = np.flatnonzero(measures.batch >= 0)
    pairs = group_rows(node[inside], measures.batch[inside])
    once = inside[pairs.first]
    is_inside = np.zeros(count, dtype=np.bool_)
    is_inside[node[inside]] = True
    return sum_by_code(node[once], measures.items[once], count), is_inside


def _around_batches(
    stages: StageTable, measures: Measures, node: Int64, sums: dict[str, Float64]
) -> tuple[Columns, Int64]:
    """What entries around batches add: items, and their own times less those of the warm-up batches inside."""
    count = len(next(iter(sums.values())))
    totals = _sums_over_batches_below(stages, measures, node, count)
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


def _sums_over_batches_below(stages: StageTable, measures: Measures, node: Int64, count: int) -> dict[str, Float64]:
    """Per entry, sums over the outermost batches anywhere below it; times are those of warm-up batches."""
    totals = {name: np.zeros(count) for name in ("batches", "batches_left", "items", "items_left", *TIMES)}
    batch = np.flatnonzero(measures.outer_batch == np.arange(len(stages)))
    above = stages.parent[batch]
    while (some := above >= 0).any():
        batch, above = batch[some], above[some]
        at, warm = node[above], measures.warmup[batch]

        totals["batches"] += count_by_code(at, count)
        totals["batches_left"] += count_by_code(at[~warm], count)
        totals["items"] += sum_by_code(at, measures.items[batch], count)
        totals["items_left"] += sum_by_code(at[~warm], measures.items[batch[~warm]], count)
        for time in TIMES:
            totals[time] += sum_by_code(at[warm], measures.times[time][batch[warm]], count)
        above = stages.parent[above]
    return totals


def _rootless_totals(stages: StageTable, measures: Measures) -> dict[int, Tree]:
    """Batches without a range around them are counted at their recorder, which has no time of its own."""
    rootless = np.flatnonzero(stages.is_batch & (stages.parent < 0))
    totals: dict[int, Tree] = {}
    for owner in np.unique(stages.owner[rootless]).tolist():
        mine = rootless[stages.owner[rootless] == owner]
        totals[owner] = {
            "total_items": whole(measures.items[mine].sum()),
            "total_items_minus_warmup": whole(measures.items[mine[~measures.warmup[mine]]].sum()),
        }
    return totals
