"""Stages and their numbers into the trees of benchmark.json.

`data` has every batch under its own name (`batch_0`); the trees of one batch (`mean_data`, `stats_minus_warmup`) leave
the index out. A name that occurs more than once under its parent is one entry whose times are sums.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from perfharness.analysis.entries import divide, entry_key, make_entries, number
from perfharness.analysis.judgement import judge_rejected, judge_stages, negative_without_warmup
from perfharness.analysis.keys import count_by_code, group_rows, sum_by_code
from perfharness.analysis.measures import TIMES, Measures, measure, name_paths, with_throttled
from perfharness.analysis.range_table import RangeTable
from perfharness.analysis.stages import StageTable
from perfharness.analysis.statistics import summarise
from perfharness.model.result import BatchLoop, BatchValues, Float64, Path, ProcessResult, Tree
from perfharness.model.trace import Events

if TYPE_CHECKING:
    from perfharness.analysis.metrics.clocks import Throttling


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
        warmup_batches: set apart at the front and at the end of each loop.
        throttling: when the clocks of the process's GPU were kept down; None: not known.
        reject_throttled: set the batches apart that it touched.
    """
    measures = measure(stages, table, warmup_batches)
    if throttling is not None and trace.meta.session_start_unix_ns is not None:
        touched = throttling.touched(
            trace.meta.session_start_unix_ns + table.ranges.start_ns[stages.index],
            trace.meta.session_start_unix_ns + table.ranges.end_ns[stages.index],
        )
        measures = with_throttled(measures, touched, reject=reject_throttled)
    values = _values_per_batch(stages, measures)
    entries = make_entries(stages, measures, table.ranges.start_ns[stages.index])
    findings = [*table.findings, *stages.findings, *judge_stages(stages, measures.only_warmup, warmup_batches)]
    findings += judge_rejected(stages, measures.warmup, measures.rejected)
    if entries.negative:
        findings.append(negative_without_warmup(entries.negative))
    utc = trace.meta.session_start_unix_ns
    left = {path: entry.without_warmup() for path, entry in values.items()}
    return ProcessResult(
        names=[stages.owners[owner] for owner in np.unique(stages.owner)],
        entries=entries.table,
        mean_data=_mean_tree(values),
        stats_minus_warmup=statistics_tree(left),
        values_minus_warmup=left,
        loops=_loops(stages, measures, table, utc or 0),
        clock_is_utc=utc is not None,
        findings=findings,
    )


def _values_per_batch(stages: StageTable, measures: Measures) -> dict[Path, BatchValues]:
    """One value per batch in which a path occurs, by path; a batch's own path before those inside it."""
    paths = name_paths(stages)
    inside = np.flatnonzero(measures.batch >= 0)
    pairs = group_rows(paths[inside], measures.batch[inside])
    row = inside[pairs.first]
    sums: dict[str, Float64] = {
        time: sum_by_code(pairs.code, values[inside], len(pairs)) for time, values in measures.times.items()
    }
    occurrences = count_by_code(pairs.code, len(pairs))
    items = measures.items[row]
    found: dict[Path, BatchValues] = {}
    for path in np.unique(paths[row]):
        at = np.flatnonzero(paths[row] == path)
        values: dict[str, Float64] = {time: sums[time][at] for time in TIMES}
        values["count"] = occurrences[at]
        if stages.is_batch[row[at[0]]]:
            values["total_items"] = items[at]
        values |= {f"{time}_per_item": divide(sums[time][at], items[at]) for time in TIMES}
        warm = measures.warmup[measures.batch[row[at]]]
        found[path_names(stages, int(row[at[0]]))] = BatchValues(values, warm)
    return found


def path_names(stages: StageTable, row: int) -> Path:
    """Recorder and names from the outermost range down to this one, batch indices left out."""
    names: list[str] = []
    at = row
    while at >= 0:
        names.append(entry_key(stages.names[stages.name[at]]))
        at = int(stages.parent[at])
    return (stages.owners[stages.owner[row]], *reversed(names))


def place_at(tree: Tree, path: Path) -> Tree:
    """The sub-tree at this path, made where it is missing."""
    for name in path:
        tree = tree.setdefault(name, {})
    return tree


def _mean_tree(values: dict[Path, BatchValues]) -> Tree:
    """Each number the mean over all batches in which the entry occurs; `batches` says in how many."""
    tree: Tree = {}
    for path, entry in values.items():
        means = {key: number(column.mean()) for key, column in entry.values.items()}
        place_at(tree, path).update(means, batches=len(entry.warmup))
    return tree


def statistics_tree(values: dict[Path, dict[str, Float64]]) -> Tree:
    """The same tree with each number as statistics over the batches."""
    tree: Tree = {}
    for path, columns in values.items():
        place_at(tree, path).update({key: summarise(column).to_json() for key, column in columns.items()})
    return tree


def _loops(stages: StageTable, measures: Measures, table: RangeTable, origin_ns: int) -> list[BatchLoop]:
    outermost = np.flatnonzero(stages.is_batch & (measures.outer_batch == np.arange(len(stages))))
    loops = measures.loop[outermost]
    touched = None
    if measures.throttled is not None:
        touched = np.logical_or.reduce([*measures.throttled.values(), np.zeros_like(measures.warmup)])
    found = []
    for loop in np.unique(loops):
        rows = outermost[loops == loop]
        start, end = table.ranges.start_ns[stages.index[rows]], table.ranges.end_ns[stages.index[rows]]
        order = np.argsort(start, kind="stable")
        found.append(
            BatchLoop(
                path=path_names(stages, int(rows[0])),
                start_ns=origin_ns + start[order],
                end_ns=origin_ns + end[order],
                items=measures.items[rows][order],
                warmup=measures.warmup[rows][order],
                throttled=None if touched is None else touched[rows][order],
                rejected=None if measures.rejected is None else measures.rejected[rows][order],
            )
        )
    return found
