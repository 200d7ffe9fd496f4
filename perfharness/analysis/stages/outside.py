"""Stages that ran outside of any batch: in workers, in a task of their own, before or behind the loop.

Which batch they worked for is not in a trace, so they have times per occurrence and none per batch or item.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from perfharness.analysis.stages.roles import StageTable
from perfharness.analysis.stages.stage_times import StageTimes
from perfharness.analysis.statistics import summarise
from perfharness.analysis.timeline.busy import BusyLine
from perfharness.analysis.timeline.grouping import group_rows, rows_by_code
from perfharness.model.result import TIMES, BatchLoop, OutsideStage, Path, ProcessResult, Tree
from perfharness.model.trace import Bool, Int64, pid_of

WHERE = ("other_task", "other_thread", "other_process", "other_recorder", "no_batch_open")
"""Where a batch was open when a stage began, of the same recorder (or domain) if there was one; the nearest counts."""


def stages_outside(stages: StageTable, stage_times: StageTimes, origin_ns: int = 0) -> list[OutsideStage]:
    """Stages in no batch and around none, by path.

    Args:
        origin_ns: UTC of the trace's time 0.
    """
    batches = np.flatnonzero(stages.is_batch)
    holds = np.zeros(len(stages), dtype=np.bool_)
    above = stages.parent[stage_times.outermost_batches()]
    while len(above := np.unique(above[above >= 0])):
        holds[above] = True
        above = stages.parent[above]
    rows, counts = rows_by_code(stage_times.path, (stage_times.batch < 0) & ~holds)
    where = _where(stages, batches, rows)
    found, begin = [], 0
    for path, count in enumerate(counts.tolist()):
        mine = rows[begin : begin + count]
        positions = np.bincount(where[begin : begin + count], minlength=len(WHERE)).tolist()
        begin += count
        if count:
            found.append(
                OutsideStage(
                    path=stages.paths.names(path),
                    start_ns=origin_ns + stages.start_ns[mine],
                    times={time: stage_times.times[time][mine] for time in TIMES},
                    where={name: number for name, number in zip(WHERE, positions, strict=True) if number},
                )
            )
    return found


def _where(stages: StageTable, batches: Int64, rows: Int64) -> Int64:
    """The index in `WHERE` for each row."""
    owner, pid, start_ns, end_ns = stages.owner, pid_of(stages.thread), stages.start_ns, stages.end_ns
    found = np.full(len(rows), WHERE.index("no_batch_open"), dtype=np.int64)
    if not len(rows) or not len(batches):
        return found
    anybody = np.zeros_like(owner)
    for position, keys in ((3, (anybody,)), (2, (owner,)), (1, (owner, pid)), (0, (owner, stages.thread))):
        group = group_rows(*(np.r_[key[batches], key[rows]] for key in keys)).code.astype(np.int64)
        of_batch, of_row = group[: len(batches)], group[len(batches) :]
        found[_begins_inside(of_row, start_ns[rows], of_batch, start_ns[batches], end_ns[batches])] = position
    return found


def _begins_inside(group: Int64, moment: Int64, of_interval: Int64, start: Int64, end: Int64) -> Bool:
    """Whether each moment lies in an interval of its group; the groups are laid one behind the other."""
    times, rank = np.unique(np.r_[start, end, moment], return_inverse=True)
    starts, ends, moments = np.split(rank.ravel().astype(np.int64), [len(start), 2 * len(start)])
    span = len(times) + 1
    line = BusyLine(of_interval * span + starts, of_interval * span + ends)
    at = group * span + moments
    return np.asarray(line.until(at + 1) > line.until(at))


def outside_of_all(results: Sequence[ProcessResult]) -> list[list[OutsideStage]]:
    """Of each process the stages outside of batches; those of one without batches where another process has some."""
    loops = [loop for result in results for loop in result.loops]
    if not loops:
        return []
    clock_is_utc = all(result.clock_is_utc for result in results)
    return [
        [*result.outside, *(_beside(stage, loops, clock_is_utc=clock_is_utc) for stage in result.batchless)]
        for result in results
    ]


def _beside(stage: OutsideStage, loops: Sequence[BatchLoop], *, clock_is_utc: bool) -> OutsideStage:
    """The stage of a process without batches, and how often a batch was open in another process."""
    if not clock_is_utc:
        return replace(stage, where={})
    mine = _began_inside(stage, [loop for loop in loops if loop.path[0] == stage.path[0]])
    anybodys = _began_inside(stage, loops)
    where = {
        "other_process": mine,
        "other_recorder": anybodys - mine,
        "no_batch_open": len(stage.start_ns) - anybodys,
    }
    return replace(stage, where={name: number for name, number in where.items() if number})


def _began_inside(stage: OutsideStage, loops: Sequence[BatchLoop]) -> int:
    """How many occurrences of the stage began while a batch of these loops was open."""
    nothing = np.empty(0, dtype=np.int64)
    starts = np.concatenate([nothing, *(loop.start_ns for loop in loops)])
    line = BusyLine(starts, np.concatenate([nothing, *(loop.end_ns for loop in loops)]))
    return int((line.until(stage.start_ns + 1) > line.until(stage.start_ns)).sum())


def outside_tree(processes: Sequence[list[OutsideStage]]) -> list[Tree]:
    """The stages of all processes together, as they stand in the files; times in ms, one value an occurrence."""
    by_path: dict[Path, list[OutsideStage]] = {}
    for stage in (stage for process in processes for stage in process):
        by_path.setdefault(stage.path, []).append(stage)
    return [_tree(path, parts) for path, parts in by_path.items()]


def _tree(path: Path, parts: list[OutsideStage]) -> Tree:
    tree: Tree = {"path": list(path), "count": sum(len(part.times[TIMES[0]]) for part in parts), "where": {}}
    for name in WHERE:
        if number := sum(part.where.get(name, 0) for part in parts):
            tree["where"][name] = number
    for time in TIMES:
        values = np.concatenate([part.times[time] for part in parts])
        total = float(values.sum())
        tree[time] = {"total": None if np.isnan(total) else round(total, 6), **summarise(values).to_json()}
    return tree
