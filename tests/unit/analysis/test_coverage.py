"""What a trace lost is found out from the trace; what it did not lose is not held against it."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfharness.analysis.timeline.projection import RangeTable
from perfharness.model import nsys_schema as schema
from tests.support.trace_builder import TraceBuilder


def errors(table: RangeTable) -> set[str]:
    return {finding.code for finding in table.findings if finding.severity.value == "error"}


LAUNCH, COPY = "cudaLaunchKernel_v7000", "cudaMemcpyAsync_v3020"
LAUNCHES = "launch 1..2 -> 10..20 x4+100"


def pairs(count: int) -> str:
    return f"infer 0..50 x{count}+100; write 60..90 x{count}+100"


LOSSES: dict[str, tuple[str, str | None, list[bool]]] = {
    # name: (trace, error, of which ranges the GPU time is known)
    "a kernel": (
        f"whole 0..10; launch 1..2 -> 20..30; partial 20..30; {LAUNCH} 21..22",
        "trace-incomplete",
        [True, False],
    ),
    "a launch that failed": (f"stage 0..10; {LAUNCH} 1..2 result=98", None, [True]),
    "captured launches run later": (
        f"""
        capture 0..10; cudaStreamBeginCapture_v10000 1..2; {LAUNCH} 3..4; cudaStreamEndCapture_v10000 5..6
        replay 20..30; graph 21..22 -> 40..50
        """,
        None,
        [True, True],
    ),
    "a call inside another has the kernel": (
        "stage 0..10; cudaLaunchKernelExC_v11060 1..6; operation 2..5 -> 20..30",
        None,
        [True],
    ),
    "the table of copies": (
        f"upload 0..10; {COPY} 1..2; infer 20..30; launch 21..22 -> 40..50",
        "trace-incomplete",
        [False, True],
    ),
    "a copy of nothing": (f"upload 0..10; {COPY} 1..2; copy 3..4 -> 20..30", None, [True]),
    # What ended before the last recorded call can be trusted; what ended after it cannot.
    "calls stop": (f"{pairs(9)}; {LAUNCHES}", "trace-incomplete", 2 * ([True] * 3 + [False] * 6)),
    "a pipeline that winds down": (f"{pairs(6)}; {LAUNCHES}", None, [True] * 12),
    "calls to the end": (f"{pairs(9)}; launch 1..2 -> 10..20 x9+100", None, [True] * 18),
    "stages of the CPU at the end": (
        "infer 0..50; launch 1..2 -> 10..20; postprocess 100..105 x10+10",
        None,
        [True] * 11,
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_what_is_lost_and_what_is_not(name: str, tmp_path: Path) -> None:
    text, code, known = LOSSES[name]
    table = TraceBuilder().add(text).analysis(tmp_path).table
    assert errors(table) == ({code} if code else set())
    assert table.gpu_known.tolist() == known
    if "later" in name or "inside" in name:
        assert table.projection.operation_count.tolist()[-1] == 1


def test_a_call(tmp_path: Path) -> None:
    builder = TraceBuilder().add("stage 0..10; launch 1..2 -> 20..30")
    builder.operation(40, 50, 999)
    assert errors(builder.analysis(tmp_path).table) == {"trace-missing-calls"}


@pytest.mark.parametrize(
    ("says", "known", "code"),
    [
        ({schema.META_CUDA_TRACED: "yes", schema.META_DROPPED_RECORDS: "17"}, True, "trace-incomplete"),
        ({schema.META_CUDA_TRACED: "no", schema.META_CUDA_USED: "no"}, True, None),
        ({schema.META_CUDA_TRACED: "no", schema.META_CUDA_USED: "yes"}, False, "gpu-not-traced"),
    ],
)
def test_what_the_embedded_tracer_says(says: dict[str, str], known: bool, code: str | None, tmp_path: Path) -> None:
    builder = TraceBuilder(cuda_traced=None).add("stage 0..10")
    for name, value in (says | {schema.META_CUDA_UNTRACED_REASON: "torch.profiler was there"}).items():
        builder.row(schema.TABLE_PERFHARNESS, name=name, value=value)
    table = builder.analysis(tmp_path).table
    assert [finding.code for finding in table.findings] == ([code] if code else [])
    assert table.gpu_known.tolist() == [known]


def complain(builder: TraceBuilder, text: str, severity: int = 2, pid: int = 99) -> None:
    process = schema.global_tid(pid, 0)
    builder.row("DIAGNOSTIC_EVENT", severity=severity, text=text, source=3, timestamp=0, globalPid=process)


def test_ranges_after_the_last_cuda_event_of_a_process_that_nsys_lacks_the_rest_of(tmp_path: Path) -> None:
    """Process 100 was cut off at 20, after its first range; 200 has no event at all, 300 is whole."""
    builder = TraceBuilder()
    for pid, what in ((100, "CUDA"), (200, "CUDA"), (300, "NVTX")):
        builder.add(f"stage 0..15 pid={pid}; stage 30..45 pid={pid}")
        complain(builder, f"Not all {what} events might have been collected.", pid=pid)
        if pid != 200:
            builder.add(f"launch 1..2 -> 10..20 pid={pid}")
    table = builder.analysis(tmp_path).table
    assert table.gpu_known.tolist() == [True, False, False, False, True, True]
    assert "trace-incomplete" in errors(table)


@pytest.mark.parametrize(("kernel", "expected"), [("launch 1..2 -> 10..20", []), ("", ["CUDA", "CUDA"])])
def test_a_helper_without_events_is_no_complaint_about_the_process(
    kernel: str, expected: list[str], tmp_path: Path
) -> None:
    """Of each rank on an H100 it was noted that no CUDA events were collected, since torchrun itself has none."""
    builder = TraceBuilder().add(f"stage 0..30; {kernel}")
    complain(builder, "CUDA profiling might have not been started correctly.")
    complain(builder, "No CUDA events collected. Does the process use CUDA?")
    complain(builder, "No NVTX events collected. Does the process use NVTX?")
    found = [one.message for one in builder.analysis(tmp_path).table.findings if one.code == "tracer-message"]
    assert [kind for message in found for kind in ("CUDA", "NVTX") if f"{kind} " in message] == expected


def test_nsys_s_own_complaints(tmp_path: Path) -> None:
    builder = TraceBuilder().add("stage 0..10")
    for text, severity in {"Clock sync is poor.": 2, "Events were lost.": 3, "Started; nothing lost.": 1}.items():
        complain(builder, text, severity, 100)
    found = builder.analysis(tmp_path).table.findings
    severities = {finding.message.removeprefix("nsys says: "): finding.severity.value for finding in found}
    assert severities == {"Clock sync is poor.": "note", "Events were lost.": "error"}
