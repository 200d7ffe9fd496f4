"""The interpreter lock as nsys writes it: evidence, and never a range."""

from __future__ import annotations

from pathlib import Path

from perfharness.model import nsys_schema as schema
from perfharness.model.host_samples import HostEventKind, HostEvents
from perfharness.model.trace import Trace, tid_of
from perfharness.trace import open_trace
from tests.support.trace_builder import TraceBuilder

HELD, WAITED = HostEventKind.GIL_HELD, HostEventKind.GIL_WAITED


def opened(builder: TraceBuilder, folder: Path) -> Trace:
    return open_trace(builder.write(folder / "t.sqlite"))


def names(trace: Trace) -> list[str]:
    return [trace.names[code] for code in trace.ranges.name.tolist()]


def rows(events: HostEvents | None) -> list[tuple[int, int, int, int]]:
    assert events is not None
    columns = (events.start_ns, events.end_ns, tid_of(events.thread), events.kind)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_stretches_become_events_in_order_of_time(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.range("stage", 0, 100)
    builder.range("Waiting for GIL", 40, 60, tid=101, domain="GIL Trace")
    builder.range("Holding GIL", 10, 60, domain="GIL Trace")
    builder.range("Holding GIL", 60, 70, tid=101, domain="GIL Trace")
    trace = opened(builder, tmp_path)
    assert names(trace) == ["stage"]
    assert rows(trace.lock_events) == [(10, 60, 100, HELD), (40, 60, 101, WAITED), (60, 70, 101, HELD)]


def test_a_user_s_ranges_of_these_names_stay_ranges(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.range("Holding GIL", 0, 5, domain="mine")
    builder.range("Holding GIL", 6, 9)
    builder.range("Holding GIL", 10, 20, domain="GIL Trace")
    builder.range("another", 20, 30, domain="GIL Trace")
    trace = opened(builder, tmp_path)
    assert names(trace) == ["Holding GIL", "Holding GIL", "another"]
    assert rows(trace.lock_events) == [(10, 20, 100, HELD)]


def test_the_embedded_tracer_writes_none(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.range("Holding GIL", 0, 5, domain="GIL Trace")
    builder.row(schema.TABLE_PERFHARNESS, name=schema.META_CUDA_TRACED, value="yes")
    trace = opened(builder, tmp_path)
    assert names(trace) == ["Holding GIL"]
    assert trace.lock_events is None


def test_a_stretch_that_was_open_at_the_end_lasts_until_then(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.range("stage", 0, 100)
    builder.range("Holding GIL", 90, None, domain="GIL Trace")
    assert rows(opened(builder, tmp_path).lock_events) == [(90, 100, 100, HELD)]


def test_a_forked_child_has_the_domain_of_its_parent(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.range("Holding GIL", 10, 20, domain="GIL Trace")
    builder.row(
        schema.TABLE_NVTX, start=30, end=40, eventType=schema.NVTX_PUSH_POP_RANGE, domainId=1,
        textId=builder.string("Holding GIL"), globalTid=schema.global_tid(200, 200),
    )  # fmt: skip
    trace = open_trace(builder.write(tmp_path / "t.sqlite"), parents={200: 100})
    assert names(trace) == []
    assert [row[:3] for row in rows(trace.lock_events)] == [(10, 20, 100), (30, 40, 200)]
