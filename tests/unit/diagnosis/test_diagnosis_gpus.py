"""A process with several GPUs: each GPU's side of a stage is its own, and nothing is mixed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfharness.analysis.diagnosis import OtherProcesses
from perfharness.analysis.timeline.busy import BusyLine
from perfharness.model import nsys_schema as schema
from perfharness.model.diagnosis import Verdict
from perfharness.model.trace import CopyKind, SynchronizationKind
from tests.support.made_batches import (
    BATCH,
    DEVICE_SYNCHRONIZE,
    STAGE,
    Batch,
    diagnosed,
    gpu_of,
    host_of,
    stage_of,
)

TWO: dict[str, Any] = {"gpus": 2, "batches": 4}


def kernel(batch: Batch, call: int, first: int, last: int, device: int) -> None:
    batch.kernel(call, first, last, device=device, name="nvjet_tst", grid=132)


def in_turns(batch: Batch) -> None:
    """
    GPU 0 .AAAAAAAAA...........   20 to 480
    GPU 1 ...........BBBBBBBB..   500 to 900
    """
    kernel(batch, 10, 20, 480, 0)
    kernel(batch, 490, 500, 900, 1)


def test_another_gpus_work_does_not_make_this_one_busy(tmp_path: Path) -> None:
    # first  |k...........|  GPU 0 at work from 20 to 900
    # second .|...k.......|  GPU 1 at work from 500 to 520: idle for all the rest, whatever GPU 0 does
    def content(batch: Batch) -> None:
        kernel(batch, 5, 20, 900, 0)
        kernel(batch, 490, 500, 520, 1)

    found = diagnosed(tmp_path, content, {"first": (0, 10), "second": (10, 960)}, **TWO)
    assert [gpu.uuid for gpu in found.gpus] == ["u-0", "u-1"]
    second = stage_of(found, "second")
    (during,) = second.gpu_during
    assert (during.gpu, during.busy_ms, during.idle_ms) == pytest.approx((1, 0.02, 0.93))
    assert during.host_meanwhile_ms["outside"] == pytest.approx(0.926)  # all of it but the launch
    assert second.verdict.verdict is Verdict.CPU_BOUND
    assert [kernel.gpu for kernel in gpu_of(second).top_kernels] == [1]


def test_each_gpu_of_a_stage_has_figures_of_its_own(tmp_path: Path) -> None:
    stage = stage_of(diagnosed(tmp_path, in_turns, **TWO))
    during = [value for each in stage.gpu_during for value in (each.gpu, each.busy_ms, each.idle_ms)]
    assert during == pytest.approx([0, 0.46, 0.54, 1, 0.4, 0.6])
    assert gpu_of(stage).busy_ms == pytest.approx(0.86)
    kernels = [value for group in gpu_of(stage).top_kernels for value in (group.gpu, group.time_ms)]
    assert kernels == pytest.approx([0, 0.46, 1, 0.4])
    assert stage.verdict.verdict is Verdict.GPU_BOUND
    assert any("46 %" in said and "40 %" in said for said in stage.verdict.evidence)


@pytest.mark.parametrize(("device", "awaited"), [(0, "compute"), (1, None)])
def test_a_wait_is_for_its_own_gpu(device: int, awaited: str | None, tmp_path: Path) -> None:
    """Both GPUs number their default stream 7; the wait is for one of them, and only GPU 0 has work."""

    def content(batch: Batch) -> None:
        kernel(batch, 10, 20, 940, 0)
        kernel(batch, 20, 30, 31, 1)
        kernel(batch, 46, 54, 55, device)
        batch.builder.row(
            schema.TABLE_SYNCHRONIZATION, start=batch.at(61), end=batch.at(944), deviceId=device, streamId=7,
            globalPid=schema.global_tid(100, 0), syncType=SynchronizationKind.STREAM,
            correlationId=batch.call(DEVICE_SYNCHRONIZE, 60, 945),
        )  # fmt: skip

    collect = stage_of(diagnosed(tmp_path, content, {"compute": (0, 45), "collect": (45, 1000)}, **TWO), "collect")
    assert host_of(collect).longest_waits[0].waited_for_stage == awaited
    assert (collect.verdict.verdict is Verdict.WAITING_ON_STAGE) == (device == 0)


def test_copies_between_gpus_say_where_from_and_where_to(tmp_path: Path) -> None:
    def content(batch: Batch) -> None:
        kernel(batch, 5, 20, 30, 0)
        kernel(batch, 6, 20, 30, 1)
        batch.copy((50, 55), (60, 860), kind=CopyKind.PEER_TO_PEER, size=80_000_000, srcDeviceId=1, dstDeviceId=0)

    stage = stage_of(diagnosed(tmp_path, content, **TWO))
    (copy,) = gpu_of(stage).copies
    assert (copy.direction, copy.source_gpu, copy.target_gpu) == ("peer-to-peer", 1, 0)
    assert copy.gb_per_s == pytest.approx(100.0)
    assert stage.verdict.verdict is Verdict.COPY_BOUND


@pytest.mark.parametrize(("uuid", "shared_ms"), [("u-1", 0.4), ("u-0", 0.46), (None, None)])
def test_other_processes_count_only_on_their_gpu(uuid: str | None, shared_ms: float | None, tmp_path: Path) -> None:
    begins = np.arange(1, 5) * BATCH
    others = OtherProcesses(BusyLine(begins, begins + BATCH), 1, gpu_uuid=uuid)
    found = diagnosed(tmp_path, in_turns, STAGE, others=others, **TWO)
    assert gpu_of(stage_of(found)).shared_with_processes_ms == pytest.approx(shared_ms)


def test_forked_workers_on_one_gpu_are_on_one_gpu(tmp_path: Path) -> None:
    def content(batch: Batch) -> None:
        kernel(batch, 10, 20, 480, 0)
        batch.kernel(20, 500, 900, pid=200, tid=200)

    found = diagnosed(tmp_path, content, **TWO)
    assert len(found.gpus) == 1
    (during,) = stage_of(found).gpu_during
    assert (during.busy_ms, during.own_busy_ms) == pytest.approx((0.86, 0.46))
