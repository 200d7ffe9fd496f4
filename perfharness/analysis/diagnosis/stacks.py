"""Lines, functions and libraries of sampled stacks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from perfharness.analysis.host_samples.compilers import COMPILERS, Compiler, Names, compilers_of_stacks, frames_named
from perfharness.analysis.host_samples.frames import (
    frames_of,
    is_instrument,
    is_library,
    is_recording,
    library_of,
    own_frame,
    program_frames,
)
from perfharness.analysis.segments import SampleTimes
from perfharness.analysis.timeline.grouping import distinct, sum_by_code
from perfharness.model.columns import Bool, Int64
from perfharness.model.diagnosis import FunctionShare, Place
from perfharness.model.host_samples import Frame, HostSamples

DATA_LOADERS: Names = {"torch/utils/data/dataloader.py": None, "tensorflow/python/data/ops/iterator_ops.py": None}
"""Functions that wait for workers preparing batches ahead, by end of file name."""
POOLS: Names = {"concurrent/futures/_base.py": None, "multiprocessing/pool.py": None}
"""Functions that wait for work handed to a pool of threads or processes."""
CAPTURES: Names = {"torch/cuda/graphs.py": None}
"""Functions that capture CUDA graphs."""
MOST_FUNCTIONS = 20
KNOWN_SHARE = 0.5
"""Least share of the samples' time with stacks; below it, no function or line is named."""

MOST = 0.5
"""Share of a function's computing from which on its library is named."""


@dataclass(frozen=True)
class Library:
    """The library with most of a function's computing, and its outermost `function`."""

    name: str
    function: str


class Stacks:
    """Sampled stacks; columns have one more entry, for samples without a stack. `own`: the innermost frame outside
    libraries, else the innermost; None while perfharness itself worked. `user`: the innermost frame outside libraries.
    `in_loader`, `in_pool`, `in_capture`: whether the stack has a data loader, a pool, or a CUDA graph capture.
    """

    def __init__(self, samples: HostSamples) -> None:
        self.samples = samples
        frames = [frames_of(samples, stack) for stack in range(len(samples.stacks))]
        self.frames: Sequence[list[Frame]] = [*frames, []]
        self.own = [own_frame(one) if one and not is_recording(one) else None for one in self.frames]
        self.user = [
            next((one for one in frames if not (is_library(one.file) or is_instrument(one.file))), None)
            for frames in self.frames
        ]
        numbers = (set(frames_named(samples.frames, names)) for names in (DATA_LOADERS, POOLS, CAPTURES))
        self.in_loader, self.in_pool, self.in_capture = (
            np.asarray([*(not some.isdisjoint(stack) for stack in samples.stacks), False]) for some in numbers
        )
        self._compiler = compilers_of_stacks(samples.frames, samples.stacks)

    def place(self, mine: SampleTimes, chosen: Bool, share: float) -> Place | None:
        """The user's function and line with most of the chosen samples' time, which is `share` of the stage."""
        return place_of([(self.own[stack], ns) for stack, ns in _times(mine, chosen)], share)

    def library(self, mine: SampleTimes, chosen: Bool, place: Place | None) -> Library | None:
        """The library with most of the chosen samples' time in a function of the user."""
        by_name: dict[str, dict[str, float]] = {}
        whole = 0.0
        for stack, ns in _times(mine, chosen):
            own = self.own[stack]
            if place is None or own is None or (own.function, own.file) != (place.function, place.file):
                continue
            whole += ns
            frames = program_frames(self.frames[stack])
            name = library_of(frames[0].file) if own is not frames[0] else None
            if name is not None:
                inside = [one for one in frames[: frames.index(own)] if library_of(one.file) == name]
                called, functions = inside[-1].function, by_name.setdefault(name, {})
                functions[called] = functions.get(called, 0.0) + ns
        for name, functions in by_name.items():
            if sum(functions.values()) >= MOST * whole:
                return Library(name, max(functions, key=lambda one: functions[one]))
        return None

    def compiler(self, mine: SampleTimes) -> Compiler | None:
        """The compiler with most of the time."""
        number = self._compiler[mine.samples.stack[mine.sample]]
        spent = sum_by_code(number[number >= 0], mine.ns[number >= 0], len(COMPILERS))
        return COMPILERS[int(spent.argmax())] if spent.any() else None

    def lock_holder(self, mine: SampleTimes, chosen: Bool, share: float) -> Place | None:
        """Place of the thread that held the interpreter lock while the chosen samples waited for it."""
        samples = self.samples
        rows, holder = mine.sample[chosen], samples.gil_holder[mine.sample[chosen]]
        spent: list[tuple[Frame | None, float]] = []
        for thread in distinct(holder[holder > 0]):
            of_thread = holder == thread
            stacks = np.append(samples.stack, -1)[_nearest(samples, thread, samples.time_ns[rows[of_thread]])]
            spent += [
                (own_frame(program_frames(self.frames[stack])) if self.frames[stack] else None, ns)
                for stack, ns in zip(stacks.tolist(), mine.ns[chosen][of_thread].tolist(), strict=True)
            ]
        return place_of(spent, share)

    def functions(self, mine: SampleTimes) -> list[FunctionShare]:
        """Functions of the program and its libraries, longest own time first. Time of perfharness itself is not the own
        time of any function.
        """
        total: dict[tuple[str, str], float] = {}
        lines: dict[tuple[str, str], dict[int, float]] = {}
        times = _times(mine, np.ones(len(mine), dtype=np.bool_))
        for stack, ns in times:
            frames = self.frames[stack]
            if is_ours := is_recording(frames):
                frames = frames[next(at for at, frame in enumerate(frames) if is_instrument(frame.file)) :]
            frames = [frame for frame in program_frames(frames) if not is_instrument(frame.file)]
            innermost: dict[tuple[str, str], Frame] = {}
            for frame in frames:
                innermost.setdefault((frame.function, frame.file), frame)
            for key, frame in innermost.items():
                total[key] = total.get(key, 0.0) + ns
                at = lines.setdefault(key, {})
                at[frame.line] = at.get(frame.line, 0.0) + (ns if frame is frames[0] and not is_ours else 0.0)
        own, whole = {key: sum(at.values()) for key, at in lines.items()}, sum(ns for _, ns in times)
        most = sorted(own, key=lambda key: (-own[key], -total[key]))[:MOST_FUNCTIONS]
        line = {key: max(lines[key], key=lines[key].__getitem__) for key in most}
        return [FunctionShare(*key, line[key], own[key] / whole, total[key] / whole) for key in most]


def place_of(spent: Iterable[tuple[Frame | None, float]], share: float) -> Place | None:
    """The function and line with most of the time; `share`: that time's part of the stage."""
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


def _nearest(samples: HostSamples, thread: int, time_ns: Int64) -> Int64:
    """Sample of a thread nearest to each time, the earlier of two; -1 if the thread has no samples."""
    first, last = np.searchsorted(samples.thread, [thread, thread + 1]).tolist()
    if first == last:
        return np.full(len(time_ns), -1, dtype=np.int64)
    after = np.searchsorted(times := samples.time_ns[first:last], time_ns)
    before, after = np.maximum(after - 1, 0), np.minimum(after, len(times) - 1)
    return np.asarray(first + np.where(time_ns - times[before] <= times[after] - time_ns, before, after))


def _times(mine: SampleTimes, chosen: Bool) -> list[tuple[int, float]]:
    """Stacks of the chosen samples and their time, ns; empty if most samples have no stack.

    A sample has no stack if a stage began or ended while it was read, as in stages shorter than a reading.
    """
    stack = mine.samples.stack[mine.sample[chosen]]
    spent = np.bincount(stack[stack >= 0], weights=mine.ns[chosen][stack >= 0], minlength=1)
    if spent.sum() < KNOWN_SHARE * mine.ns[chosen].sum():
        return []
    return [(int(one), float(spent[one])) for one in np.flatnonzero(spent)]
