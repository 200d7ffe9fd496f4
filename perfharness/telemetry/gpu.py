"""Metrics of GPUs through NVML. A MIG instance has the power, clocks and temperature of its parent."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

from perfharness.telemetry.nvml import VALUE_MEMBERS, Answer, Device, Nvml, Refusal
from perfharness.telemetry.processes import FollowedProcess
from perfharness.telemetry.readings import Values

PERMANENT = (Refusal.NOT_SUPPORTED, Refusal.NO_PERMISSION)
ALL_LINKS = 0xFFFFFFFF
"""Scope of an NVLink field for the sum over the links (nvml.h, `nvmlFieldValue_t.scopeId`)."""


def chosen_devices(nvml: Nvml, uuids: Sequence[str]) -> list[Device]:
    """Devices with these UUIDs and parents of MIG instances, without duplicates, parents first."""
    found = [device for uuid in uuids if (device := nvml.device(uuid)) is not None]
    return list({device.uuid: device for chosen in found for device in (chosen.gpu, chosen)}.values())


class Questions:
    """Query metrics of one device. A permanently refused metric is null once and not queried again."""

    def __init__(self, device: Device) -> None:
        self.device, self.nvml = device, device.nvml
        self._refused: set[str] = set()

    @cached_property
    def event_reasons(self) -> str:
        """Function for `clock_event_reasons`, which has another name up to driver 535."""
        name = "nvmlDeviceGetCurrentClocksEventReasons"
        is_old = self.device.ask(name).refusal is Refusal.NOT_SUPPORTED
        return "nvmlDeviceGetCurrentClocksThrottleReasons" if is_old else name

    def wanted(self, metrics: Collection[str]) -> list[str]:
        """Metrics that were not permanently refused."""
        return [metric for metric in metrics if metric not in self._refused]

    def value(self, metric: str, answer: Answer, take: Callable[[Any], float] = float) -> float | str:
        """Number in an answer, or the reason for none."""
        if answer.ok:
            return take(answer.value)
        if answer.refusal in PERMANENT:
            self._refused.add(metric)
        return answer.reason or "no reason given"

    def ask(self, function: str, *arguments: Any, **takes: Callable[[Any], float]) -> Values:
        """Call a function once; `takes` extracts each metric from the answer."""
        wanted = self.wanted(takes)
        answer = self.device.ask(function, *arguments) if wanted else Answer()
        return {(self.device.uuid, metric): self.value(metric, answer, takes[metric]) for metric in wanted}

    def fields(self, ids: Mapping[str, int | tuple[int, int]]) -> Values:
        """Read field metrics in one call."""
        wanted = self.wanted(ids)
        answers = self.device.fields([ids[metric] for metric in wanted]) if wanted else []
        pairs = zip(wanted, answers, strict=True)
        return {(self.device.uuid, metric): self.value(metric, answer) for metric, answer in pairs}


def sensors(gpu: Questions) -> Values:
    """Power, clocks, temperature, utilisation: fast queries of microseconds."""
    nvml = gpu.nvml
    power = {
        "power_instant_mw": nvml.NVML_FI_DEV_POWER_INSTANT,
        "power_average_mw": nvml.NVML_FI_DEV_POWER_AVERAGE,
    }
    return {
        **gpu.fields(power),
        **gpu.ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM, sm_clock_mhz=float),
        **gpu.ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM, memory_clock_mhz=float),
        **gpu.ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU, temperature_c=float),
        **gpu.ask(
            "nvmlDeviceGetUtilizationRates",
            gpu_utilization_percent=lambda rates: float(rates.gpu),
            memory_utilization_percent=lambda rates: float(rates.memory),
        ),
        **gpu.ask("nvmlDeviceGetPerformanceState", pstate=float),
        **gpu.ask(gpu.event_reasons, clock_event_reasons=float),
    }


def energy(gpu: Questions) -> Values:
    """Energy counter, which takes milliseconds to read."""
    return gpu.ask("nvmlDeviceGetTotalEnergyConsumption", energy_total_mj=float)


def links(gpu: Questions) -> Values:
    """PCIe, NVLink and the power limit. Reading PCIe takes 20 ms, its counting time (nvml.h)."""
    nvml = gpu.nvml
    nvlink = {
        "nvlink_rx_kib": (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, ALL_LINKS),
        "nvlink_tx_kib": (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ALL_LINKS),
    }
    return {
        **gpu.ask("nvmlDeviceGetPcieThroughput", nvml.NVML_PCIE_UTIL_RX_BYTES, pcie_rx_kb_per_s=float),
        **gpu.ask("nvmlDeviceGetPcieThroughput", nvml.NVML_PCIE_UTIL_TX_BYTES, pcie_tx_kb_per_s=float),
        **gpu.fields(nvlink),
        **gpu.ask("nvmlDeviceGetEnforcedPowerLimit", power_limit_mw=float),
    }


def memory(device: Questions) -> Values:
    """Memory used on a GPU or MIG instance by all processes and the driver."""
    return device.ask("nvmlDeviceGetMemoryInfo", memory_used_bytes=lambda found: float(found.used))


class PowerSamples:
    """The driver's buffer of power samples, finer than polling.

    Args:
        unix_offset_ns: UTC minus the monotonic clock.
    """

    def __init__(self, gpu: Questions, unix_offset_ns: int) -> None:
        self._gpu, self._unix_offset_ns, self._last_us = gpu, unix_offset_ns, 0

    def read(self) -> Values:
        """Samples since the last call, with their own times."""
        gpu, metric = self._gpu, "power_sample_mw"
        if not gpu.wanted([metric]):
            return {}
        answer = gpu.device.ask("nvmlDeviceGetSamples", gpu.nvml.NVML_TOTAL_POWER_SAMPLES, self._last_us)
        if answer.refusal is Refusal.NOT_FOUND:  # none since then
            return {}
        if not answer.ok:
            return {(gpu.device.uuid, metric): gpu.value(metric, answer)}
        kind, samples = answer.value
        new = [(one.timeStamp, getattr(one.sampleValue, VALUE_MEMBERS[int(kind)])) for one in samples]
        new = [(time_us, milliwatts) for time_us, milliwatts in new if time_us > self._last_us]
        self._last_us = max((time_us for time_us, _ in new), default=self._last_us)
        own = [(time_us * 1000 - self._unix_offset_ns, float(milliwatts)) for time_us, milliwatts in new]
        return {(gpu.device.uuid, metric): own}


class ProcessMemory:
    """GPU memory of each measured process and its children, by pid."""

    def __init__(self, devices: Sequence[Device], followed: Sequence[FollowedProcess]) -> None:
        self._devices, self._followed = devices, followed
        self._seen: set[str] = set()

    def read(self) -> Values:
        """One reading per running process with a GPU."""
        followed = [process for process in self._followed if process.gpu_uuids and process.pids]
        wanted = {uuid for process in followed for uuid in process.gpu_uuids}
        used = {device.uuid: _used(device) for device in self._devices if device.uuid in wanted}
        return {(process.subject, "process_memory_bytes"): self._of(process, used) for process in followed}

    def _of(self, process: FollowedProcess, used: Mapping[str, dict[int, int | None] | str]) -> float | str:
        """Total memory on its GPUs, or the reason why it is unknown."""
        sizes: list[int | None] = []
        for uuid in process.gpu_uuids:
            listed = used.get(uuid, f"GPU {uuid} is not sampled")
            if isinstance(listed, str):
                return listed
            sizes += [listed[pid] for pid in process.pids & listed.keys()]
        if not sizes and process.subject not in self._seen:
            return (
                "the driver lists no process of this tree: it has no CUDA context yet, or is in another pid namespace"
            )
        known = [size for size in sizes if size is not None]
        if len(known) < len(sizes):
            return "the driver lists the process, but not its memory"
        self._seen.add(process.subject)  # once seen, a process that is no longer listed uses no memory
        return float(sum(known))


def _used(device: Device) -> dict[int, int | None] | str:
    """Bytes by pid, None if not reported; or the reason why the driver lists no processes."""
    compute = device.ask("nvmlDeviceGetComputeRunningProcesses")
    graphics = device.ask("nvmlDeviceGetGraphicsRunningProcesses")
    if not compute.ok:
        return compute.reason or "no reason given"
    return {entry.pid: entry.usedGpuMemory for answer in (compute, graphics) if answer.ok for entry in answer.value}
