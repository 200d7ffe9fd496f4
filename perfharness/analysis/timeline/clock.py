"""Offset of a trace's clock to the machine's monotonic clock, and so to UTC, with its error.

A recorder reads CLOCK_MONOTONIC and then makes a mark with the reading, several times in a row. Each mark lies between
its own reading and the next, which bounds the offset on both sides (docs/guides/telemetry.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from perfharness.model import conventions
from perfharness.model.columns import Int64
from perfharness.model.findings import Finding, Severity
from perfharness.model.telemetry import ClockTieRecord
from perfharness.model.trace import ClockSource, Trace, TraceClock
from perfharness.trace.names import code_of

ROW_GAP_NS = 10_000_000
"""Largest distance between readings of one row of marks."""

TRACER_ERROR_NS = 1_000
"""Error of the embedded tracer, which uses that clock; CUPTI's timestamps are estimated to be within this."""

SESSION_START_ERROR_NS = 1_000_000
"""Assumed if not measured; measured session starts of nsys were less than 1 µs off."""

REPORTED_NS = 1_000_000
"""Drift, or error of the session start, above which it is reported."""


def tie_trace_clock(trace: Trace, machine: ClockTieRecord | None) -> TraceClock | None:
    """Tie a trace's clock to UTC; None if the trace has no UTC time. `machine`: UTC against the monotonic clock during
    the run; without it, the session start is used.
    """
    start = trace.meta.session_start_unix_ns
    source, (trace_ns, offset_ns, error_ns) = _anchors(trace)
    if machine is not None and len(trace_ns):
        return TraceClock(
            source=source,
            trace_ns=trace_ns,
            unix_ns=trace_ns + offset_ns + machine.offset_ns,
            error_ns=int(error_ns.max()) + machine.error_ns,
            drift_ns=int(offset_ns[-1] - offset_ns[0]) if len(offset_ns) > 1 else None,
            session_start_off_ns=None if start is None else start - int(offset_ns[0]) - machine.offset_ns,
        )
    if start is None:
        return None
    zero = np.zeros(1, dtype=np.int64)
    return TraceClock("session_start", zero, zero + start, SESSION_START_ERROR_NS)


def monotonic_offset(trace: Trace) -> tuple[int, int] | None:
    """CLOCK_MONOTONIC minus the trace's clock, and the error; None if unknown."""
    if trace.meta.monotonic_origin_ns is not None:
        return trace.meta.monotonic_origin_ns, TRACER_ERROR_NS
    _, (_, offset_ns, error_ns) = _anchors(trace)
    if not len(offset_ns):
        return None
    best = int(error_ns.argmin())
    return int(offset_ns[best]), int(error_ns[best] + np.ptp(offset_ns))


def monotonic_tie(trace: Trace) -> Callable[[Int64], Int64] | None:
    """A function from CLOCK_MONOTONIC to the trace's clock; None if the offset is unknown."""
    _, (trace_ns, offset_ns, _) = _anchors(trace)
    if not len(offset_ns):
        return None

    def to_trace(monotonic_ns: Int64) -> Int64:
        moved = np.interp(monotonic_ns, trace_ns + offset_ns, offset_ns - offset_ns[0])
        return np.asarray(monotonic_ns - offset_ns[0] - np.rint(moved).astype(np.int64))

    return to_trace


def clock_findings(clock: TraceClock | None) -> Iterator[Finding]:
    """Report a drifting clock and a wrong session start."""
    if clock is None:
        return
    if clock.drift_ns is not None and abs(clock.drift_ns) > REPORTED_NS:
        yield Finding(
            "clock-uncertain",
            Severity.WARNING,
            f"the trace's clock drifted by {clock.drift_ns / 1e6:+.3f} ms against the machine's during the run, so "
            "durations, and telemetry's times at its end, are wrong by that share",
            "check whether the machine's clock was being adjusted (chronyc tracking, timedatectl)",
        )
    off = clock.session_start_off_ns
    if off is not None and abs(off) > REPORTED_NS:
        yield Finding(
            "clock-uncertain",
            Severity.NOTE,
            f"the trace's own session start is {off / 1e6:+.3f} ms off; times of day use the recorder's marks "
            f"instead, with an error of {clock.error_ns / 1e3:.1f} µs",
        )


def _anchors(trace: Trace) -> tuple[ClockSource, Int64]:
    """Trace time, offset (monotonic minus trace) and error of each row of clock marks, by time; without marks, of the
    origin written by the embedded tracer.
    """
    marks = trace.marks
    which = np.flatnonzero((marks.name == code_of(trace.names, conventions.MARK_CLOCK)) & marks.has_payload)
    order = which[np.lexsort((marks.time_ns[which], marks.category[which], marks.thread[which]))]
    thread, category = marks.thread[order], marks.category[order]
    times, readings = marks.time_ns[order], marks.payload[order]
    new_row = (np.diff(thread) != 0) | (np.diff(category) != 0) | (np.diff(readings) > ROW_GAP_NS)
    found = []
    for row in np.split(np.arange(len(order)), np.flatnonzero(new_row) + 1):
        if len(row) > 1:
            # Each pair of marks gives: reading[k] - time[k] <= offset <= reading[k + 1] - time[k].
            least = int((readings[row] - times[row]).max())
            most = int((readings[row[1:]] - times[row[:-1]]).min())
            found.append((int(times[row[0]]), (least + most) // 2, max(1, (abs(most - least) + 1) // 2)))
    source: ClockSource = "marks"
    if not found and trace.meta.monotonic_origin_ns is not None:
        source, found = "tracer", [(0, trace.meta.monotonic_origin_ns, TRACER_ERROR_NS)]
    return source, np.asarray(sorted(found, key=lambda one: one[0]), dtype=np.int64).reshape(-1, 3).T
