"""The trees of benchmark.json (one process) and benchmark_mean.json (all processes)."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np

from perfharness.analysis.stages.checks import barrier_wait_findings, negative_time_findings
from perfharness.analysis.stages.entries import entry_table, make_entries, mean_entries
from perfharness.analysis.stages.per_batch import mean_tree, statistics_tree, values_per_batch
from perfharness.analysis.stages.roles import StageTable
from perfharness.analysis.stages.throughput import ALL_SEPARATE, Sharing, throughput
from perfharness.analysis.stages.times import StageTimes
from perfharness.analysis.statistics import summarise
from perfharness.analysis.timeline.grouping import distinct, rows_by_code, unique
from perfharness.model.columns import Bool
from perfharness.model.result import TIMES, BatchLoop, EntryTable, OutsideStage, Path, ProcessResult, Tree

if TYPE_CHECKING:
    from perfharness.analysis.analysis import Analysis
    from perfharness.analysis.metrics.clocks import Throttling


def tabulate(analysis: Analysis, throttling: Throttling | None = None) -> ProcessResult:
    """Result of one process's trace, without `meta`. `throttling`: of its GPU's clocks, None if unknown."""
    stages, times = analysis.stages, analysis.stage_times
    utc = analysis.trace.meta.session_start_unix_ns
    throttled = None
    if throttling is not None and utc is not None:
        throttled = throttling.touched(utc + stages.start_ns, utc + stages.end_ns)
    values = values_per_batch(stages, times)
    others = np.unique(stages.paths.code[stages.is_other])
    return ProcessResult(
        names=[stages.owners[owner] for owner in distinct(stages.owner)],
        make_entries=lambda: make_entries(stages, times, throttled),
        values=values,
        mean_data=mean_tree([values]),
        stats_minus_warmup=statistics_tree([values]),
        loops=list(_loops(stages, times, throttled, utc or 0)),
        clock_is_utc=utc is not None,
        findings=[
            *analysis.findings,
            *barrier_wait_findings(stages, times),
            *negative_time_findings(stages, times),
        ],
        outside=list(_outside(stages, times)),
        of_others=frozenset(stages.paths.names(code) for code in others.tolist()),
    )


def _loops(
    stages: StageTable, times: StageTimes, throttled: Mapping[str, Bool] | None, origin_ns: int
) -> Iterator[BatchLoop]:
    """Loops of outermost batches; `origin_ns` is UTC of the trace's time 0."""
    opened = stages.barrier_waits.end_ns
    touched = None
    if throttled is not None:
        touched = np.logical_or.reduce([*throttled.values(), np.zeros_like(times.warmup)])
    for rows in times.rows_of_loops:
        yield BatchLoop(
            path=stages.paths.of_row(int(rows[0])),
            start_ns=origin_ns + stages.start_ns[rows],
            end_ns=origin_ns + stages.end_ns[rows],
            items=times.items[rows],
            warmup=times.warmup[rows],
            throttled=None if touched is None else touched[rows],
            barrier_opened_ns=origin_ns + int(opened.min()) if len(opened) else None,  # later arrivals hardly wait
        )


def _outside(stages: StageTable, times: StageTimes) -> Iterator[OutsideStage]:
    """Stages outside batches without batches inside, by path. A trace does not show which batch they work for."""
    holds_batches = np.zeros(len(stages), dtype=np.bool_)
    above = stages.parent[times.outermost_batches()]
    while len(above := unique(above[above >= 0])):
        holds_batches[above] = True
        above = stages.parent[above]
    for path, mine in enumerate(rows_by_code(stages.paths.code, (times.batch < 0) & ~holds_batches)):
        if len(mine):
            yield OutsideStage(stages.paths.names(path), {time: times.times[time][mine] for time in TIMES})


def outside_tree(results: Sequence[ProcessResult]) -> list[Tree]:
    """Stages outside batches of all processes, ms per occurrence; empty if no process has batches."""
    by_path: dict[Path, list[OutsideStage]] = {}
    for result in results if any(result.loops for result in results) else ():
        for stage in result.outside:
            by_path.setdefault(stage.path, []).append(stage)
    found = []
    for path, parts in by_path.items():
        values = {time: np.concatenate([part.times[time] for part in parts]) for time in TIMES}
        tree: Tree = {"path": list(path), "count": len(values[TIMES[0]])}
        for time, column in values.items():
            total = float(column.sum())
            tree[time] = {"total": None if np.isnan(total) else round(total, 6), **asdict(summarise(column))}
        found.append(tree)
    return found


def combine(
    results: Mapping[str, ProcessResult],
    *,
    with_data: bool = True,
    failed: Mapping[str, str] | None = None,
    sharing: Sharing = ALL_SEPARATE,
    helpers: Container[str] = (),
) -> Tree:
    """The body of benchmark_mean.json, without `meta`.

    `with_data`: include `mean_all_batches`, the slowest part. `failed`: processes without a result, by folder.
    `helpers`: processes without batches that work for others; throughput does not need theirs.
    """
    processes = list(results.values())
    only = processes[0] if len(processes) == 1 else None
    working = {name: result.loops for name, result in results.items() if name not in helpers}
    entries: Tree = {}
    if with_data:
        mean: Tree | EntryTable = entry_table(mean_entries([one.entries for one in processes])) if processes else {}
        entries = {"mean_all_batches": mean}
    return {
        **entries,
        "mean_data": only.mean_data if only else mean_tree([one.values for one in processes]),
        "stats_minus_warmup": only.stats_minus_warmup if only else statistics_tree([one.values for one in processes]),
        "outside_batches": outside_tree(processes),
        "throughput": throughput(
            working or {name: result.loops for name, result in results.items()},
            clock_is_utc=all(result.clock_is_utc for result in processes),
            failed=failed,
            sharing=sharing,
        ),
    }
