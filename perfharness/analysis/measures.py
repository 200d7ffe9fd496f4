"""The numbers of each stage: times in nanoseconds, GPU times NaN where they could not be measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from perfharness.analysis.intervals import NO_PARENT
from perfharness.analysis.keys import number_rows, parts_of, taken
from perfharness.analysis.range_table import RangeTable
from perfharness.analysis.stages import NOT_COUNTED, StageTable
from perfharness.model.result import Float64
from perfharness.model.trace import Bool, Int64, Integers

TIMES = ("cpu_time", "gpu_time", "gpu_busy_time")
NS_PER_MS = 1e6


@dataclass(frozen=True)
class TimeColumn:
    """Milliseconds of stages by row, NaN where not measured.

    Worked out where they are asked for: held, they would take as much memory as the times that they come from, which
    are held anyway. `later_ns`, `earlier_ns` (None: 0) and `known` are of ranges, `place` is where the stages stand
    among them; `waited_ns`, of stages, does not count.
    """

    place: Integers | slice
    later_ns: Int64
    earlier_ns: Int64 | None = None
    waited_ns: Int64 | None = None
    known: Bool | None = None

    def __getitem__(self, rows: Integers | slice) -> Float64:
        at = rows if isinstance(self.place, slice) else self.place[rows]
        left = self.later_ns[at]
        if self.earlier_ns is not None:
            left = left - self.earlier_ns[at]
        if self.waited_ns is not None:
            left = left - taken(self.waited_ns, rows)
        time: Float64 = left / NS_PER_MS
        if self.known is not None:
            time[~self.known[at]] = np.nan
        return time


@dataclass(frozen=True)
class Measures:
    """Columns aligned with a `StageTable`.

    `times` holds one column for each of `TIMES`; `batch` is the nearest enclosing batch
    (itself, for a batch) or -1; `items` of that batch, NaN where it counted none; `outer_batch` the outermost one;
    `warmup` tells batches that are set apart, and what is inside them.
    """

    times: dict[str, TimeColumn]
    batch: Integers
    outer_batch: Integers
    items: Float64
    warmup: Bool
    loop: Integers
    """Which batches follow one another in one loop; -1 for what is in no batch."""

    path: Integers
    """`name_paths` of the stages."""

    throttled: Mapping[str, Bool] | None = None
    """By reason, batches during which the GPU's clocks were kept down; None where that is not known."""

    rejected: Bool | None = None
    """What is in `warmup` only because its batch was throttled."""

    def outermost_batches(self) -> Int64:
        """Rows of batches that are in no other batch."""
        at = np.flatnonzero(self.loop >= 0)
        found: Int64 = at[self.outer_batch[at] == at]
        return found

    @property
    def only_warmup(self) -> Bool:
        """What is set apart as warm-up."""
        return self.warmup if self.rejected is None else self.warmup & ~self.rejected


def measure(stages: StageTable, table: RangeTable, warmup_batches: int) -> Measures:
    """Times of each stage, its batch, and whether it belongs to the warm-up.

    Args:
        stages: the ranges that results are made of.
        table: times of all ranges of the trace.
        warmup_batches: how many batches at the front and at the end of each loop are set apart.
    """
    ranges, projection = table.ranges, table.projection
    at = stages.places(len(ranges))
    batch = nearest_batch(stages)
    outer = outermost_batch(stages, batch)
    path = name_paths(stages)
    loop = loops(stages, outer, path)
    warm_batch = _warmup(stages, loop, ranges.start_ns[at], warmup_batches)
    known = None if table.gpu_known.all() else table.gpu_known
    return Measures(
        times={
            "cpu_time": TimeColumn(at, ranges.end_ns, ranges.start_ns, waited_ns=_unless_zero(stages.barrier_wait_ns)),
            "gpu_time": TimeColumn(at, projection.end_ns, projection.start_ns, known=known),
            "gpu_busy_time": TimeColumn(at, projection.busy_ns, known=known),
        },
        batch=batch,
        outer_batch=outer,
        items=_items(stages, batch),
        warmup=_in_any(warm_batch, batch, outer),
        loop=loop,
        path=path,
    )


def _unless_zero(column: Int64) -> Int64 | None:
    return column if column.any() else None


def _in_any(batches: Bool, batch: Integers, outer: Integers) -> Bool:
    """Which stages are in one of these batches, be it their own or the outermost."""
    found = np.zeros(len(batch), dtype=np.bool_)
    if not batches.any():
        return found
    for part in parts_of(len(batch)):
        own = batch[part]  # -1 takes the last row's, which does not count
        found[part] = (batches[own] | batches[outer[part]]) & (own >= 0)
    return found


def _items(stages: StageTable, batch: Integers) -> Float64:
    if not (stages.items != NOT_COUNTED).any():
        return np.broadcast_to(np.float64(np.nan), len(stages))
    items = np.full(len(stages), np.nan)
    counted = batch >= 0
    counted[counted] = stages.items[batch[counted]] != NOT_COUNTED
    items[counted] = stages.items[batch[counted]]
    return items


def nearest_batch(stages: StageTable) -> Integers:
    """The innermost batch around each stage, itself included; -1 outside of any."""
    batch = _batches(stages)
    for at in _inside(stages):
        own = batch[at]
        batch[at] = np.where(own >= 0, own, batch[stages.parent[at]])
    return batch


def outermost_batch(stages: StageTable, nearest: Integers) -> Integers:
    """The outermost batch around each stage, itself included; -1 outside of any.

    `nearest`: of each stage the innermost one; the answer, where no batch is in another.
    """
    batches = np.flatnonzero(stages.is_batch)
    above = stages.parent[batches]
    if (nearest[above[above >= 0]] < 0).all():
        return nearest
    outer = _batches(stages)
    for at in _inside(stages):
        above = outer[stages.parent[at]]
        outer[at] = np.where(above >= 0, above, outer[at])
    return outer


def _batches(stages: StageTable) -> Integers:
    """Each batch itself, -1 for other stages."""
    batch = np.full(len(stages), NO_PARENT, dtype=np.int32)
    at = np.flatnonzero(stages.is_batch)
    batch[at] = at
    return batch


def _inside(stages: StageTable) -> Iterator[Integers]:
    """Stages inside others, each behind the one around it."""
    for depth in range(1, int(stages.level.max(initial=0)) + 1):
        yield from rows_of_level(stages, depth)


def by_level(stages: StageTable) -> Iterator[Iterator[Integers]]:
    """Rows of each level, the outermost first, in parts."""
    for depth in range(int(stages.level.max(initial=-1)) + 1):
        yield rows_of_level(stages, depth)


def rows_of_level(stages: StageTable, depth: int) -> Iterator[Integers]:
    """Rows of one level in parts, for a column in between for all of them is felt in big traces."""
    for part in parts_of(len(stages)):
        yield (np.flatnonzero(stages.level[part] == depth) + part.start).astype(np.int32)


def loops(stages: StageTable, outer: Integers, path: Integers) -> Integers:
    """A number for each loop of batches, -1 for what is no batch.

    Batches follow one another in one loop where the outermost of them have the same parent range, or have none and
    belong to the same recorder (threads and tasks share the work of such a loop), and their names, and the names
    between them and the outermost one, are the same.
    """
    at = np.flatnonzero(stages.is_batch)
    holder = stages.parent[outer[at]]
    groups = number_rows(taken(stages.owner, at), holder, path[at])
    loop = np.full(len(stages), -1, dtype=_type_for(len(groups)))
    loop[at] = groups.code
    return loop


def _type_for(count: int) -> type[np.signedinteger[Any]]:
    """Of so many numbers from 0 on, and -1."""
    return np.int16 if count <= 1 << 15 else np.int32


def name_paths(stages: StageTable) -> Integers:
    """One number per chain of names from the outermost range down, batch indices left out, owners told apart."""
    path = np.zeros(len(stages), dtype=np.int16)
    next_number = 0
    for level in by_level(stages):
        known: list[Integers] = []  # the keys of the level's groups so far
        for at in level:
            if not len(at):
                continue
            parent = stages.parent[at]
            above = np.where(parent >= 0, path[parent], -1)
            keys = [taken(stages.owner, at), above, stages.name[at], stages.is_batch[at].astype(np.int8)]
            groups = number_rows(*keys)
            firsts = [taken(key, groups.first) for key in keys]
            together = [np.concatenate([old, new]) for old, new in zip(known, firsts, strict=True)] if known else firsts
            numbers = number_rows(*together)
            known = [key[numbers.first] for key in together]
            if next_number + len(numbers) > np.iinfo(path.dtype).max:
                path = path.astype(np.int32)
            path[at] = (numbers.code[-len(groups) :] + next_number)[groups.code]
        next_number += len(known[0]) if known else 0
    return path


def _warmup(stages: StageTable, loop: Integers, start_ns: Int64, warmup_batches: int) -> Bool:
    """Batches among the first or last `warmup_batches` of their loop, in order of start."""
    warm = np.zeros(len(stages), dtype=np.bool_)
    at = np.flatnonzero(stages.is_batch)
    if warmup_batches <= 0 or not len(at):
        return warm
    at = at[np.lexsort((start_ns[at], loop[at]))]
    _, first, count = np.unique(loop[at], return_index=True, return_counts=True)
    place = np.arange(len(at)) - np.repeat(first, count)
    warm[at] = (place < warmup_batches) | (place >= np.repeat(count, count) - warmup_batches)
    return warm


def with_throttled(measures: Measures, throttled: Mapping[str, Bool], *, reject: bool) -> Measures:
    """The same with the batches marked that were throttled.

    Args:
        measures: of all stages.
        throttled: by reason, which stages' times it touched.
        reject: set the batches apart that it touched, with all that is inside them, like warm-up.
    """
    marked = {reason: touched & (measures.loop >= 0) for reason, touched in throttled.items()}
    if not reject:
        return replace(measures, throttled=marked)
    any_reason = np.logical_or.reduce([*marked.values(), np.zeros_like(measures.warmup)])
    apart = _in_any(any_reason, measures.batch, measures.outer_batch)
    return replace(measures, throttled=marked, warmup=measures.warmup | apart, rejected=apart & ~measures.warmup)
