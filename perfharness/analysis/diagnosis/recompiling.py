"""Compilation, tuning or loading that does not end with the warm-up, by what it leaves in a trace."""

from __future__ import annotations

import numpy as np

from perfharness.analysis.cuda_calls import ACTIVITIES
from perfharness.analysis.diagnosis.rules.evidence import Recompiling
from perfharness.analysis.diagnosis.workload import StageEvents
from perfharness.model.diagnosis import HostActivity
from perfharness.model.trace import Bool

MIN_BATCHES = 6
"""With fewer, a second half says nothing about the steady state."""
RECURS, RECURS_LATE = 3, 2
"""Batches, and batches of the second half, in which it occurs: one late load may be a rare branch of the program."""
LOADING_SHARE = 0.02
"""Of a batch's time in the stage. Every batch may ask for a kernel's attributes, which is no loading."""


def find_recompiling(events: StageEvents) -> Recompiling | None:
    """What loading modules costs, or what batches with kernels that never ran before take more than the others do."""
    workload, rows = events.workload, events.stage.rows
    outer = workload.stage_times.outer_batch[rows]
    batches, of_row = np.unique(outer, return_inverse=True)
    count = len(batches)
    if count < MIN_BATCHES or batches[0] < 0:
        return None
    spent = np.bincount(of_row, weights=events.end_ns - events.start_ns, minlength=count)
    is_load = workload.calls.kind[events.call] == ACTIVITIES.index(HostActivity.LOAD)
    loading = np.bincount(
        of_row[events.call_of[is_load]], weights=workload.calls.own_ns[events.call[is_load]], minlength=count
    )
    candidates = []
    loads = loading >= np.maximum(LOADING_SHARE * spent, 1)
    if _recurs(loads):
        candidates.append(Recompiling(float(loading.sum()), int(loads.sum()), "Modules and kernels are loaded"))
    is_new = np.zeros(count, dtype=np.bool_)
    is_new[of_row[events.launch_of[workload.is_new_kernel[events.operation]]]] = True
    if _recurs(is_new) and not is_new.all():
        more = np.maximum(spent[is_new] - np.median(spent[~is_new]), 0)
        candidates.append(Recompiling(float(more.sum()), int(is_new.sum()), "Kernels that had not run before appear"))
    return max(candidates, key=lambda one: one.lost_ns, default=None)


def _recurs(occurs: Bool) -> bool:
    return bool(occurs.sum() >= RECURS and occurs[len(occurs) // 2 :].sum() >= RECURS_LATE)
