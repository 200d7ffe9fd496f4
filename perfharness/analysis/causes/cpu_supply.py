"""Which threads take the CPUs that a stage waits for: those of its own process, of its siblings, or of others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfharness.model.host_samples import HostEventKind, HostEvents, HostProbe, HostSamples
from perfharness.model.result import Float64
from perfharness.model.trace import Int64

NS_PER_US = 1e3
FULL_SHARE = 0.7
"""Of the CPUs: processes of one launch that use so much of them together take them from each other."""


def own_contention(events: HostEvents, samples: HostSamples, rows: Int64) -> float:
    """Of the time in which threads were ready without a CPU, the part that is due to threads of their own process.

    That is while it has more threads ready than CPUs; of a CPU as much as it got, for one thread would have got that.
    """
    crowded = np.flatnonzero(events.kind == HostEventKind.CROWDED)
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


@dataclass(frozen=True)
class CpuSupply:
    """The CPUs of a process: how many it may use, how many it used on average, and how many processes share them.

    `quota_share`: of a stage's time, while a CPU quota made the process stand still; `quota_cpus`: of how many CPUs.
    """

    cpus: int | None = None
    used: float | None = None
    processes: int = 1

    @property
    def siblings_share_cpus(self) -> bool:
        """Whether processes of the same launch use all CPUs together."""
        if self.cpus is None or self.used is None or self.processes < 2:
            return False
        return self.processes * self.used >= FULL_SHARE * self.cpus


def cpu_supply(probe: HostProbe | None, start_ns: int, end_ns: int, processes: int) -> CpuSupply:
    """Of a process between two moments.

    Args:
        processes: how many processes were launched together on these CPUs.
    """
    if probe is None:
        return CpuSupply(processes=processes)
    has_readings = bool((probe.events.kind == HostEventKind.CPU_TIME).any())
    used = cpus_used(probe.events, np.asarray([start_ns]), np.asarray([end_ns]))[0] if has_readings else None
    return CpuSupply(_cpus(probe), None if used is None else float(used), processes)


def _cpus(probe: HostProbe) -> int | None:
    """CPUs that the process may use at the end; fewer than at first where something bound it to some."""
    changes = np.flatnonzero(probe.events.kind == HostEventKind.CPUS)
    return int(probe.events.detail[changes[-1]]) or None if len(changes) else probe.cpus
