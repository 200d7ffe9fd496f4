"""A process with several GPUs: each GPU's side of a stage is its own, and nothing is mixed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.diagnosis import ALONE, OtherProcesses, diagnose
from perfharness.analysis.timeline import BusyLine
from perfharness.model import nsys_schema as schema
from perfharness.model.diagnosis import Diagnosis, StageDiagnosis, Verdict
from perfharness.model.trace import CopyKind, SynchronizationKind
from perfharness.testing.trace_builder import H200, TraceBuilder
from perfharness.trace import open_trace

US = 1000
BATCH = 1000 * US
BATCHES = 4

Content = Callable[[TraceBuilder, int], None]


def diagnosed(
    content: Content, path: Path, stages: dict[str, tuple[int, int]], others: OtherProcesses = ALONE
) -> Diagnosis:
    """Two GPUs, u-0 and u-1; stages as (begin, end) in us of a batch of 1 ms."""
    builder = TraceBuilder(gpu=False)
    for gpu in range(2):
        builder.row("TARGET_INFO_GPU", **({"id": gpu} | H200 | {"uuid": f"u-{gpu}"}))
    for index in range(BATCHES):
        begin = (index + 1) * BATCH
        builder.range(f"batch_{index}", begin, begin + BATCH)
        for name, (first, last) in stages.items():
            builder.range(name, begin + first * US, begin + last * US)
        content(builder, begin)
    trace = open_trace(builder.write(path / "t.sqlite"))
    return diagnose(Analysis(trace), others)


def stage_of(diagnosis: Diagnosis, name: str) -> StageDiagnosis:
    return next(stage for stage in diagnosis.stages if stage.path[-1] == name)


def kernel(builder: TraceBuilder, begin: int, call: int, run: tuple[int, int], device: int) -> None:
    builder.kernel(
        (begin + call * US, begin + (call + 4) * US), (begin + run[0] * US, begin + run[1] * US), device=device,
        name="nvjet_tst", grid=132,
    )  # fmt: skip


def test_another_gpus_work_does_not_make_this_one_busy(tmp_path: Path) -> None:
    # first  |k...........|  GPU 0 at work from 20 to 900
    # second .|...k.......|  GPU 1 at work from 500 to 520: idle for all the rest, whatever GPU 0 does
    def content(builder: TraceBuilder, begin: int) -> None:
        kernel(builder, begin, 5, (20, 900), 0)
        kernel(builder, begin, 490, (500, 520), 1)

    found = diagnosed(content, tmp_path, {"first": (0, 10), "second": (10, 960)})
    assert [gpu.uuid for gpu in found.gpus] == ["u-0", "u-1"]
    second = stage_of(found, "second")
    (during,) = second.gpu_during
    assert (during.gpu, round(during.busy_ms, 9), round(during.idle_ms, 9)) == (1, 0.02, 0.93)
    assert during.host_meanwhile_ms["outside"] == pytest.approx(0.926)  # all of it but the launch
    assert second.verdict.verdict is Verdict.CPU_BOUND
    assert "the GPU is idle for 98 %" in second.verdict.evidence[0]
    assert second.gpu is not None
    assert [kernel.gpu for kernel in second.gpu.top_kernels] == [1]


def test_each_gpu_of_a_stage_has_figures_of_its_own(tmp_path: Path) -> None:
    # GPU 0 .AAAAAAAAA...........   20 to 480
    # GPU 1 ...........BBBBBBBB..   500 to 900
    def content(builder: TraceBuilder, begin: int) -> None:
        kernel(builder, begin, 10, (20, 480), 0)
        kernel(builder, begin, 490, (500, 900), 1)

    stage = stage_of(diagnosed(content, tmp_path, {"stage": (0, 1000)}), "stage")
    assert [(each.gpu, round(each.busy_ms, 9), round(each.idle_ms, 9)) for each in stage.gpu_during] == [
        (0, 0.46, 0.54), (1, 0.4, 0.6),
    ]  # fmt: skip
    assert stage.gpu is not None
    assert stage.gpu.busy_ms == pytest.approx(0.86)
    assert [(group.gpu, round(group.time_ms, 9)) for group in stage.gpu.top_kernels] == [(0, 0.46), (1, 0.4)]
    assert stage.verdict.verdict is Verdict.GPU_BOUND
    assert "GPU 0 46 %, GPU 1 40 % of the time." in stage.verdict.evidence
    assert "take turns" in stage.verdict.next_step


def test_gpus_that_work_beside_each_other_do_not_take_turns(tmp_path: Path) -> None:
    def content(builder: TraceBuilder, begin: int) -> None:
        kernel(builder, begin, 10, (20, 900), 0)
        kernel(builder, begin, 20, (40, 900), 1)

    stage = stage_of(diagnosed(content, tmp_path, {"stage": (0, 1000)}), "stage")
    assert stage.verdict.verdict is Verdict.GPU_BOUND
    assert "take turns" not in stage.verdict.next_step


@pytest.mark.parametrize(("device", "awaited"), [(0, "compute"), (1, None)])
def test_a_wait_is_for_its_own_gpu(device: int, awaited: str | None, tmp_path: Path) -> None:
    """Both GPUs number their default stream 7; the wait is for one of them, and only GPU 0 has work."""

    def content(builder: TraceBuilder, begin: int) -> None:
        kernel(builder, begin, 10, (20, 940), 0)
        kernel(builder, begin, 20, (30, 31), 1)
        kernel(builder, begin, 46, (54, 55), device)
        correlation = builder.call("cudaDeviceSynchronize_v3020", begin + 60 * US, begin + 945 * US)
        builder.row(
            schema.TABLE_SYNCHRONIZATION, start=begin + 61 * US, end=begin + 944 * US, correlationId=correlation,
            globalPid=schema.global_tid(100, 0), syncType=SynchronizationKind.STREAM, deviceId=device, streamId=7,
        )  # fmt: skip

    collect = stage_of(diagnosed(content, tmp_path, {"compute": (0, 45), "collect": (45, 1000)}), "collect")
    assert collect.host is not None
    assert collect.host.longest_waits[0].waited_for_stage == awaited
    assert (collect.verdict.verdict is Verdict.WAITING_ON_STAGE) == (device == 0)


def test_copies_between_gpus_say_where_from_and_where_to(tmp_path: Path) -> None:
    def content(builder: TraceBuilder, begin: int) -> None:
        kernel(builder, begin, 5, (20, 30), 0)
        kernel(builder, begin, 6, (20, 30), 1)
        correlation = builder.call("cudaMemcpyPeerAsync_v4000", begin + 50 * US, begin + 55 * US)
        builder.operation(
            begin + 60 * US, begin + 860 * US, correlation, table=schema.TABLE_MEMCPY, bytes=80_000_000, srcKind=2,
            dstKind=2, copyKind=CopyKind.PEER_TO_PEER, srcDeviceId=1, dstDeviceId=0,
        )  # fmt: skip

    stage = stage_of(diagnosed(content, tmp_path, {"stage": (0, 1000)}), "stage")
    assert stage.gpu is not None
    (copy,) = stage.gpu.copies
    assert (copy.direction, copy.source_gpu, copy.target_gpu) == ("peer-to-peer", 1, 0)
    assert copy.gb_per_s == pytest.approx(100.0)
    assert stage.verdict.verdict is Verdict.COPY_BOUND


def test_other_processes_count_only_on_their_gpu(tmp_path: Path) -> None:
    def content(builder: TraceBuilder, begin: int) -> None:
        kernel(builder, begin, 10, (20, 480), 0)
        kernel(builder, begin, 490, (500, 900), 1)

    begins = np.arange(1, BATCHES + 1) * BATCH
    busy = BusyLine(begins, begins + 1000 * US)

    def shared(uuid: str | None) -> float | None:
        found = diagnosed(content, tmp_path, {"stage": (0, 1000)}, OtherProcesses(busy, 1, gpu_uuid=uuid))
        gpu = stage_of(found, "stage").gpu
        assert gpu is not None
        return gpu.shared_with_processes_ms

    assert shared("u-1") == pytest.approx(0.4)
    assert shared("u-0") == pytest.approx(0.46)
    assert shared(None) is None


def test_forked_workers_on_one_gpu_are_on_one_gpu(tmp_path: Path) -> None:
    def content(builder: TraceBuilder, begin: int) -> None:
        kernel(builder, begin, 10, (20, 480), 0)
        call = (begin + 20 * US, begin + 25 * US)
        builder.kernel(call, (begin + 500 * US, begin + 900 * US), pid=200, tid=200)

    found = diagnosed(content, tmp_path, {"stage": (0, 1000)})
    assert len(found.gpus) == 1
    (during,) = stage_of(found, "stage").gpu_during
    assert during.busy_ms == pytest.approx(0.86)
    assert during.own_busy_ms == pytest.approx(0.46)
