"""The GPUs, through NVML: one source for what costs microseconds, others for what would delay those.

Power, clocks and temperature are a whole GPU's; where a MIG instance was chosen they are read of its parent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from perfharness.model.telemetry import SubjectRecord
from perfharness.telemetry.nvml import VALUE_MEMBERS, Answer, Device, Nvml, Refusal
from perfharness.telemetry.protocol import FollowedProcess
from perfharness.telemetry.source import FollowingSource, Metric, SamplerContext, Source, Tape

FOR_GOOD = frozenset({Refusal.NOT_SUPPORTED, Refusal.MIG, Refusal.NO_PERMISSION, Refusal.INVALID_ARGUMENT})
"""Refusals that asking again would not change."""

ALL_LINKS = 0xFFFFFFFF
"""Scope of an NVLink field that means the sum over the links (nvml.h, `nvmlFieldValue_t.scopeId`)."""

NOT_LISTED = "the driver lists no process of this tree: it has no CUDA context yet, or is in another pid namespace"

Take = Callable[[Any], float]


def chosen_devices(nvml: Nvml, uuids: Sequence[str]) -> list[Device]:
    """The devices of these UUIDs, and the parents of MIG instances among them; each once, parents first."""
    found = [device for uuid in uuids if (device := nvml.device(uuid)) is not None]
    return list({device.uuid: device for chosen in found for device in (chosen.gpu, chosen)}.values())


class NvmlSource(Source):
    """Asks the chosen devices.

    Metrics that a device refused permanently are not queried again: one null with its reason is written.
    """

    def __init__(self, context: SamplerContext) -> None:
        super().__init__(context)
        assert context.nvml is not None
        self.nvml = context.nvml.module
        self.devices = context.devices
        self.gpus = [device for device in context.devices if not device.is_mig]
        self._retired: set[tuple[str, str]] = set()

    @classmethod
    def applies(cls, context: SamplerContext) -> bool:
        """Whether a GPU was chosen."""
        return bool(context.devices)

    def ask(self, tape: Tape, device: Device, function: str, *arguments: Any, **takes: Take) -> Answer | None:
        """Ask for metrics of a device; `takes`: how each is taken from the answer. None where none is asked for."""
        takes = {metric: take for metric, take in takes.items() if (device.uuid, metric) not in self._retired}
        if not takes:
            return None
        with tape.reading():
            answer = device.ask(function, *arguments)
        for metric, take in takes.items():
            self._write(tape, device, metric, answer, take)
        return answer

    def ask_fields(self, tape: Tape, device: Device, ids: Mapping[str, int | tuple[int, int]]) -> None:
        """Ask for metrics that are fields, in one call."""
        wanted = [metric for metric in ids if (device.uuid, metric) not in self._retired]
        if not wanted:
            return
        with tape.reading():
            fields = device.fields([ids[metric] for metric in wanted])
        for metric, field in zip(wanted, fields, strict=True):
            self._write(tape, device, metric, field.answer, float)

    def _write(self, tape: Tape, device: Device, metric: str, answer: Answer, take: Take) -> None:
        if answer.ok:
            tape.write(device.uuid, metric, take(answer.value))
            return
        tape.fail(device.uuid, metric, answer.reason or "no reason given")
        if answer.refusal in FOR_GOOD:
            self._retired.add((device.uuid, metric))


class GpuSource(NvmlSource):
    """What NVML answers in microseconds."""

    name = "gpu"
    metrics = (
        Metric("power_instant_mw", "power drawn, at the sensor's last sample", "gpu"),
        Metric("power_average_mw", "power drawn, averaged by the driver (over one second on Ampere and later)", "gpu"),
        Metric("sm_clock_mhz", "clock of the multiprocessors", "gpu"),
        Metric("memory_clock_mhz", "clock of the memory", "gpu"),
        Metric("temperature_c", "temperature of the GPU", "gpu"),
        Metric("gpu_utilization_percent", "share of time in which at least one kernel ran", "gpu"),
        Metric("memory_utilization_percent", "share of time in which memory was read or written", "gpu"),
        Metric("pstate", "performance state: 0 is the fastest", "gpu"),
        Metric("clock_event_reasons", "why the clocks are not higher: bits of `CLOCK_EVENT_REASONS`", "gpu"),
    )

    def __init__(self, context: SamplerContext) -> None:
        super().__init__(context)
        self._event_reasons = "nvmlDeviceGetCurrentClocksEventReasons"
        if any(gpu.ask(self._event_reasons).refusal is Refusal.NOT_SUPPORTED for gpu in self.gpus):
            self._event_reasons = "nvmlDeviceGetCurrentClocksThrottleReasons"  # its name up to driver 535

    def subjects(self) -> Sequence[SubjectRecord]:
        """The GPUs, and the MIG instances on them."""
        return [
            SubjectRecord(
                subject=device.uuid,
                kind="mig" if device.is_mig else "gpu",
                name=device.ask("nvmlDeviceGetName").value,
                gpu_index=device.index,
                parent_uuid=device.gpu.uuid if device.is_mig else None,
            )
            for device in self.devices
        ]

    def read(self, tape: Tape) -> None:
        """One reading of each GPU."""
        nvml = self.nvml
        power = {
            "power_instant_mw": nvml.NVML_FI_DEV_POWER_INSTANT,
            "power_average_mw": nvml.NVML_FI_DEV_POWER_AVERAGE,
        }
        for gpu in self.gpus:
            self.ask_fields(tape, gpu, power)
            self.ask(tape, gpu, "nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM, sm_clock_mhz=float)
            self.ask(tape, gpu, "nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM, memory_clock_mhz=float)
            self.ask(tape, gpu, "nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU, temperature_c=float)
            self.ask(
                tape,
                gpu,
                "nvmlDeviceGetUtilizationRates",
                gpu_utilization_percent=lambda rates: float(rates.gpu),
                memory_utilization_percent=lambda rates: float(rates.memory),
            )
            self.ask(tape, gpu, "nvmlDeviceGetPerformanceState", pstate=float)
            self.ask(tape, gpu, self._event_reasons, clock_event_reasons=float)


class GpuEnergySource(NvmlSource):
    """The energy counter, whose reading takes milliseconds."""

    name = "gpu-energy"
    metrics = (Metric("energy_total_mj", "energy since the driver was loaded", "gpu", counter=True),)
    period_limits_ns = (70_000_000, 1 << 62)
    """The counter moves every 100 ms, reading it takes 3 ms (measured on an H200): often enough to see that period."""

    def read(self, tape: Tape) -> None:
        """One reading of each GPU."""
        for gpu in self.gpus:
            self.ask(tape, gpu, "nvmlDeviceGetTotalEnergyConsumption", energy_total_mj=float)


class GpuPowerSamples(NvmlSource):
    """The driver's own buffer of power samples, finer than polling can be."""

    name = "gpu-power-samples"
    metrics = (
        Metric(
            "power_sample_mw",
            "power drawn, from the driver's own buffer of samples, at the driver's times",
            "gpu",
            computed=True,
        ),
    )
    period_limits_ns = (1_000_000_000, 1_000_000_000)
    """The driver keeps about 119 samples, 20 ms apart (measured on an H200): more than two seconds."""

    def __init__(self, context: SamplerContext) -> None:
        super().__init__(context)
        self._unix_offset_ns = context.unix_offset_ns
        self._last_us = dict.fromkeys((gpu.uuid for gpu in self.gpus), 0)

    def read(self, tape: Tape) -> None:
        """The samples since the last call, at their own times."""
        for gpu in self.gpus:
            self._read(tape, gpu)

    def _read(self, tape: Tape, gpu: Device) -> None:
        last_us = self._last_us[gpu.uuid]
        if (gpu.uuid, "power_sample_mw") in self._retired:
            return
        with tape.reading():
            answer = gpu.ask("nvmlDeviceGetSamples", self.nvml.NVML_TOTAL_POWER_SAMPLES, last_us)
        if answer.refusal is Refusal.NOT_FOUND:  # none since then
            return
        if not answer.ok:
            self._write(tape, gpu, "power_sample_mw", answer, float)
            return
        kind, samples = answer.value
        for sample in samples:
            if sample.timeStamp > self._last_us[gpu.uuid]:
                self._last_us[gpu.uuid] = sample.timeStamp
                value = float(getattr(sample.sampleValue, VALUE_MEMBERS[int(kind)]))
                tape.write(gpu.uuid, "power_sample_mw", value, at_ns=sample.timeStamp * 1000 - self._unix_offset_ns)


class GpuMemorySource(NvmlSource, FollowingSource):
    """Memory in use: of the whole device, and of each measured process by its id."""

    name = "gpu-memory"
    metrics = (
        Metric("memory_used_bytes", "memory allocated, by all processes and the driver", "gpu", computed=True),
        Metric(
            "process_memory_bytes", "memory of its GPUs that the process tree has allocated", "process", computed=True
        ),
    )
    period_limits_ns = (100_000_000, 1 << 62)

    def __init__(self, context: SamplerContext) -> None:
        super().__init__(context)
        self._matched: set[str] = set()

    def read(self, tape: Tape) -> None:
        """One reading of each device, and of each process on them."""
        for device in self.devices:
            self.ask(tape, device, "nvmlDeviceGetMemoryInfo", memory_used_bytes=lambda memory: float(memory.used))
        wanted = {uuid for process, _ in self.followed for uuid in process.gpu_uuids}
        on = [device for device in self.devices if device.uuid in wanted]
        if not on:
            return
        with tape.reading():
            used = {device.uuid: self._used(device) for device in on}
        for process, tree in self.followed:
            if process.gpu_uuids and (pids := tree.pids()):
                of_gpus = [used.get(uuid, f"GPU {uuid} is not sampled") for uuid in process.gpu_uuids]
                self._read_process(tape, process, pids, of_gpus)

    def _used(self, device: Device) -> dict[int, int | None] | str:
        """Bytes by pid, None where the driver does not tell them; or why it lists no processes."""
        compute, graphics = (
            device.ask(function)
            for function in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses")
        )
        if not compute.ok:
            return compute.reason or "no reason given"
        return {entry.pid: entry.usedGpuMemory for answer in (compute, graphics) if answer.ok for entry in answer.value}

    def _read_process(
        self, tape: Tape, process: FollowedProcess, pids: Set[int], of_gpus: Sequence[dict[int, int | None] | str]
    ) -> None:
        """Its memory on all of its GPUs together."""
        listed = [used for used in of_gpus if not isinstance(used, str)]
        own = [used[pid] for used in listed for pid in pids & used.keys()]
        sizes = [size for size in own if size is not None]
        problem = next((used for used in of_gpus if isinstance(used, str)), None)
        if problem is None and len(sizes) < len(own):
            problem = "the driver lists the process, but not its memory"
        elif problem is None and not sizes and process.subject not in self._matched:
            problem = NOT_LISTED
        if problem is not None:
            tape.fail(process.subject, "process_memory_bytes", problem)
        else:  # one that was there and is not any more has given all back
            self._matched.add(process.subject)
            tape.write(process.subject, "process_memory_bytes", float(sum(sizes)))


class GpuLinkSource(NvmlSource):
    """PCIe and NVLink, and the power limit: PCIe's reading takes 20 ms, for it counts that long (nvml.h)."""

    name = "gpu-links"
    metrics = (
        Metric("power_limit_mw", "enforced power limit", "gpu"),
        Metric("pcie_rx_kb_per_s", "received over PCIe", "gpu"),
        Metric("pcie_tx_kb_per_s", "sent over PCIe", "gpu"),
        Metric("nvlink_rx_kib", "received over NVLink, all links", "gpu", counter=True),
        Metric("nvlink_tx_kib", "sent over NVLink, all links", "gpu", counter=True),
    )
    period_limits_ns = (1_000_000_000, 1_000_000_000)

    def read(self, tape: Tape) -> None:
        """One reading of each GPU."""
        nvml = self.nvml
        links = {
            "nvlink_rx_kib": (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, ALL_LINKS),
            "nvlink_tx_kib": (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ALL_LINKS),
        }
        for gpu in self.gpus:
            self.ask(tape, gpu, "nvmlDeviceGetPcieThroughput", nvml.NVML_PCIE_UTIL_RX_BYTES, pcie_rx_kb_per_s=float)
            self.ask(tape, gpu, "nvmlDeviceGetPcieThroughput", nvml.NVML_PCIE_UTIL_TX_BYTES, pcie_tx_kb_per_s=float)
            self.ask_fields(tape, gpu, links)
            self.ask(tape, gpu, "nvmlDeviceGetEnforcedPowerLimit", power_limit_mw=float)
