"""Which GPU a process means by a number, and what a trace tells of it."""

from __future__ import annotations

from pathlib import Path

from perfharness.model.trace import GpuDevice
from perfharness.trace import open_trace
from tests.support.trace_builder import H200, TraceBuilder


def devices(builder: TraceBuilder, path: Path) -> tuple[GpuDevice, ...]:
    return open_trace(builder.write(path / "t.sqlite")).meta.devices


def test_a_process_has_its_own_numbers(tmp_path: Path) -> None:
    builder = TraceBuilder(gpu=False)
    for gpu in range(3):
        builder.row("TARGET_INFO_GPU", **({"id": gpu} | H200 | {"uuid": f"u-{gpu}"}))
    builder.row("TARGET_INFO_CUDA_DEVICE", gpuId=2, cudaId=0, pid=100)  # CUDA_VISIBLE_DEVICES=2,1
    builder.row("TARGET_INFO_CUDA_DEVICE", gpuId=1, cudaId=1, pid=100)
    builder.row("TARGET_INFO_CUDA_DEVICE", gpuId=7, cudaId=2, pid=100)  # a GPU that is not described
    found = devices(builder, tmp_path)
    assert [(device.pid, device.number, device.uuid) for device in found] == [(100, 0, "u-2"), (100, 1, "u-1")]
    assert found[0].memory_bytes_per_s == 4_814_304_000_000
    assert (found[0].sm_count, found[0].compute_capability, found[0].max_warps_per_sm) == (132, (9, 0), 64)


def test_without_a_mapping_the_numbers_are_those_of_the_machine(tmp_path: Path) -> None:
    builder = TraceBuilder(gpu=False)
    builder.row("TARGET_INFO_GPU", **({"id": 1} | H200))
    (device,) = devices(builder, tmp_path)
    assert (device.pid, device.number) == (None, 1)


def test_what_is_not_told_is_not_known(tmp_path: Path) -> None:
    builder = TraceBuilder(gpu=False)
    builder.row("TARGET_INFO_GPU", id=0, name="a GPU", smCount=0, clockRate=None)
    (device,) = devices(builder, tmp_path)
    assert device == GpuDevice(pid=None, number=0, name="a GPU")
    assert devices(TraceBuilder(gpu=False), tmp_path) == ()
