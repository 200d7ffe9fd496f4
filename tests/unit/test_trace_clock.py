from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfharness.analysis.trace_clock import SESSION_START_ERROR_NS, clock_findings, tie_trace_clock
from perfharness.model import conventions
from perfharness.model import nsys_schema as schema
from perfharness.model.telemetry import ClockTieRecord
from perfharness.model.trace import Trace
from perfharness.testing.trace_builder import TraceBuilder
from perfharness.trace import open_trace

UTC = 1_700_000_000_000_000_000
BOOT = 5_000_000_000_000
"""The monotonic clock at trace time 0."""
MACHINE = ClockTieRecord(offset_ns=UTC - BOOT, error_ns=60)
S = 1_000_000_000


def row_of_marks(builder: TraceBuilder, first_ns: int, delays: list[int], drift_ns: int = 0, **where: int) -> int:
    """Marks 1 µs apart in trace time, each made so long after its reading; what the clock had drifted by then."""
    for place, delay in enumerate(delays):
        at = first_ns + 1_000 * place
        reading = at + BOOT + drift_ns - delay
        builder.mark(conventions.MARK_CLOCK, at, domain="perfharness", category="toy", payload=reading, **where)
    return len(delays)


def read(builder: TraceBuilder, tmp_path: Path, *, session_start: int | None = UTC) -> Trace:
    if session_start is not None:
        builder.row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=session_start)
    return open_trace(builder.write(tmp_path / "trace.sqlite"))


#   reading        |------ delay ------|            made between its reading and the next one's
#   mark                               |
#   next reading                             |
def test_the_tie_is_the_tightest_of_a_row(tmp_path: Path) -> None:
    builder = TraceBuilder()
    row_of_marks(builder, 7_000, [400, 90, 120, 930])
    clock = tie_trace_clock(read(builder, tmp_path), MACHINE)
    assert clock is not None
    # upper bounds: by the delays; lower ones: 1000 less the next delay. -90 and 1000 - 930 = 70
    assert clock.source == "marks"
    assert clock.unix_origin_ns == UTC + (-90 + 70) // 2
    assert clock.error_ns == 80 + 60
    assert clock.drift_ns is None
    assert clock.session_start_off_ns == 10
    assert abs(clock.unix_origin_ns - UTC) <= clock.error_ns


def test_a_drift_between_the_rows_is_followed(tmp_path: Path) -> None:
    builder = TraceBuilder()
    row_of_marks(builder, 0, [500, 500])
    row_of_marks(builder, 10 * S, [500, 500], drift_ns=4_000)
    clock = tie_trace_clock(read(builder, tmp_path), MACHINE)
    assert clock is not None
    assert clock.drift_ns == 4_000
    times = np.array([-1, 0, 5 * S, 10 * S, 20 * S])
    assert (clock.to_unix(times) - times - UTC).tolist() == [0, 0, 2_000, 4_000, 4_000]


def test_rows_of_threads_that_interleave_are_told_apart(tmp_path: Path) -> None:
    builder = TraceBuilder()
    row_of_marks(builder, 0, [100, 100, 900], tid=1)
    row_of_marks(builder, 500, [300, 300, 700], tid=2)
    clock = tie_trace_clock(read(builder, tmp_path), MACHINE)
    assert clock is not None
    assert len(clock.trace_ns) == 2
    assert abs(clock.unix_origin_ns - UTC) <= clock.error_ns


def test_the_embedded_tracer_says_its_origin(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.range("batch", 0, 10)
    builder.row(schema.TABLE_PERFHARNESS, name=schema.META_CLOCK_ORIGIN_NS, value=str(BOOT))
    clock = tie_trace_clock(read(builder, tmp_path, session_start=UTC + 5_000), MACHINE)
    assert clock is not None
    assert clock.source == "tracer"
    assert clock.unix_origin_ns == UTC
    assert clock.session_start_off_ns == 5_000


@pytest.mark.parametrize("machine", [MACHINE, None])
def test_without_marks_there_is_the_session_start_with_a_stated_error(
    tmp_path: Path, machine: ClockTieRecord | None
) -> None:
    builder = TraceBuilder()
    builder.range("batch", 0, 10)
    clock = tie_trace_clock(read(builder, tmp_path), machine)
    assert clock is not None
    assert (clock.source, clock.unix_origin_ns, clock.error_ns) == ("session_start", UTC, SESSION_START_ERROR_NS)
    assert clock.session_start_off_ns is None
    assert clock.to_unix(np.array([3])).tolist() == [UTC + 3]


def test_marks_do_not_help_where_nobody_tied_utc_to_the_monotonic_clock(tmp_path: Path) -> None:
    builder = TraceBuilder()
    row_of_marks(builder, 0, [100, 100])
    clock = tie_trace_clock(read(builder, tmp_path), None)
    assert clock is not None
    assert clock.source == "session_start"


def test_a_trace_that_does_not_tell_the_time_has_no_clock(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.range("batch", 0, 10)
    assert tie_trace_clock(read(builder, tmp_path, session_start=None), MACHINE) is None


def test_a_single_mark_bounds_one_side_only_and_is_left(tmp_path: Path) -> None:
    builder = TraceBuilder()
    row_of_marks(builder, 0, [100])
    clock = tie_trace_clock(read(builder, tmp_path), MACHINE)
    assert clock is not None
    assert clock.source == "session_start"


@given(delays=st.lists(st.integers(1, 999), min_size=2, max_size=12))
def test_the_truth_lies_within_the_stated_error(delays: list[int], tmp_path_factory: pytest.TempPathFactory) -> None:
    builder = TraceBuilder()
    row_of_marks(builder, 0, delays)
    clock = tie_trace_clock(read(builder, tmp_path_factory.mktemp("trace")), MACHINE)
    assert clock is not None
    assert abs(clock.unix_origin_ns - UTC) <= clock.error_ns


def test_a_drift_and_a_wrong_session_start_are_told(tmp_path: Path) -> None:
    builder = TraceBuilder()
    row_of_marks(builder, 0, [500, 500])
    row_of_marks(builder, 10 * S, [500, 500], drift_ns=-3_000_000)
    clock = tie_trace_clock(read(builder, tmp_path, session_start=UTC + 2 * S), MACHINE)
    findings = clock_findings(clock)
    assert [finding.code for finding in findings] == ["trace-clock-drift", "trace-session-start-off"]
    assert "-3.000 ms" in findings[0].message
    assert "+2000.000 ms" in findings[1].message
    assert clock_findings(None) == []


def test_a_clock_as_it_should_be_needs_no_word(tmp_path: Path) -> None:
    builder = TraceBuilder()
    row_of_marks(builder, 0, [500, 500])
    row_of_marks(builder, 10 * S, [500, 500], drift_ns=300)
    assert clock_findings(tie_trace_clock(read(builder, tmp_path), MACHINE)) == []
