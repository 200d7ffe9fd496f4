"""Hand-made records of machines with H100-like cards: for tests of configurations without a recorded machine.

The figures are plausible, not measured: 700 W, 1980 MHz, 80 GB; power rises from idle to load after 2 s and falls
again after 8 s, and changes every 100 ms as an H100's sensor does.
"""

from __future__ import annotations

from typing import Any

import pynvml

from tests.support.nvml_record import (
    NvmlRecord,
    Recorded,
    RecordedField,
    RecordedGpm,
    RecordedSamples,
    device,
)

GIB = 1 << 30
TICK_NS = 100_000_000
GPM_REFRESH_NS = 100_000_000
"""As an H200 under driver 580 does."""
DURATION_NS = 10_000_000_000
LOAD_NS = (2_000_000_000, 8_000_000_000)
IDLE_MW, LOAD_MW = 70_000, 520_000
IDLE_SM_MHZ, LOAD_SM_MHZ, MAX_SM_MHZ, MAX_MEMORY_MHZ = 345, 1755, 1980, 2619
DEFAULT_LIMIT_MW, MIN_LIMIT_MW, MAX_LIMIT_MW = 650_000, 200_000, 700_000
ENERGY_BEFORE_MJ = 12_345_678


LOAD_COUNTERS = {
    pynvml.NVML_GPM_METRIC_SM_UTIL: 99.0,
    pynvml.NVML_GPM_METRIC_SM_OCCUPANCY: 14.0,
    pynvml.NVML_GPM_METRIC_INTEGER_UTIL: 3.0,
    pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL: 91.0,
    pynvml.NVML_GPM_METRIC_DFMA_TENSOR_UTIL: 0.0,
    pynvml.NVML_GPM_METRIC_HMMA_TENSOR_UTIL: 91.0,
    pynvml.NVML_GPM_METRIC_DMMA_TENSOR_UTIL: 0.0,
    pynvml.NVML_GPM_METRIC_IMMA_TENSOR_UTIL: 0.0,
    pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL: 23.0,
    pynvml.NVML_GPM_METRIC_FP64_UTIL: 0.0,
    pynvml.NVML_GPM_METRIC_FP32_UTIL: 1.0,
    pynvml.NVML_GPM_METRIC_FP16_UTIL: 0.0,
    pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC: 250.0,
    pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC: 500.0,
    pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC: 0.0,
    pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC: 0.0,
}
"""While the load runs, a bf16 matrix product: tensor, DRAM and occupancy as an H100 showed them."""

IDLE_COUNTERS = {pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC: 2.0}
"""An unused H200 has some traffic over PCIe, and 0 of all else."""


def gpu_uuid(index: int) -> str:
    """The made-up UUID of the GPU at that index."""
    return f"GPU-{index:08x}-0000-4000-8000-000000000000"


def mig_uuid(index: int, position: int) -> str:
    """The made-up UUID of a MIG instance of that GPU."""
    return f"MIG-{index:08x}-{position:04x}-4000-8000-000000000000"


def h100_machine(num_gpus: int = 1, *, mig_instances: dict[int, int] | None = None) -> NvmlRecord:
    """A machine with that many cards.

    Args:
        mig_instances: GPU index -> number of MIG instances; other GPUs have MIG off.
    """
    about = {"made": "by hand", "card": "like an H100 SXM"}
    record = NvmlRecord(about=about, duration_ns=DURATION_NS, gpm_refresh_ns=GPM_REFRESH_NS)
    value(record, "nvmlSystemGetDriverVersion", result="580.65.06")
    value(record, "nvmlSystemGetCudaDriverVersion_v2", result=13000)
    value(record, "nvmlDeviceGetCount", result=num_gpus)
    for index in range(num_gpus):
        _add_gpu(record, index)
        for position in range((mig_instances or {}).get(index, 0)):
            _add_mig_instance(record, index, position)
    return record


def value(record: NvmlRecord, function: str, *arguments: Any, result: Any) -> None:
    """Let a call always return that."""
    record.set_call(function, list(arguments), Recorded(value=result))


def error(record: NvmlRecord, function: str, *arguments: Any, code: int) -> None:
    """Let a call always fail with that NVML error code."""
    record.set_call(function, list(arguments), Recorded(error=code))


def _add_gpu(record: NvmlRecord, index: int) -> None:
    gpu = device(gpu_uuid(index))
    value(record, "nvmlDeviceGetHandleByIndex", index, result=gpu)
    fixed: dict[str, Any] = {
        "UUID": gpu_uuid(index),
        "Name": "NVIDIA H100 80GB HBM3",
        "MigMode": [0, 0],
        "MaxMigDeviceCount": 7,
        "PersistenceMode": 0,
        "PowerManagementLimit": DEFAULT_LIMIT_MW,
        "EnforcedPowerLimit": DEFAULT_LIMIT_MW,
        "PowerManagementDefaultLimit": DEFAULT_LIMIT_MW,
        "PowerManagementLimitConstraints": [MIN_LIMIT_MW, MAX_LIMIT_MW],
        "SupportedMemoryClocks": [MAX_MEMORY_MHZ, 1593],
        "MemoryInfo": {"struct": {"total": 80 * GIB, "free": 79 * GIB, "used": GIB}},
        "ComputeRunningProcesses": [],
        "GraphicsRunningProcesses": [],
        "CpuAffinity": [0xFFFF, 0],
    }
    for name, answer in fixed.items():
        value(record, f"nvmlDeviceGet{name}", gpu, result=answer)
    for memory in (MAX_MEMORY_MHZ, 1593):
        value(record, "nvmlDeviceGetSupportedGraphicsClocks", gpu, memory, result=list(range(MAX_SM_MHZ, 344, -15)))
    for kind, most, default in (
        (pynvml.NVML_CLOCK_GRAPHICS, MAX_SM_MHZ, 1755),
        (pynvml.NVML_CLOCK_SM, MAX_SM_MHZ, 1755),
        (pynvml.NVML_CLOCK_MEM, MAX_MEMORY_MHZ, MAX_MEMORY_MHZ),
    ):
        value(record, "nvmlDeviceGetMaxClockInfo", gpu, kind, result=most)
        value(record, "nvmlDeviceGetApplicationsClock", gpu, kind, result=default)
    _add_readings(record, gpu)


def _add_readings(record: NvmlRecord, gpu: dict[str, str]) -> None:
    ticks = list(range(0, DURATION_NS, TICK_NS))
    loaded = [LOAD_NS[0] <= tick < LOAD_NS[1] for tick in ticks]
    power = [LOAD_MW if load else IDLE_MW for load in loaded]
    energy = [ENERGY_BEFORE_MJ]
    for milliwatts in power[:-1]:
        energy.append(energy[-1] + milliwatts * TICK_NS // 1_000_000_000)
    sm = [LOAD_SM_MHZ if load else IDLE_SM_MHZ for load in loaded]
    pcie = [250_000 if load else 0 for load in loaded]
    for name, arguments, values in (
        ("PowerUsage", [], power),
        ("TotalEnergyConsumption", [], energy),
        ("ClockInfo", [pynvml.NVML_CLOCK_GRAPHICS], sm),
        ("ClockInfo", [pynvml.NVML_CLOCK_SM], sm),
        ("ClockInfo", [pynvml.NVML_CLOCK_MEM], [MAX_MEMORY_MHZ] * len(ticks)),
        ("Temperature", [0], [min(66, 36 + sum(loaded[:at])) for at in range(len(ticks))]),
        ("UtilizationRates", [], [{"struct": {"gpu": 97 * load, "memory": 41 * load}} for load in loaded]),
        ("PerformanceState", [], [0] * len(ticks)),
        ("CurrentClocksEventReasons", [], [4 if load else 1 for load in loaded]),
        ("PcieThroughput", [pynvml.NVML_PCIE_UTIL_TX_BYTES], pcie),
        ("PcieThroughput", [pynvml.NVML_PCIE_UTIL_RX_BYTES], pcie),
    ):
        record.set_call(f"nvmlDeviceGet{name}", [gpu, *arguments], *map(_recorded, values), at_ns=ticks)
    uuid = gpu["device"]
    for metric, value in LOAD_COUNTERS.items():
        answers = [Recorded(value=value if load else IDLE_COUNTERS.get(metric, 0.0)) for load in loaded]
        record.gpm.append(RecordedGpm(device=uuid, metric=metric, at_ns=ticks, answers=answers))
    for field, values in (
        (pynvml.NVML_FI_DEV_POWER_INSTANT, power),
        (pynvml.NVML_FI_DEV_POWER_AVERAGE, [IDLE_MW, *power[:-1]]),
        (pynvml.NVML_FI_DEV_POWER_REQUESTED_LIMIT, [DEFAULT_LIMIT_MW] * len(ticks)),
    ):
        record.fields.append(RecordedField(device=uuid, field=field, at_ns=ticks, answers=[*map(_recorded, values)]))
    at_us = list(range(-2_400_000, DURATION_NS // 1000, 20_000))  # every 20 ms, including the 2.4 s before
    sampled = [LOAD_MW if LOAD_NS[0] <= 1000 * at < LOAD_NS[1] else IDLE_MW for at in at_us]
    kind = pynvml.NVML_TOTAL_POWER_SAMPLES
    record.samples.append(RecordedSamples(device=uuid, kind=kind, capacity=119, at_us=at_us, values=[*sampled]))


def _recorded(answer: Any) -> Recorded:
    return Recorded(value=answer)


def _add_mig_instance(record: NvmlRecord, index: int, position: int) -> None:
    gpu, instance = device(gpu_uuid(index)), device(mig_uuid(index, position))
    value(record, "nvmlDeviceGetMigMode", gpu, result=[1, 1])
    value(record, "nvmlDeviceGetMigDeviceHandleByIndex", gpu, position, result=instance)
    value(record, "nvmlDeviceGetUUID", instance, result=mig_uuid(index, position))
    value(record, "nvmlDeviceGetName", instance, result="NVIDIA H100 80GB HBM3 MIG 1g.10gb")
    memory = {"struct": {"total": 10 * GIB, "free": 10 * GIB, "used": 0}}
    value(record, "nvmlDeviceGetMemoryInfo", instance, result=memory)
    value(record, "nvmlDeviceGetGpuInstanceId", instance, result=position + 1)
    record.gpm += [
        RecordedGpm(device=mig_uuid(index, position), metric=metric, answers=[Recorded(value=load / 2)])
        for metric, load in LOAD_COUNTERS.items()
    ]
    value(record, "nvmlDeviceGetComputeRunningProcesses", instance, result=[])
    error(record, "nvmlDeviceGetPowerUsage", instance, code=pynvml.NVML_ERROR_NOT_SUPPORTED)
