"""Numbers of the stage table: times, enclosing batch, loop, and warm-up."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from perfharness.analysis.stages.roles import NOT_COUNTED, StageTable
from perfharness.analysis.timeline.grouping import group_rows, occurrences, rows_by_code, unique
from perfharness.analysis.timeline.intervals import NO_PARENT, innermost_at
from perfharness.analysis.timeline.projection import RangeTable
from perfharness.model.columns import Bool, Float64, Int64, Integers
from perfharness.model.result import Path
from perfharness.model.trace import ApiCalls
from perfharness.model.units import NS_PER_MS


@dataclass(frozen=True)
class StageTimes:
    """Columns aligned with a `StageTable`. `times`: milliseconds of each of `TIMES`, NaN if not measured. `batch`:
    nearest batch around a stage (itself for a batch) or -1; `outer_batch`: the outermost one. `items`: of `batch`, NaN
    if not counted. `loop`: of batches, -1 for other stages. `warmup`: excluded batches and their stages.
    """

    start_ns: Int64
    times: dict[str, Float64]
    batch: Integers
    outer_batch: Integers
    items: Float64
    warmup: Bool
    loop: Integers

    def outermost_batches(self) -> Int64:
        """Rows of batches outside other batches."""
        at = np.flatnonzero(self.loop >= 0)
        found: Int64 = at[self.outer_batch[at] == at]
        return found

    @cached_property
    def rows_of_loops(self) -> list[Int64]:
        """Outermost batches of each loop, ordered by start."""
        rows = self.outermost_batches()
        if not len(rows):
            return []
        rows = rows[np.lexsort((self.start_ns[rows], self.loop[rows]))]
        return np.split(rows, np.flatnonzero(np.diff(self.loop[rows])) + 1)


def stage_times(stages: StageTable, table: RangeTable, warmup_batches: int) -> StageTimes:
    """Compute times and batches of all stages; `warmup_batches` at each end of a loop are warm-up."""
    projection, at = table.projection, stages.index
    gpu_time = (projection.end_ns - projection.start_ns)[at] / NS_PER_MS
    gpu_busy_time = projection.busy_ns[at] / NS_PER_MS
    for column in (gpu_time, gpu_busy_time):
        column[~table.gpu_known[at]] = np.nan
    loop = find_loops(stages)
    warmup = _first_and_last(stages, loop, warmup_batches)
    batch = np.where(stages.is_batch, np.arange(len(stages), dtype=np.int32), np.int32(NO_PARENT))
    outer = batch.copy()
    for rows in stages.rows_of_levels[1:]:
        above = stages.parent[rows]
        batch[rows] = np.where(batch[rows] >= 0, batch[rows], batch[above])
        outer[rows] = np.where(outer[above] >= 0, outer[above], outer[rows])
    items = np.append(np.where(stages.items == NOT_COUNTED, np.nan, stages.items), np.nan)
    return StageTimes(
        start_ns=stages.start_ns,
        times={
            "cpu_time": (stages.end_ns - stages.start_ns - stages.barrier_wait_ns) / NS_PER_MS,
            "gpu_time": gpu_time,
            "gpu_busy_time": gpu_busy_time,
        },
        batch=batch,
        outer_batch=outer,
        items=items[batch],
        warmup=stages.inside(warmup),
        loop=loop,
    )


@dataclass(frozen=True)
class StageRows:
    """Measured ranges of one stage: rows of the stage table, and the number of batches they are in."""

    path: Path
    number: int
    rows: Int64
    batches: int


def stage_rows(stages: StageTable, times: StageTimes) -> list[StageRows]:
    """Stages in order of occurrence, with ranges in batches without warm-up; without batches, all ranges."""
    has_batches = bool(stages.is_batch.any())
    code = stages.paths.code
    eligible = times.batch >= 0 if has_batches else np.ones(len(stages), dtype=np.bool_)
    by_path = rows_by_code(code, eligible & ~times.warmup)
    in_order = code[eligible]
    found = []
    for number in in_order[group_rows(in_order).first].tolist():
        mine = by_path[number]
        batches = unique(times.batch[mine]) if has_batches else mine
        found.append(StageRows(stages.paths.names(number), number, mine, len(batches)))
    return found


def find_loops(stages: StageTable) -> Integers:
    """Loop number of each batch, -1 for other stages. A loop is the batches of one thread or asyncio task on one path.
    Server requests form one loop: batches of a thread's tasks if their indices differ, and of threads with fewer than
    two batches on average.
    """
    at = np.flatnonzero(stages.is_batch)
    path, thread = group_rows(stages.paths.code[at]), stages.thread[at]
    stack = group_rows(path.code, thread)
    numbers = group_rows(stack.code, stages.batch_index[at])
    repeats = np.bincount(stack.code) > np.bincount(stack.code[numbers.first])
    lane = np.where(repeats[stack.code], stages.lane[at], 0)
    is_thread_each = np.bincount(path.code) < 2 * np.bincount(path.code[stack.first])
    loop = np.full(len(stages), -1, dtype=np.int32)
    loop[at] = group_rows(path.code, np.where(is_thread_each[path.code], 0, thread), lane).code
    return loop


def _first_and_last(stages: StageTable, loop: Integers, warmup_batches: int) -> Bool:
    """Mask of the first and last `warmup_batches` batches of each loop, by start."""
    warmup = np.zeros(len(stages), dtype=np.bool_)
    at = np.flatnonzero(stages.is_batch)
    at = at[np.argsort(stages.start_ns[at], kind="stable")]
    if warmup_batches > 0:
        position, count = occurrences(loop[at]), np.bincount(loop[at])[loop[at]]
        warmup[at] = (position < warmup_batches) | (position >= count - warmup_batches)
    return warmup


def stage_of_calls(stages: StageTable, api: ApiCalls, calls: Int64) -> Int64:
    """For each of `calls` (indices into `api`), the innermost stage around all of it, or -1. If several tasks or
    recorders of a thread have one, the stage that began last.
    """
    found = np.full(len(calls), NO_PARENT, dtype=np.int64)
    if not len(stages):
        return found
    by_thread = np.argsort(api.thread[calls], kind="stable")
    threads = api.thread[calls[by_thread]]
    line = np.stack([stages.owner, stages.thread, stages.lane])
    # The table is ordered by (owner, thread, lane, start), so a stack of ranges is a slice of it.
    begins = np.flatnonzero(np.r_[True, (line[:, 1:] != line[:, :-1]).any(axis=0)])
    for begin, stop in zip(begins.tolist(), [*begins[1:].tolist(), len(stages)], strict=True):
        first, last = np.searchsorted(threads, [stages.thread[begin], stages.thread[begin] + 1])
        mine, rows = by_thread[first:last], slice(begin, stop)
        parent = np.where(stages.parent[rows] >= 0, stages.parent[rows] - begin, NO_PARENT)
        call_start, call_end = api.start_ns[calls[mine]], api.end_ns[calls[mine]]
        at = innermost_at(stages.start_ns[rows], stages.end_ns[rows], parent, call_start, call_end)
        at = np.where(at >= 0, at + begin, NO_PARENT)
        better = (at >= 0) & ((found[mine] < 0) | (stages.start_ns[at] >= stages.start_ns[found[mine]]))
        found[mine[better]] = at[better]
    return found
