"""Where the time of stages goes, by samples.

A sample is of a stage where the recorder's own stack had it open on that thread; the clock only decides in which of its
ranges, with `BOUNDARY_NS` to spare. Where no stack could be read (plain NVTX), the clock alone decides.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from perfharness.analysis.host_samples.frames import (
    frames_of,
    is_instrument,
    is_recording,
    own_frame,
    program_frames,
    qualified_name,
)
from perfharness.analysis.stages.roles import STAGE_SUFFIX
from perfharness.analysis.timeline.busy import BusyLine
from perfharness.analysis.timeline.clock import monotonic_tie
from perfharness.model.diagnosis import FunctionTime, HostProfile, Path
from perfharness.model.host_samples import (
    Frame,
    HostEventKind,
    HostEvents,
    HostProbe,
    HostSamples,
    HostState,
)
from perfharness.model.result import Float64
from perfharness.model.trace import PID_SHIFT, Bool, Int64, Trace
from perfharness.trace.host_samples import RecordedProbe

BOUNDARY_NS = 100_000
"""A sample's time and the ranges' may be this far apart: the sampler takes that long for a thread, at most."""

TOP_FUNCTIONS = 20
COUNTS = ("minor_faults", "major_faults", "voluntary_switches", "involuntary_switches")
"""Of `HostProfile`, in the order of `HostSamples.counts`."""

KNOWN_SHARE = 0.5
"""Of a stage's time: with readings of the CPU time of less, nothing is said of the whole."""

NS_PER_MS, NS_PER_US = 1e6, 1e3
NEAR_NS = 50_000
"""A thread's stack is read about that long after its time is: two samples this close are of one moment."""
COMPUTING = (HostState.RUNNING, HostState.RUNNABLE, HostState.UNKNOWN)
K = TypeVar("K")
Z_95 = 1.959964


@dataclass(frozen=True)
class Spans:
    """The ranges of a stage, aligned columns on the trace's clock. Sums are reported per batch."""

    path: Path
    thread: Int64
    start_ns: Int64
    end_ns: Int64
    batches: int

    @property
    def wall_ms(self) -> float:
        """Their host time, ms a batch."""
        return float((self.end_ns - self.start_ns).sum()) / NS_PER_MS / max(self.batches, 1)


def on_trace_clock(recorded: RecordedProbe, trace: Trace) -> HostProbe:
    """The probe's records on the clock of a trace of the same process, with its thread ids."""
    probe, samples, events = recorded.probe, recorded.probe.samples, recorded.probe.events
    to_trace = monotonic_tie(trace)
    if to_trace is None:
        start = trace.meta.session_start_unix_ns
        if start is None:
            missing = "Python stacks: the trace has no clock that they could be laid onto"
            nothing = np.zeros(0, dtype=np.int64)
            return HostProbe(_samples_at(samples, nothing), _events_at(events, nothing), (*probe.missing, missing))
        offset = recorded.unix_ns - recorded.monotonic_ns - start

        def to_trace(monotonic_ns: Int64) -> Int64:
            return monotonic_ns + offset

    together = probe.together
    if together is not None:
        together = replace(together, time_ns=to_trace(together.time_ns), thread=_as_in(trace, together.thread))
    return replace(
        probe,
        together=together,
        samples=replace(
            samples,
            time_ns=to_trace(samples.time_ns),
            thread=_as_in(trace, samples.thread),
            gil_holder=np.where(samples.gil_holder > 0, _as_in(trace, samples.gil_holder), 0),
        ),
        events=replace(
            events,
            start_ns=to_trace(events.start_ns),
            end_ns=to_trace(events.end_ns),
            thread=_as_in(trace, events.thread),
        ),
    )


def host_profile(probe: HostProbe, spans: Spans, rows: Int64) -> HostProfile:
    """What the threads of a stage did in its ranges.

    Its host time is shared out by the time that samples stand for.

    Args:
        rows: the stage's samples (`rows_of_stage`).
    """
    samples = probe.samples
    lengths = samples.length_ns[rows].astype(np.float64)
    total, missing = float(lengths.sum()), list(probe.missing)
    if not total:
        missing.append("a sample in the stage: it is too short, or its thread runs no Python")
    scale = spans.wall_ms / total if total else 0.0
    shares = _Shares.of(lengths, spans.wall_ms)
    on_cpu = samples.on_cpu_ns[rows]
    known = bool(total) and bool((on_cpu >= 0).all())
    collected = collections_of_stage(probe, spans)
    functions, recorder_ms = _functions(samples, rows, lengths, shares)
    collection_ns = float((probe.events.end_ns - probe.events.start_ns)[collected].sum())
    return HostProfile(
        samples=len(rows),
        on_cpu_ms=float(on_cpu.sum()) * scale if known else None,
        state_ms=_states(samples, rows, lengths, scale),
        top_functions=functions[:TOP_FUNCTIONS],
        collections=len(collected) / max(spans.batches, 1),
        collection_ms=collection_ns / NS_PER_MS / max(spans.batches, 1),
        gil_holders=_gil_holders(samples, rows, shares)[:TOP_FUNCTIONS],
        missing=missing,
        recorder_ms=recorder_ms if total else None,
        cpus_used=_cpus_used(probe.events, spans),
        cpus=_cpus(probe, spans),
        longest=next(iter(own_functions(samples, rows, scale)), None),
        **_counts(samples, rows, spans.batches),
    )


def rows_of_stage(samples: HostSamples, spans: Spans) -> Int64:
    """The samples of a stage, indices in order."""
    found: list[Int64] = []
    path = without_suffixes(spans.path)
    has_recorder = np.asarray([bool(one) and one[0] == path[0] for one in samples.stage_paths] + [False])
    is_inside = np.asarray([one[: len(path)] == path for one in samples.stage_paths] + [False])
    for thread in np.unique(spans.thread):
        first, last = np.searchsorted(samples.thread, [thread, thread + 1])
        mine = np.arange(first, last)
        time, stage = samples.time_ns[mine], samples.stage[mine]
        of_thread = spans.thread == thread
        start, end = spans.start_ns[of_thread], spans.end_ns[of_thread]
        near = inside(time, start - BOUNDARY_NS, end + BOUNDARY_NS)
        by_clock = inside(time, start, end)
        found.append(mine[np.where(has_recorder[stage], is_inside[stage] & near, by_clock)])
    return np.concatenate([np.empty(0, np.int64), *found])


def collections_of_stage(probe: HostProbe, spans: Spans) -> Int64:
    """Runs of the garbage collector that began in the stage's ranges on their threads, indices of the events."""
    events = probe.events
    collections = np.flatnonzero(events.kind == HostEventKind.COLLECTION)
    found: list[Int64] = []
    for thread in np.intersect1d(events.thread[collections], spans.thread):
        mine = collections[events.thread[collections] == thread]
        of_thread = spans.thread == thread
        found.append(mine[inside(events.start_ns[mine], spans.start_ns[of_thread], spans.end_ns[of_thread])])
    return np.concatenate([np.empty(0, np.int64), *found])


def rows_during(samples: HostSamples, thread: Int64, start_ns: Int64, end_ns: Int64) -> Int64:
    """The samples that lie in any of the stretches of their thread, indices in order."""
    found: list[Int64] = []
    for one in np.unique(thread):
        first, last = np.searchsorted(samples.thread, [one, one + 1])
        of_thread = thread == one
        is_in = inside(samples.time_ns[first:last], start_ns[of_thread], end_ns[of_thread])
        found.append(first + np.flatnonzero(is_in))
    return np.concatenate([np.empty(0, np.int64), *found])


def inside(time_ns: Int64, start_ns: Int64, end_ns: Int64) -> Bool:
    """Which moments lie in any of the intervals, which may lie in each other."""
    if not len(start_ns):
        return np.zeros(len(time_ns), dtype=np.bool_)
    order = np.argsort(start_ns, kind="stable")
    starts, ends = start_ns[order], np.maximum.accumulate(end_ns[order])
    before = np.searchsorted(starts, time_ns, side="right") - 1
    within: Bool = (before >= 0) & (time_ns < ends[np.maximum(before, 0)])
    return within


def lines_during(
    samples: HostSamples, thread: Int64 | int, start_ns: Int64, end_ns: Int64, *, own_code: bool = False
) -> list[FunctionTime]:
    """The lines that threads were at in these stretches, those of the most samples first; times are of the samples, ms.

    Args:
        thread, start_ns, end_ns: the stretches; one thread for all, or one for each.
        own_code: the innermost line outside of libraries, where a stack has one.
    """
    threads = np.broadcast_to(np.asarray(thread, dtype=np.int64), start_ns.shape)
    rows = rows_during(samples, threads, start_ns, end_ns)
    lengths = samples.length_ns[rows].astype(np.float64)
    shares = _Shares.of(lengths, float(lengths.sum()) / NS_PER_MS)
    spent: defaultdict[Frame, float] = defaultdict(float)
    inner: defaultdict[Frame, float] = defaultdict(float)
    for stack, length in _by_stack(samples, rows, lengths):
        frames = frames_of(samples, stack)
        if frames:
            inner[own_frame(frames) if own_code else frames[0]] += length
        for frame in dict.fromkeys(frames):
            spent[frame] += length
    return [
        FunctionTime(
            frame.function, frame.file, frame.line, self_ms=shares.ms(inner[frame]),
            cumulative_ms=shares.ms(spent[frame]), error_ms=shares.error_ms(inner[frame]),
        )
        for frame in _descending(inner)
    ]  # fmt: skip


def own_functions(
    samples: HostSamples, rows: Int64, ms_per_ns: float, *, of_recorder: bool = False
) -> list[FunctionTime]:
    """Functions outside of libraries by the time of these samples in which they were the innermost such on the stack,
    or, where a stack has none, of its innermost. `line` is the one that most of that time passed at; so `self_ms` holds
    the libraries' time below it.

    Args:
        rows: samples.
        ms_per_ns: of host time, for a nanosecond of samples.
        of_recorder: only the time in which perfharness itself was at work (`is_recording`); else that is left out.
    """
    return _by_frame(samples, rows, ms_per_ns, own_frame, of_recorder)


def functions_inside(samples: HostSamples, rows: Int64, ms_per_ns: float, own: FunctionTime) -> list[FunctionTime]:
    """The innermost functions of the samples that `own_functions` counts for `own`: itself, or those of libraries."""
    key = own.function, own.file

    def innermost(frames: list[Frame]) -> Frame | None:
        return program_frames(frames)[0] if _function_key(own_frame(frames)) == key else None

    return _by_frame(samples, rows, ms_per_ns, innermost)


def functions_called(samples: HostSamples, rows: Int64, ms_per_ns: float, own: FunctionTime) -> list[FunctionTime]:
    """The functions that `own` itself calls, by the time of the same samples in which they had not returned."""
    key = own.function, own.file

    def called(frames: list[Frame]) -> Frame | None:
        frames = program_frames(frames)
        if _function_key(own_frame(frames)) != key:
            return None
        at = frames.index(own_frame(frames))
        return frames[at - 1] if at else None

    return _by_frame(samples, rows, ms_per_ns, called)


def _by_frame(
    samples: HostSamples,
    rows: Int64,
    ms_per_ns: float,
    chosen: Callable[[list[Frame]], Frame | None],
    of_recorder: bool = False,
) -> list[FunctionTime]:
    """Functions by the time of the samples of which theirs is the chosen frame."""
    lengths = samples.length_ns[rows].astype(np.float64)
    tally = _Tally()
    for stack, length in _by_stack(samples, rows, lengths):
        frames = frames_of(samples, stack)
        frame = chosen(frames) if frames and is_recording(frames) is of_recorder else None
        if frame is not None:
            tally.add(frame, length, length)
    return tally.functions(_Shares.of(lengths, float(lengths.sum()) * ms_per_ns))


def without_suffixes(path: Path) -> Path:
    """A path of results as the recorder's stack has it."""
    return tuple(name.removesuffix(STAGE_SUFFIX) for name in path)


def wilson(share: float, count: float) -> float:
    """Half of Wilson's 95 % interval of a share of so many independent samples."""
    spread = math.sqrt(max(share * (1 - share), 0.0) / count + Z_95**2 / (4 * count**2))
    return Z_95 * spread / (1 + Z_95**2 / count)


@dataclass(frozen=True)
class _Shares:
    """Turns lengths of samples into host time: of all samples `total_ns` and the sum of squares of their lengths."""

    total_ns: float
    squares: float
    wall_ms: float

    @classmethod
    def of(cls, lengths: Float64, wall_ms: float) -> _Shares:
        """Of samples of these lengths, ns, that stand for `wall_ms` of host time."""
        return cls(float(lengths.sum()), float(np.square(lengths).sum()), wall_ms)

    def ms(self, length_ns: float) -> float:
        return self.wall_ms * length_ns / self.total_ns if self.total_ns else 0.0

    def error_ms(self, length_ns: float) -> float:
        """Half of Wilson's 95 % interval of the share, for as many samples of equal length as have this variance."""
        if not self.squares:
            return 0.0
        return self.wall_ms * wilson(length_ns / self.total_ns, self.total_ns**2 / self.squares)


def _by_stack(samples: HostSamples, rows: Int64, lengths: Float64) -> Iterator[tuple[int, float]]:
    """Each stack that was seen, and the sum of its samples' lengths, ns."""
    stacks = samples.stack[rows]
    spent = np.bincount(stacks[stacks >= 0], weights=lengths[stacks >= 0], minlength=len(samples.stacks))
    yield from ((int(stack), float(spent[stack])) for stack in np.flatnonzero(spent))


FunctionKey = tuple[str, str]


def _function_key(frame: Frame) -> FunctionKey:
    return frame.function, frame.file


class _Tally:
    """Adds up the time of functions, ns, and remembers the line that most of their own time passed at."""

    def __init__(self) -> None:
        self._own: defaultdict[FunctionKey, float] = defaultdict(float)
        self._cumulative: defaultdict[FunctionKey, float] = defaultdict(float)
        self._callees: defaultdict[FunctionKey, defaultdict[str | None, float]] = defaultdict(
            lambda: defaultdict(float)
        )
        self._lines: defaultdict[FunctionKey, defaultdict[int, float]] = defaultdict(lambda: defaultdict(float))

    def add(self, frame: Frame, own_ns: float, cumulative_ns: float, callee: str | None = None) -> None:
        key = _function_key(frame)
        self._callees[key][callee] += own_ns
        self._own[key] += own_ns
        self._cumulative[key] += cumulative_ns
        self._lines[key][frame.line] += own_ns

    def functions(self, shares: _Shares) -> list[FunctionTime]:
        """By their own time, those that only call others after them."""
        order = sorted(self._own, key=lambda key: (-self._own[key], -self._cumulative[key]))
        return [
            FunctionTime(
                *key, _descending(self._lines[key])[0], self_ms=shares.ms(self._own[key]),
                cumulative_ms=shares.ms(self._cumulative[key]), error_ms=shares.error_ms(self._own[key]),
                callee=_descending(self._callees[key])[0],
            )
            for key in order
        ]  # fmt: skip


def _functions(
    samples: HostSamples, rows: Int64, lengths: Float64, shares: _Shares
) -> tuple[list[FunctionTime], float]:
    """Every function of the program and its libraries that was on a stack, and the time in which perfharness itself was
    at work, ms a batch, which is no function's own; nor are functions that perfharness calls.
    """
    recorder_ns = 0.0
    tally = _Tally()
    for stack, length in _by_stack(samples, rows, lengths):
        frames = frames_of(samples, stack)
        own_ns = length
        if is_recording(frames):
            own_ns, recorder_ns = 0.0, recorder_ns + length
            frames = frames[next(at for at, frame in enumerate(frames) if is_instrument(frame.file)) :]
        frames = program_frames(frames)
        innermost: dict[FunctionKey, Frame] = {}
        for frame in frames:
            innermost.setdefault(_function_key(frame), frame)
        for frame in innermost.values():
            tally.add(frame, own_ns if frame is frames[0] else 0.0, length)
    return tally.functions(shares), shares.ms(recorder_ns)


def _descending(times: dict[K, float]) -> list[K]:
    return sorted(times, key=lambda key: -times[key])


def _states(samples: HostSamples, rows: Int64, lengths: Float64, scale: float) -> dict[str, float | None]:
    """Time in each state. The system does not show at a moment whether a thread that could run does, but counts both:
    the time of such samples is shared out by these counts.
    """
    states = samples.state[rows]
    if not len(states):
        return {state.name.lower(): None for state in HostState}
    spent = np.bincount(states, weights=lengths, minlength=len(HostState))
    is_hidden = spent[HostState.UNKNOWN] > 0
    on_cpu, runnable = samples.on_cpu_ns[rows], samples.runnable_ns[rows]
    ready = spent[HostState.RUNNING] + spent[HostState.RUNNABLE]
    if (on_cpu >= 0).all() and (counted := int(on_cpu.sum()) + int(runnable.sum())):
        spent[HostState.RUNNING] = ready * int(on_cpu.sum()) / counted
        spent[HostState.RUNNABLE] = ready - spent[HostState.RUNNING]
    shown = (HostState.RUNNING, HostState.RUNNABLE, HostState.UNKNOWN)
    return {
        state.name.lower(): None
        if is_hidden and state not in shown and not spent[state]
        else float(spent[state]) * scale
        for state in HostState
    }


def _counts(samples: HostSamples, rows: Int64, batches: int) -> dict[str, float | None]:
    """Page faults and context switches a batch."""
    counts = samples.counts[rows]
    known = bool(len(rows)) and bool((counts >= 0).all())
    sums = counts.sum(axis=0).tolist()
    return {name: sums[at] / max(batches, 1) if known else None for at, name in enumerate(COUNTS)}


def _gil_holders(samples: HostSamples, rows: Int64, shares: _Shares) -> list[FunctionTime]:
    """What the thread that held the interpreter lock did, in the samples in which this stage's thread waited for it."""
    waiting = rows[(samples.state[rows] == HostState.GIL) & (samples.gil_holder[rows] > 0)]
    held = np.zeros(len(samples.stacks), dtype=np.float64)
    for thread in np.unique(samples.gil_holder[waiting]):
        mine = waiting[samples.gil_holder[waiting] == thread]
        there = nearest_samples(samples, int(thread), samples.time_ns[mine])
        mine, stacks = mine[there >= 0], samples.stack[there[there >= 0]]
        known = stacks >= 0
        held += np.bincount(stacks[known], weights=samples.length_ns[mine[known]], minlength=len(held))
    tally = _Tally()
    for stack in np.flatnonzero(held).tolist():
        frames = program_frames(frames_of(samples, stack))
        own = own_frame(frames)
        tally.add(own, float(held[stack]), 0.0, None if own is frames[0] else qualified_name(frames[0]))
    return tally.functions(shares)


def nearest_samples(samples: HostSamples, thread: int, time_ns: Int64) -> Int64:
    """The sample of a thread that is nearest to each moment, of two the earlier; -1 where the thread has none."""
    first, last = np.searchsorted(samples.thread, [thread, thread + 1]).tolist()
    if first == last:
        return np.full(len(time_ns), -1, dtype=np.int64)
    return np.asarray(first + nearest(samples.time_ns[first:last], time_ns))


def nearest(times: Int64, time_ns: Int64) -> Int64:
    """Which of some times, in order, is nearest to each moment; of two the earlier."""
    after = np.searchsorted(times, time_ns)
    before, after = np.maximum(after - 1, 0), np.minimum(after, len(times) - 1)
    return np.where(time_ns - times[before] <= times[after] - time_ns, before, after)


def _cpus(probe: HostProbe, spans: Spans) -> int | None:
    """Cores that the process might run on in most of the stage's ranges; None: not known."""
    events = probe.events
    if not len(spans.start_ns):
        return probe.cpus
    changes = events.kind == HostEventKind.CPUS
    changes &= events.thread >> PID_SHIFT == int(spans.thread[0]) >> PID_SHIFT
    before = np.flatnonzero(changes & (events.start_ns <= int(np.median(spans.start_ns))))
    return int(events.detail[before[-1]]) or None if len(before) else probe.cpus


def _cpus_used(events: HostEvents, spans: Spans) -> float | None:
    """Mean number of CPUs that the process and its forked children had while the stage was open; None: not known.

    CPU time is read about every millisecond; between two readings it counts as used evenly.
    """
    of_cpu = events.kind == HostEventKind.CPU_TIME
    if not of_cpu.any() or not len(spans.start_ns):
        return None
    opened = BusyLine(spans.start_ns, spans.end_ns)
    start, end = events.start_ns[of_cpu], events.end_ns[of_cpu]
    known = float(BusyLine(start, end).within(opened.start, opened.end).sum())
    if known < KNOWN_SHARE * opened.length or not known:
        return None
    share = opened.within(start, end) / np.maximum(end - start, 1)
    return float((share * events.detail[of_cpu] * NS_PER_US).sum()) / known


def _as_in(trace: Trace, thread: Int64) -> Int64:
    """Thread ids with what else the trace's have above the process id."""
    known = next((column for column in (trace.ranges.thread, trace.api.thread) if len(column)), None)
    above = 0 if known is None else int(known[0]) >> 2 * PID_SHIFT << 2 * PID_SHIFT
    return thread | above


def _samples_at(samples: HostSamples, rows: Int64) -> HostSamples:
    return replace(
        samples, time_ns=samples.time_ns[rows], thread=samples.thread[rows], length_ns=samples.length_ns[rows],
        on_cpu_ns=samples.on_cpu_ns[rows], runnable_ns=samples.runnable_ns[rows], state=samples.state[rows],
        stack=samples.stack[rows], stage=samples.stage[rows], gil_holder=samples.gil_holder[rows],
        counts=samples.counts[rows],
    )  # fmt: skip


def _events_at(events: HostEvents, rows: Int64) -> HostEvents:
    return replace(
        events, start_ns=events.start_ns[rows], end_ns=events.end_ns[rows], thread=events.thread[rows],
        kind=events.kind[rows], detail=events.detail[rows],
    )  # fmt: skip
