"""CPUs available to a process: those shared with sibling processes, a quota, and the demand of its own threads."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from perfharness.analysis.timeline.busy import BusyLine
from perfharness.model.columns import Float64, Int64
from perfharness.model.host_samples import HostEventKind, HostEvents, HostSamples
from perfharness.model.telemetry import SampleLog, Series
from perfharness.model.units import NS_PER_US

TOLERANCE = 0.25
"""Threads per process tolerated above the number of CPUs."""


@dataclass(frozen=True)
class CpuSupply:
    """CPUs shared by the processes of one launch; `threads`: of all of them, running or ready at once, if known."""

    cpus: int | None = None
    processes: int = 1
    threads: float | None = None

    @property
    def is_contended(self) -> bool:
        """Whether several processes together have more threads than CPUs."""
        if self.cpus is None or self.threads is None or self.processes < 2:
            return False
        return self.threads > self.cpus + TOLERANCE * self.processes


@dataclass(frozen=True)
class CpuQuota:
    """A CPU quota of a process, in CPUs, and the intervals in which it stopped the control group."""

    cpus: float
    start_ns: Int64
    end_ns: Int64

    def moved(self, by_ns: int) -> CpuQuota:
        """Shift to another clock."""
        return replace(self, start_ns=self.start_ns + by_ns, end_ns=self.end_ns + by_ns)

    def within(self, start_ns: Int64, end_ns: Int64) -> float:
        """Total stopped time inside the given ranges, ns."""
        return float(BusyLine(self.start_ns, self.end_ns).within(start_ns, end_ns).sum())


def cpu_quota(log: SampleLog, subject: str) -> CpuQuota | None:
    """The quota of a launched process, on UTC; None if it has none."""
    cpus, period = log.get(subject, "quota_cpus"), log.get(subject, "quota_period_ns")
    throttled, periods = log.get(subject, "quota_throttled_ns"), log.get(subject, "quota_throttled_periods")
    if cpus is None or period is None or throttled is None or periods is None or not cpus.is_read.any():
        return None
    least, each_ns = float(np.nanmin(cpus.value)), float(np.nanmedian(period.value))
    time = throttled.time_unix_ns[1:]
    lost, times = np.diff(throttled.value), np.diff(periods.value)
    at = np.flatnonzero((lost > 0) & np.isfinite(lost))
    # The kernel counts a period when the group stops, and adds the stopped time when it continues.
    count = np.maximum(np.nan_to_num(times[at]), 1.0)
    wanted = np.maximum((lost[at] + count * least * each_ns) / (count * each_ns), 1.0)
    wanted = np.maximum(wanted, _cpus_used(log.get(subject, "quota_cpu_time_ns"), time[at], each_ns))
    length = np.minimum(lost[at] / wanted, count * each_ns).astype(np.int64)
    return CpuQuota(least, time[at] - length, time[at])


def _cpus_used(used: Series | None, time_ns: Int64, period_ns: float) -> Float64:
    """Most CPUs in use between two readings, within one period before each time."""
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
    """Share of the ready-without-a-CPU time caused by the process itself: while it has more ready threads than CPUs,
    up to the CPU time it received (at most one CPU, enough for one thread).
    """
    crowded = np.flatnonzero(events.kind == HostEventKind.CPU_CONTENTION)
    start, end = events.start_ns[crowded], events.end_ns[crowded]
    waited = np.maximum(samples.runnable_ns[rows], 0)
    if not len(crowded) or not waited.any():
        return 0.0
    time_ns = samples.time_ns[rows]
    at = np.maximum(np.searchsorted(start, time_ns, side="right") - 1, 0)
    is_inside = (start[at] <= time_ns) & (time_ns < end[at])
    used = cpus_used(events, start, end)
    got = np.ones(len(start)) if used is None else np.minimum(used, 1.0)
    return float((waited * got[at] * is_inside).sum() / waited.sum())


def cpus_used(events: HostEvents, start: Int64, end: Int64) -> Float64 | None:
    """CPUs used by the process and its forked children in each interval, or None if not read."""
    readings = np.flatnonzero(events.kind == HostEventKind.CPU_TIME)
    if not len(readings):
        return None
    used = np.zeros(len(start))
    for process in np.unique(events.thread[readings]).tolist():
        mine = readings[events.thread[readings] == process]
        times = np.r_[events.start_ns[mine[0]], events.end_ns[mine]]
        so_far = np.r_[0, np.cumsum(events.detail[mine], dtype=np.int64)] * NS_PER_US
        used += np.interp(end, times, so_far) - np.interp(start, times, so_far)
    return np.asarray(used / np.maximum(end - start, 1))
