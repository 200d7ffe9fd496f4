"""Recorders' readings of their threads: time run, waited for a CPU, compiled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from perfharness.analysis.timeline.busy import BusyLine
from perfharness.analysis.timeline.grouping import distinct
from perfharness.model import conventions
from perfharness.model.columns import Int64
from perfharness.model.trace import Trace
from perfharness.trace.names import code_of

WINDOW_SHARE = 0.5
"""Least share of the ranges' time that readings must cover."""


@dataclass(frozen=True)
class ThreadReadings:
    """Cumulated times of threads, read in their batches; aligned columns, ordered by thread and time."""

    thread: Int64
    time_ns: Int64
    spent_ns: Int64

    def shares(self, thread: Int64, start_ns: Int64, end_ns: Int64) -> tuple[float, float] | None:
        """Lower bounds of the shares of the ranges in which their threads did not do it, and did it; None if readings
        cover less than half of the ranges.

        Between two readings, ranges longer than the time spent did something else for the difference; time spent that
        does not fit outside the ranges was spent in them.
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
        """Time spent in the ranges, assuming it is spread evenly between readings."""
        return sum(
            float((of_thread * (spent / length)).sum())
            for length, spent, of_thread in self._between(thread, start_ns, end_ns)
        )

    def _between(self, thread: Int64, start_ns: Int64, end_ns: Int64) -> Iterator[tuple[Int64, Int64, Int64]]:
        """Per thread, for each interval of readings: its length, part inside the ranges, time the thread spent."""
        for one in distinct(thread):
            first, last = np.searchsorted(self.thread, [one, one + 1]).tolist()
            if last - first < 2:
                continue
            time, of_thread = self.time_ns[first:last], np.diff(self.spent_ns[first:last])
            line = BusyLine(start_ns[thread == one], end_ns[thread == one])
            yield np.maximum(np.diff(time), 1), line.within(time[:-1], time[1:]), of_thread


def thread_times(trace: Trace) -> tuple[ThreadReadings, ThreadReadings, ThreadReadings]:
    """Readings of run-or-ready time, of waits for a CPU, and of compiling, at the same times; empty if not read."""
    ready = _readings(trace, conventions.MARK_READY_TIME)
    queued, compiling = (
        _at_each(ready, _readings(trace, mark)) for mark in (conventions.MARK_QUEUED, conventions.MARK_COMPILING)
    )
    return ready, queued, compiling


def _at_each(ready: ThreadReadings, sparse: ThreadReadings) -> ThreadReadings:
    """Values of a counter at all readings. Its mark follows that of `ready`, and is omitted while it is 0."""
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
