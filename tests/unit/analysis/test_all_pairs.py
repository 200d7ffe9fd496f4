"""Traces with rows in any order, read in windows of any size: the same answers as trying all pairs."""

from __future__ import annotations

import random
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.timeline.projection import RangeTable
from perfharness.model import nsys_schema as schema
from perfharness.model.trace import Trace
from perfharness.trace import open_trace
from tests.support.trace_builder import TraceBuilder

CALL_NAMES = ("cudaLaunchKernel_v7000", "cuLaunchKernelEx", "cudaMemcpyAsync_v3020", "cudaMemsetAsync_v3020",
              "cudaStreamBeginCapture_v10000", "cudaStreamEndCapture_v10000", "cudaEventQuery_v3020")  # fmt: skip
TABLES = (schema.TABLE_KERNEL, schema.TABLE_MEMCPY, schema.TABLE_MEMSET, schema.TABLE_GRAPH)


@dataclass
class Story:
    """What happened: ranges (pid, tid, start, end, start_end, end_tid), calls (pid, tid, start, end, id, name, result),
    operations (pid, start, end, id, table)."""

    ranges: list[tuple[int, int, int, int | None, bool, int | None]] = field(default_factory=list)
    calls: list[tuple[int, int, int, int, int, str, int]] = field(default_factory=list)
    operations: list[tuple[int, int, int, int, str]] = field(default_factory=list)

    def write(self, path: Path, shuffled: random.Random | None) -> Path:
        """As a trace; `shuffled`: rows in no order."""
        builder = TraceBuilder()
        for pid, tid, start, end, start_end, end_tid in self.ranges:
            builder.range(f"r{start % 3}", start, end, pid=pid, tid=tid, start_end=start_end, end_tid=end_tid)
        for pid, tid, start, end, correlation, name, result in self.calls:
            builder.call(name, start, end, pid=pid, tid=tid, correlation=correlation, result=result)
        for pid, start, end, correlation, table in self.operations:
            builder.operation(start, end, correlation, pid=pid, table=table)
        for table, rows in builder.tables.items():
            if "start" in rows[0]:
                rows.sort(key=lambda row: row["start"])
                if shuffled and table != schema.TABLE_NVTX:
                    shuffled.shuffle(rows)
        return builder.write(path)


@st.composite
def stories(draw: st.DrawFn) -> Story:
    """Two processes that share ids, two threads each; nested, touching, overlapping, crossing and endless ranges;
    nested calls, with one id too; operations without a call and calls without an operation."""
    story = Story()
    moment = st.integers(0, 40)
    for pid in range(5, draw(st.integers(5, 6)) + 1):
        for tid in (1, 2):
            for _ in range(draw(st.integers(0, 5))):
                start, end = sorted((draw(moment), draw(moment)))
                is_open, start_end = draw(st.integers(0, 9)) == 0, draw(st.booleans())
                end_tid = 3 if start_end and draw(st.integers(0, 4)) == 0 else None
                story.ranges.append((pid, tid, start, None if is_open else end, start_end, end_tid))
            clock = 0
            for _ in range(draw(st.integers(0, 5))):
                start = clock + draw(st.integers(0, 6))
                clock = start + draw(st.integers(0, 6))
                number = draw(st.integers(1, 12)) * 4 + tid
                result = 0 if draw(st.integers(0, 5)) else 98
                story.calls.append((pid, tid, start, clock, number, draw(st.sampled_from(CALL_NAMES)), result))
                if clock - start >= 4 and draw(st.booleans()):
                    inner = number if draw(st.booleans()) else number + 100
                    story.calls.append((pid, tid, start + 1, clock - 1, inner, draw(st.sampled_from(CALL_NAMES)), 0))
        made = [call[4] for call in story.calls if call[0] == pid]
        for _ in range(draw(st.integers(0, 8))):
            begin, length = draw(st.integers(0, 60)), draw(st.integers(0, 15))
            number = draw(st.sampled_from([*made, 0, 999]))
            story.operations.append((pid, begin, begin + length, number, draw(st.sampled_from(TABLES))))
    return story


def call_of(trace: Trace, operation: int) -> int | None:
    """The call that started an operation: of several with its id the one that began last; the later row of those."""
    same = [
        call
        for call in range(len(trace.api))
        if trace.api.thread[call] & ~0xFFFFFF == trace.operations.process[operation]
        and trace.api.correlation[call] == trace.operations.correlation[operation]
    ]
    return max(same, key=lambda call: (int(trace.api.start_ns[call]), call), default=None)


def check_by_trying_all_pairs(trace: Trace, table: RangeTable) -> None:
    ranges, api, operations = trace.ranges, trace.api, trace.operations
    calls = [call_of(trace, operation) for operation in range(len(operations))]
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
    columns = (
        ranges.thread, ranges.start_ns, ranges.end_ns, ranges.style, table.gpu_known, projection.operation_count,
        np.where(worked, projection.start_ns, 0), np.where(worked, projection.end_ns, 0),
        np.where(worked, projection.busy_ns, 0),
    )  # fmt: skip
    rows = sorted(zip(*(column.tolist() for column in columns), strict=True))
    return [*map(list, rows), [(finding.code, finding.message) for finding in table.findings]]


def has_ties(story: Story) -> bool:
    """Whether two calls with one id began in the same moment: which of them is the inner one is then up to the rows."""
    keys = [(pid, start, number) for pid, _, start, _, number, _, _ in story.calls]
    return len(set(keys)) < len(keys)


CALLS_OF_ONE_MOMENT = Story(
    ranges=[(5, 1, 0, 9, False, None)],
    calls=[(5, 1, 0, 0, 5, CALL_NAMES[0], 0), (5, 1, 0, 0, 9, CALL_NAMES[0], 0)],
    operations=[(5, 0, 1, 5, TABLES[0]), (5, 0, 1, 9, TABLES[0]), (5, 0, 1, 5, TABLES[1])],
)
"""The two operations of the first call are not behind each other in the trace."""


@example(story=CALLS_OF_ONE_MOMENT, shuffle=False, seed=0)
@given(story=stories(), shuffle=st.booleans(), seed=st.integers(0, 99))
def test_a_trace_in_any_order_says_what_all_pairs_say(story: Story, shuffle: bool, seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        trace = open_trace(story.write(Path(folder) / "t.sqlite", None))
        found = Analysis(trace).table
        check_by_trying_all_pairs(trace, found)
        if shuffle and not has_ties(story):
            shuffled = open_trace(story.write(Path(folder) / "shuffled.sqlite", random.Random(seed)))
            assert answers(Analysis(shuffled).table) == answers(found)
