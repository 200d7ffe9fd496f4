"""Traces with rows in any order, read in windows of any size: the same answers as trying all pairs."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from perfharness.analysis.timeline.projection import RangeTable
from perfharness.model import nsys_schema as schema
from perfharness.model.trace import Trace
from tests.support.trace_builder import TraceBuilder

CALL_NAMES = (
    "cudaLaunchKernel_v7000", "cuLaunchKernelEx", "cudaMemcpyAsync_v3020", "cudaMemsetAsync_v3020",
    "cudaStreamBeginCapture_v10000", "cudaStreamEndCapture_v10000", "cudaEventQuery_v3020",
)  # fmt: skip
TABLES = (schema.TABLE_KERNEL, schema.TABLE_MEMCPY, schema.TABLE_MEMSET, schema.TABLE_GRAPH)


@st.composite
def builders(draw: st.DrawFn) -> TraceBuilder:
    """Two processes that share ids, two threads each; nested, touching, overlapping, crossing and endless ranges;
    nested calls, with one id too; operations without a call and calls without an operation."""
    builder, moment = TraceBuilder(), st.integers(0, 40)

    def call(start: int, end: int, number: int, result: int = 0) -> None:
        name = draw(st.sampled_from(CALL_NAMES))
        builder.call(name, start, end, pid=pid, tid=tid, correlation=number, result=result)

    for pid in range(5, draw(st.integers(5, 6)) + 1):
        made = [0, 999]
        for tid in (1, 2):
            for _ in range(draw(st.integers(0, 5))):
                start, end = sorted((draw(moment), draw(moment)))
                is_open, start_end = draw(st.integers(0, 9)) == 0, draw(st.booleans())
                end_tid = 3 if start_end and draw(st.integers(0, 4)) == 0 else None
                facts: dict[str, Any] = {"pid": pid, "tid": tid, "start_end": start_end, "end_tid": end_tid}
                builder.range(f"r{start % 3}", start, None if is_open else end, **facts)
            clock = 0
            for _ in range(draw(st.integers(0, 5))):
                start = clock + draw(st.integers(0, 6))
                clock = start + draw(st.integers(0, 6))
                number = draw(st.integers(1, 12)) * 4 + tid
                call(start, clock, number, 0 if draw(st.integers(0, 5)) else 98)
                made.append(number)
                if clock - start >= 4 and draw(st.booleans()):
                    inner = number if draw(st.booleans()) else number + 100
                    call(start + 1, clock - 1, inner)
                    made.append(inner)
        for _ in range(draw(st.integers(0, 8))):
            begin, length = draw(st.integers(0, 60)), draw(st.integers(0, 15))
            number, table = draw(st.sampled_from(made)), draw(st.sampled_from(TABLES))
            builder.operation(begin, begin + length, number, pid=pid, table=table)
    return builder


def check_by_trying_all_pairs(trace: Trace, table: RangeTable) -> None:
    ranges, api, operations = trace.ranges, trace.api, trace.operations

    def call_of(operation: int) -> int | None:
        """The call that started it: of several with its id the one that began last; the later row of those."""
        same = [
            call
            for call in range(len(api))
            if api.thread[call] & ~0xFFFFFF == operations.process[operation]
            and api.correlation[call] == operations.correlation[operation]
        ]
        return max(same, key=lambda call: (int(api.start_ns[call]), call), default=None)

    calls = [call_of(operation) for operation in range(len(operations))]
    for i in range(len(ranges)):
        inside = {
            call
            for call in calls
            if call is not None
            and api.thread[call] == ranges.thread[i]
            and not ranges.crosses_threads[i]
            and api.start_ns[call] >= ranges.start_ns[i]
            and api.end_ns[call] <= ranges.end_ns[i]
        }
        mine = [
            (int(operations.start_ns[o]), int(operations.end_ns[o])) for o, call in enumerate(calls) if call in inside
        ]
        assert table.projection.operation_count[i] == len(inside)
        if mine:
            assert table.projection.start_ns[i] == min(start for start, _ in mine)
            assert table.projection.end_ns[i] == max(end for _, end in mine)
            assert table.projection.busy_ns[i] == len({t for start, end in mine for t in range(start, end)})


def answers(table: RangeTable) -> list[list[object]]:
    """All that a table says, by start and end of the range, whatever the order of the rows."""
    ranges, projection = table.ranges, table.projection
    worked = projection.operation_count > 0
    columns = [ranges.thread, ranges.start_ns, ranges.end_ns, ranges.style, table.gpu_known, projection.operation_count]
    columns += [np.where(worked, one, 0) for one in (projection.start_ns, projection.end_ns, projection.busy_ns)]
    rows = sorted(zip(*(column.tolist() for column in columns), strict=True))
    return [*map(list, rows), [(finding.code, finding.message) for finding in table.findings]]


def calls_of_one_moment() -> TraceBuilder:
    """The two operations of the first call are not behind each other in the trace."""
    builder = TraceBuilder().add("r0 0..9 pid=5 tid=1")
    for number in (5, 9):
        builder.call(CALL_NAMES[0], 0, 0, pid=5, tid=1, correlation=number)
        builder.operation(0, 1, number, pid=5)
    builder.operation(0, 1, 5, pid=5, table=TABLES[1])
    return builder


@example(builder=calls_of_one_moment(), shuffle=False, seed=0)
@given(builder=builders(), shuffle=st.booleans(), seed=st.integers(0, 99))
def test_a_trace_in_any_order_says_what_all_pairs_say(builder: TraceBuilder, shuffle: bool, seed: int) -> None:
    calls = builder.tables.get(schema.TABLE_API, [])
    keys = {(call["globalTid"] & ~0xFFFFFF, call["start"], call["correlationId"]) for call in calls}
    for rows in builder.tables.values():
        if "start" in rows[0]:
            rows.sort(key=lambda row: row["start"])
    with tempfile.TemporaryDirectory() as folder:
        analysis = builder.analysis(Path(folder))
        check_by_trying_all_pairs(analysis.trace, analysis.table)
        if shuffle and len(keys) == len(calls):  # else it is up to the rows which of two calls is the inner one
            for table, rows in builder.tables.items():
                if "start" in rows[0] and table != schema.TABLE_NVTX:
                    random.Random(seed).shuffle(rows)
            assert answers(builder.analysis(Path(folder)).table) == answers(analysis.table)
