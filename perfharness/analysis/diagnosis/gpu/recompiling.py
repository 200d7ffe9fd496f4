"""Compilation, tuning or loading that does not end with the warm-up, by what it leaves in a trace."""

from __future__ import annotations

import numpy as np

from perfharness.analysis.diagnosis.gpu.workload import StageEvents
from perfharness.analysis.diagnosis.thread_readings import thread_times
from perfharness.analysis.timeline.cuda_calls import ACTIVITIES
from perfharness.model.diagnosis import HostActivity
from perfharness.model.result import Float64
from perfharness.model.trace import Bool, Int64

MIN_BATCHES = 6
"""With fewer, a second half says nothing about the steady state."""
RECURS, RECURS_LATE = 3, 2
"""Batches, and batches of the second half, in which it occurs: one late load may be a rare branch of the program."""
MANY_TIMINGS = 3
"""Of one batch. A program that times itself asks for one interval a batch or stage; a search, for one a candidate."""
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
    lost += [_compiling(events, batches), _tuning(events, of_row, spent)]
    is_new = np.zeros(count, dtype=np.bool_)
    is_new[of_row[events.launch_of[workload.is_new_kernel[events.operation]]]] = True
    if _recurs(is_new) and not is_new.all():
        lost.append(_more_than_others(spent, is_new))
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


def _tuning(events: StageEvents, of_row: Int64, spent: Float64) -> float:
    """Searches for the fastest kernel (cudnn.benchmark, Triton's autotuner): candidates are run and timed."""
    timing = events.workload.roles.reads_time[events.call]
    if not timing.any():
        return 0.0
    of_batch, calls = of_row[events.call_of[timing]], events.workload.calls
    tunes = np.bincount(of_batch, minlength=len(spent)) >= MANY_TIMINGS
    if not _recurs(tunes):
        return 0.0
    if tunes.all():  # what lies between the first and the last timing of a batch is the search
        end = calls.end_ns[events.call[timing]]
        first, last = np.full(len(spent), np.iinfo(np.int64).max), np.zeros(len(spent), dtype=np.int64)
        np.minimum.at(first, of_batch, end)
        np.maximum.at(last, of_batch, end)
        return float(np.minimum(last - first, spent).sum())
    return _more_than_others(spent, tunes)


def _more_than_others(spent: Float64, which: Bool) -> float:
    """How much more these batches took than the median of the others, ns."""
    return float(np.maximum(spent[which] - np.median(spent[~which]), 0).sum())


def _recurs(occurs: Bool) -> bool:
    return bool(occurs.sum() >= RECURS and occurs[len(occurs) // 2 :].sum() >= RECURS_LATE)
