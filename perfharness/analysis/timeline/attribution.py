"""Which stage a call was made in: the innermost one around it, on its thread."""

from __future__ import annotations

import numpy as np

from perfharness.analysis.stages.roles import StageTable
from perfharness.analysis.timeline.intervals import NO_PARENT
from perfharness.model.trace import ApiCalls, Int64


def stage_of_calls(stages: StageTable, api: ApiCalls, calls: Int64) -> Int64:
    """For each of `calls` (indices into `api`) the innermost stage that holds it whole; -1 where none does.

    Stages of one owner, thread and lane nest. Where lanes (or recorders) of one thread overlap around a call, the one
    that began last is taken: which task of the thread made the call is not known.
    """
    found = np.full(len(calls), NO_PARENT, dtype=np.int64)
    if not len(stages) or not len(calls):
        return found
    start, end = stages.start_ns, stages.end_ns
    by_thread = np.lexsort((api.start_ns[calls], api.thread[calls]))
    threads = api.thread[calls[by_thread]]
    line = np.stack([stages.owner, stages.thread, stages.lane])
    # The table is ordered by (owner, thread, lane, start), so a stack of ranges is a slice of it.
    begins = np.flatnonzero(np.r_[True, (line[:, 1:] != line[:, :-1]).any(axis=0)])
    for begin, stop in zip(begins.tolist(), [*begins[1:].tolist(), len(stages)], strict=True):
        first, last = np.searchsorted(threads, [stages.thread[begin], stages.thread[begin] + 1])
        mine = by_thread[first:last]
        if not len(mine):
            continue
        call_start, call_end = api.start_ns[calls[mine]], api.end_ns[calls[mine]]
        if _nests(stages, start, end, begin, stop):
            at = begin - 1 + np.searchsorted(start[begin:stop], call_start, side="right")
            at = np.where(at >= begin, at, NO_PARENT)
            while (outlasts := (at >= 0) & (end[at] < call_end)).any():
                at = np.where(outlasts, stages.parent[at], at)
        else:
            at = _last_around(start[begin:stop].tolist(), end[begin:stop].tolist(), call_start, call_end)
            at = np.where(at >= 0, at + begin, NO_PARENT)
        better = (at >= 0) & ((found[mine] < 0) | (start[at] >= start[found[mine]]))
        found[mine[better]] = at[better]
    return found


def _nests(stages: StageTable, start: Int64, end: Int64, begin: int, stop: int) -> bool:
    """Whether the stages of a slice lie next to or inside each other: those with one parent do not overlap."""
    order = begin + np.lexsort((np.arange(begin, stop), stages.parent[begin:stop]))
    siblings = stages.parent[order[1:]] == stages.parent[order[:-1]]
    return not (siblings & (start[order[1:]] < end[order[:-1]])).any()


def _last_around(starts: list[int], ends: list[int], call_start: Int64, call_end: Int64) -> Int64:
    """The same where stages overlap (plain start/end ranges): the one around the call that began last. Slower."""
    found = np.full(len(call_start), NO_PARENT, dtype=np.int64)
    is_open: list[int] = []
    coming = 0
    for position, (begins, finishes) in enumerate(zip(call_start.tolist(), call_end.tolist(), strict=True)):
        while coming < len(starts) and starts[coming] <= begins:
            is_open.append(coming)
            coming += 1
        is_open = [stage for stage in is_open if ends[stage] >= begins]
        found[position] = max((stage for stage in is_open if ends[stage] >= finishes), default=NO_PARENT)
    return found
