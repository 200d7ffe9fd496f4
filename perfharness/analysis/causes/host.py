"""What a stage's threads do, and where: from the division of time and the samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.causes.cpu_supply import own_contention
from perfharness.analysis.causes.results import Place
from perfharness.analysis.diagnosis.host.cpu_time import thread_times
from perfharness.analysis.host_samples.frames import (
    frames_of,
    is_instrument,
    is_library,
    is_recording,
    library_of,
    own_frame,
    program_frames,
)
from perfharness.analysis.host_samples.host_profile import nearest_samples
from perfharness.analysis.segments import SampleTimes, Segments, paint, sample_times
from perfharness.analysis.segments.compilers import COMPILERS, Names, compilers_of_stacks, frames_named
from perfharness.analysis.timeline.busy import BusyLine
from perfharness.analysis.timeline.grouping import distinct
from perfharness.model.activity import ACTIVITIES, CODES, Activity
from perfharness.model.host_samples import Frame, HostProbe, HostSamples, HostState
from perfharness.model.result import Float64
from perfharness.model.trace import Bool, Int64

MIN_SAMPLES = 10
"""With fewer samples of a stage, what its unrecorded time was is unknown."""
MIN_OF_ACTIVITY = 3
"""Samples of an activity; what fewer show stays unknown."""
DATA_LOADERS: Names = {"torch/utils/data/dataloader.py": None, "tensorflow/python/data/ops/iterator_ops.py": None}
"""Functions, by the ends of their files, that wait for workers which prepare batches ahead."""
WAITS = (Activity.LOCK, Activity.SLEEP, Activity.FILE, Activity.NETWORK, Activity.PROCESS, Activity.OTHER)
WAITS_FOR_THREADS = (Activity.LOCK, Activity.PROCESS)
"""Waits that end when another thread or process has done something."""
UNKNOWN = CODES[Activity.UNKNOWN]


@dataclass(frozen=True)
class Library:
    """Most of the computing is in this library; `function`: the one that is called there."""

    name: str
    function: str
    share: float


@dataclass(frozen=True)
class OtherThreads:
    """What other threads and processes do while the stage waits for them, as shares of these waits.

    `working`: at least one is at work, in `place`, or ready to be; of that they have no CPU since their own process has
    more threads than CPUs (`crowded`), or other processes have the CPUs (`queued`).
    """

    working: float = 0.0
    place: Place | None = None
    crowded: float = 0.0
    queued: float = 0.0


@dataclass(frozen=True)
class HostTime:
    """Where the time of a stage goes, as shares of it.

    `activities` add up to 1. `places`: the function and line of most time in an activity. `own_contention`: of `no-cpu`,
    the part that is due to the process's own threads.
    """

    activities: Mapping[Activity, float]
    samples: int = 0
    places: Mapping[Activity, Place] = field(default_factory=dict)
    library: Library | None = None
    loading: float = 0.0
    """Waits in a data loader."""
    loader: Place | None = None
    lock_holder: Place | None = None
    compiler: int | None = None
    """Place in `COMPILERS`."""
    other_calls: float = 0.0
    """Of `other`: CUDA calls; the rest is blocked in something."""
    others: OtherThreads = field(default_factory=lambda: OtherThreads())
    own_contention: float = 0.0

    def of(self, *activities: Activity) -> float:
        """The share of these activities together."""
        return sum(self.activities.get(one, 0.0) for one in activities)

    def blocked(self, kind: Activity) -> float:
        """The share of a kind of `WAITS`."""
        return self.of(kind) - (self.other_calls if kind is Activity.OTHER else 0.0)


class HostTimes:
    """The time of all stages of a process."""

    def __init__(self, analysis: Analysis, kept: Bool) -> None:
        """Divide the time of the ranges in `kept`, a column of the stage table."""
        self._paths = analysis.stages.paths
        self._stages = analysis.stages
        self._thread_times = thread_times(analysis.trace)
        self._kept = kept
        segments = paint(analysis)
        self._segments: Segments = segments.where(kept[segments.row])
        samples = sample_times(analysis, segments)
        self._probe = analysis.host_probe
        self._samples = None if samples is None else samples.where(kept[samples.row])
        self._stacks = None if samples is None else Stacks(samples.samples)
        self._recorded = self._by_activity(self._segments.stage, self._segments.activity, self._lengths)

    @cached_property
    def _lengths(self) -> Float64:
        return (self._segments.end_ns - self._segments.start_ns).astype(np.float64)

    def of_stage(self, path: int) -> HostTime:
        """Of the stage with this path, with all stages inside it."""
        inside = self._inside[path]
        recorded = self._recorded[inside].sum(axis=0)
        whole = float(recorded.sum())
        if not whole:
            return HostTime({Activity.UNKNOWN: 1.0})
        other_calls = float(recorded[CODES[Activity.OTHER]]) / whole
        samples = self._samples
        if samples is None or self._stacks is None or self._probe is None:
            return replace(self._read(path, recorded / whole, 0), other_calls=other_calls)
        mine = samples.where(inside[samples.stage])
        count, spent = float(mine.count.sum()), recorded.copy()
        if count >= MIN_SAMPLES:
            shown = _sums(mine.activity, np.where(mine.is_recorded, 0.0, mine.ns))
            seen = _sums(mine.activity, mine.count) >= MIN_OF_ACTIVITY
            if shown.sum():
                share = np.where(seen, shown, 0.0) / shown.sum()
                spent += recorded[UNKNOWN] * share
                spent[UNKNOWN] -= recorded[UNKNOWN] * share.sum()
        else:
            return replace(self._read(path, recorded / whole, round(count)), other_calls=other_calls)
        described = self._described(path, mine, self._stacks, self._probe, spent / whole)
        return replace(described, other_calls=other_calls)

    def _read(self, path: int, shares: Float64, samples: int) -> HostTime:
        """Without enough samples: by readings of how long its threads ran and waited for a CPU, at least."""
        stages = self._stages
        rows = np.flatnonzero(self._of(path))
        where = stages.thread[rows], stages.start_ns[rows], stages.end_ns[rows]
        readings = self._thread_times
        known = readings.ready.shares(*where)
        if known is not None:
            ready, queued = (one.evenly_ns(*where) for one in (readings.ready, readings.queued))
            without_cpu = known[1] * min(queued / ready, 1.0) if ready else 0.0
            compiling = readings.compiling.shares(*where)
            compiles = 0.0 if compiling is None else min(compiling[1], known[1] - without_cpu)
            read = {
                Activity.OTHER: known[0],
                Activity.NO_CPU: without_cpu,
                Activity.COMPILE: compiles,
                Activity.COMPUTE: known[1] - without_cpu - compiles,
            }
            shares = shares.copy()
            for activity, share in read.items():
                shares[CODES[activity]] += share * shares[UNKNOWN]
            shares[UNKNOWN] *= max(1 - sum(read.values()), 0.0)
        return HostTime(_shares(shares), samples)

    def _described(
        self, path: int, mine: SampleTimes, stacks: Stacks, probe: HostProbe, shares: Float64
    ) -> HostTime:
        samples, total = mine.samples, float(mine.ns.sum())
        places = {
            activity: place
            for code, activity in enumerate(ACTIVITIES)
            if shares[code] > 0
            and (place := stacks.place(mine, mine.activity == code, float(shares[code]))) is not None
        }
        waits = np.isin(mine.activity, [CODES[one] for one in WAITS])
        loads = waits & stacks.in_loader[samples.stack[mine.sample]]
        loading = float(mine.ns[loads].sum()) / total
        for_threads = np.isin(mine.activity, [CODES[one] for one in WAITS_FOR_THREADS])
        own = distinct(self._stages.thread[self._of(path)])
        return HostTime(
            activities=_shares(shares),
            samples=round(float(mine.count.sum())),
            places=places,
            library=stacks.library(mine, places.get(Activity.COMPUTE)),
            loading=loading,
            loader=stacks.place(mine, loads, loading),
            lock_holder=_lock_holder(mine, stacks),
            compiler=stacks.compiler(mine),
            others=_other_threads(probe, samples, mine.sample[for_threads], own),
            own_contention=own_contention(probe.events, samples, mine.sample[mine.activity == CODES[Activity.NO_CPU]]),
        )

    def _of(self, path: int) -> Bool:
        return np.asarray(self._kept & (np.asarray(self._paths.code) == path), dtype=np.bool_)

    @cached_property
    def _inside(self) -> Bool:
        """Of each path (rows), which paths are it or lie inside it (columns)."""
        count = len(self._paths)
        inside = np.eye(count, dtype=np.bool_)
        for path in range(count):
            above = int(self._paths.parent[path])
            while above >= 0:
                inside[above, path] = True
                above = int(self._paths.parent[above])
        return inside

    def _by_activity(self, stage: Int64, activity: Int64, ns: Float64) -> Float64:
        """Time by path and activity."""
        size = len(ACTIVITIES)
        key = np.asarray(stage, dtype=np.int64) * size + activity
        return np.bincount(key, weights=ns, minlength=len(self._paths) * size).reshape(-1, size)


def _sums(activity: Int64, ns: Float64) -> Float64:
    return np.bincount(activity, weights=ns, minlength=len(ACTIVITIES)).astype(np.float64)


def _shares(values: Float64) -> dict[Activity, float]:
    return {activity: float(value) for activity, value in zip(ACTIVITIES, values, strict=True) if value > 0}


class Stacks:
    """The sampled stacks of a process; a last entry is for samples without a stack."""

    def __init__(self, samples: HostSamples) -> None:
        self.samples = samples
        frames = [frames_of(samples, stack) for stack in range(len(samples.stacks))]
        own = [_own(one) for one in frames]
        self.frames: Sequence[list[Frame]] = [*frames, []]
        self.own: Sequence[Frame | None] = [*own, None]
        self.in_loader = _with(samples, DATA_LOADERS)
        self._compilers = compilers_of_stacks(samples.frames, samples.stacks)

    def times(self, mine: SampleTimes, chosen: Bool) -> Iterator[tuple[int, float]]:
        """Each stack of the chosen samples and their time, ns."""
        stack = mine.samples.stack[mine.sample[chosen]]
        spent = np.bincount(stack[stack >= 0], weights=mine.ns[chosen][stack >= 0], minlength=1)
        yield from ((int(one), float(spent[one])) for one in np.flatnonzero(spent))

    def place(self, mine: SampleTimes, chosen: Bool, share: float) -> Place | None:
        """The user's function, and line, of most of the chosen samples' time, which is this share of the stage's."""
        return place_of(((self.own[stack], ns) for stack, ns in self.times(mine, chosen)), share)

    def library(self, mine: SampleTimes, place: Place | None) -> Library | None:
        """The library that takes half or more of the time of the function that computes most."""
        if place is None:
            return None
        spent: dict[tuple[str, str], float] = {}
        whole = 0.0
        for stack, ns in self.times(mine, mine.activity == CODES[Activity.COMPUTE]):
            own = self.own[stack]
            if own is None or (own.function, own.file) != (place.function, place.file):
                continue
            whole += ns
            frames = program_frames(self.frames[stack])
            at = frames.index(own)
            name = library_of(frames[0].file) if at else None
            if name is not None:
                key = name, frames[at - 1].function
                spent[key] = spent.get(key, 0.0) + ns
        by_name: dict[str, float] = {}
        for (name, _), ns in spent.items():
            by_name[name] = by_name.get(name, 0.0) + ns
        name = max(by_name, key=lambda one: by_name[one], default="")
        if not whole or by_name.get(name, 0.0) < whole / 2:
            return None
        _, function = max((key for key in spent if key[0] == name), key=lambda key: spent[key])
        return Library(name, function, by_name[name] / whole * place.function_share)

    def compiler(self, mine: SampleTimes) -> int | None:
        """The compiler that takes most of the time."""
        on_stack = self._compilers[mine.samples.stack[mine.sample]]
        spent = np.bincount(on_stack[on_stack >= 0], weights=mine.ns[on_stack >= 0], minlength=len(COMPILERS))
        return int(spent.argmax()) if spent.any() else None


def _with(samples: HostSamples, names: Names) -> Bool:
    """Which stacks have one of these functions."""
    chosen = set(frames_named(samples.frames, names))
    found = [not chosen.isdisjoint(stack) for stack in samples.stacks]
    return np.asarray([*found, False], dtype=np.bool_)


def _own(frames: list[Frame]) -> Frame | None:
    return own_frame(frames) if frames and not is_recording(frames) else None


def place_of(spent: Iterator[tuple[Frame | None, float]], share: float) -> Place | None:
    """The function and line of most of the time; that is this share of the stage's time."""
    functions: dict[tuple[str, str], dict[int, float]] = {}
    whole = 0.0
    for frame, ns in spent:
        whole += ns
        if frame is not None:
            lines = functions.setdefault((frame.function, frame.file), {})
            lines[frame.line] = lines.get(frame.line, 0.0) + ns
    if not functions or not whole:
        return None
    (function, file), lines = max(functions.items(), key=lambda one: sum(one[1].values()))
    line = max(lines, key=lambda one: lines[one])
    return Place(function, file, line, sum(lines.values()) / whole * share, lines[line] / whole * share)


def _lock_holder(mine: SampleTimes, stacks: Stacks) -> Place | None:
    """Where the thread was that held the interpreter lock while the stage waited for it."""
    samples = mine.samples
    waits = mine.activity == CODES[Activity.GIL]
    waits &= samples.gil_holder[mine.sample] > 0
    spent: list[tuple[Frame | None, float]] = []
    for thread in distinct(samples.gil_holder[mine.sample[waits]]):
        chosen = waits & (samples.gil_holder[mine.sample] == thread)
        near = nearest_samples(samples, int(thread), samples.time_ns[mine.sample[chosen]])
        known = near >= 0
        pairs = zip(samples.stack[near[known]].tolist(), mine.ns[chosen][known].tolist(), strict=True)
        spent += [(_holder(stacks, stack), ns) for stack, ns in pairs]
    share = float(mine.ns[waits].sum() / mine.ns.sum()) if len(mine) else 0.0
    return place_of(iter(spent), share)


def _holder(stacks: Stacks, stack: int) -> Frame | None:
    frames = stacks.frames[stack]
    return own_frame(program_frames(frames)) if frames else None


def _other_threads(probe: HostProbe, waiting: HostSamples, waits: Int64, own: list[int]) -> OtherThreads:
    """What others do during some samples of waits.

    Args:
        own: threads of the stage.
    """
    if not len(waits):
        return OtherThreads()
    line = BusyLine(waiting.time_ns[waits] - waiting.length_ns[waits], waiting.time_ns[waits])
    waiters = {
        (waiting.frames[number].function, waiting.frames[number].file)
        for stack in distinct(waiting.stack[waits])
        if stack >= 0
        for number in waiting.stacks[stack]
    }
    samples = probe.everyone
    at = np.flatnonzero(~np.isin(samples.thread, own) & (samples.stack >= 0) & (samples.state != HostState.LOCK))
    length = line.within(samples.time_ns[at] - samples.length_ns[at], samples.time_ns[at])
    works = {stack: _work(samples, stack, waiters) for stack in distinct(samples.stack[at[length > 0]])}
    chosen = np.asarray([works.get(stack) is not None for stack in samples.stack[at].tolist()], dtype=np.bool_)
    at, length = at[chosen & (length > 0)], length[chosen & (length > 0)]
    working = BusyLine(samples.time_ns[at] - samples.length_ns[at], samples.time_ns[at])
    share = float(working.within(line.start, line.end).sum() / max(line.length, 1))
    spent = zip((works[stack] for stack in samples.stack[at].tolist()), length.tolist(), strict=True)
    ran, ready = (float(np.maximum(column[at], 0).sum()) for column in (samples.on_cpu_ns, samples.runnable_ns))
    without_cpu = share * ready / (ran + ready) if ready else 0.0
    crowded = without_cpu * own_contention(probe.events, samples, at)
    return OtherThreads(share, place_of(spent, share), crowded, without_cpu - crowded)


def _work(samples: HostSamples, stack: int, waiters: set[tuple[str, str]]) -> Frame | None:
    """The user's function that a thread is in; None: none, or one that is on the stack of who waits, too."""
    frames = frames_of(samples, stack)
    frame = next((one for one in frames if not is_library(one.file) and not is_instrument(one.file)), None)
    return None if frame is None or (frame.function, frame.file) in waiters else frame

