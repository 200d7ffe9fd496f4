"""Map the records of a process's sampler to the clock of its trace."""

from __future__ import annotations

from dataclasses import replace

from perfharness.analysis.timeline.clock import monotonic_tie
from perfharness.model.columns import Int64
from perfharness.model.host_samples import HostProbe
from perfharness.model.trace import PID_SHIFT, Trace
from perfharness.trace.host_samples import RecordedProbe


def on_trace_clock(recorded: RecordedProbe, trace: Trace) -> HostProbe | None:
    """The records on the clock of the process's trace, with its thread ids; None if no common clock is known."""
    probe, samples, events = recorded.probe, recorded.probe.samples, recorded.probe.events
    to_trace = monotonic_tie(trace)
    if to_trace is None:
        start = trace.meta.session_start_unix_ns
        if start is None:
            return None
        offset = recorded.unix_ns - recorded.monotonic_ns - start

        def to_trace(monotonic_ns: Int64) -> Int64:
            return monotonic_ns + offset

    known = next((column for column in (trace.ranges.thread, trace.api.thread) if len(column)), None)
    above = 0 if known is None else int(known[0]) >> 2 * PID_SHIFT << 2 * PID_SHIFT  # bits above the process id
    together = probe.together
    if together is not None:
        together = replace(together, time_ns=to_trace(together.time_ns), thread=together.thread | above)
    holder = samples.gil_holder
    return replace(
        probe,
        together=together,
        samples=replace(
            samples,
            time_ns=to_trace(samples.time_ns),
            thread=samples.thread | above,
            gil_holder=(holder | above) * (holder > 0),
        ),
        events=replace(
            events,
            start_ns=to_trace(events.start_ns),
            end_ns=to_trace(events.end_ns),
            thread=events.thread | above,
        ),
    )
