"""The offset of a trace's clock to the machine's monotonic clock, and so to UTC, with its error.

A recorder reads CLOCK_MONOTONIC and then makes a mark that carries the reading, several times in a row. Each mark was
made between its own reading and the next, which bounds the offset from both sides (docs/guides/telemetry.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from perfharness.model import conventions
from perfharness.model.findings import Finding, Severity
from perfharness.model.telemetry import ClockTieRecord
from perfharness.model.trace import ClockSource, Int64, Trace, TraceClock
from perfharness.trace.names import code_of

ROW_GAP_NS = 10_000_000
"""Readings further apart belong to different rows of marks."""

TRACER_ERROR_NS = 1_000
"""The embedded tracer stamps with that clock; CUPTI's stamps are estimated to be within this."""

SESSION_START_ERROR_NS = 1_000_000
"""Stated if nothing was measured; where it was, nsys's session start was less than 1 µs off."""

REPORTED_NS = 1_000_000
"""A larger drift or error of the session start is reported."""


@dataclass(frozen=True)
class _Anchor:
    """One row of marks: at `trace_ns` the monotonic clock was `trace_ns + offset_ns`, within `error_ns`."""

    trace_ns: int
    offset_ns: int
    error_ns: int


def tie_trace_clock(trace: Trace, machine: ClockTieRecord | None) -> TraceClock | None:
    """UTC of a trace's moments; None if the trace has no UTC time. `machine`: UTC against the monotonic clock during
    the run; without it, only the session start is left.
    """
    start = trace.meta.session_start_unix_ns
    source, anchors = _anchors(trace)
    if machine is not None and anchors:
        trace_ns = np.asarray([anchor.trace_ns for anchor in anchors], dtype=np.int64)
        offset_ns = np.asarray([anchor.offset_ns + machine.offset_ns for anchor in anchors], dtype=np.int64)
        return TraceClock(
            source=source,
            trace_ns=trace_ns,
            unix_ns=trace_ns + offset_ns,
            error_ns=max(anchor.error_ns for anchor in anchors) + machine.error_ns,
            drift_ns=int(offset_ns[-1] - offset_ns[0]) if len(anchors) > 1 else None,
            session_start_off_ns=None if start is None else start - int(offset_ns[0]),
        )
    if start is None:
        return None
    zero = np.zeros(1, dtype=np.int64)
    return TraceClock("session_start", zero, zero + start, SESSION_START_ERROR_NS)


def monotonic_offset(trace: Trace) -> tuple[int, int] | None:
    """CLOCK_MONOTONIC less the trace's own clock, and its error; None if it is not known."""
    if trace.meta.monotonic_origin_ns is not None:
        return trace.meta.monotonic_origin_ns, TRACER_ERROR_NS
    _, anchors = _anchors(trace)
    if not anchors:
        return None
    best = min(anchors, key=lambda anchor: anchor.error_ns)
    drift = max(anchor.offset_ns for anchor in anchors) - min(anchor.offset_ns for anchor in anchors)
    return best.offset_ns, best.error_ns + drift


def monotonic_tie(trace: Trace) -> Callable[[Int64], Int64] | None:
    """A function from CLOCK_MONOTONIC to the trace's own clock; None if the offset is not known."""
    _, anchors = _anchors(trace)
    if not anchors:
        return None
    offset_ns = np.asarray([anchor.offset_ns for anchor in anchors], dtype=np.int64)
    at_ns = np.asarray([anchor.trace_ns for anchor in anchors], dtype=np.int64) + offset_ns

    def to_trace(monotonic_ns: Int64) -> Int64:
        moved = np.interp(monotonic_ns, at_ns, offset_ns - offset_ns[0])
        trace_ns: Int64 = monotonic_ns - offset_ns[0] - np.rint(moved).astype(np.int64)
        return trace_ns

    return to_trace


def clock_findings(clock: TraceClock | None) -> list[Finding]:
    """Report a drifting clock and a wrong session start."""
    if clock is None:
        return []
    findings, off = [], clock.session_start_off_ns
    if clock.drift_ns is not None and abs(clock.drift_ns) > REPORTED_NS:
        findings.append(
            Finding(
                "trace-clock-drift",
                Severity.WARNING,
                f"the trace's clock moved by {clock.drift_ns / 1e6:+.3f} ms against the machine's during the run, so "
                "durations are wrong by that share, and so are telemetry's times at its end",
                "see whether the machine's clock was being set (chronyc tracking, timedatectl)",
            )
        )
    if off is not None and abs(off) > REPORTED_NS:
        findings.append(
            Finding(
                "trace-session-start-off",
                Severity.NOTE,
                f"the trace's own session start is {off / 1e6:+.3f} ms off; times of day are by the recorder's marks "
                f"instead, to {clock.error_ns / 1e3:.1f} µs",
            )
        )
    return findings


def _anchors(trace: Trace) -> tuple[ClockSource, list[_Anchor]]:
    """One for each row of clock marks, in order of time; without any, the origin that the embedded tracer wrote."""
    marks = trace.marks
    which = np.flatnonzero((marks.name == code_of(trace.names, conventions.MARK_CLOCK)) & marks.has_payload)
    order = which[np.lexsort((marks.time_ns[which], marks.category[which], marks.thread[which]))]
    thread, category = marks.thread[order], marks.category[order]
    times, readings = marks.time_ns[order], marks.payload[order]
    new_row = (np.diff(thread) != 0) | (np.diff(category) != 0) | (np.diff(readings) > ROW_GAP_NS)
    rows = np.split(np.arange(len(order)), np.flatnonzero(new_row) + 1)
    found = [_anchor(times[row], readings[row]) for row in rows if len(row) > 1]
    if not found and trace.meta.monotonic_origin_ns is not None:
        return "tracer", [_Anchor(0, trace.meta.monotonic_origin_ns, TRACER_ERROR_NS)]
    return "marks", sorted(found, key=lambda anchor: anchor.trace_ns)


def _anchor(times_ns: Int64, readings_ns: Int64) -> _Anchor:
    """The offset (monotonic less trace) that all marks of a row agree on: reading[k] - time[k] <= offset <= reading[k +
    1] - time[k].
    """
    least = int((readings_ns - times_ns).max())
    most = int((readings_ns[1:] - times_ns[:-1]).min())
    offset = (least + most) // 2
    return _Anchor(int(times_ns[0]), offset, max(1, (abs(most - least) + 1) // 2))
