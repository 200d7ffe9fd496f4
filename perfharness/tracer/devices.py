"""Write the process's GPUs, as the CUDA driver reports them, to nsys's tables."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from uuid import UUID

from perfharness.tracer.trace_file import TraceFile

_ATTRIBUTES = {
    "l2CacheSize": 38,
    "smCount": 16,
    "computeMajor": 75,
    "computeMinor": 76,
    "smMajor": 75,
    "smMinor": 76,
    "threadsPerWarp": 10,
    "asyncEngines": 40,
    "maxBlocksPerSm": 106,
    "maxRegistersPerSm": 82,
    "maxShmemPerSm": 81,
}
"""CUdevice_attribute by column, if copied unchanged."""

_CLOCK_KHZ, _MEMORY_CLOCK_KHZ, _MEMORY_BUS_BITS, _SM_THREADS = 13, 36, 37, 39
_TRANSFERS_PER_CLOCK = 2
"""GPU memory transfers data on both clock edges. Checked with nsys on an H200."""

VM_ID = 1 << 48


def write(file: TraceFile, driver: ctypes.CDLL, pid: int) -> None:
    """Write `TARGET_INFO_GPU`, `TARGET_INFO_CUDA_DEVICE` and the version of an initialised driver."""
    count, version = ctypes.c_int(), ctypes.c_int()
    if driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return
    gpus = [_gpu(driver, index) for index in range(count.value)]
    if gpus:
        file.insert("TARGET_INFO_GPU", list(gpus[0]), [list(gpu.values()) for gpu in gpus])
        rows = [(index, index, pid) for index in range(count.value)]
        file.insert("TARGET_INFO_CUDA_DEVICE", ("gpuId", "cudaId", "pid"), rows)
    driver.cuDriverGetVersion(ctypes.byref(version))
    versions = {"CudaDriverVersion": str(version.value), "NvDriverVersion": _driver_version()}
    file.insert(
        "TARGET_INFO_SYSTEM_ENV",
        ("globalVid", "devStateName", "name", "nameEnum", "value"),
        [(VM_ID, name, name, 0, value) for name, value in versions.items() if value is not None],
    )


def _gpu(driver: ctypes.CDLL, index: int) -> dict[str, object]:
    device, memory, uuid = ctypes.c_int(), ctypes.c_size_t(), (ctypes.c_ubyte * 16)()
    name, bus = ctypes.create_string_buffer(256), ctypes.create_string_buffer(64)
    driver.cuDeviceGet(ctypes.byref(device), ctypes.c_int(index))
    driver.cuDeviceGetName(name, ctypes.c_int(len(name)), device)
    driver.cuDeviceGetPCIBusId(bus, ctypes.c_int(len(bus)), device)
    driver.cuDeviceGetUuid(uuid, device)
    driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device)

    def attribute(number: int) -> int:
        value = ctypes.c_int()
        driver.cuDeviceGetAttribute(ctypes.byref(value), ctypes.c_int(number), device)
        return value.value

    columns = {column: attribute(number) for column, number in _ATTRIBUTES.items()}
    bits_per_s = attribute(_MEMORY_CLOCK_KHZ) * 1000 * _TRANSFERS_PER_CLOCK * attribute(_MEMORY_BUS_BITS)
    return {
        "vmId": VM_ID,
        "id": index,
        "cuDevice": index,
        "name": name.value.decode(errors="replace"),
        "busLocation": bus.value.decode(errors="replace"),
        "uuid": str(UUID(bytes=bytes(uuid))),
        "totalMemory": memory.value,
        "memoryBandwidth": bits_per_s // 8,
        "clockRate": attribute(_CLOCK_KHZ) * 1000,
        "maxWarpsPerSm": attribute(_SM_THREADS) // columns["threadsPerWarp"] if columns["threadsPerWarp"] else 0,
        **columns,
    }


def _driver_version() -> str | None:
    """Version of the kernel module: the first word of its first line that looks like one."""
    try:
        line = Path("/proc/driver/nvidia/version").read_text().partition("\n")[0]
    except OSError:
        return None
    found = re.search(r"(?<!\S)\d\S*\.\S*", line)
    return None if found is None else found[0]
