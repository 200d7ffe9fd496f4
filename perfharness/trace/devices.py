"""GPUs of a trace, as numbered by its processes."""

from __future__ import annotations

from dataclasses import replace

from perfharness.model.trace import GpuDevice
from perfharness.trace.columns import MISSING
from perfharness.trace.sqlite import TraceFile

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
"""Our name -> column of nsys; columns missing in a version are unknown."""


def read_devices(file: TraceFile) -> tuple[GpuDevice, ...]:
    """List every GPU in the trace, once per process that numbers it.

    nsys lists all GPUs of the machine, CUDA numbers those visible to a process, and `TARGET_INFO_CUDA_DEVICE` maps
    them. Without this table, both numbers are assumed to be equal.
    """
    gpus = read_machine_gpus(file)
    if not file.has(TABLE_CUDA_DEVICE, "gpuId", "cudaId", "pid"):
        return tuple(gpus.values())
    numbers = file.integers(TABLE_CUDA_DEVICE, ["gpuId", "cudaId", "pid"])
    rows = dict.fromkeys(zip(*(column.tolist() for column in numbers.values()), strict=True))
    return tuple(replace(gpus[gpu], number=number, pid=pid) for gpu, number, pid in rows if gpu in gpus)


def read_machine_gpus(file: TraceFile) -> dict[int, GpuDevice]:
    """GPUs in the trace by nsys's number."""
    if not file.has(TABLE_GPU, "id"):
        return {}
    facts = file.integers(TABLE_GPU, ["id", *FACTS.values(), "computeMajor", "computeMinor"])
    columns = zip(*(values.tolist() for values in facts.values()), strict=True)
    rows = [dict(zip(facts, row, strict=True)) for row in columns]
    # If a GPU has several rows, the first counts.
    names, uuids = dict[str, str](), dict[str, str]()
    for text, found in (("name", names), ("uuid", uuids)):
        for number, value in file.texts(TABLE_GPU, "id", text):
            found.setdefault(number, value)
    return {row["id"]: _device(row, names.get(str(row["id"])), uuids.get(str(row["id"]), "")) for row in reversed(rows)}


def _device(row: dict[str, int], name: str | None, uuid: str) -> GpuDevice:
    def known(column: str) -> int | None:
        return row[column] if row[column] > 0 else None  # MISSING is negative, and nsys writes 0 for unknown

    major, minor = known("computeMajor"), row["computeMinor"]
    return GpuDevice(
        pid=None,
        number=row["id"],
        name=name or None,
        uuid=uuid.removeprefix("GPU-") or None,
        compute_capability=None if major is None or minor == MISSING else (major, minor),
        **{ours: known(theirs) for ours, theirs in FACTS.items()},
    )
