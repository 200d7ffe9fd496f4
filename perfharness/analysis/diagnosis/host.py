"""Activities of a stage's threads and their places: its time divided by kind, with the samples behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.diagnosis.cpu_supply import own_contention
from perfharness.analysis.diagnosis.stacks import Library, Stacks, place_of
from perfharness.analysis.diagnosis.thread_readings import thread_times
from perfharness.analysis.host_samples.compilers import Compiler
from perfharness.analysis.segments import SampleTimes, Segments, paint, sample_times
from perfharness.analysis.timeline.busy import BLOCK_ROWS, BusyLine
from perfharness.analysis.timeline.grouping import distinct, sum_by_code
from perfharness.model.activity import ACTIVITIES, CODES, Activity
from perfharness.model.columns import Bool, Float64, Int64, Integers
from perfharness.model.diagnosis import FunctionShare, Place
from perfharness.model.host_samples import HostState

MIN_SAMPLES = 10
"""Fewest samples of a stage to explain its unrecorded time."""
MIN_OF_ACTIVITY = 3
"""Fewest samples of an activity; below it, its time stays unknown."""
WORTH = 0.05
"""Least share of a stage's time at which waits for threads are explained."""
WAITS = (Activity.LOCK, Activity.SLEEP, Activity.FILE, Activity.NETWORK, Activity.PROCESS, Activity.OTHER)
WAITS_FOR_THREADS = (Activity.LOCK, Activity.PROCESS)
"""Waits that another thread or process ends."""
UNKNOWN = CODES[Activity.UNKNOWN]


@dataclass(frozen=True)
class OtherThreads:
    """Activity of other threads and processes while the stage waits for them, as shares of these waits. `working`: at
    least one works or is ready, in `place`; without a CPU because its own process has more threads than CPUs
    (`crowded`) or because other processes occupy them (`queued`). `asked`: waits for work handed to a pool.
    """

    working: float = 0.0
    asked: float = 0.0
    place: Place | None = None
    crowded: float = 0.0
    queued: float = 0.0


@dataclass(frozen=True)
class HostTime:
    """Division of a stage's time, as shares of it. `activities` add up to 1; `places`: longest place of each.
    `loading`: waits in a data loader. `capturing`: place of CUDA graph captures. `other_calls`: CUDA calls in `other`;
    the rest of it is blocked. `own_contention`: part of `no-cpu` caused by the process's own threads.
    """

    activities: Mapping[Activity, float]
    samples: int = 0
    places: Mapping[Activity, Place] = field(default_factory=dict)
    library: Library | None = None
    compiler: Compiler | None = None
    loading: float = 0.0
    loader: Place | None = None
    capturing: Place | None = None
    lock_holder: Place | None = None
    other_calls: float = 0.0
    others: OtherThreads = OtherThreads()
    own_contention: float = 0.0

    def of(self, *activities: Activity) -> float:
        """Total share of these activities."""
        return sum(self.activities.get(one, 0.0) for one in activities)

    def blocked(self, kind: Activity) -> float:
        """Blocked share of a kind of `WAITS`."""
        return self.of(kind) - (self.other_calls if kind is Activity.OTHER else 0.0)


class HostTimes:
    """Host time of the stages of a process."""

    def __init__(self, analysis: Analysis, kept: Bool) -> None:
        """Divide the time of the ranges in `kept`, a column of the stage table."""
        self._stages, self._kept, self._probe = analysis.stages, kept, analysis.host_probe
        self._thread_times = thread_times(analysis.trace)
        segments = paint(analysis)
        samples = sample_times(analysis, segments)
        self._samples = None if samples is None else samples.select(kept[samples.row])
        length = segments.end_ns - segments.start_ns
        length[~kept[segments.row]] = 0
        self._recorded = self._with_inner(segments.stage, segments.activity, length)
        self._has_lost_calls = any(one.code == "trace-missing-calls" for one in analysis.table.findings)
        self._hidden = self._beside_gpu(analysis, segments, length)

    def of_stage(self, path: int) -> HostTime:
        """Host time of the stage with this path, including all stages inside it."""
        recorded = self._recorded[path]
        whole = float(recorded.sum())
        if not whole:
            return HostTime({Activity.UNKNOWN: 1.0})
        other_calls, samples = float(recorded[CODES[Activity.OTHER]]) / whole, self._samples
        mine = None if samples is None else samples.select(self._is_inside(path)[samples.stage])
        count = 0.0 if mine is None else float(mine.count.sum())
        hidden = float(self._hidden[path]) / whole
        if mine is None or count < MIN_SAMPLES:
            hidden = 1.0 if self._has_lost_calls else hidden
            shares = _less(self._with_readings(path, recorded / whole), hidden)
            return HostTime(_by_activity(shares), round(count), other_calls=other_calls)
        shown = sum_by_code(mine.activity, np.where(mine.is_recorded, 0.0, mine.ns), len(ACTIVITIES))
        is_seen = sum_by_code(mine.activity, mine.count, len(ACTIVITIES)) >= MIN_OF_ACTIVITY
        share = np.where(is_seen, shown, 0.0) / max(float(shown.sum()), 1.0)
        spent = recorded + recorded[UNKNOWN] * share
        spent[UNKNOWN] -= recorded[UNKNOWN] * float(share.sum())
        return replace(
            self._described(path, mine, _less(spent / whole, hidden)), samples=round(count), other_calls=other_calls
        )

    def functions(self, path: int) -> list[FunctionShare]:
        """Functions of the stage with this path."""
        if self._samples is None:
            return []
        return self._stacks.functions(self._samples.select(self._is_inside(path)[self._samples.stage]))

    def _with_readings(self, path: int, shares: Float64) -> Float64:
        """Divide the unknown time by readings of how long its threads ran and waited for a CPU (lower bounds)."""
        stages, rows = self._stages, np.flatnonzero(self._rows(path))
        where = stages.thread[rows], stages.start_ns[rows], stages.end_ns[rows]
        readings, queued, compiled = self._thread_times
        known = readings.shares(*where)
        if known is None:
            return shares
        waited, ready = known
        ready_ns = readings.evenly_ns(*where)
        without_cpu = ready * min(queued.evenly_ns(*where) / ready_ns, 1.0) if ready_ns else 0.0
        compiling = compiled.shares(*where)
        compiles = 0.0 if compiling is None else min(compiling[1], ready - without_cpu)
        read = {
            Activity.OTHER: waited,
            Activity.NO_CPU: without_cpu,
            Activity.COMPILE: compiles,
            Activity.COMPUTE: ready - without_cpu - compiles,
        }
        found: Float64 = shares.copy()
        for activity, share in read.items():
            found[CODES[activity]] += share * shares[UNKNOWN]
        found[UNKNOWN] *= max(1 - sum(read.values()), 0.0)
        return found

    def _described(self, path: int, mine: SampleTimes, shares: Float64) -> HostTime:
        assert self._probe is not None, "there are samples"
        stacks, samples = self._stacks, mine.samples
        in_activity = [mine.activity == code for code in range(len(ACTIVITIES))]
        places = {
            activity: place
            for activity, chosen, share in zip(ACTIVITIES, in_activity, shares.tolist(), strict=True)
            if share > 0 and (place := stacks.place(mine, chosen, share)) is not None
        }
        loads = np.isin(mine.activity, [CODES[one] for one in WAITS]) & stacks.in_loader[samples.stack[mine.sample]]
        loading = float(mine.ns[loads].sum() / mine.ns.sum())
        captures = stacks.in_capture[samples.stack[mine.sample]]
        no_cpu, gil, compute = (CODES[one] for one in (Activity.NO_CPU, Activity.GIL, Activity.COMPUTE))
        return HostTime(
            activities=_by_activity(shares),
            places=places,
            library=stacks.library(mine, in_activity[compute], places.get(Activity.COMPUTE)),
            compiler=stacks.compiler(mine),
            loading=loading,
            loader=stacks.place(mine, loads, loading),
            capturing=stacks.place(mine, captures, float(mine.ns[captures].sum() / mine.ns.sum())),
            lock_holder=stacks.lock_holder(mine, in_activity[gil], float(shares[gil])),
            others=self._others(path, mine),
            own_contention=own_contention(self._probe.events, samples, mine.sample[in_activity[no_cpu]]),
        )

    def _others(self, path: int, mine: SampleTimes) -> OtherThreads:
        """Activity of others while the stage waits for threads or processes."""
        assert self._probe is not None, "there are samples"
        chosen = np.isin(mine.activity, [CODES[one] for one in WAITS_FOR_THREADS])
        if mine.ns[chosen].sum() < WORTH * mine.ns.sum() or not chosen.any():
            return OtherThreads()
        waiting, waits = mine.samples, mine.sample[chosen]
        line = BusyLine(waiting.time_ns[waits] - waiting.length_ns[waits], waiting.time_ns[waits])
        stacks = [waiting.stacks[stack] for stack in distinct(waiting.stack[waits]) if stack >= 0]
        waiters = {(waiting.frames[one].function, waiting.frames[one].file) for stack in stacks for one in stack}
        works = [
            user is not None and (user.function, user.file) not in waiters for user in self._stacks_of_everyone.user
        ]
        samples = self._probe.everyone
        is_other = ~np.isin(samples.thread, distinct(self._stages.thread[self._rows(path)]))
        is_other &= np.asarray(works)[samples.stack] & (samples.state != HostState.LOCK)
        at = np.flatnonzero(is_other)
        length = line.within(samples.time_ns[at] - samples.length_ns[at], samples.time_ns[at])
        at, length = at[length > 0], length[length > 0]
        working = BusyLine(samples.time_ns[at] - samples.length_ns[at], samples.time_ns[at])
        share = float(working.within(line.start, line.end).sum() / max(line.length, 1))
        ran, ready = (float(np.maximum(column[at], 0).sum()) for column in (samples.on_cpu_ns, samples.runnable_ns))
        without_cpu = share * ready / (ran + ready) if ready else 0.0
        crowded = without_cpu * own_contention(self._probe.events, samples, at)
        users = (self._stacks_of_everyone.user[stack] for stack in samples.stack[at].tolist())
        place = place_of(zip(users, length.tolist(), strict=True), share)
        asked = float(mine.ns[chosen][self._stacks.in_pool[waiting.stack[waits]]].sum() / mine.ns[chosen].sum())
        return OtherThreads(share, asked, place, crowded, without_cpu - crowded)

    @cached_property
    def _stacks(self) -> Stacks:
        assert self._samples is not None, "there are samples"
        return Stacks(self._samples.samples)

    @cached_property
    def _stacks_of_everyone(self) -> Stacks:
        assert self._probe is not None, "there are samples"
        return self._stacks if self._probe.together is None else Stacks(self._probe.together)

    def _beside_gpu(self, analysis: Analysis, segments: Segments, length: Int64) -> Float64:
        """Time by path without a recorded event, in which an unrecorded CUDA call may wait for the GPU."""
        trace = analysis.trace
        if trace.meta.has_all_calls and not self._has_lost_calls:
            return np.zeros(len(self._stages.paths))
        calls = np.isin(segments.thread, distinct(trace.api.thread)) | self._has_lost_calls
        at = np.flatnonzero((segments.activity == UNKNOWN) & (length > 0) & calls)
        busy = BusyLine(trace.operations.start_ns, trace.operations.end_ns)
        beside = busy.within(segments.start_ns[at], segments.end_ns[at])
        return self._with_inner(segments.stage[at], segments.activity[at], beside)[:, UNKNOWN]

    def _rows(self, path: int) -> Bool:
        return np.asarray(self._kept & (np.asarray(self._stages.paths.code) == path), dtype=np.bool_)

    def _is_inside(self, path: int) -> Bool:
        """Mask of this path and the paths inside it; a path comes after the one around it."""
        inside = [False] * len(self._stages.paths)
        inside[path] = True
        for one, around in enumerate(self._stages.paths.parent.tolist()):
            inside[one] = inside[one] or (around >= 0 and inside[around])
        return np.asarray(inside, dtype=np.bool_)

    def _with_inner(self, path: Integers, activity: Integers, ns: Int64) -> Float64:
        """Time by path, including inner paths, and by activity."""
        size, count = len(ACTIVITIES), len(self._stages.paths)
        table = np.zeros((count, size))
        for begin in range(0, len(ns), BLOCK_ROWS):  # in blocks, because the temporary copies are large
            block = slice(begin, begin + BLOCK_ROWS)
            key = np.asarray(path[block], dtype=np.int64) * size + activity[block]
            table += sum_by_code(key, ns[block], count * size).reshape(-1, size)
        around = self._stages.paths.parent.tolist()
        for one in range(count - 1, -1, -1):
            if around[one] >= 0:
                table[around[one]] += table[one]
        return table


def _less(shares: Float64, hidden: float) -> Float64:
    """Move computing that may be waiting to unknown."""
    found: Float64 = shares.copy()
    compute = CODES[Activity.COMPUTE]
    found[compute] = min(shares[compute], max(1 - hidden, 0.0))
    found[UNKNOWN] += shares[compute] - found[compute]
    return found


def _by_activity(shares: Float64) -> dict[Activity, float]:
    return {activity: share for activity, share in zip(ACTIVITIES, shares.tolist(), strict=True) if share > 0}
