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
from perfharness.trace import open_trace
from tests.support.trace_builder import TraceBuilder

UTC = 1_700_000_000_000_000_000
BOOT = 5_000_000_000_000
"""The monotonic clock at trace time 0."""
MACHINE = ClockTieRecord(offset_ns=UTC - BOOT, error_ns=60)
S = 1_000_000_000


Row = tuple[int, list[int], int, int]
"""A row of marks: when it begins, how long after its reading each is made, what the clock had drifted by, thread."""


def trace_of(tmp_path: Path, *rows: Row, session_start: int | None = UTC, origin: int | None = None) -> Trace:
    """Marks 1 µs apart in trace time."""
    builder = TraceBuilder()
    builder.range("batch", 0, 10)
    for first_ns, delays, drift_ns, tid in rows:
        for at, delay in zip(range(first_ns, first_ns + 1_000 * len(delays), 1_000), delays, strict=True):
            payload = at + BOOT + drift_ns - delay
            builder.mark(conventions.MARK_CLOCK, at, domain="perfharness", category="toy", payload=payload, tid=tid)
    if origin is not None:
        builder.row(schema.TABLE_PERFHARNESS, name=schema.META_CLOCK_ORIGIN_NS, value=str(origin))
    if session_start is not None:
        builder.row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=session_start)
    return open_trace(builder.write(tmp_path / "trace.sqlite"))


def tied(trace: Trace, machine: ClockTieRecord | None = MACHINE) -> TraceClock:
    clock = tie_trace_clock(trace, machine)
    assert clock is not None
    return clock


#   reading        |------ delay ------|            made between its reading and the next one's
#   mark                               |
#   next reading                             |
def test_the_tie_is_the_tightest_of_a_row(tmp_path: Path) -> None:
    clock = tied(trace_of(tmp_path, (7_000, [400, 90, 120, 930], 0, 100)))
    # upper bounds: by the delays; lower ones: 1000 less the next delay. -90 and 1000 - 930 = 70
    assert (clock.source, clock.unix_origin_ns, clock.error_ns) == ("marks", UTC + (-90 + 70) // 2, 80 + 60)
    assert (clock.drift_ns, clock.session_start_off_ns) == (None, 10)


def test_a_drift_between_the_rows_is_followed(tmp_path: Path) -> None:
    clock = tied(trace_of(tmp_path, (0, [500, 500], 0, 100), (10 * S, [500, 500], 4_000, 100)))
    assert clock.drift_ns == 4_000
    times = np.array([-1, 0, 5 * S, 10 * S, 20 * S])
    assert (clock.to_unix(times) - times - UTC).tolist() == [0, 0, 2_000, 4_000, 4_000]


def test_rows_of_threads_that_interleave_are_told_apart(tmp_path: Path) -> None:
    clock = tied(trace_of(tmp_path, (0, [100, 100, 900], 0, 1), (500, [300, 300, 700], 0, 2)))
    assert len(clock.trace_ns) == 2
    assert abs(clock.unix_origin_ns - UTC) <= clock.error_ns


def test_the_embedded_tracer_says_its_origin(tmp_path: Path) -> None:
    clock = tied(trace_of(tmp_path, session_start=UTC + 5_000, origin=BOOT))
    assert (clock.source, clock.unix_origin_ns, clock.session_start_off_ns) == ("tracer", UTC, 5_000)


@pytest.mark.parametrize(
    ("rows", "machine"),
    [
        ((), MACHINE),
        ((), None),
        (((0, [100, 100], 0, 100),), None),  # nobody tied UTC to the monotonic clock
        (((0, [100], 0, 100),), MACHINE),  # a single mark bounds one side only
    ],
)
def test_else_there_is_the_session_start_with_a_stated_error(
    rows: tuple[Row, ...], machine: ClockTieRecord | None, tmp_path: Path
) -> None:
    clock = tied(trace_of(tmp_path, *rows), machine)
    assert (clock.source, clock.unix_origin_ns, clock.error_ns) == ("session_start", UTC, SESSION_START_ERROR_NS)
    assert clock.session_start_off_ns is None
    assert clock.to_unix(np.array([3])).tolist() == [UTC + 3]


def test_a_trace_that_does_not_tell_the_time_has_no_clock(tmp_path: Path) -> None:
    assert tie_trace_clock(trace_of(tmp_path, session_start=None), MACHINE) is None
    assert clock_findings(None) == []


@given(delays=st.lists(st.integers(1, 999), min_size=2, max_size=12))
def test_the_truth_lies_within_the_stated_error(delays: list[int], tmp_path_factory: pytest.TempPathFactory) -> None:
    clock = tied(trace_of(tmp_path_factory.mktemp("trace"), (0, delays, 0, 100)))
    assert abs(clock.unix_origin_ns - UTC) <= clock.error_ns


@pytest.mark.parametrize(
    ("drift_ns", "start_off_ns", "codes"),
    [(-3_000_000, 2 * S, ["trace-clock-drift", "trace-session-start-off"]), (300, 0, [])],
)
def test_a_drift_and_a_wrong_session_start_are_told(
    drift_ns: int, start_off_ns: int, codes: list[str], tmp_path: Path
) -> None:
    rows = (0, [500, 500], 0, 100), (10 * S, [500, 500], drift_ns, 100)
    findings = clock_findings(tied(trace_of(tmp_path, *rows, session_start=UTC + start_off_ns)))
    assert [finding.code for finding in findings] == codes
    for finding, figure in zip(findings, ("-3.000 ms", "+2000.000 ms"), strict=False):
        assert figure in finding.message
