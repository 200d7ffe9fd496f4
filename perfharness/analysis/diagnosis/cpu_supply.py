"""The CPUs that a process may use: those that it shares with its siblings, a quota, and what its own threads take."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from perfharness.analysis.timeline.busy import BusyLine
from perfharness.model.host_samples import HostEventKind, HostEvents, HostSamples
from perfharness.model.result import Float64
from perfharness.model.telemetry import SampleLog, Series
from perfharness.model.trace import Int64
from perfharness.model.units import NS_PER_US

TOLERANCE = 0.25
"""By how much the number of threads of a process may exceed a whole number."""


@dataclass(frozen=True)
class CpuSupply:
    """The CPUs that a process shares with its siblings, processes of the same launch; `threads` of all of them run, or
    are ready to, at once (None: not known).
    """

    cpus: int | None = None
    processes: int = 1
    threads: float | None = None

    @property
    def is_contended(self) -> bool:
        """Whether several processes have more threads than CPUs together."""
        if self.cpus is None or self.threads is None or self.processes < 2:
            return False
        return self.threads > self.cpus + TOLERANCE * self.processes


@dataclass(frozen=True)
class CpuQuota:
    """A quota of a process: CPUs that it is worth, and when it made the process's control group stand still."""

    cpus: float
    start_ns: Int64
    end_ns: Int64

    def moved(self, by_ns: int) -> CpuQuota:
        """On another clock."""
        return replace(self, start_ns=self.start_ns + by_ns, end_ns=self.end_ns + by_ns)

    def within(self, start_ns: Int64, end_ns: Int64) -> float:
        """How long the group stood still in some ranges, ns."""
        return float(BusyLine(self.start_ns, self.end_ns).within(start_ns, end_ns).sum())


def cpu_quota(log: SampleLog, subject: str) -> CpuQuota | None:
    """The quota of a launched process, on UTC; None: it has none."""
    cpus, period = log.get(subject, "quota_cpus"), log.get(subject, "quota_period_ns")
    throttled, periods = log.get(subject, "quota_throttled_ns"), log.get(subject, "quota_throttled_periods")
    if cpus is None or period is None or throttled is None or periods is None or not cpus.is_read.any():
        return None
    least, each_ns = float(np.nanmin(cpus.value)), float(np.nanmedian(period.value))
    time = throttled.time_unix_ns[1:]
    lost, times = np.diff(throttled.value), np.diff(periods.value)
    at = np.flatnonzero((lost > 0) & np.isfinite(lost))
    # The kernel counts a period when it begins to stand still, and its time when that is over.
    count = np.maximum(np.nan_to_num(times[at]), 1.0)
    wanted = np.maximum((lost[at] + count * least * each_ns) / (count * each_ns), 1.0)
    wanted = np.maximum(wanted, _cpus_used(log.get(subject, "quota_cpu_time_ns"), time[at], each_ns))
    length = np.minimum(lost[at] / wanted, count * each_ns).astype(np.int64)
    return CpuQuota(least, time[at] - length, time[at])


def _cpus_used(used: Series | None, time_ns: Int64, period_ns: float) -> Float64:
    """The most CPUs that were in use between two readings of the period before each moment."""
    most = np.zeros(len(time_ns))
    if used is None or len(used) < 2:
        return most
    rate = np.diff(used.value) / np.maximum(np.diff(used.time_unix_ns), 1)
    end = used.time_unix_ns[1:]
    first = np.searchsorted(end, time_ns - round(period_ns))
    last = np.searchsorted(end, time_ns, side="right")
    for at, (begin, stop) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        if stop > begin:
            most[at] = np.nanmax(rate[begin:stop])
    return most


def own_contention(events: HostEvents, samples: HostSamples, rows: Int64) -> float:
    """Of the time in which threads were ready without a CPU, the part that their own process is due to: while it has
    more threads ready than CPUs; of a CPU as much as it got, for one thread would have got that.
    """
    crowded = np.flatnonzero(events.kind == HostEventKind.CPU_CONTENTION)
    start, end = events.start_ns[crowded], events.end_ns[crowded]
    waited = np.maximum(samples.runnable_ns[rows], 0)
    if not len(crowded) or not waited.any():
        return 0.0
    time_ns = samples.time_ns[rows]
    at = np.maximum(np.searchsorted(start, time_ns, side="right") - 1, 0)
    is_inside = (start[at] <= time_ns) & (time_ns < end[at])
    got = np.minimum(cpus_used(events, start, end), 1.0)
    return float((waited * got[at] * is_inside).sum() / waited.sum())


def cpus_used(events: HostEvents, start: Int64, end: Int64) -> Float64:
    """CPUs that the process, with its forked children, used in each of these times; 1 where that was not read."""
    readings = np.flatnonzero(events.kind == HostEventKind.CPU_TIME)
    if not len(readings):
        return np.ones(len(start))
    used = np.zeros(len(start))
    for process in np.unique(events.thread[readings]).tolist():
        mine = readings[events.thread[readings] == process]
        times = np.r_[events.start_ns[mine[0]], events.end_ns[mine]]
        so_far = np.r_[0, np.cumsum(events.detail[mine], dtype=np.int64)] * NS_PER_US
        used += np.interp(end, times, so_far) - np.interp(start, times, so_far)
    return np.asarray(used / np.maximum(end - start, 1))
