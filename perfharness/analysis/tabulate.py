"""Stages and their numbers into the trees of benchmark.json.

`data` has every batch under its own name (`batch_0`); the trees of one batch (`mean_data`, `stats_minus_warmup`) leave
the index out. A name that occurs more than once under its parent is one entry whose times are sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from perfharness.analysis.entries import PER_ITEM, divide, make_entries, names_of_negative, number
from perfharness.analysis.judgement import (
    judge_rejected,
    judge_stages,
    judge_waits_of_other_threads,
    negative_without_warmup,
)
from perfharness.analysis.keys import count_by_code, distinct, number_rows, rows_by_code, sum_by_code, taken
from perfharness.analysis.measures import Measures, measure, with_throttled
from perfharness.analysis.outside import stages_outside
from perfharness.analysis.range_table import RangeTable
from perfharness.analysis.stages import StageTable
from perfharness.analysis.statistics import ratio_of_totals, summarise
from perfharness.model.findings import Finding
from perfharness.model.result import TIMES, BatchLoop, BatchValues, Float64, Path, ProcessResult, Tree
from perfharness.model.trace import Bool, Events, Int64, NvtxRanges

if TYPE_CHECKING:
    from perfharness.analysis.metrics.clocks import Throttling


ITEMS = "items"
"""Key of the items of the batch, among the values of what is in it: what times per item are made of. Not written."""


def tabulate(
    trace: Events,
    table: RangeTable,
    stages: StageTable,
    warmup_batches: int,
    throttling: Throttling | None = None,
    *,
    reject_throttled: bool = False,
) -> ProcessResult:
    """The whole result of one process's trace. `meta` is left to the caller, who knows the rest of it.

    Args:
        trace, table, stages: the trace, its ranges, and those that results are made of.
        warmup_batches: excluded at the front and at the end of each loop.
        throttling: when the clocks of the process's GPU were kept down; None: not known.
        reject_throttled: set the batches apart that it touched.
    """
    measures = measure(stages, table, warmup_batches)
    return tabulate_measured(
        trace, table.findings, stages, measures, warmup_batches, throttling, reject_throttled=reject_throttled
    )


def tabulate_measured(
    trace: Events,
    range_findings: list[Finding],
    stages: StageTable,
    measures: Measures,
    warmup_batches: int,
    throttling: Throttling | None = None,
    *,
    reject_throttled: bool = False,
) -> ProcessResult:
    """The same where stages have been measured, so that the table of ranges, the largest thing there is, may be gone.

    Args:
        range_findings: what was found about the ranges.
        measures: of the stages.
    """
    ranges = trace.ranges
    if throttling is not None and trace.meta.session_start_unix_ns is not None:
        touched = throttling.touched(
            trace.meta.session_start_unix_ns + ranges.start_ns[stages.index],
            trace.meta.session_start_unix_ns + ranges.end_ns[stages.index],
        )
        measures = with_throttled(stages, measures, touched, reject=reject_throttled)
    values = _ValuesPerBatch(stages, measures)
    negative = names_of_negative(stages, measures)
    findings = [*range_findings, *stages.findings, *judge_stages(stages, measures, warmup_batches)]
    at = stages.places(len(ranges))
    findings += judge_waits_of_other_threads(stages, measures, ranges.start_ns[at], ranges.end_ns[at])
    findings += judge_rejected(stages, measures.warmup, measures.rejected)
    if negative:
        findings.append(negative_without_warmup(negative))
    utc = trace.meta.session_start_unix_ns
    mean_data, stats_minus_warmup, items = _trees(values)
    return ProcessResult(
        names=[stages.owners[owner] for owner in distinct(stages.owner)],
        make_entries=lambda: make_entries(stages, measures, ranges.start_ns[stages.places(len(ranges))]),
        mean_data=mean_data,
        stats_minus_warmup=stats_minus_warmup,
        values_minus_warmup=_WithoutWarmup(values),
        items=items,
        loops=_loops(stages, measures, ranges, utc or 0),
        clock_is_utc=utc is not None,
        findings=findings,
        outside=stages_outside(stages, measures, ranges.start_ns[at], ranges.end_ns[at]),
    )


class _ValuesPerBatch(Mapping[Path, BatchValues]):
    """One value per batch in which a path occurs, by path; a batch's own path before those inside it.

    Put together when they are asked for: all at once they would take more memory than anything else.
    """

    def __init__(self, stages: StageTable, measures: Measures) -> None:
        self._stages, self._measures = stages, measures
        self._rows, counts = rows_by_code(measures.path, measures.batch >= 0)
        stops = np.cumsum(counts)
        self._slices: dict[Path, slice] = {}
        for code in np.flatnonzero(counts):
            part = slice(int(stops[code] - counts[code]), int(stops[code]))
            self._slices[stages.paths.names(int(code))] = part

    def __len__(self) -> int:
        return len(self._slices)

    def __iter__(self) -> Iterator[Path]:
        return iter(self._slices)

    def __getitem__(self, path: Path) -> BatchValues:
        measures, rows = self._measures, self._rows[self._slices[path]]
        batch = measures.batch[rows]
        groups = None if (batch[1:] > batch[:-1]).all() else number_rows(batch)
        first = rows if groups is None else rows[groups.first]
        items = taken(measures.items, first)

        def times(time: str) -> Float64:
            values = measures.times[time][rows]
            return values if groups is None else sum_by_code(groups.code, values, len(groups))

        def count() -> Float64:
            return np.ones(len(rows)) if groups is None else count_by_code(groups.code, len(groups))

        columns: dict[str, Callable[[], Float64]] = {time: partial(times, time) for time in TIMES}
        columns["count"] = count
        if self._stages.is_batch[rows[0]]:
            columns["total_items"] = lambda: items
        for time in TIMES:
            columns[f"{time}{PER_ITEM}"] = partial(_per_item, columns[time], items)
        columns[ITEMS] = lambda: items
        return BatchValues(_MadeWhenAsked(columns), measures.warmup[measures.batch[first]])


def _per_item(times: Callable[[], Float64], items: Float64) -> Float64:
    if len(items) and items.strides == (0,) and np.isnan(items[0]):
        return items
    return divide(times(), items)


class _MadeWhenAsked(Mapping[str, Float64]):
    """Columns by key, each made when it is asked for."""

    def __init__(self, columns: Mapping[str, Callable[[], Float64]]) -> None:
        self._columns = columns

    def __len__(self) -> int:
        return len(self._columns)

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __getitem__(self, key: str) -> Float64:
        return self._columns[key]()


class _WithoutWarmup(Mapping[Path, dict[str, Float64]]):
    """The values of the batches that are not set apart, by path."""

    def __init__(self, values: _ValuesPerBatch) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[Path]:
        return iter(self._values)

    def __getitem__(self, path: Path) -> dict[str, Float64]:
        return self._values[path].without_warmup()


def place_at(tree: Tree, path: Path) -> Tree:
    """The sub-tree at this path, made where it is missing."""
    for name in path:
        tree = tree.setdefault(name, {})
    return tree


def _trees(values: Mapping[Path, BatchValues]) -> tuple[Tree, Tree, dict[Path, float]]:
    """Means over all batches in which an entry occurs (`batches`: how many); statistics without warm-up; items."""
    means: Tree = {}
    statistics: Tree = {}
    items: dict[Path, float] = {}
    for path, entry in values.items():
        columns = dict(entry.values)
        kept = ~entry.warmup
        mean = {key: number(_mean(columns, key, slice(None))) for key in columns if key != ITEMS}
        place_at(means, path).update(mean, batches=len(kept))
        place_at(statistics, path).update(_statistics(columns, kept))
        items[path] = float(columns[ITEMS].sum())
    return means, statistics, items


def statistics_tree(values: Iterable[tuple[Path, dict[str, Float64]]]) -> Tree:
    """A tree with each number as statistics over the batches."""
    tree: Tree = {}
    for path, columns in values:
        place_at(tree, path).update(_statistics(columns))
    return tree


def _statistics(columns: Mapping[str, Float64], kept: Bool | slice = slice(None)) -> Tree:
    """Of each number over batches. Per item, the mean is a ratio of totals; the others are of the batches' ratios."""
    return {
        key: summarise(column[kept], _mean(columns, key, kept) if key.endswith(PER_ITEM) else None).to_json()
        for key, column in columns.items()
        if key != ITEMS
    }


def _mean(columns: Mapping[str, Float64], key: str, kept: Bool | slice) -> float:
    if key.endswith(PER_ITEM):
        return ratio_of_totals(columns[key.removesuffix(PER_ITEM)][kept], columns[ITEMS][kept])
    return float(columns[key][kept].mean())


def _loops(stages: StageTable, measures: Measures, ranges: NvtxRanges, origin_ns: int) -> list[BatchLoop]:
    touched = None
    if measures.throttled is not None:
        touched = np.logical_or.reduce([*measures.throttled.values(), np.zeros_like(measures.warmup)])
    at = stages.places(len(ranges))
    start, end = ranges.start_ns[at], ranges.end_ns[at]
    waits = stages.barrier_waits
    opened_ns = origin_ns + int(waits.end_ns.min()) if len(waits) else None  # who comes later hardly waits
    waited = _waits_by_loop(stages, measures, start)
    return [
        BatchLoop(
            path=stages.paths.of_row(int(rows[0])),
            start_ns=origin_ns + start[rows],
            end_ns=origin_ns + end[rows],
            items=measures.items[rows],
            warmup=measures.warmup[rows],
            throttled=None if touched is None else touched[rows],
            rejected=None if measures.rejected is None else measures.rejected[rows],
            barrier_opened_ns=opened_ns,
            barrier_wait_ns=waited.get(int(measures.loop[rows[0]]), (0, False))[0],
            barrier_has_workers=waited.get(int(measures.loop[rows[0]]), (0, False))[1],
            traced_from_ns=origin_ns,
        )
        for rows in measures.rows_of_loops(start)
    ]


def _waits_by_loop(stages: StageTable, measures: Measures, start_ns: Int64) -> dict[int, tuple[int, bool]]:
    """How long a thread waited at the start barrier, and whether others may have worked, by the loop that came next."""
    waits, found = stages.barrier_waits, {}
    rows = measures.outermost_batches() if len(waits) else np.empty(0, dtype=np.int64)
    for thread, begin, end, with_workers in zip(
        waits.thread, waits.start_ns, waits.end_ns, waits.with_workers, strict=True
    ):
        after = rows[(stages.thread[rows] == thread) & (start_ns[rows] >= end)]
        if len(after):
            found[int(measures.loop[after[np.argmin(start_ns[after])]])] = (int(end - begin), bool(with_workers))
    return found
