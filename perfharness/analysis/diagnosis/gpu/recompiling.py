"""Compilation or loading that does not end with the warm-up, by what it leaves in a trace."""

from __future__ import annotations

import numpy as np

from perfharness.analysis.diagnosis.gpu.workload import StageEvents
from perfharness.analysis.diagnosis.thread_readings import thread_times
from perfharness.analysis.timeline.cuda_calls import ACTIVITIES
from perfharness.model.diagnosis import HostActivity
from perfharness.model.trace import Bool, Int64

MIN_BATCHES = 6
"""With fewer, a second half says nothing about the steady state."""
RECURS, RECURS_LATE = 3, 2
"""Batches, and batches of the second half, in which it occurs: one late load may be a rare branch of the program."""
LOADING_SHARE = 0.02
"""Of a batch's time in the stage. Every batch may ask for a kernel's attributes, which is no loading."""


def recompiling_ns(events: StageEvents) -> float:
    """What loading modules costs, or what batches with kernels that never ran before take more than the others do."""
    workload, rows = events.workload, events.stage.rows
    outer = workload.analysis.stage_times.outer_batch[rows]
    batches, of_row = np.unique(outer, return_inverse=True)
    count = len(batches)
    if count < MIN_BATCHES or batches[0] < 0:
        return 0.0
    spent = np.bincount(of_row, weights=events.end_ns - events.start_ns, minlength=count).astype(np.float64)
    is_load = workload.calls.kind[events.call] == ACTIVITIES.index(HostActivity.LOAD)
    loading = np.bincount(
        of_row[events.call_of[is_load]], weights=workload.calls.own_ns[events.call[is_load]], minlength=count
    )
    lost = []
    loads = loading >= np.maximum(LOADING_SHARE * spent, 1)
    if _recurs(loads):
        lost.append(float(loading.sum()))
    lost.append(_compiling(events, batches))
    is_new = np.zeros(count, dtype=np.bool_)
    is_new[of_row[events.launch_of[workload.is_new_kernel[events.operation]]]] = True
    if _recurs(is_new) and not is_new.all():
        lost.append(float(np.maximum(spent[is_new] - np.median(spent[~is_new]), 0).sum()))
    return max(lost)


def _compiling(events: StageEvents, batches: Int64) -> float:
    """What torch.compile or JAX compiled, by what the recorder read in the batches (rows of stages)."""
    stages = events.workload.stages
    readings = thread_times(events.workload.trace).compiling
    shares = readings.shares(stages.thread[events.stage.rows], events.start_ns, events.end_ns)
    if shares is None or not shares[1]:
        return 0.0
    begin, end = stages.start_ns[batches], stages.end_ns[batches]
    grown = np.r_[False, (np.diff(readings.spent_ns) > 0) & (np.diff(readings.thread) == 0)]
    at = np.sort(readings.time_ns[grown])
    compiles = np.searchsorted(at, end, "right") > np.searchsorted(at, begin)
    return shares[1] * events.wall if _recurs(compiles) else 0.0


def _recurs(occurs: Bool) -> bool:
    return bool(occurs.sum() >= RECURS and occurs[len(occurs) // 2 :].sum() >= RECURS_LATE)
