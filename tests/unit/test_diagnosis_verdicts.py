"""Each verdict provoked by construction, and its opposite not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from perfharness.analysis.analysis import Analysis, AnalysisOptions
from perfharness.analysis.diagnosis import ALONE, OtherProcesses, diagnose
from perfharness.analysis.timeline import BusyLine
from perfharness.model import nsys_schema as schema
from perfharness.model.diagnosis import Diagnosis, StageDiagnosis, Verdict
from perfharness.testing.trace_builder import TraceBuilder
from perfharness.trace import open_trace

US = 1000
BATCH = 1000 * US
BATCHES = 12

Content = Callable[[TraceBuilder, int], None]


def diagnosed(builder: TraceBuilder, path: Path, warmup: int = 0, others: OtherProcesses = ALONE) -> Diagnosis:
    trace = open_trace(builder.write(path / "t.sqlite"))
    return diagnose(Analysis(trace, AnalysisOptions(warmup)), others)


def loop(content: Content, stages: dict[str, tuple[int, int]] | None = None) -> TraceBuilder:
    """Equal batches of 1 ms, one behind the other; stages as (begin, end) in us of the batch."""
    builder = TraceBuilder()
    for index in range(BATCHES):
        begin = (index + 1) * BATCH
        builder.range(f"batch_{index}", begin, begin + BATCH)
        for name, (first, last) in (stages or {"stage": (0, 1000)}).items():
            builder.range(name, begin + first * US, begin + last * US)
        content(builder, begin)
    return builder


def stage_of(diagnosis: Diagnosis, name: str = "stage") -> StageDiagnosis:
    return next(stage for stage in diagnosis.stages if stage.path[-1] == name)


def kernel(builder: TraceBuilder, begin: int, call: float, run: tuple[float, float], stream: int = 7) -> None:
    builder.kernel(
        (begin + int(call * US), begin + int((call + 4) * US)),
        (begin + int(run[0] * US), begin + int(run[1] * US)),
        stream=stream,
    )


def call(builder: TraceBuilder, begin: int, name: str, first: float, last: float) -> int:
    return builder.call(name, begin + int(first * US), begin + int(last * US))


def copy(
    builder: TraceBuilder, begin: int, at: tuple[float, float], run: tuple[float, float], *, kind: int = 1,
    pageable: bool = True, stream: int = 7,
) -> None:  # fmt: skip
    """A host-to-device copy (or what `kind` says): the call, and the copy itself."""
    host = 0 if pageable else 1
    builder.row(
        schema.TABLE_MEMCPY, start=begin + int(run[0] * US), end=begin + int(run[1] * US),
        globalPid=schema.global_tid(100, 0), correlationId=call(builder, begin, "cudaMemcpyAsync_v3020", *at),
        deviceId=0, streamId=stream, bytes=1_000_000, copyKind=kind, srcKind=host if kind == 1 else 2,
        dstKind=2 if kind == 1 else host,
    )  # fmt: skip


def gpu_bound(builder: TraceBuilder, begin: int) -> None:
    kernel(builder, begin, 10, (20, 940))
    call(builder, begin, "cudaStreamSynchronize_v3020", 20, 945)


def copy_bound(builder: TraceBuilder, begin: int) -> None:
    copy(builder, begin, (10, 900), (15, 880))
    kernel(builder, begin, 910, (920, 980))


def copy_beside_kernel(builder: TraceBuilder, begin: int) -> None:
    kernel(builder, begin, 10, (20, 940))
    copy(builder, begin, (30, 35), (40, 800), pageable=False, stream=8)


def launch_bound(builder: TraceBuilder, begin: int) -> None:
    for at in range(10, 960, 10):
        kernel(builder, begin, at, (at + 5, at + 7))


def launches_that_fill_the_gpu(builder: TraceBuilder, begin: int) -> None:
    for at in range(10, 960, 10):
        kernel(builder, begin, at, (at + 5, at + 14.5))


def synchronization_bound(builder: TraceBuilder, begin: int) -> None:
    for at in range(10, 950, 40):
        kernel(builder, begin, at, (at + 8, at + 12))
        copy(builder, begin, (at + 5, at + 30), (at + 14, at + 15), kind=2)


def one_synchronization(builder: TraceBuilder, begin: int) -> None:
    kernel(builder, begin, 500, (508, 800))
    call(builder, begin, "cudaStreamSynchronize_v3020", 505, 805)


def cpu_bound(builder: TraceBuilder, begin: int) -> None:
    kernel(builder, begin, 900, (910, 920))


def allocating(builder: TraceBuilder, begin: int) -> None:
    for at in range(0, 900, 100):
        call(builder, begin, "cudaMalloc_v3020", at, at + 30)
        call(builder, begin, "cudaFree_v3020", at + 50, at + 80)


CASES = {
    "gpu": (gpu_bound, Verdict.GPU_BOUND),
    "copy": (copy_bound, Verdict.COPY_BOUND),
    "copy beside a kernel": (copy_beside_kernel, Verdict.GPU_BOUND),
    "launch": (launch_bound, Verdict.LAUNCH_BOUND),
    "launches that fill the GPU": (launches_that_fill_the_gpu, Verdict.GPU_BOUND),
    "synchronization": (synchronization_bound, Verdict.SYNCHRONIZATION_BOUND),
    "allocating": (allocating, Verdict.SYNCHRONIZATION_BOUND),
    "cpu": (cpu_bound, Verdict.CPU_BOUND),
    "a single wait": (one_synchronization, Verdict.CPU_BOUND),
}


@pytest.mark.parametrize("name", CASES)
def test_a_stage_gets_the_verdict_that_it_was_made_for(name: str, tmp_path: Path) -> None:
    content, verdict = CASES[name]
    stage = stage_of(diagnosed(loop(content), tmp_path))
    assert stage.verdict.verdict is verdict, stage.verdict
    assert stage.verdict.evidence
    assert stage.verdict.next_step


def test_pageable_copies_are_named(tmp_path: Path) -> None:
    stage = stage_of(diagnosed(loop(copy_bound), tmp_path))
    assert "pageable" in " ".join(stage.verdict.evidence)
    assert stage.gpu is not None
    (group,) = stage.gpu.copies
    assert (group.direction, group.host_memory, group.count) == ("host-to-device", "pageable", 1.0)
    assert group.time_ms == pytest.approx(0.865)
    assert group.gb_per_s == pytest.approx(1_000_000 / 865_000)


def test_a_wait_for_another_stage_names_it(tmp_path: Path) -> None:
    stages = {"compute": (0, 30), "collect": (30, 1000)}
    diagnosis = diagnosed(loop(gpu_bound_elsewhere, stages), tmp_path)
    collect, compute = stage_of(diagnosis, "collect"), stage_of(diagnosis, "compute")
    assert collect.verdict.verdict is Verdict.WAITING_ON_STAGE
    assert "'compute'" in collect.verdict.evidence[0]
    assert collect.host is not None
    assert collect.host.longest_waits[0].waited_for_stage == "compute"
    assert collect.host.longest_waits[0].operation_ms == pytest.approx(0.92)
    assert compute.verdict.verdict is Verdict.GPU_BOUND


def gpu_bound_elsewhere(builder: TraceBuilder, begin: int) -> None:
    kernel(builder, begin, 10, (20, 940))
    call(builder, begin, "cudaStreamSynchronize_v3020", 40, 945)


def test_work_queued_behind_another_stage_waits_for_it(tmp_path: Path) -> None:
    def content(builder: TraceBuilder, begin: int) -> None:
        kernel(builder, begin, 10, (20, 900))
        kernel(builder, begin, 40, (901, 950))

    diagnosis = diagnosed(loop(content, {"first": (0, 30), "second": (30, 60)}), tmp_path)
    assert stage_of(diagnosis, "second").verdict.verdict is Verdict.WAITING_ON_STAGE
    assert stage_of(diagnosis, "first").verdict.verdict is Verdict.GPU_BOUND


def test_two_processes_on_one_gpu(tmp_path: Path) -> None:
    def at_work(first: int, last: int) -> OtherProcesses:
        begins = np.arange(1, BATCHES + 1) * BATCH
        return OtherProcesses(BusyLine(begins + first * US, begins + last * US), 1)

    builder = loop(gpu_bound)
    beside = stage_of(diagnosed(builder, tmp_path, others=at_work(100, 900)))
    alone = stage_of(diagnosed(builder, tmp_path, others=at_work(950, 1000)))
    assert beside.verdict.verdict is Verdict.WAITING_ON_PROCESS
    assert beside.gpu is not None
    assert beside.gpu.shared_with_processes_ms == pytest.approx(0.8)
    assert alone.verdict.verdict is Verdict.GPU_BOUND
    unknown = stage_of(diagnosed(builder, tmp_path))
    assert unknown.gpu is not None
    assert unknown.gpu.shared_with_processes_ms is None


def test_first_use_leaks_only_past_a_cut_that_is_too_short(tmp_path: Path) -> None:
    builder = TraceBuilder()
    begin = BATCH
    for index in range(20):
        length = (40 if index < 2 else 1) * BATCH
        builder.range(f"batch_{index}", begin, begin + length)
        builder.range("stage", begin, begin + length)
        if index < 2:
            builder.kernel((begin, begin + 30_000 * US), (begin + 30_010 * US, begin + 30_020 * US))
            call(builder, begin, "cuLibraryLoadData", 10, 29_000)
        gpu_bound(builder, begin + length - BATCH)
        begin += length
    leaked, cut = diagnosed(builder, tmp_path, warmup=1), diagnosed(builder, tmp_path, warmup=2)
    assert stage_of(leaked).verdict.verdict is Verdict.FIRST_USE
    assert [finding.code for finding in leaked.findings] == ["warmup-too-short"]
    assert "-w 2" in leaked.findings[0].hint
    assert stage_of(cut).verdict.verdict is Verdict.GPU_BOUND
    assert cut.findings == []
    host = stage_of(leaked).host
    assert host is not None
    assert host.activity_ms["load"] == pytest.approx(28.99 / 18)  # the second batch of 18 that are kept
    assert host.activity_ms["launch"] == pytest.approx((30.0 - 28.99 + 18 * 0.004) / 18)


def test_cannot_tell_without_gpu_rows(tmp_path: Path) -> None:
    builder = TraceBuilder(cuda_traced=False)
    for index in range(3):
        builder.range(f"batch_{index}", index * BATCH, (index + 1) * BATCH)
    (batch,) = diagnosed(builder, tmp_path).stages
    assert batch.verdict.verdict is Verdict.CANNOT_TELL
    assert "CUDA was not traced" in batch.verdict.missing[0]
    assert batch.cpu_ms == pytest.approx(1.0)
    assert (batch.gpu, batch.host, batch.cost.pipeline_ms) == (None, None, None)


def test_cannot_tell_where_the_warm_up_leaves_nothing(tmp_path: Path) -> None:
    stage = stage_of(diagnosed(loop(gpu_bound), tmp_path, warmup=6))
    assert stage.verdict.verdict is Verdict.CANNOT_TELL
    assert stage.batches == 0
    assert stage.cpu_ms is None


def test_cannot_tell_where_no_cause_stands_out(tmp_path: Path) -> None:
    def content(builder: TraceBuilder, begin: int) -> None:
        kernel(builder, begin, 10, (20, 320))
        kernel(builder, begin, 320, (330, 520))
        call(builder, begin, "cudaStreamSynchronize_v3020", 330, 525)
        call(builder, begin, "cudaEventRecord_v3020", 530, 890)

    stage = stage_of(diagnosed(loop(content), tmp_path))
    assert stage.verdict.verdict is Verdict.CANNOT_TELL
    assert "No single cause" in stage.verdict.evidence[0]


def embedded(builder: TraceBuilder) -> TraceBuilder:
    builder.row(schema.TABLE_PERFHARNESS, name=schema.META_CUDA_TRACED, value="yes")
    return builder


def test_the_embedded_tracer_leaves_unrecorded_calls_null(tmp_path: Path) -> None:
    stage = stage_of(diagnosed(embedded(loop(cpu_bound)), tmp_path))
    assert stage.host is not None
    assert stage.host.activity_ms["synchronize"] is None
    assert stage.host.activity_ms["outside"] is None
    assert stage.host.calls["allocate"] is None
    assert stage.host.activity_ms["launch"] == pytest.approx(0.004)
    assert stage.verdict.verdict is Verdict.CPU_BOUND
    assert "not recorded" in stage.verdict.missing[0]


def test_a_process_that_used_no_gpu_has_no_calls_to_miss(tmp_path: Path) -> None:
    builder = loop(lambda builder, begin: None)
    builder.row(schema.TABLE_PERFHARNESS, name=schema.META_CUDA_TRACED, value="no")
    builder.row(schema.TABLE_PERFHARNESS, name=schema.META_CUDA_USED, value="no")
    stage = stage_of(diagnosed(builder, tmp_path))
    assert stage.verdict.verdict is Verdict.CPU_BOUND
    assert not any("embedded tracer" in missing for missing in stage.verdict.missing)
    assert stage.host is not None
    assert stage.host.activity_ms["synchronize"] == 0.0
    assert stage.host.activity_ms["outside"] == pytest.approx(1.0)


def test_the_embedded_tracer_cannot_tell_waiting_from_computing(tmp_path: Path) -> None:
    def content(builder: TraceBuilder, begin: int) -> None:
        kernel(builder, begin, 10, (20, 560))

    assert stage_of(diagnosed(embedded(loop(content)), tmp_path)).verdict.verdict is Verdict.CANNOT_TELL


def test_the_embedded_tracer_does_not_take_hidden_waits_for_launching(tmp_path: Path) -> None:
    def content(builder: TraceBuilder, begin: int) -> None:
        for at in range(10, 950, 20):
            kernel(builder, begin, at, (at + 5, at + 7))
            copy(builder, begin, (at + 5, at + 7), (at + 8, at + 9), kind=2, pageable=False)

    stage = stage_of(diagnosed(embedded(loop(content)), tmp_path))
    assert stage.verdict.verdict is Verdict.CANNOT_TELL
    assert "synchronization-bound" in stage.verdict.evidence[0]


def test_copies_that_are_read_back_count_as_waiting(tmp_path: Path) -> None:
    def content(builder: TraceBuilder, begin: int) -> None:
        for at in range(10, 950, 20):
            kernel(builder, begin, at, (at + 5, at + 7))
            copy(builder, begin, (at + 5, at + 8), (at + 9, at + 10), kind=2, pageable=False)
            call(builder, begin, "cudaStreamSynchronize_v3020", at + 8, at + 12)

    stage = stage_of(diagnosed(loop(content), tmp_path))
    assert stage.host is not None
    assert stage.host.blocking_ms == pytest.approx(47 * 0.004)  # the waits alone are 19 % of the stage
    assert stage.verdict.verdict is Verdict.SYNCHRONIZATION_BOUND


def test_numbers_of_a_stage(tmp_path: Path) -> None:
    stage = stage_of(diagnosed(loop(launch_bound), tmp_path))
    assert stage.gpu is not None
    (during,) = stage.gpu_during
    assert stage.host is not None
    assert stage.gpu.kernel_count == 95
    assert stage.gpu.busy_ms == pytest.approx(0.190)
    assert during.idle_ms == pytest.approx(0.810)
    assert during.gaps == 96
    assert during.gap_p50_us == pytest.approx(8.0)
    meanwhile = during.host_meanwhile_ms
    assert sum(value or 0.0 for value in meanwhile.values()) == pytest.approx(0.810)
    assert meanwhile["launch"] == pytest.approx(0.380)
    assert stage.host.launch_latency_us == pytest.approx(5.0)
    assert stage.host.queueing_us == pytest.approx(0.0)
    assert stage.host.activity_ms["outside"] == pytest.approx(0.620)


def test_queueing_is_told_from_latency(tmp_path: Path) -> None:
    def content(builder: TraceBuilder, begin: int) -> None:
        kernel(builder, begin, 10, (20, 500))
        kernel(builder, begin, 20, (501, 900))

    stage = stage_of(diagnosed(loop(content), tmp_path))
    assert stage.host is not None
    assert stage.host.queueing_us == pytest.approx(480 / 2)  # of 481 us, 480 behind the first kernel
