"""What a trace lost is found out from the trace; what it did not lose is not held against it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.timeline.projection import RangeTable
from perfharness.model import nsys_schema as schema
from perfharness.trace import open_trace
from tests.support.trace_builder import TraceBuilder


def table_of(builder: TraceBuilder, tmp_path: Path) -> RangeTable:
    return Analysis(open_trace(builder.write(tmp_path / "t.sqlite"))).table


def errors(table: RangeTable) -> set[str]:
    return {finding.code for finding in table.findings if finding.severity.value == "error"}


def lost_kernel(builder: TraceBuilder) -> None:
    builder.range("whole", 0, 10)
    builder.kernel((1, 2), (20, 30))
    builder.range("partial", 20, 30)
    builder.call("cudaLaunchKernel_v7000", 21, 22)


def failed_launch(builder: TraceBuilder) -> None:
    builder.range("stage", 0, 10)
    builder.call("cudaLaunchKernel_v7000", 1, 2, result=98)


def captured_launches(builder: TraceBuilder) -> None:
    builder.range("capture", 0, 10)
    builder.call("cudaStreamBeginCapture_v10000", 1, 2)
    builder.call("cudaLaunchKernel_v7000", 3, 4)
    builder.call("cudaStreamEndCapture_v10000", 5, 6)
    builder.range("replay", 20, 30)
    builder.operation(40, 50, builder.call("cudaGraphLaunch_v10000", 21, 22), table=schema.TABLE_GRAPH)


def driver_launch_inside(builder: TraceBuilder) -> None:
    """Only the inner call carries the kernel; the outer one is no loss."""
    builder.range("stage", 0, 10)
    builder.call("cudaLaunchKernelExC_v11060", 1, 6)
    builder.operation(20, 30, builder.call("cuLaunchKernelEx", 2, 5))


def lost_table_of_copies(builder: TraceBuilder) -> None:
    builder.range("upload", 0, 10)
    builder.call("cudaMemcpyAsync_v3020", 1, 2)
    builder.range("infer", 20, 30)
    builder.kernel((21, 22), (40, 50))


def copy_of_nothing(builder: TraceBuilder) -> None:
    builder.range("upload", 0, 10)
    builder.call("cudaMemcpyAsync_v3020", 1, 2)
    builder.operation(20, 30, builder.call("cudaMemcpyAsync_v3020", 3, 4), table=schema.TABLE_MEMCPY)


def kernel_without_call(builder: TraceBuilder) -> None:
    builder.range("stage", 0, 10)
    builder.kernel((1, 2), (20, 30))
    builder.operation(40, 50, 999)


def silent_stages(silent: int, calls_to_the_end: bool = False) -> Callable[[TraceBuilder], None]:
    def content(builder: TraceBuilder) -> None:
        for index in range(4 + silent):
            start = 100 * index
            builder.range("infer", start, start + 50)
            builder.range("write", start + 60, start + 90)
            if index < 4 or calls_to_the_end:
                builder.kernel((start + 1, start + 2), (start + 10, start + 20))

    return content


def cpu_stages_at_the_end(builder: TraceBuilder) -> None:
    builder.range("infer", 0, 50)
    builder.kernel((1, 2), (10, 20))
    for index in range(10):
        builder.range("postprocess", 100 + 10 * index, 105 + 10 * index)


def dropped_records(builder: TraceBuilder) -> None:
    builder.range("stage", 0, 10)
    builder.row(schema.TABLE_PERFHARNESS, name=schema.META_CUDA_TRACED, value="yes")
    builder.row(schema.TABLE_PERFHARNESS, name=schema.META_DROPPED_RECORDS, value="17")


@pytest.mark.parametrize(
    ("content", "code", "known"),
    [
        (lost_kernel, "trace-missing-kernels", [True, False]),
        (failed_launch, None, [True]),
        (captured_launches, None, [True, True]),
        (driver_launch_inside, None, [True]),
        (lost_table_of_copies, "trace-missing-copies", [False, True]),
        (copy_of_nothing, None, [True]),
        (kernel_without_call, "trace-missing-calls", [True]),
        # What ended before the last recorded call can be trusted; what ended after it cannot.
        (silent_stages(5), "trace-cuda-calls-stop", [True] * 6 + [False] * 12),
        (silent_stages(2), None, [True] * 12),  # a pipeline that winds down
        (silent_stages(5, calls_to_the_end=True), None, [True] * 18),
        (cpu_stages_at_the_end, None, [True] * 11),
        (dropped_records, "trace-dropped-records", [True]),
    ],
)
def test_what_is_lost_and_what_is_not(
    content: Callable[[TraceBuilder], None], code: str | None, known: list[bool], tmp_path: Path
) -> None:
    builder = TraceBuilder(cuda_traced=None if content is dropped_records else True)
    content(builder)
    table = table_of(builder, tmp_path)
    assert errors(table) == ({code} if code else set())
    assert table.gpu_known.tolist() == known
    if content in (captured_launches, driver_launch_inside):
        assert table.projection.operation_count.tolist()[-1] == 1


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


def test_ranges_after_the_last_cuda_event_of_a_process_that_nsys_lacks_the_rest_of(tmp_path: Path) -> None:
    """Process 100 was cut off at 20, after its first range; 200 has no event at all, 300 is whole."""
    builder = TraceBuilder()
    for pid in (100, 200, 300):
        for start in (0, 30):
            builder.range("stage", start, start + 15, pid=pid)
    builder.kernel((1, 2), (10, 20), pid=100)
    builder.kernel((1, 2), (10, 20), pid=300)
    for pid, text in ((100, "Not all CUDA events might have been collected."),
                      (200, "Not all CUDA events might have been collected."),
                      (300, "Not all NVTX events might have been collected.")):  # fmt: skip
        builder.row(
            "DIAGNOSTIC_EVENT", severity=2, text=text, source=3, timestamp=0, globalPid=schema.global_tid(pid, 0)
        )
    table = table_of(builder, tmp_path)
    assert table.gpu_known.tolist() == [True, False, False, False, True, True]
    assert "trace-cuda-cut-off" in errors(table)


@pytest.mark.parametrize(("has_kernel", "expected"), [(True, []), (False, ["CUDA", "CUDA"])])
def test_a_helper_without_events_is_no_complaint_about_the_process(
    has_kernel: bool, expected: list[str], tmp_path: Path
) -> None:
    """Of each rank on an H100 it was noted that no CUDA events were collected, since torchrun itself has none."""
    builder = TraceBuilder()
    builder.range("stage", 0, 30)
    if has_kernel:
        builder.kernel((1, 2), (10, 20))
    for text in (
        "CUDA profiling might have not been started correctly.", "No CUDA events collected. Does the process use CUDA?",
        "No NVTX events collected. Does the process use NVTX?",
    ):  # fmt: skip
        builder.row(
            "DIAGNOSTIC_EVENT", severity=2, text=text, source=3, timestamp=0, globalPid=schema.global_tid(99, 0)
        )
    found = [finding.message for finding in table_of(builder, tmp_path).findings if finding.code == "nsys-diagnostic"]
    assert [kind for message in found for kind in ("CUDA", "NVTX") if f"{kind} " in message] == expected


def test_nsys_s_own_complaints(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.range("stage", 0, 10)
    for severity, text in ((2, "Clock sync is poor."), (3, "Some events were lost."), (1, "Started; nothing lost.")):
        builder.row("DIAGNOSTIC_EVENT", severity=severity, text=text, source=1, timestamp=0)
    found = {finding.message: finding.severity.value for finding in table_of(builder, tmp_path).findings}
    assert found == {"nsys says: Clock sync is poor.": "note", "nsys says: Some events were lost.": "error"}
