"""What a trace lost is found out from the trace; what it did not lose is not held against it."""

from __future__ import annotations

from pathlib import Path

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.range_table import RangeTable
from perfharness.model import nsys_schema as schema
from perfharness.testing.trace_builder import TraceBuilder
from perfharness.trace import open_trace


def table_of(builder: TraceBuilder, tmp_path: Path) -> RangeTable:
    return Analysis(open_trace(builder.write(tmp_path / "t.sqlite"))).table


def errors(table: RangeTable) -> set[str]:
    return {finding.code for finding in table.findings if finding.severity.value == "error"}


def test_a_launch_without_its_kernel(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.range("whole", 0, 10)
    builder.kernel((1, 2), (20, 30))
    builder.range("partial", 20, 30)
    builder.call("cudaLaunchKernel_v7000", 21, 22)
    table = table_of(builder, tmp_path)
    assert errors(table) == {"trace-missing-kernels"}
    assert table.gpu_known.tolist() == [True, False]


def test_a_failed_launch_starts_nothing(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.range("stage", 0, 10)
    builder.call("cudaLaunchKernel_v7000", 1, 2, result=98)
    assert errors(table_of(builder, tmp_path)) == set()


def test_launches_while_a_graph_is_captured_start_nothing(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.range("capture", 0, 10)
    builder.call("cudaStreamBeginCapture_v10000", 1, 2)
    builder.call("cudaLaunchKernel_v7000", 3, 4)
    builder.call("cudaStreamEndCapture_v10000", 5, 6)
    builder.range("replay", 20, 30)
    replay = builder.call("cudaGraphLaunch_v10000", 21, 22)
    builder.operation(40, 50, replay, table=schema.TABLE_GRAPH)
    table = table_of(builder, tmp_path)
    assert errors(table) == set()
    assert table.projection.operation_count.tolist() == [0, 1]


def test_a_runtime_launch_around_its_driver_launch(tmp_path: Path) -> None:
    """Only the inner call carries the kernel; the outer one is no loss."""
    builder = TraceBuilder()
    builder.range("stage", 0, 10)
    builder.call("cudaLaunchKernelExC_v11060", 1, 6)
    inner = builder.call("cuLaunchKernelEx", 2, 5)
    builder.operation(20, 30, inner)
    table = table_of(builder, tmp_path)
    assert errors(table) == set()
    assert table.projection.operation_count.tolist() == [1]


def test_copies_whose_table_is_gone(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.range("upload", 0, 10)
    builder.call("cudaMemcpyAsync_v3020", 1, 2)
    builder.range("infer", 20, 30)
    builder.kernel((21, 22), (40, 50))
    table = table_of(builder, tmp_path)
    assert errors(table) == {"trace-missing-copies"}
    assert table.gpu_known.tolist() == [False, True]


def test_one_copy_of_nothing_is_no_loss(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.range("upload", 0, 10)
    builder.call("cudaMemcpyAsync_v3020", 1, 2)
    copy = builder.call("cudaMemcpyAsync_v3020", 3, 4)
    builder.operation(20, 30, copy, table=schema.TABLE_MEMCPY)
    assert errors(table_of(builder, tmp_path)) == set()


def test_a_kernel_without_its_call(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.range("stage", 0, 10)
    builder.kernel((1, 2), (20, 30))
    builder.operation(40, 50, 999)
    assert errors(table_of(builder, tmp_path)) == {"trace-missing-calls"}


def stages_with_calls(silent: int, calls_to_the_end: bool = False) -> TraceBuilder:
    builder = TraceBuilder()
    total = 4 + silent
    for index in range(total):
        start = 100 * index
        builder.range("infer", start, start + 50)
        builder.range("write", start + 60, start + 90)
        if index < 4 or calls_to_the_end:
            builder.kernel((start + 1, start + 2), (start + 10, start + 20))
    return builder


def test_cuda_calls_that_stop_while_ranges_go_on(tmp_path: Path) -> None:
    table = table_of(stages_with_calls(silent=5), tmp_path)
    assert errors(table) == {"trace-cuda-calls-stop"}
    names = ["infer", "write"] * 9
    # What ended before the last recorded call can be trusted; what ended after it cannot.
    assert table.gpu_known.tolist() == [True] * 6 + [False] * 12
    assert len(names) == len(table.gpu_known)


def test_a_pipeline_that_winds_down_is_no_loss(tmp_path: Path) -> None:
    assert errors(table_of(stages_with_calls(silent=2), tmp_path)) == set()
    assert errors(table_of(stages_with_calls(silent=5, calls_to_the_end=True), tmp_path)) == set()


def test_cpu_stages_after_the_last_call_are_no_loss(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.range("infer", 0, 50)
    builder.kernel((1, 2), (10, 20))
    for index in range(10):
        builder.range("postprocess", 100 + 10 * index, 105 + 10 * index)
    assert errors(table_of(builder, tmp_path)) == set()


def test_dropped_records_of_the_embedded_tracer(tmp_path: Path) -> None:
    builder = TraceBuilder(cuda_traced=None)
    builder.range("stage", 0, 10)
    builder.row(schema.TABLE_PERFHARNESS, name=schema.META_CUDA_TRACED, value="yes")
    builder.row(schema.TABLE_PERFHARNESS, name=schema.META_DROPPED_RECORDS, value="17")
    table = table_of(builder, tmp_path)
    assert errors(table) == {"trace-dropped-records"}
    assert "17" in table.findings[0].message


def test_an_embedded_trace_without_cupti(tmp_path: Path) -> None:
    def coverage(cuda_used: str) -> tuple[bool, set[str]]:
        builder = TraceBuilder(cuda_traced=None)
        builder.range("stage", 0, 10)
        builder.row(schema.TABLE_PERFHARNESS, name=schema.META_CUDA_TRACED, value="no")
        builder.row(schema.TABLE_PERFHARNESS, name=schema.META_CUDA_UNTRACED_REASON, value="torch.profiler was there")
        builder.row(schema.TABLE_PERFHARNESS, name=schema.META_CUDA_USED, value=cuda_used)
        table = table_of(builder, tmp_path)
        return bool(table.gpu_known.all()), {finding.code for finding in table.findings}

    assert coverage("no") == (True, set())
    assert coverage("yes") == (False, {"gpu-not-traced"})


def test_nsys_s_own_complaints(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.range("stage", 0, 10)
    builder.row("DIAGNOSTIC_EVENT", severity=2, text="Clock sync is poor.", source=1, timestamp=0)
    builder.row("DIAGNOSTIC_EVENT", severity=3, text="Some events were lost.", source=1, timestamp=0)
    builder.row("DIAGNOSTIC_EVENT", severity=1, text="Profiling has started; nothing lost.", source=1, timestamp=0)
    found = {finding.message: finding.severity.value for finding in table_of(builder, tmp_path).findings}
    assert found == {"nsys says: Clock sync is poor.": "note", "nsys says: Some events were lost.": "error"}
