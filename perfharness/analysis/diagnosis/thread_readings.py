"""What recorders read of their threads: how long these ran, waited for a CPU, or compiled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from perfharness.analysis.timeline.busy import BusyLine
from perfharness.analysis.timeline.grouping import distinct
from perfharness.model import conventions
from perfharness.model.trace import Int64, Trace
from perfharness.trace.names import code_of

WINDOW_SHARE = 0.5
"""Of the time of some ranges: readings of less say little about the whole."""


@dataclass(frozen=True)
class ThreadReadings:
    """How long threads had done something, read in their batches; aligned columns, ordered by thread and time."""

    thread: Int64
    time_ns: Int64
    spent_ns: Int64

    def shares(self, thread: Int64, start_ns: Int64, end_ns: Int64) -> tuple[float, float] | None:
        """Of the time in some ranges, the shares that their threads did not do it, and that they did, at least; None
        where readings enclose less than half of the ranges.

        Between two readings of a thread its ranges did something else for what they exceed the time spent by, and did
        it for what of that time does not fit beside them.
        """
        inside = otherwise = did = 0.0
        for length, spent, of_thread in self._between(thread, start_ns, end_ns):
            inside += float(spent.sum())
            otherwise += float(np.maximum(spent - of_thread, 0).sum())
            did += float(np.maximum(of_thread - (length - spent), 0).sum())
        if not inside or inside < WINDOW_SHARE * float((end_ns - start_ns).sum()):
            return None
        return min(otherwise / inside, 1.0), min(did / inside, 1.0)

    def evenly_ns(self, thread: Int64, start_ns: Int64, end_ns: Int64) -> float:
        """In some ranges, as if what lies between two readings were spread evenly over the time between them."""
        return sum(
            float((of_thread * (spent / length)).sum())
            for length, spent, of_thread in self._between(thread, start_ns, end_ns)
        )

    def _between(self, thread: Int64, start_ns: Int64, end_ns: Int64) -> Iterator[tuple[Int64, Int64, Int64]]:
        """Of each thread, between its readings: how much time passed, how much of it in the ranges, and what its thread
        spent meanwhile.
        """
        for one in distinct(thread):
            first, last = np.searchsorted(self.thread, [one, one + 1]).tolist()
            if last - first < 2:
                continue
            time, of_thread = self.time_ns[first:last], np.diff(self.spent_ns[first:last])
            line = BusyLine(start_ns[thread == one], end_ns[thread == one])
            yield np.maximum(np.diff(time), 1), line.within(time[:-1], time[1:]), of_thread


def thread_times(trace: Trace) -> tuple[ThreadReadings, ThreadReadings, ThreadReadings]:
    """How long threads ran or waited for a CPU, waited, and compiled, each at all readings; empty: it was not read."""
    ready = _readings(trace, conventions.MARK_READY_TIME)
    queued, compiling = (
        _at_each(ready, _readings(trace, mark)) for mark in (conventions.MARK_QUEUED, conventions.MARK_COMPILING)
    )
    return ready, queued, compiling


def _at_each(ready: ThreadReadings, sparse: ThreadReadings) -> ThreadReadings:
    """The values of a counter at all readings: its mark follows that of `ready`, and is left out as long as it is 0."""
    if not len(ready.thread):
        return sparse
    spent = np.zeros(len(ready.thread), dtype=np.int64)
    for one in distinct(sparse.thread):
        first, last = np.searchsorted(ready.thread, [one, one + 1])
        begin, stop = np.searchsorted(sparse.thread, [one, one + 1])
        made_with = np.searchsorted(ready.time_ns[first:last], sparse.time_ns[begin:stop], side="right") - 1
        is_known = made_with >= 0
        np.maximum.at(spent[first:last], made_with[is_known], sparse.spent_ns[begin:stop][is_known])
        spent[first:last] = np.maximum.accumulate(spent[first:last])
    return ThreadReadings(ready.thread, ready.time_ns, spent)


def _readings(trace: Trace, mark: str) -> ThreadReadings:
    marks = trace.marks
    at = np.flatnonzero((marks.name == code_of(trace.names, mark)) & marks.has_payload)
    at = at[np.lexsort((marks.time_ns[at], marks.thread[at]))]
    return ThreadReadings(marks.thread[at], marks.time_ns[at], marks.payload[at].astype(np.int64))
