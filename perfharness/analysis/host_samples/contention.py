"""Which part of the waiting for CPUs is due to the process's own threads."""

from __future__ import annotations

import numpy as np

from perfharness.model.host_samples import HostEventKind, HostEvents, HostSamples
from perfharness.model.result import Float64
from perfharness.model.trace import Int64
from perfharness.model.units import NS_PER_US


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
