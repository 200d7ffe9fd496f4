"""When a trace began: by the marks of its recorder, its tracer, or the start of the session."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfharness.analysis.timeline.clock import SESSION_START_ERROR_NS, clock_findings, tie_trace_clock
from perfharness.model import conventions
from perfharness.model import nsys_schema as schema
from perfharness.model.telemetry import ClockTieRecord
from perfharness.model.trace import Trace, TraceClock
from tests.support.trace_builder import TraceBuilder

UTC = 1_700_000_000_000_000_000
BOOT = 5_000_000_000_000
"""The monotonic clock at trace time 0."""
MACHINE = ClockTieRecord(offset_ns=UTC - BOOT, error_ns=60)
S = 1_000_000_000

Row = tuple[int, list[int], int]
"""A row of marks: when it begins, how long after its reading each is made, what the clock had drifted by."""


def tied(
    folder: Path,
    *rows: Row,
    machine: ClockTieRecord | None = MACHINE,
    session_start: int | None = UTC,
    origin: int | None = None,
) -> TraceClock:
    """The clock of a trace whose marks are 1 us apart, each row of a thread of its own."""
    clock = tie_trace_clock(marked(folder, *rows, session_start=session_start, origin=origin), machine)
    assert clock is not None
    return clock


def marked(folder: Path, *rows: Row, session_start: int | None = None, origin: int | None = None) -> Trace:
    builder = TraceBuilder()
    builder.range("batch", 0, 10)
    for tid, (first_ns, delays, drift_ns) in enumerate(rows, 1):
        for place, delay in enumerate(delays):
            at = first_ns + 1_000 * place
            payload = at + BOOT + drift_ns - delay
            builder.mark(conventions.MARK_CLOCK, at, domain="perfharness", category="toy", payload=payload, tid=tid)
    if origin is not None:
        builder.row(schema.TABLE_PERFHARNESS, name=schema.META_CLOCK_ORIGIN_NS, value=str(origin))
    if session_start is not None:
        builder.row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=session_start)
    return builder.analysis(folder).trace


#   reading        |------ delay ------|            made between its reading and the next one's
#   mark                               |
#   next reading                             |
# Upper bounds of the tie are by the delays, lower ones by 1000 less the next delay: -90, and 1000 - 930 = 70.
TIES: dict[str, tuple[tuple[Row, ...], dict[str, int], tuple[str, int, int | None, int | None]]] = {
    # name: (marks, what else is known, (source, origin, error, how far off the session's start is))
    "the tightest of a row": (((7_000, [400, 90, 120, 930], 0),), {}, ("marks", UTC - 10, 80 + 60, 10)),
    "by the tracer": ((), {"origin": BOOT, "session_start": UTC + 5_000}, ("tracer", UTC, None, 5_000)),
    "nothing else": ((), {}, ("session_start", UTC, SESSION_START_ERROR_NS, None)),
    "a single mark bounds one side only": (((0, [100], 0),), {}, ("session_start", UTC, SESSION_START_ERROR_NS, None)),
}


@pytest.mark.parametrize("name", TIES)
def test_the_tie_of_a_trace(name: str, tmp_path: Path) -> None:
    rows, facts, (source, origin, error, off) = TIES[name]
    clock = tied(tmp_path, *rows, **facts)  # type: ignore[arg-type]
    assert (clock.source, clock.unix_origin_ns, clock.session_start_off_ns) == (source, origin, off)
    assert error in (None, clock.error_ns)
    assert clock.to_unix(np.array([3])).tolist() == [origin + 3]


def test_without_the_machine_s_clock_or_any_time(tmp_path: Path) -> None:
    marks = (0, [100, 100], 0)
    assert tied(tmp_path, marks, machine=None).source == "session_start"
    assert tie_trace_clock(marked(tmp_path), MACHINE) is None
    assert not list(clock_findings(None))


def test_rows_of_threads_that_interleave_are_told_apart(tmp_path: Path) -> None:
    clock = tied(tmp_path, (0, [100, 100, 900], 0), (500, [300, 300, 700], 0))
    assert len(clock.trace_ns) == 2
    assert abs(clock.unix_origin_ns - UTC) <= clock.error_ns


@given(delays=st.lists(st.integers(1, 999), min_size=2, max_size=12))
def test_the_truth_lies_within_the_stated_error(delays: list[int], tmp_path_factory: pytest.TempPathFactory) -> None:
    clock = tied(tmp_path_factory.mktemp("trace"), (0, delays, 0))
    assert abs(clock.unix_origin_ns - UTC) <= clock.error_ns


@pytest.mark.parametrize(
    ("drift_ns", "start_off_ns", "told"),
    [(-3_000_000, 2 * S, ["-3.000 ms", "+2000.000 ms"]), (400, 0, [])],
)
def test_a_drift_is_followed_and_told(drift_ns: int, start_off_ns: int, told: list[str], tmp_path: Path) -> None:
    rows = (0, [500, 500], 0), (10 * S, [500, 500], drift_ns)
    clock = tied(tmp_path, *rows, session_start=UTC + start_off_ns)
    assert clock.drift_ns == drift_ns
    times = np.array([-1, 0, 5 * S, 10 * S, 20 * S])
    drifts = clock.to_unix(times) - times - UTC
    assert drifts.tolist() == [0, 0, drift_ns // 2, drift_ns, drift_ns]
    findings = sorted((finding.message, finding.code) for finding in clock_findings(clock))
    assert {code for _, code in findings} <= {"clock-uncertain"}
    assert len(findings) == len(told)
    assert all(any(figure in message for message, _ in findings) for figure in told)
