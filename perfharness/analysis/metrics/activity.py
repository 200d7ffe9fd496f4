"""Activity of processes over time, in bins: readable for ten batches as for a million."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfharness.analysis.energy.work import Batches
from perfharness.analysis.stages.roles import StageTable
from perfharness.analysis.stages.times import StageTimes
from perfharness.analysis.timeline.grouping import distinct
from perfharness.model.columns import Float64, Int64
from perfharness.model.result import BatchLoop
from perfharness.model.trace import TraceClock

OUTSIDE_STAGES = "batch, outside of its stages"


@dataclass(frozen=True)
class ProcessActivity:
    """UTC times of a process's batches and the stages directly inside; `stage` indexes `names`. `measured`: windows of
    its loops. `warmup`: the time before, between and after them.
    """

    names: list[str]
    stage: Int64
    stage_start_ns: Int64
    stage_end_ns: Int64
    batch_start_ns: Int64
    batch_end_ns: Int64
    warmup: list[tuple[int, int]]
    measured: list[tuple[int, int]]


def process_activity(stages: StageTable, stage_times: StageTimes, clock: TraceClock) -> ProcessActivity | None:
    """Activity of a process, from a trace with a UTC clock; None if it has no batches."""
    batches = np.flatnonzero(stages.is_batch & (stage_times.outer_batch == np.arange(len(stages))))
    if not len(batches):
        return None
    batches = batches[np.argsort(stages.start_ns[batches], kind="stable")]
    below = np.flatnonzero((stages.parent >= 0) & ~stages.is_batch)
    below = below[np.isin(stages.parent[below], batches)]
    codes, stage = np.unique(stages.name[below], return_inverse=True)
    start = clock.to_unix(stages.start_ns)
    end = clock.to_unix(stages.end_ns)
    items, warmup = stage_times.items, stage_times.warmup
    loops = [
        BatchLoop(stages.paths.of_row(int(rows[0])), start[rows], end[rows], items[rows], warmup[rows])
        for rows in stage_times.rows_of_loops
    ]
    measured = list(Batches.of(loops).windows)
    inner = (edge for window in measured for edge in window)
    edges = [int(start[batches].min()), *inner, int(end[batches].max())]
    return ProcessActivity(
        names=[stages.names[code] for code in codes],
        stage=stage.ravel(),
        stage_start_ns=start[below],
        stage_end_ns=end[below],
        batch_start_ns=start[batches],
        batch_end_ns=end[batches],
        warmup=[window for window in zip(edges[::2], edges[1::2], strict=True) if window[1] > window[0]],
        measured=measured,
    )


def shares_over_time(processes: list[ProcessActivity], edges_ns: Int64) -> dict[str, Float64]:
    """Share of each stage in each bin, of all processes' time. Stages are ordered by their first start; the time of
    batches outside of stages comes last.
    """
    whole, first = np.diff(edges_ns) * max(1, len(processes)), dict[str, int]()
    found, outside = dict[str, Float64](), np.zeros(len(whole))
    for process in processes:
        rest = _time_inside(process.batch_start_ns, process.batch_end_ns, edges_ns)
        for code in distinct(process.stage):
            name, start = process.names[code], process.stage_start_ns[process.stage == code]
            inside = _time_inside(start, process.stage_end_ns[process.stage == code], edges_ns)
            found[name] = found.get(name, 0.0) + inside / whole
            first[name] = min(first.get(name, int(start[0])), int(start.min()))
            rest -= inside
        outside += np.maximum(0.0, rest) / whole
    names = sorted(found, key=lambda name: (first[name], name))
    return {name: found[name] for name in names} | {OUTSIDE_STAGES: outside}


def _time_inside(start_ns: Int64, end_ns: Int64, edges_ns: Int64) -> Float64:
    """Time that the intervals take in each bin; overlaps count more than once."""

    def since(moments: Int64) -> Float64:
        """Total time since all moments, at each edge."""
        in_order = np.sort(np.clip(moments, edges_ns[0], edges_ns[-1]) - edges_ns[0]).astype(np.float64)
        passed = np.searchsorted(in_order, edges := edges_ns - edges_ns[0])
        return np.asarray(passed * edges - np.r_[0, np.cumsum(in_order)][passed])

    return np.diff(since(start_ns) - since(end_ns))
