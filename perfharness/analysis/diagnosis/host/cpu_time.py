"""What CPU time a process used while a stage ran, or how long its thread was ready to run: how much of the stage was
not computed at least, and how much was.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from perfharness.analysis.diagnosis.host.cpu_supply import CpuSupply, cpu_supply
from perfharness.analysis.timeline.busy import BusyLine
from perfharness.analysis.timeline.grouping import distinct
from perfharness.model import conventions
from perfharness.model.result import Float64
from perfharness.model.telemetry import HOST, SampleLog
from perfharness.model.trace import Int64, Trace, TraceMeta

METRIC = "cpu_time_ns"
RESOLUTION_NS = 20_000_000
"""Linux counts CPU time in ticks of 10 ms, of user and of system time each."""
BUSY_PERCENT = 90.0
"""Of all CPUs: on a machine this busy a thread waits for CPUs that other processes have, and that is no waiting."""
WINDOW_SHARE = 0.5
"""Of the time from a stage's first range to the end of its last: readings of less say little about the whole."""


@dataclass(frozen=True)
class CpuTime:
    """Readings of the CPU time of a process (of a launched one with all that it started, unless several of these are
    measured), and of how busy the machine is, in order.
    """

    time_ns: Int64
    used_ns: Int64
    busy_time_ns: Int64 = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    busy_percent: Float64 = field(default_factory=lambda: np.zeros(0))
    """Of all CPUs."""
    supply: CpuSupply = field(default_factory=CpuSupply)
    """What was kept from it."""

    def on_trace_clock(self, meta: TraceMeta) -> CpuTime | None:
        """From UTC to the clock of a trace; None where that does not have its UTC time."""
        start = meta.session_start_unix_ns
        if start is None:
            return None
        return replace(
            self,
            time_ns=self.time_ns - start,
            busy_time_ns=self.busy_time_ns - start,
            supply=self.supply.moved(-start),
        )

    def waiting_share(self, start_ns: Int64, end_ns: Int64) -> float | None:
        """The share of the time in some ranges of one thread that it waited at least, 0 to 1; None: not known, as on a
        machine without idle CPUs.

        What the whole process used between two readings, the thread used at most. So what of its ranges lies between
        them and exceeds that, it did not compute.
        """
        window = self._window(start_ns, end_ns)
        if window is None:
            return None
        busy = self.busy_percent[(self.busy_time_ns >= window.begin_ns) & (self.busy_time_ns <= window.stop_ns)]
        if len(busy) and float(busy.mean()) >= BUSY_PERCENT:
            return None
        return max(1 - (window.used_ns + RESOLUTION_NS) / window.inside_ns, 0.0)

    def computing_share(self, start_ns: Int64, end_ns: Int64) -> float | None:
        """The share of the time in some ranges that was computed at least, 0 to 1, where the process computes in one
        thread: what it used between two readings and cannot have used outside of the ranges. None: not known.
        """
        window = self._window(start_ns, end_ns)
        if window is None:
            return None
        least = window.used_ns - RESOLUTION_NS - (window.stop_ns - window.begin_ns - window.inside_ns)
        return min(max(least / window.inside_ns, 0.0), 1.0)

    def _window(self, start_ns: Int64, end_ns: Int64) -> _Window | None:
        first, last = np.searchsorted(self.time_ns, [start_ns.min(), end_ns.max() + 1]).tolist()
        if last - first < 2:
            return None
        begin, stop = int(self.time_ns[first]), int(self.time_ns[last - 1])
        if stop - begin < WINDOW_SHARE * (int(end_ns.max()) - int(start_ns.min())):
            return None
        line = BusyLine(np.asarray([begin]), np.asarray([stop]))
        inside = float(line.within(start_ns, end_ns).sum())
        used = float(self.used_ns[last - 1] - self.used_ns[first])
        return _Window(begin, stop, inside, used) if inside else None


@dataclass(frozen=True)
class _Window:
    """From the first to the last reading in a stage's time: how long its ranges were, and what the process used."""

    begin_ns: int
    stop_ns: int
    inside_ns: float
    used_ns: float


@dataclass(frozen=True)
class ThreadReadings:
    """How long threads had done something (run or waited for a CPU, only the latter, collected garbage, compiled,
    waited for a CPU that their own process had), read in their batches; aligned columns, ordered by thread and time.
    """

    thread: Int64
    time_ns: Int64
    spent_ns: Int64

    def shares(self, thread: Int64, start_ns: Int64, end_ns: Int64) -> tuple[float, float] | None:
        """Of the time in some ranges, the shares that their threads did not do it, and that they did, at least.

        Between two readings of a thread its ranges did something else for what they exceed the time spent by, and did
        it for what of that time does not fit beside them. None where readings enclose less than half of the ranges.
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

    def total(self, thread: Int64) -> tuple[float, float]:
        """Of some threads, from their first to their last reading: how much time passed, and what they spent, ns."""
        passed = spent = 0.0
        for one in distinct(thread):
            first, last = np.searchsorted(self.thread, [one, one + 1]).tolist()
            if last - first >= 2:
                passed += float(self.time_ns[last - 1] - self.time_ns[first])
                spent += float(self.spent_ns[last - 1] - self.spent_ns[first])
        return passed, spent

    def most_ns(self, thread: Int64, start_ns: Int64, end_ns: Int64) -> Int64:
        """Of each range the most that its thread can have spent in it: from the last reading before it to the first one
        after it; 0 where nothing was read.
        """
        found = np.zeros(len(thread), dtype=np.int64)
        for one in distinct(thread):
            first, last = np.searchsorted(self.thread, [one, one + 1]).tolist()
            if last - first < 2:
                continue
            of_thread, time, spent = thread == one, self.time_ns[first:last], self.spent_ns[first:last]
            before = np.maximum(np.searchsorted(time, start_ns[of_thread], side="right") - 1, 0)
            after = np.minimum(np.searchsorted(time, end_ns[of_thread]), len(time) - 1)
            found[of_thread] = np.maximum(spent[after] - spent[before], 0)
        return found

    def inside_ns(self, thread: Int64, start_ns: Int64, end_ns: Int64) -> float:
        """How much of some ranges lies between readings."""
        return float(sum(spent.sum() for _, spent, _ in self._between(thread, start_ns, end_ns)))

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


@dataclass(frozen=True)
class ThreadTimes:
    """What recorders read of threads, each counter at all readings; empty where it was not read.

    `ready`: ran or waited for a CPU; `queued`: of that, waited, whoever had the CPUs; `crowded`: of that, while their
    own process had almost all; `collecting`: ran the garbage collector; `compiling`: compiled; `process`: how long all
    threads of the process have run.
    """

    ready: ThreadReadings
    queued: ThreadReadings
    crowded: ThreadReadings
    collecting: ThreadReadings
    compiling: ThreadReadings
    process: ThreadReadings


def thread_times(trace: Trace) -> ThreadTimes:
    """As recorders left them in a trace."""
    ready, process = (_readings(trace, mark) for mark in (conventions.MARK_READY_TIME, conventions.MARK_PROCESS_TIME))
    queued = _readings(trace, conventions.MARK_QUEUED)
    reads_queued = bool(len(queued.thread) or len(process.thread))  # older recorders did not
    return ThreadTimes(
        ready=ready,
        queued=_at_each(ready, queued) if reads_queued else queued,
        crowded=_at_each(ready, _readings(trace, conventions.MARK_CROWDED)),
        collecting=_at_each(ready, _readings(trace, conventions.MARK_COLLECTING)),
        compiling=_at_each(ready, _readings(trace, conventions.MARK_COMPILING)),
        process=process,
    )


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
    codes = np.flatnonzero(np.asarray([name == mark for name in trace.names], dtype=np.bool_))
    at = np.flatnonzero(np.isin(marks.name, codes) & marks.has_payload)
    at = at[np.lexsort((marks.time_ns[at], marks.thread[at]))]
    return ThreadReadings(marks.thread[at], marks.time_ns[at], marks.payload[at].astype(np.int64))


def cpu_time(log: SampleLog, subject: str, tree: str | None = None) -> CpuTime | None:
    """Of a process, UTC; None where it was not sampled.

    Args:
        subject: whose time it is.
        tree: of the launched process, of which a CPU quota is known; None: the same.
    """
    series = log.get(subject, METRIC)
    if series is None:
        return None
    read, machine = series.select(series.is_read), log.get(HOST, "cpu_percent")
    used = CpuTime(read.time_unix_ns, read.value.astype(np.int64), supply=cpu_supply(log, tree or subject))
    if machine is None:
        return used
    busy = machine.select(machine.is_read)
    return replace(used, busy_time_ns=busy.time_unix_ns, busy_percent=busy.value.astype(np.float64))
