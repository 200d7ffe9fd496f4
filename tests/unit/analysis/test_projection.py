from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfharness.analysis.analysis import Analysis
from perfharness.model import nsys_schema as schema
from perfharness.trace import open_trace
from tests.support.trace_builder import TraceBuilder

RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60), st.integers(1, 2), st.booleans()), max_size=12)
KERNELS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(1, 2), st.integers(1, 2), st.integers(0, 80), st.integers(0, 20)),
    max_size=12,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(ranges=RANGES, kernels=KERNELS)
def test_projection_by_trying_all_pairs(
    tmp_path: Path, ranges: list[tuple[int, int, int, bool]], kernels: list[tuple[int, int, int, int, int]]
) -> None:
    """Ranges of two threads in two processes that share thread ids and correlation ids; calls in turn, 2 ns each."""
    builder = TraceBuilder()
    for number, (a, b, tid, start_end) in enumerate(ranges):
        builder.range(f"r{number}", min(a, b), max(a, b), tid=tid, pid=5, start_end=start_end)
    taken: set[tuple[int, int, int]] = set()
    made = {5: 0, 6: 0}  # the same correlation ids in both processes
    for slot, tid, process, start, length in kernels:
        pid = 4 + process
        if (slot, tid, pid) in taken:
            continue
        taken.add((slot, tid, pid))
        made[pid] += 1
        builder.call("cudaLaunchKernel", 2 * slot, 2 * slot + 1, tid=tid, pid=pid, correlation=made[pid])
        builder.operation(start, start + length, made[pid], pid=pid)
    trace = open_trace(builder.write(tmp_path / "t.sqlite"))
    table = Analysis(trace).table
    for i in range(len(table.ranges)):
        inside = {
            (int(trace.api.correlation[c]))
            for c in range(len(trace.api))
            if trace.api.thread[c] == table.ranges.thread[i]
            and trace.api.start_ns[c] >= table.ranges.start_ns[i]
            and trace.api.end_ns[c] <= table.ranges.end_ns[i]
        }
        process = table.ranges.thread[i] & ~0xFFFFFF
        mine = [
            (int(trace.operations.start_ns[o]), int(trace.operations.end_ns[o]))
            for o in range(len(trace.operations))
            if trace.operations.process[o] == process and int(trace.operations.correlation[o]) in inside
        ]
        if not mine:
            assert table.projection.operation_count[i] == 0
            continue
        assert table.projection.start_ns[i] == min(start for start, _ in mine)
        assert table.projection.end_ns[i] == max(end for _, end in mine)
        assert table.projection.busy_ns[i] == len({t for start, end in mine for t in range(start, end)})


def test_copies_and_compute_overlap(tmp_path: Path) -> None:
    """Two streams: a kernel [100, 200], a copy [150, 250], idle, a kernel [300, 310].

    Projected 100 … 310 = 210, busy 150 + 10 = 160.
    """
    builder = TraceBuilder()
    builder.range("stage", 0, 50)
    builder.kernel((1, 2), (100, 200))
    copy = builder.call("cudaMemcpyAsync", 3, 4)
    builder.operation(150, 250, copy, table=schema.TABLE_MEMCPY, stream=8)
    builder.kernel((5, 6), (300, 310))
    table = Analysis(open_trace(builder.write(tmp_path / "t.sqlite"))).table
    projection = table.projection
    assert (projection.end_ns - projection.start_ns).tolist() == [210]
    assert projection.busy_ns.tolist() == [160]
    assert projection.operation_count.tolist() == [3]


def test_graph_nodes_are_one_operation(tmp_path: Path) -> None:
    """As nsys counts: operations with one correlation id are one."""
    builder = TraceBuilder()
    builder.range("replay", 0, 50)
    launch = builder.call("cudaGraphLaunch_v10000", 1, 2)
    for start in (100, 200, 300):
        builder.operation(start, start + 10, launch)
    table = Analysis(open_trace(builder.write(tmp_path / "t.sqlite"))).table
    assert table.projection.operation_count.tolist() == [1]
    assert table.projection.busy_ns.tolist() == [30]


def test_work_of_another_process_with_the_same_ids_stays_out(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.range("stage", 0, 50, pid=1)
    builder.range("stage", 0, 50, pid=2)
    builder.call("cudaLaunchKernel", 1, 2, pid=1, correlation=7)
    builder.call("cudaLaunchKernel", 1, 2, pid=2, correlation=7)
    builder.operation(100, 110, 7, pid=1)
    builder.operation(500, 520, 7, pid=2)
    table = Analysis(open_trace(builder.write(tmp_path / "t.sqlite"))).table
    assert table.projection.start_ns.tolist() == [100, 500]
    assert table.projection.busy_ns.tolist() == [10, 20]


def test_a_range_that_ends_on_another_thread_gets_nothing_but_is_listed(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.range("request", 0, 50, start_end=True, end_tid=200)
    builder.kernel((1, 2), (100, 110))
    table = Analysis(open_trace(builder.write(tmp_path / "t.sqlite"))).table
    assert table.projection.operation_count.tolist() == [0]
    assert not table.gpu_known.any()
