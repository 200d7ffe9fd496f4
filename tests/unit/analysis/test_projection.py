from __future__ import annotations

from pathlib import Path

from perfharness.analysis.analysis import Analysis
from perfharness.model import nsys_schema as schema
from perfharness.trace import open_trace
from tests.support.trace_builder import TraceBuilder


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
