"""What a machine kept of its CPUs from a process: by a quota, by its hypervisor."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from perfharness.analysis.timeline.busy import BusyLine
from perfharness.model.result import Float64
from perfharness.model.telemetry import HOST, SampleLog, Series
from perfharness.model.trace import Int64

LONGEST_STEP_NS = 5_000_000_000
"""A reading of the time since the one before says nothing of so long a time."""

MIN_KNOWN = 0.5
"""Of a stage's time: readings of less say little about the whole."""


def _nothing() -> Int64:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Steps:
    """Shares, 0 to 1, each of the time from `start_ns` to `end_ns`, in order and without overlap."""

    start_ns: Int64 = field(default_factory=_nothing)
    end_ns: Int64 = field(default_factory=_nothing)
    share: Float64 = field(default_factory=lambda: np.zeros(0))

    def moved(self, by_ns: int) -> Steps:
        """On another clock."""
        return replace(self, start_ns=self.start_ns + by_ns, end_ns=self.end_ns + by_ns)

    def mean(self, start_ns: Int64, end_ns: Int64) -> float | None:
        """Over some ranges; None: not known for half of their time."""
        if not len(self.share):
            return None
        length = (self.end_ns - self.start_ns).astype(np.float64)
        edges = np.stack([self.start_ns, self.end_ns], axis=1).ravel()
        known, of_share = (
            float((_integral(edges, rate * length, end_ns) - _integral(edges, rate * length, start_ns)).sum())
            for rate in (np.ones(len(length)), self.share)
        )
        if known <= 0 or known < MIN_KNOWN * float((end_ns - start_ns).sum()):
            return None
        return of_share / known


def _integral(edges_ns: Int64, of_steps: Float64, at_ns: Int64) -> Float64:
    """How much of steps lies before some moments, by what each step holds; nothing lies between steps."""
    after = np.cumsum(of_steps)
    both = np.stack([after - of_steps, after], axis=1).ravel()
    found: Float64 = np.interp((at_ns - edges_ns[0]).astype(np.float64), (edges_ns - edges_ns[0]).astype(float), both)
    return found


@dataclass(frozen=True)
class CpuQuota:
    """A quota of a process: CPUs that it is worth, and when it made the process's control group stand still."""

    cpus: float
    start_ns: Int64
    end_ns: Int64

    def within(self, start_ns: Int64, end_ns: Int64) -> float:
        """How long the group stood still in some ranges, ns."""
        return float(BusyLine(self.start_ns, self.end_ns).within(start_ns, end_ns).sum())


@dataclass(frozen=True)
class CpuSupply:
    """Of one process, on one clock.

    `quota`: None without one. `stolen`: of the CPU time that the machine wanted, what its hypervisor gave to others;
    empty where that is not known.
    """

    quota: CpuQuota | None = None
    stolen: Steps = field(default_factory=Steps)

    def moved(self, by_ns: int) -> CpuSupply:
        """On another clock."""
        quota = self.quota
        if quota is not None:
            quota = replace(quota, start_ns=quota.start_ns + by_ns, end_ns=quota.end_ns + by_ns)
        return CpuSupply(quota, self.stolen.moved(by_ns))


def cpu_supply(log: SampleLog, subject: str) -> CpuSupply:
    """Of a process, UTC."""
    return CpuSupply(quota=_quota(log, subject), stolen=_stolen(log))


def _stolen(log: SampleLog) -> Steps:
    steal, busy = log.get(HOST, "steal_percent"), log.get(HOST, "cpu_percent")
    if steal is None or busy is None:
        return Steps()
    taken, wanted = _steps(steal), _steps(busy)
    both = np.isin(taken.end_ns, wanted.end_ns)
    taken = Steps(taken.start_ns[both], taken.end_ns[both], taken.share[both])
    whole = wanted.share[np.isin(wanted.end_ns, taken.end_ns)]
    share = np.divide(taken.share, whole, out=np.zeros_like(whole), where=whole > 0)
    return replace(taken, share=np.minimum(share, 1.0))


def _steps(series: Series) -> Steps:
    """Readings of which each is of the time since the one before."""
    time, value = series.time_unix_ns, series.value
    which = np.flatnonzero(~np.isnan(value[1:]) & (np.diff(time) <= LONGEST_STEP_NS)) + 1
    return Steps(time[which - 1], time[which], value[which])


def _quota(log: SampleLog, subject: str) -> CpuQuota | None:
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
