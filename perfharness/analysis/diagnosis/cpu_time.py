"""How much of a stage its process cannot have computed: less CPU time than the stage took was used meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from perfharness.analysis.timeline import BusyLine
from perfharness.model.telemetry import SampleLog
from perfharness.model.trace import Int64, TraceMeta

METRIC = "cpu_time_ns"
RESOLUTION_NS = 20_000_000
"""Linux counts CPU time in ticks of 10 ms, of user and of system time each."""
WINDOW_SHARE = 0.5
"""Of the time from a stage's first range to the end of its last: readings of less say little about the whole."""


@dataclass(frozen=True)
class CpuTime:
    """Readings of the CPU time of a process and all that it started, in order."""

    time_ns: Int64
    used_ns: Int64

    def on_trace_clock(self, meta: TraceMeta) -> CpuTime | None:
        """From UTC to the clock of a trace; None where that does not have its UTC time."""
        start = meta.session_start_unix_ns
        return None if start is None else replace(self, time_ns=self.time_ns - start)

    def waiting_share(self, start_ns: Int64, end_ns: Int64) -> float | None:
        """The share of the time in some ranges of one thread that it waited at least, 0 to 1; None: not known.

        What the whole process used between two readings, the thread used at most. So what of its ranges lies between
        them and exceeds that, it did not compute.
        """
        first, last = np.searchsorted(self.time_ns, [start_ns.min(), end_ns.max() + 1]).tolist()
        if last - first < 2:
            return None
        begin, stop = int(self.time_ns[first]), int(self.time_ns[last - 1])
        if stop - begin < WINDOW_SHARE * (int(end_ns.max()) - int(start_ns.min())):
            return None
        window = BusyLine(np.asarray([begin]), np.asarray([stop]))
        inside = float(window.within(start_ns, end_ns).sum())
        used = float(self.used_ns[last - 1] - self.used_ns[first]) + RESOLUTION_NS
        return max(1 - used / inside, 0.0) if inside else None


def cpu_time(log: SampleLog, subject: str) -> CpuTime | None:
    """Of a process, UTC; None where it was not sampled."""
    series = log.get(subject, METRIC)
    if series is None:
        return None
    read = series.select(series.is_read)
    return CpuTime(read.time_unix_ns, read.value.astype(np.int64))
