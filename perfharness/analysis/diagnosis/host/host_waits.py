"""Threads that wait for other threads: by the operating system's calls where these were recorded, else by hand-overs.

What a thread waits for outside of CUDA calls is in a trace only where nsys recorded the operating system's calls. Where
it did not, one sign is left: a stage that, batch for batch, ends right after a stage of another thread has ended.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfharness.analysis.diagnosis.host.calls import CallTable
from perfharness.analysis.stages.roles import StageTable
from perfharness.analysis.timeline.busy import BusyLine
from perfharness.analysis.timeline.grouping import group_rows
from perfharness.model.result import Float64
from perfharness.model.trace import PROCESS_MASK, Int64, OsWaitKind, Trace

HANDOVER_NS = 1_000_000
"""A woken thread resumes well within this, if nothing else keeps it (Python's interpreter lock may: 5 ms)."""
HANDOVER_SHARE = 0.10
"""Of the stage's usual length: in a short stage, 1 ms after something else has ended is any time."""
HANDOVERS = 0.80
"""Of the stage's ranges that must end so."""
CHANCE = 0.30
"""With more of the time than this so close behind the other's ends, four in five may be by chance."""
MIN_RANGES = 5
"""At 30 % chance, four of five do so in 3 % of cases."""
MAX_THREADS = 64
"""Of one stage's threads, at most this many are examined."""
NEARLY_BEST_SHARE = 0.80
"""Of the most that any stage explains: among these the innermost is named."""


class ThreadLines:
    """Times of several threads on one line, a thread behind the other, so that one union serves them all."""

    def __init__(self, thread: Int64, origin: int, end: int) -> None:
        self._threads = np.unique(thread)
        self._origin, self._span = origin, end - origin + 2

    def position(self, thread: Int64, time: Int64) -> Int64:
        """Where on the line a moment of a thread lies; -1 for threads that are not on it."""
        rank = np.minimum(np.searchsorted(self._threads, thread), max(len(self._threads) - 1, 0))
        if not len(self._threads):
            return np.full(len(thread), -1, dtype=np.int64)
        at = rank * self._span + np.clip(time - self._origin, 0, self._span - 2)
        return np.where(self._threads[rank] == thread, at, -1)

    def busy(self, thread: Int64, start: Int64, end: Int64) -> BusyLine:
        """The union of stretches of threads."""
        return BusyLine(self.position(thread, start), self.position(thread, end))

    def times(self, position: Int64) -> Int64:
        """The moments at these places."""
        return np.asarray(position % self._span + self._origin, dtype=np.int64)

    def threads(self, position: Int64) -> Int64:
        """The threads at these places."""
        return np.asarray(self._threads[position // self._span], dtype=np.int64)


@dataclass(frozen=True)
class HostWaits:
    """Waiting of all threads in the operating system, outside of CUDA calls; on `lines`, by `OsWaitKind`."""

    lines: ThreadLines
    waiting: dict[OsWaitKind, BusyLine]

    def within(self, thread: Int64, start: Int64, end: Int64) -> dict[OsWaitKind, int]:
        """How long these stretches of threads waited, ns."""
        first, last = self.lines.position(thread, start), self.lines.position(thread, end)
        return {kind: int(line.within(first, last).sum()) for kind, line in self.waiting.items()}


def find_host_waits(trace: Trace, calls: CallTable) -> HostWaits | None:
    """All waiting outside of CUDA calls, each moment under one kind; None where it was not recorded."""
    os_calls = trace.os_calls
    if os_calls is None:
        return None
    lines = ThreadLines(np.r_[trace.ranges.thread, os_calls.thread], 0, max(trace.end_ns, 0))
    on_line = np.isin(calls.thread, os_calls.thread)
    taken = lines.busy(calls.thread[on_line], calls.start_ns[on_line], calls.end_ns[on_line])
    waiting = {}
    for kind in OsWaitKind:
        mine = os_calls.kind == kind
        line = lines.busy(os_calls.thread[mine], os_calls.start_ns[mine], os_calls.end_ns[mine])
        waiting[kind] = subtract(line, taken)
        taken = BusyLine(np.r_[taken.start, line.start], np.r_[taken.end, line.end])
    return HostWaits(lines, waiting)


def subtract(line: BusyLine, other: BusyLine) -> BusyLine:
    """What of the one line the other does not cover."""
    if not len(line.start) or not len(other.start):
        return line
    bounds = np.unique(np.concatenate([line.start, line.end, other.start, other.end]))
    first, last = bounds[:-1], bounds[1:]
    keep = (line.within(first, last) > 0) & (other.within(first, last) == 0)
    return BusyLine(first[keep], last[keep])


@dataclass(frozen=True)
class OtherStage:
    """A stage of another thread that a stage waits for: its path number, and what share of the waiting it explains."""

    path: int
    share: float


def find_concurrent_stage(stages: StageTable, paths: Int64, waits: HostWaits, rows: Int64) -> OtherStage | None:
    """The stage in which another thread of the process worked for most of the time that these rows waited for locks.

    A thread that itself waits does not count as working.
    """
    mine = waits.lines.busy(stages.thread[rows], stages.start_ns[rows], stages.end_ns[rows])
    lock = waits.waiting[OsWaitKind.LOCK]
    idle = BusyLine(*_joint(mine, lock))
    if not idle.length:
        return None
    every = [line for line in waits.waiting.values() if len(line.start)]
    resting = BusyLine(np.concatenate([e.start for e in every]), np.concatenate([e.end for e in every]))
    explained = np.zeros(int(paths.max()) + 1, dtype=np.float64)
    level = np.zeros(len(explained), dtype=np.int64)
    threads = waits.lines.threads(idle.start)
    for thread in np.unique(threads)[:MAX_THREADS]:
        own = threads == thread
        start, end = waits.lines.times(idle.start[own]), waits.lines.times(idle.end[own])
        others = (stages.thread != thread) & (stages.thread & PROCESS_MASK == int(thread) & PROCESS_MASK)
        for path in np.flatnonzero(np.bincount(paths[others], minlength=len(explained))).tolist():
            at_path = np.flatnonzero(others & (paths == path))
            there = waits.lines.busy(stages.thread[at_path], stages.start_ns[at_path], stages.end_ns[at_path])
            active = subtract(there, resting)
            line = BusyLine(waits.lines.times(active.start), waits.lines.times(active.end))
            explained[path] += float(line.within(start, end).sum())
            level[path] = int(stages.level[at_path[0]])
    return _best(explained / idle.length, level, int(paths[rows[0]]))


def _joint(one: BusyLine, other: BusyLine) -> tuple[Int64, Int64]:
    """The stretches that both lines cover."""
    rest = subtract(one, other)
    common = subtract(one, rest)
    return common.start, common.end


def _best(share: Float64, level: Int64, itself: int) -> OtherStage | None:
    share[itself] = 0.0
    if not share.max(initial=0.0) > 0:
        return None
    good = np.flatnonzero(share >= NEARLY_BEST_SHARE * share.max())
    path = int(good[np.lexsort((-share[good], -level[good]))[0]])
    return OtherStage(path, float(share[path]))


def find_handover(stages: StageTable, paths: Int64, rows: Int64) -> tuple[OtherStage, float] | None:
    """The stage of another thread right after whose ends these rows end, and the share that would do so by chance."""
    if len(rows) < MIN_RANGES or (stages.thread == stages.thread[0]).all():
        return None
    start, end, thread = stages.start_ns[rows], stages.end_ns[rows], stages.thread[rows]
    close = int(min(HANDOVER_NS, HANDOVER_SHARE * float(np.median(end - start))))
    begin, stop = int(start.min()), int(end.max())
    all_end = stages.end_ns
    eligible = np.isin(stages.thread & PROCESS_MASK, np.unique(thread) & PROCESS_MASK) & (paths != paths[rows[0]])
    eligible &= (all_end >= begin) & (all_end <= stop)
    eligible &= ~np.isin(stages.thread, np.unique(thread))
    if not eligible.any() or close < 1:
        return None
    best: tuple[OtherStage, float] | None = None
    candidates = np.flatnonzero(eligible)
    groups = group_rows(paths[candidates])
    for position, path in enumerate(paths[candidates[groups.first]].tolist()):
        other_ends = np.sort(all_end[candidates[groups.code == position]])
        last = np.searchsorted(other_ends, end, side="right") - 1
        follows = (last >= 0) & (end - other_ends[np.maximum(last, 0)] <= close)
        # A hand-over that began before this range began woke no thread in it.
        follows &= other_ends[np.maximum(last, 0)] >= start
        share = float(np.mean(follows))
        chance = BusyLine(other_ends, other_ends + close).length / max(stop - begin, 1)
        if share >= HANDOVERS and chance <= CHANCE and (best is None or share > best[0].share):
            best = OtherStage(path, share), chance
    return best
