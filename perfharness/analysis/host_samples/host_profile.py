"""Where the time of stages goes, by samples.

A sample is of a stage where the recorder's own stack had it open on that thread; the clock only decides in which of its
ranges, with `BOUNDARY_NS` to spare. Where no stack could be read (plain NVTX), the clock alone decides.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from perfharness.analysis.stages.roles import STAGE_SUFFIX
from perfharness.analysis.timeline.clock import monotonic_tie
from perfharness.model.diagnosis import Path
from perfharness.model.host_samples import (
    HostEvents,
    HostProbe,
    HostSamples,
    HostState,
)
from perfharness.model.trace import PID_SHIFT, Bool, Int64, Trace
from perfharness.trace.host_samples import RecordedProbe

BOUNDARY_NS = 100_000
"""A sample's time and the ranges' may be this far apart: the sampler takes that long for a thread, at most."""


NS_PER_MS = 1e6
COMPUTING = (HostState.RUNNING, HostState.RUNNABLE, HostState.UNKNOWN)


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


def inside(time_ns: Int64, start_ns: Int64, end_ns: Int64) -> Bool:
    """Which moments lie in any of the intervals, which may lie in each other."""
    if not len(start_ns):
        return np.zeros(len(time_ns), dtype=np.bool_)
    order = np.argsort(start_ns, kind="stable")
    starts, ends = start_ns[order], np.maximum.accumulate(end_ns[order])
    before = np.searchsorted(starts, time_ns, side="right") - 1
    within: Bool = (before >= 0) & (time_ns < ends[np.maximum(before, 0)])
    return within


def without_suffixes(path: Path) -> Path:
    """A path of results as the recorder's stack has it."""
    return tuple(name.removesuffix(STAGE_SUFFIX) for name in path)


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
    )  # fmt: skip


def _events_at(events: HostEvents, rows: Int64) -> HostEvents:
    return replace(
        events, start_ns=events.start_ns[rows], end_ns=events.end_ns[rows], thread=events.thread[rows],
        kind=events.kind[rows], detail=events.detail[rows],
    )  # fmt: skip
