"""The numbers of each stage: times in nanoseconds, GPU times NaN where they could not be measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from perfharness.analysis.intervals import NO_PARENT
from perfharness.analysis.keys import number_rows, taken
from perfharness.analysis.range_table import RangeTable
from perfharness.analysis.stages import NOT_COUNTED, StageTable
from perfharness.model.result import Float64
from perfharness.model.trace import Bool, Int64, Integers

TIMES = ("cpu_time", "gpu_time", "gpu_busy_time")
NS_PER_MS = 1e6
PART = 1 << 18


@dataclass(frozen=True)
class Measures:
    """Columns aligned with a `StageTable`.

    `times` holds one column for each of `TIMES`, in ms, NaN where not measured; `batch` is the nearest enclosing batch
    (itself, for a batch) or -1; `items` of that batch, NaN where it counted none; `outer_batch` the outermost one;
    `warmup` tells batches that are set apart, and what is inside them.
    """

    times: dict[str, Float64]
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
    known = table.gpu_known[at]
    has_work = projection.operation_count[at] > 0
    batch = nearest_batch(stages)
    outer = outermost_batch(stages)
    path = name_paths(stages)
    loop = loops(stages, outer, path)
    warm_batch = _warmup(stages, loop, ranges.start_ns[at], warmup_batches)
    warm = np.zeros(len(stages), dtype=np.bool_)
    inside = batch >= 0
    warm[inside] = warm_batch[batch[inside]] | warm_batch[outer[inside]]
    return Measures(
        times={
            "cpu_time": _ms(ranges.end_ns[at], ranges.start_ns[at], stages.barrier_wait_ns),
            "gpu_time": _gpu_ms(projection.end_ns[at], projection.start_ns[at], has_work, known),
            "gpu_busy_time": _gpu_ms(projection.busy_ns[at], None, has_work, known),
        },
        batch=batch,
        outer_batch=outer,
        items=_items(stages, batch),
        warmup=warm,
        loop=loop,
        path=path,
    )


def _gpu_ms(time_ns: Int64, before_ns: Int64 | None, has_work: Bool, known: Bool) -> Float64:
    time = _ms(time_ns, before_ns)
    time[~has_work] = 0
    time[~known] = np.nan
    return time


def _ms(time_ns: Int64, *before_ns: Int64 | None) -> Float64:
    """Milliseconds of a time less others; a part at a time, for a whole column in between is felt in big traces."""
    found = np.empty(len(time_ns))
    for begin in range(0, len(found), PART):
        part = slice(begin, begin + PART)
        left = time_ns[part]
        for before in before_ns:
            if before is not None:
                left = left - before[part]
        np.divide(left, NS_PER_MS, out=found[part])
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
    batch = np.where(stages.is_batch, np.arange(len(stages), dtype=np.int32), np.int32(NO_PARENT))
    for at in by_level(stages):
        inherits = (batch[at] < 0) & (stages.parent[at] >= 0)
        batch[at[inherits]] = batch[stages.parent[at[inherits]]]
    return batch


def outermost_batch(stages: StageTable) -> Integers:
    """The outermost batch around each stage, itself included; -1 outside of any."""
    outer = np.where(stages.is_batch, np.arange(len(stages), dtype=np.int32), np.int32(NO_PARENT))
    for at in by_level(stages):
        has_parent = stages.parent[at] >= 0
        above = outer[stages.parent[at[has_parent]]]
        outer[at[has_parent]] = np.where(above >= 0, above, outer[at[has_parent]])
    return outer


def by_level(stages: StageTable) -> Iterator[Integers]:
    """Rows of each level, the outermost first."""
    for depth in range(int(stages.level.max(initial=-1)) + 1):
        yield np.flatnonzero(stages.level == depth).astype(np.int32)


def loops(stages: StageTable, outer: Integers, path: Integers) -> Integers:
    """A number for each loop of batches, -1 for what is no batch.

    Batches follow one another in one loop where the outermost of them have the same parent range, or have none and
    belong to the same recorder (threads and tasks share the work of such a loop), and their names, and the names
    between them and the outermost one, are the same.
    """
    holder = np.full(len(stages), NO_PARENT, dtype=np.int32)
    inside = outer >= 0
    holder[inside] = stages.parent[outer[inside]]
    loop = number_rows(stages.owner, holder, path).code
    return np.where(stages.is_batch, loop, np.int32(-1))


def name_paths(stages: StageTable) -> Integers:
    """One number per chain of names from the outermost range down, batch indices left out, owners told apart."""
    path = np.zeros(len(stages), dtype=np.int32)
    next_number = 0
    for at in by_level(stages):
        has_parent = stages.parent[at] >= 0
        above = np.where(has_parent, path[stages.parent[at]], -1)
        groups = number_rows(taken(stages.owner, at), above, stages.name[at], stages.is_batch[at].astype(np.int8))
        path[at] = groups.code + next_number
        next_number += len(groups)
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
    is_batch = measures.batch == np.arange(len(measures.batch))
    marked = {reason: touched & is_batch for reason, touched in throttled.items()}
    if not reject:
        return replace(measures, throttled=marked)
    any_reason = np.logical_or.reduce([*marked.values(), np.zeros_like(measures.warmup)])
    inside = measures.batch >= 0
    apart = np.zeros_like(measures.warmup)
    apart[inside] = any_reason[measures.batch[inside]] | any_reason[measures.outer_batch[inside]]
    return replace(measures, throttled=marked, warmup=measures.warmup | apart, rejected=apart & ~measures.warmup)
