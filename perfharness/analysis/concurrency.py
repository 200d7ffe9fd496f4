"""How many processes were inside a measured batch concurrently, over a window of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfharness.analysis.timeline import merge
from perfharness.model.trace import Int64


@dataclass(frozen=True)
class Concurrency:
    """Over one window: mean number of processes inside a batch, and the share of it in which all of them were."""

    mean_processes: float
    all_processes_share: float


def concurrency(starts: Sequence[Int64], ends: Sequence[Int64], begin_ns: int, end_ns: int) -> Concurrency:
    """Achieved concurrency of processes that each have batches, in any order and perhaps overlapping (threads).

    Args:
        starts, ends: of the batches, one array a process.
        begin_ns, end_ns: the window, not empty. What lies outside of it does not count.
    """
    inside = [
        merge(np.clip(s, begin_ns, end_ns), np.clip(e, begin_ns, end_ns)) for s, e in zip(starts, ends, strict=True)
    ]
    window = end_ns - begin_ns
    if len(inside) == 1:
        busy = float((inside[0][1] - inside[0][0]).sum() / window)
        return Concurrency(mean_processes=busy, all_processes_share=busy)
    # A process's intervals do not touch, so that each border changes the number of processes inside by one.
    times = np.concatenate([border for pair in inside for border in pair])
    steps = np.concatenate([np.full(len(pair[0]), sign) for pair in inside for sign in (1, -1)])
    order = np.argsort(times, kind="stable")
    length = np.diff(times[order])
    count = np.cumsum(steps[order])[:-1]
    return Concurrency(
        mean_processes=float((length * count).sum() / window),
        all_processes_share=float(length[count == len(inside)].sum() / window),
    )
