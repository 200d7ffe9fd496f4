"""The numbers of each stage: times in milliseconds, GPU times NaN where they could not be measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from perfharness.analysis.stages.roles import NOT_COUNTED, StageTable
from perfharness.analysis.timeline.grouping import group_rows
from perfharness.analysis.timeline.intervals import NO_PARENT
from perfharness.analysis.timeline.range_table import RangeTable
from perfharness.model.result import Float64
from perfharness.model.trace import Bool, Int64, Integers

NS_PER_MS = 1e6


@dataclass(frozen=True)
class StageTimes:
    """Columns aligned with a `StageTable`.

    `times` holds one column for each of `TIMES`, ms, NaN where not measured; `batch` is the nearest enclosing batch
    (itself, for a batch) or -1; `items` of that batch, NaN where it counted none; `outer_batch` the outermost one;
    `warmup` are batches that are excluded, and what is inside them.
    """

    start_ns: Int64
    times: dict[str, Float64]
    batch: Integers
    outer_batch: Integers
    items: Float64
    warmup: Bool
    loop: Integers
    """Which batches follow one another in one loop; -1 for what is in no batch."""

    path: Integers
    """Codes of `StageTable.paths`."""

    throttled: Mapping[str, Bool] | None = None
    """By reason, batches during which the GPU was throttled; None where that is not known."""

    def outermost_batches(self) -> Int64:
        """Rows of batches that are in no other batch."""
        at = np.flatnonzero(self.loop >= 0)
        found: Int64 = at[self.outer_batch[at] == at]
        return found

    @cached_property
    def rows_of_loops(self) -> list[Int64]:
        """The outermost batches of each loop, in order of start."""
        rows = self.outermost_batches()
        if not len(rows):
            return []
        rows = rows[np.lexsort((self.start_ns[rows], self.loop[rows]))]
        return np.split(rows, np.flatnonzero(np.diff(self.loop[rows])) + 1)


def stage_times(stages: StageTable, table: RangeTable, warmup_batches: int) -> StageTimes:
    """Times of each stage, its batch, and whether it belongs to the warm-up.

    Args:
        stages: the ranges that results are made of.
        table: times of all ranges of the trace.
        warmup_batches: how many batches at the front and at the end of each loop are excluded.
    """
    projection, at = table.projection, stages.index
    batch = nearest_batch(stages)
    outer = outermost_batch(stages, batch)
    path = stages.paths.code
    loop = loops(stages, path)
    warm_batch = _warmup(stages, loop, warmup_batches)
    gpu_time = (projection.end_ns - projection.start_ns)[at] / NS_PER_MS
    gpu_busy_time = projection.busy_ns[at] / NS_PER_MS
    for column in (gpu_time, gpu_busy_time):
        column[~table.gpu_known[at]] = np.nan
    return StageTimes(
        start_ns=stages.start_ns,
        times={
            "cpu_time": (stages.end_ns - stages.start_ns - stages.barrier_wait_ns) / NS_PER_MS,
            "gpu_time": gpu_time,
            "gpu_busy_time": gpu_busy_time,
        },
        batch=batch,
        outer_batch=outer,
        items=_items(stages, batch),
        warmup=_with_all_inside(warm_batch, stages.parent, batch),
        loop=loop,
        path=path,
    )


def _with_all_inside(batches: Bool, parent: Integers, batch: Integers) -> Bool:
    """Which stages are in one of these batches, at whatever depth.

    Args:
        batches: which rows are such batches.
        parent: of each stage.
        batch: the innermost batch around each stage.
    """
    rows = np.flatnonzero(batch == np.arange(len(batch)))
    chosen = batches.copy()
    around = rows
    while len(rows):
        above = parent[around]
        around = np.where(above >= 0, batch[above], NO_PARENT)
        rows, around = rows[around >= 0], around[around >= 0]
        chosen[rows] |= batches[around]
    return np.asarray(np.append(chosen, False)[batch], dtype=np.bool_)


def _items(stages: StageTable, batch: Integers) -> Float64:
    items = np.append(np.where(stages.items == NOT_COUNTED, np.nan, stages.items), np.nan)
    return np.asarray(items[batch], dtype=np.float64)


def nearest_batch(stages: StageTable) -> Integers:
    """The innermost batch around each stage, itself included; -1 outside of any."""
    batch = _batches(stages)
    for at in stages.rows_of_levels[1:]:
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
    for at in stages.rows_of_levels[1:]:
        above = outer[stages.parent[at]]
        outer[at] = np.where(above >= 0, above, outer[at])
    return outer


def _batches(stages: StageTable) -> Integers:
    """Each batch itself, -1 for other stages."""
    batch = np.full(len(stages), NO_PARENT, dtype=np.int32)
    at = np.flatnonzero(stages.is_batch)
    batch[at] = at
    return batch


def loops(stages: StageTable, path: Integers) -> Integers:
    """A number for each loop of batches, -1 for what is no batch.

    A loop is what one thread, task or process runs: the batches of one name path under one range. Of the ranges around
    a batch it is the innermost one that holds two batches or more on average (`_holders`), so that a range around each
    single batch is part of the loop. Where the lowest batch index comes again, a new loop begins.

    Args:
        stages: the ranges that results are made of.
        path: of each, as `StageTable.paths` numbers them.
    """
    start_ns = stages.start_ns
    at = np.flatnonzero(stages.is_batch)
    loop = np.full(len(stages), -1, dtype=np.int32)
    holder = _holders(stages, at, path[at], start_ns[at])
    order = np.lexsort((start_ns[at], holder))
    loop[at[order]] = np.cumsum(_begins(holder[order], stages.batch_index[at][order])) - 1
    return loop


def _begins(holder: Integers, index: Integers) -> Bool:
    """Which batches begin a loop: the first of each holder, and those where its lowest index comes again.

    Args:
        holder: of each batch; those of one stand together, in order of start.
        index: of the batch. A constant one carries no information.
    """
    if not len(holder):
        return np.zeros(0, dtype=np.bool_)
    is_first = np.r_[True, holder[1:] != holder[:-1]]
    begins = np.flatnonzero(is_first)
    lengths = np.diff(np.r_[begins, len(holder)])
    is_lowest = index == np.repeat(np.minimum.reduceat(index, begins), lengths)
    lowest_before = np.cumsum(is_lowest) - is_lowest
    is_again = is_lowest & (lowest_before > np.repeat(lowest_before[begins], lengths)) & ~np.r_[False, is_lowest[:-1]]
    found: Bool = is_first | is_again
    return found


def _holders(stages: StageTable, at: Integers, path: Integers, start_ns: Int64) -> Integers:
    """For each batch a number of what runs its loop: a range, or where none does, a lane, a thread or the recorder.

    The innermost that holds two batches of the path or more on average. A range around each batch, a task or a thread
    for each batch (a server) would otherwise make loops of one batch, which are all warm-up.

    Args:
        at: rows of the batches.
        path: of each, which has all ranges around it, so that those of one path are equally deep.
        start_ns: of each.
    """
    groups = group_rows(path)
    path, count = groups.code, np.bincount(groups.code, minlength=len(groups))
    found = np.zeros(len(at), dtype=np.int64)
    numbered = 0
    holder = stages.parent[at].astype(np.int64)
    left = np.arange(len(at))

    def number_holders(rows: Int64, *keys: Int64) -> Bool:
        """Number the holders of these rows; which rows' holders have enough batches."""
        nonlocal numbered
        groups = group_rows(path[rows], *(key[rows] for key in keys))
        holders = np.bincount(path[rows][groups.first], minlength=len(count))
        found[rows] = groups.code + numbered
        numbered += len(groups)
        is_enough: Bool = (count >= 2 * holders)[path[rows]]
        return is_enough

    at_root = [left[:0]]
    while len(left):
        is_held = holder[left] >= 0
        at_root.append(left[~is_held])
        left = left[is_held]
        left = left[~number_holders(left, holder)]
        holder[left] = stages.parent[holder[left]]
    left = np.concatenate(at_root)
    thread = stages.thread[at]
    lane = _lanes_with_own_indices(path, thread, stages.lane[at], stages.batch_index[at], start_ns, left)
    for keys in ((thread, lane), (thread,), ()):
        left = left[~number_holders(left, *keys)]
    return found


def _lanes_with_own_indices(
    path: Integers, thread: Integers, lane: Integers, index: Integers, start_ns: Int64, rows: Int64
) -> Integers:
    """The lane of each batch; 0 where the tasks of its thread share one numbering, as those of a server do.

    Tasks that each count their own batches have indices in common; where a task takes the next one when it comes, which
    lane it got means nothing.

    Args:
        rows: which batches are asked about.
    """
    if not lane.any():
        return lane
    own = lane.astype(np.int64)
    rows = rows[np.lexsort((start_ns[rows], thread[rows], path[rows]))]
    group = group_rows(path[rows], thread[rows]).code
    loop = np.cumsum(_begins(group, index[rows]))
    numbers = group_rows(loop.astype(np.int64), index[rows])
    is_repeated = (np.bincount(numbers.code, minlength=len(numbers)) > 1)[numbers.code]
    repeats = np.bincount(group, weights=is_repeated) > 0
    own[rows[~repeats[group]]] = 0
    return own


def _warmup(stages: StageTable, loop: Integers, warmup_batches: int) -> Bool:
    """Batches among the first or last `warmup_batches` of their loop, in order of start."""
    warm = np.zeros(len(stages), dtype=np.bool_)
    at = np.flatnonzero(stages.is_batch)
    if warmup_batches <= 0 or not len(at):
        return warm
    at = at[np.lexsort((stages.start_ns[at], loop[at]))]
    _, first, count = np.unique(loop[at], return_index=True, return_counts=True)
    position = np.arange(len(at)) - np.repeat(first, count)
    warm[at] = (position < warmup_batches) | (position >= np.repeat(count, count) - warmup_batches)
    return warm


def with_throttled(stage_times: StageTimes, throttled: Mapping[str, Bool]) -> StageTimes:
    """The same with the batches marked that were throttled.

    Args:
        throttled: by reason, which stages' times it touched.
    """
    return replace(
        stage_times, throttled={reason: touched & (stage_times.loop >= 0) for reason, touched in throttled.items()}
    )
