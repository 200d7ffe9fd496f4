"""Stages and their numbers into the trees of benchmark.json.

`data` has every batch under its own name (`batch_0`); the trees of one batch (`mean_data`, `stats_minus_warmup`) leave
the index out. A name that occurs more than once under its parent is one entry whose times are sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from perfharness.analysis.stages.entries import (
    PER_ITEM,
    divide,
    group_entries,
    json_number,
    make_entries,
    names_with_negative_time,
)
from perfharness.analysis.stages.outside import stages_outside
from perfharness.analysis.stages.roles import StageTable
from perfharness.analysis.stages.stage_findings import (
    barrier_wait_findings,
    negative_time_finding,
    stage_findings,
)
from perfharness.analysis.stages.stage_times import StageTimes, with_throttled
from perfharness.analysis.statistics import ratio_of_totals, summarise
from perfharness.analysis.timeline.grouping import count_by_code, distinct, group_rows, rows_by_code, sum_by_code
from perfharness.model.result import TIMES, BatchLoop, BatchValues, Float64, Path, ProcessResult, Tree
from perfharness.model.trace import Bool

if TYPE_CHECKING:
    from perfharness.analysis.analysis import Analysis
    from perfharness.analysis.metrics.clocks import Throttling


ITEMS = "items"
"""Key of the items of the batch, among the values of what is in it: what times per item are made of. Not written."""


def tabulate(analysis: Analysis, throttling: Throttling | None = None) -> ProcessResult:
    """The whole result of one process's trace. `meta` is left to the caller, who knows the rest of it.

    Args:
        analysis: of the trace.
        throttling: when the clocks of the process's GPU were throttled; None: not known.
    """
    stages, stage_times = analysis.stages, analysis.stage_times
    utc = analysis.trace.meta.session_start_unix_ns
    if throttling is not None and utc is not None:
        touched = throttling.touched(utc + stages.start_ns, utc + stages.end_ns)
        stage_times = with_throttled(stage_times, touched)
    values = _values_per_batch(stages, stage_times)
    grouped = group_entries(stages)
    negative = names_with_negative_time(stages, stage_times, grouped)
    judged = stage_findings(stages, stage_times, analysis.options.warmup_batches)
    findings = [*analysis.table.findings, *stages.findings, *judged]
    findings += barrier_wait_findings(stages, stage_times)
    if negative:
        findings.append(negative_time_finding(negative))
    mean_data, stats_minus_warmup, items = _trees(values)
    outside = stages_outside(stages, stage_times, utc or 0)
    has_batches = bool(stages.is_batch.any())
    return ProcessResult(
        names=[stages.owners[owner] for owner in distinct(stages.owner)],
        make_entries=lambda: make_entries(stages, stage_times, grouped),
        mean_data=mean_data,
        stats_minus_warmup=stats_minus_warmup,
        values_minus_warmup={path: entry.without_warmup() for path, entry in values.items()},
        items=items,
        loops=_loops(stages, stage_times, utc or 0),
        clock_is_utc=utc is not None,
        findings=findings,
        outside=outside if has_batches else [],
        batchless=[] if has_batches else outside,
    )


def _values_per_batch(stages: StageTable, stage_times: StageTimes) -> dict[Path, BatchValues]:
    """One value per batch in which a path occurs, by path; a batch's own path before those inside it."""
    all_rows, counts = rows_by_code(stage_times.path, stage_times.batch >= 0)
    stops = np.cumsum(counts)
    found: dict[Path, BatchValues] = {}
    for code in np.flatnonzero(counts).tolist():
        rows = all_rows[stops[code] - counts[code] : stops[code]]
        groups = group_rows(stage_times.batch[rows])
        first = rows[groups.first]
        items = stage_times.items[first]
        columns = {time: sum_by_code(groups.code, stage_times.times[time][rows], len(groups)) for time in TIMES}
        per_item = {f"{time}{PER_ITEM}": divide(columns[time], items) for time in TIMES}
        columns["count"] = count_by_code(groups.code, len(groups))
        if stages.is_batch[rows[0]]:
            columns["total_items"] = items
        columns |= {**per_item, ITEMS: items}
        found[stages.paths.names(code)] = BatchValues(columns, stage_times.warmup[stage_times.batch[first]])
    return found


def subtree_at(tree: Tree, path: Path) -> Tree:
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
        mean = {key: json_number(_mean(columns, key, slice(None))) for key in columns if key != ITEMS}
        subtree_at(means, path).update(mean, batches=len(kept))
        subtree_at(statistics, path).update(_statistics(columns, kept))
        items[path] = float(columns[ITEMS].sum())
    return means, statistics, items


def statistics_tree(values: Iterable[tuple[Path, dict[str, Float64]]]) -> Tree:
    """A tree with each number as statistics over the batches."""
    tree: Tree = {}
    for path, columns in values:
        subtree_at(tree, path).update(_statistics(columns))
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


def _loops(stages: StageTable, stage_times: StageTimes, origin_ns: int) -> list[BatchLoop]:
    touched = None
    if stage_times.throttled is not None:
        touched = np.logical_or.reduce([*stage_times.throttled.values(), np.zeros_like(stage_times.warmup)])
    waits = stages.barrier_waits
    opened_ns = origin_ns + int(waits.end_ns.min()) if len(waits) else None  # who comes later hardly waits
    waited = _waits_by_loop(stages, stage_times)
    return [
        BatchLoop(
            path=stages.paths.of_row(int(rows[0])),
            start_ns=origin_ns + stages.start_ns[rows],
            end_ns=origin_ns + stages.end_ns[rows],
            items=stage_times.items[rows],
            warmup=stage_times.warmup[rows],
            throttled=None if touched is None else touched[rows],
            barrier_opened_ns=opened_ns,
            barrier_wait_ns=waited.get(int(stage_times.loop[rows[0]]), (0, False))[0],
            barrier_has_workers=waited.get(int(stage_times.loop[rows[0]]), (0, False))[1],
            traced_from_ns=origin_ns,
        )
        for rows in stage_times.rows_of_loops
    ]


def _waits_by_loop(stages: StageTable, stage_times: StageTimes) -> dict[int, tuple[int, bool]]:
    """How long a thread waited at the start barrier, and whether others may have worked, by the loop that came next."""
    waits, found, start_ns = stages.barrier_waits, {}, stages.start_ns
    rows = stage_times.outermost_batches() if len(waits) else np.empty(0, dtype=np.int64)
    for thread, begin, end, with_workers in zip(
        waits.thread, waits.start_ns, waits.end_ns, waits.with_workers, strict=True
    ):
        after = rows[(stages.thread[rows] == thread) & (start_ns[rows] >= end)]
        if len(after):
            found[int(stage_times.loop[after[np.argmin(start_ns[after])]])] = (int(end - begin), bool(with_workers))
    return found
