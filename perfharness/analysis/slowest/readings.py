"""What counters of a thread, read around batches, say of single ones: at least so much garbage collection, waiting."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.diagnosis.host.cpu_time import ThreadReadings, thread_times
from perfharness.analysis.timeline.grouping import distinct
from perfharness.model.result import Float64
from perfharness.model.trace import Int64


@dataclass(frozen=True)
class BatchReadings:
    """Nanoseconds of each batch, NaN where no readings enclose it: `least` is proven of the batch itself, `mean` shares
    what lies between two readings out evenly over the time between them, as is right on average over many batches.
    """

    least: Float64
    mean: Float64


def batch_readings(analysis: Analysis, rows: Int64) -> dict[str, BatchReadings]:
    """`collecting`, `compiling`, `crowded`, `ready` (ran, or waited for a CPU) and `waiting` (did not) of batches;
    empty where nothing was read.
    """
    times = thread_times(analysis.trace)
    ready = times.ready
    if not len(ready.thread):
        return {}
    counters = {"collecting": times.collecting, "compiling": times.compiling, "crowded": times.crowded}
    found = {name: _of_batches(analysis, rows, one) for name, one in {"ready": ready, **counters}.items()}
    waited = _of_batches(analysis, rows, ready, complement=True)
    return {**found, "waiting": waited}


def _of_batches(
    analysis: Analysis, rows: Int64, readings: ThreadReadings, *, complement: bool = False
) -> BatchReadings:
    """Of what was counted, or (`complement`) of the time in which it did not count."""
    stages = analysis.stages
    start, end, thread = stages.start_ns[rows], stages.end_ns[rows], stages.thread[rows]
    least, mean = np.full(len(rows), np.nan), np.full(len(rows), np.nan)
    for one in distinct(thread):
        first, last = np.searchsorted(readings.thread, [one, one + 1]).tolist()
        if last - first < 2:
            continue
        time, between = readings.time_ns[first:last], np.diff(readings.time_ns[first:last])
        counted = np.minimum(np.diff(readings.spent_ns[first:last]), between)
        counted = between - counted if complement else counted
        for place in np.flatnonzero(thread == one).tolist():
            low = max(int(np.searchsorted(time, start[place], side="right")) - 1, 0)
            high = min(int(np.searchsorted(time, end[place], side="left")), len(between))
            overlap = np.minimum(time[low + 1 : high + 1], end[place]) - np.maximum(time[low:high], start[place])
            overlap = np.maximum(overlap, 0)
            if 2 * int(overlap.sum()) < int(end[place] - start[place]):
                continue
            least[place] = float(np.maximum(counted[low:high] - (between[low:high] - overlap), 0).sum())
            mean[place] = float((counted[low:high] * (overlap / np.maximum(between[low:high], 1))).sum())
    return BatchReadings(least, mean)
