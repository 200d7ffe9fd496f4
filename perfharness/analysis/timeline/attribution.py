"""Which stage a call was made in: the innermost one around it, on its thread."""

from __future__ import annotations

import numpy as np

from perfharness.analysis.stages.roles import StageTable
from perfharness.analysis.timeline.intervals import NO_PARENT, innermost_at
from perfharness.model.trace import ApiCalls, Int64


def stage_of_calls(stages: StageTable, api: ApiCalls, calls: Int64) -> Int64:
    """For each of `calls` (indices into `api`) the innermost stage that holds it whole, or -1.

    If several tasks (or recorders) of one thread have a stage around a call, the one that began last is taken: which
    task made the call is not known.
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
