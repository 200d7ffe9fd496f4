"""The GPUs of a trace, under the number by which the process calls each of them."""

from __future__ import annotations

from dataclasses import replace

from perfharness.model.trace import GpuDevice, Int64
from perfharness.trace.source import MISSING, TraceSource

TABLE_GPU = "TARGET_INFO_GPU"
TABLE_CUDA_DEVICE = "TARGET_INFO_CUDA_DEVICE"

FACTS = {
    "sm_count": "smCount",
    "clock_hz": "clockRate",
    "memory_bytes_per_s": "memoryBandwidth",
    "memory_bytes": "totalMemory",
    "l2_bytes": "l2CacheSize",
    "max_warps_per_sm": "maxWarpsPerSm",
    "max_blocks_per_sm": "maxBlocksPerSm",
    "max_registers_per_sm": "maxRegistersPerSm",
    "max_shared_bytes_per_sm": "maxShmemPerSm",
}
"""Our name -> column of nsys; what a version does not write is not known."""


def read_devices(source: TraceSource) -> tuple[GpuDevice, ...]:
    """Every GPU that the trace describes, once for each process that has a number for it.

    nsys lists all GPUs of the machine, and CUDA numbers those that a process may see: `TARGET_INFO_CUDA_DEVICE` says
    which is which. Where that table is missing, the numbers are taken to be the same.
    """
    gpus = read_machine_gpus(source)
    if {"gpuId", "cudaId", "pid"} <= source.columns(TABLE_CUDA_DEVICE):
        numbers = source.integers(TABLE_CUDA_DEVICE, ["gpuId", "cudaId", "pid"])
        rows = zip(*(numbers[name].tolist() for name in ("gpuId", "cudaId", "pid")), strict=True)
        return tuple(
            replace(gpus[gpu], number=number, pid=pid) for gpu, number, pid in dict.fromkeys(rows) if gpu in gpus
        )
    return tuple(gpus.values())


def read_machine_gpus(source: TraceSource) -> dict[int, GpuDevice]:
    """Every GPU that the trace describes, by the number that nsys gives it."""
    if "id" not in source.columns(TABLE_GPU):
        return {}
    facts = source.integers(TABLE_GPU, ["id", *FACTS.values(), "computeMajor", "computeMinor"])
    there = [column for column in ("name", "uuid") if column in source.columns(TABLE_GPU)]
    texts: dict[str, dict[str, str]] = {}
    for gpu, *values in source.texts(TABLE_GPU, ["id", *there]):
        texts.setdefault(gpu, dict(zip(there, values, strict=True)))
    position = {gpu: at for at, gpu in reversed(list(enumerate(facts["id"].tolist())))}
    return {gpu: _device(facts, at, gpu, None, texts.get(str(gpu), {})) for gpu, at in position.items()}


def _device(facts: dict[str, Int64], at: int, number: int, pid: int | None, texts: dict[str, str]) -> GpuDevice:
    def known(column: str) -> int | None:
        value = int(facts[column][at])
        return value if value > 0 else None  # MISSING is below 0, and nsys writes 0 where it could not ask

    major, minor = known("computeMajor"), int(facts["computeMinor"][at])
    return GpuDevice(
        pid=pid,
        number=number,
        name=texts.get("name") or None,
        uuid=texts.get("uuid", "").removeprefix("GPU-") or None,
        compute_capability=None if major is None or minor == MISSING else (major, minor),
        **{ours: known(theirs) for ours, theirs in FACTS.items()},
    )
