"""The GPUs, through NVML: one source for what costs microseconds, others for what would delay those.

Power, clocks and temperature are a whole GPU's; where a MIG instance was chosen they are read of its parent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from perfharness.model.telemetry import SubjectRecord
from perfharness.telemetry.nvml import VALUE_MEMBERS, Answer, Device, FieldReading, Nvml, Refusal
from perfharness.telemetry.process_tree import ProcessTree
from perfharness.telemetry.source import Source, Tape, TrackedProcess

ENERGY_PERIOD_NS = 70_000_000
"""The counter moves every 100 ms, and reading it takes 3 ms (measured on an H200): often enough to see that period."""

MEMORY_PERIOD_NS = 100_000_000
SLOW_PERIOD_NS = 1_000_000_000
SAMPLES_PERIOD_NS = 1_000_000_000
"""The driver keeps about 119 power samples, 20 ms apart (measured on an H200): more than two seconds."""

FOR_GOOD = frozenset({Refusal.NOT_SUPPORTED, Refusal.MIG, Refusal.NO_PERMISSION, Refusal.INVALID_ARGUMENT})
"""Refusals that asking again would not change."""

ALL_LINKS = 0xFFFFFFFF
"""Scope of an NVLink field that means the sum over the links (nvml.h, `nvmlFieldValue_t.scopeId`)."""


def chosen_devices(nvml: Nvml, uuids: Sequence[str]) -> list[Device]:
    """The devices of these UUIDs, and the parents of MIG instances among them; each once, parents first."""
    found = [device for uuid in uuids if (device := nvml.device(uuid)) is not None]
    return list({device.uuid: device for chosen in found for device in (chosen.gpu, chosen)}.values())


def subject_record(device: Device) -> SubjectRecord:
    """What a device is."""
    name = device.ask("nvmlDeviceGetName")
    return SubjectRecord(
        subject=device.uuid,
        kind="mig" if device.is_mig else "gpu",
        name=name.value,
        gpu_index=device.index,
        parent_uuid=device.gpu.uuid if device.is_mig else None,
    )


class _Retiring:
    """Metrics that a device refused permanently are not queried again: one null with its reason is written."""

    def __init__(self) -> None:
        self._retired: set[tuple[str, str]] = set()

    def wants(self, device: Device, metric: str) -> bool:
        return (device.uuid, metric) not in self._retired

    def write(
        self, tape: Tape, device: Device, metric: str, answer: Answer, take: Callable[[Any], float] = float
    ) -> None:
        if answer.ok:
            tape.write(device.uuid, metric, take(answer.value))
            return
        tape.fail(device.uuid, metric, answer.reason or "no reason given")
        if answer.refusal in FOR_GOOD:
            self._retired.add((device.uuid, metric))


@dataclass(frozen=True)
class _Query:
    """A query of NVML that gives one or several metrics."""

    function: str
    arguments: tuple[Any, ...]
    takes: dict[str, Callable[[Any], float]]


class GpuSource(Source):
    """What NVML answers in microseconds."""

    name = "gpu"

    def __init__(self, nvml: Nvml, devices: Sequence[Device], period_ns: int) -> None:
        self.period_ns = period_ns
        self._devices = devices
        self._gpus = [device for device in devices if not device.is_mig]
        self._retiring = _Retiring()
        module = nvml.module
        self._power_fields = {
            "power_instant_mw": module.NVML_FI_DEV_POWER_INSTANT,
            "power_average_mw": module.NVML_FI_DEV_POWER_AVERAGE,
        }
        self._queries = [
            _Query("nvmlDeviceGetClockInfo", (module.NVML_CLOCK_SM,), {"sm_clock_mhz": float}),
            _Query("nvmlDeviceGetClockInfo", (module.NVML_CLOCK_MEM,), {"memory_clock_mhz": float}),
            _Query("nvmlDeviceGetTemperature", (module.NVML_TEMPERATURE_GPU,), {"temperature_c": float}),
            _Query(
                "nvmlDeviceGetUtilizationRates",
                (),
                {
                    "gpu_utilization_percent": lambda rates: float(rates.gpu),
                    "memory_utilization_percent": lambda rates: float(rates.memory),
                },
            ),
            _Query("nvmlDeviceGetPerformanceState", (), {"pstate": float}),
        ]
        self._event_reasons = "nvmlDeviceGetCurrentClocksEventReasons"

    def subjects(self) -> Sequence[SubjectRecord]:
        """The GPUs, and the MIG instances on them."""
        return [subject_record(device) for device in self._devices]

    def read(self, tape: Tape) -> None:
        """One reading of each GPU."""
        for device in self._gpus:
            self._read_power(tape, device)
            for query in self._queries:
                self._read_query(tape, device, query)
            self._read_event_reasons(tape, device)

    def _read_power(self, tape: Tape, device: Device) -> None:
        wanted = [metric for metric in self._power_fields if self._retiring.wants(device, metric)]
        if not wanted:
            return
        with tape.reading():
            fields = device.fields([self._power_fields[metric] for metric in wanted])
        for metric, field in zip(wanted, fields, strict=True):
            self._retiring.write(tape, device, metric, field.answer)

    def _read_query(self, tape: Tape, device: Device, query: _Query) -> None:
        if not any(self._retiring.wants(device, metric) for metric in query.takes):
            return
        with tape.reading():
            answer = device.ask(query.function, *query.arguments)
        for metric, take in query.takes.items():
            self._retiring.write(tape, device, metric, answer, take)

    def _read_event_reasons(self, tape: Tape, device: Device) -> None:
        if not self._retiring.wants(device, "clock_event_reasons"):
            return
        with tape.reading():
            answer = device.ask(self._event_reasons)
            if answer.refusal is Refusal.NOT_SUPPORTED and self._event_reasons.endswith("EventReasons"):
                self._event_reasons = "nvmlDeviceGetCurrentClocksThrottleReasons"  # its name up to driver 535
                answer = device.ask(self._event_reasons)
        self._retiring.write(tape, device, "clock_event_reasons", answer)


class GpuEnergySource(Source):
    """The energy counter, whose reading takes milliseconds."""

    name = "gpu-energy"

    def __init__(self, devices: Sequence[Device], period_ns: int) -> None:
        self.period_ns = max(period_ns, ENERGY_PERIOD_NS)
        self._gpus = [device for device in devices if not device.is_mig]
        self._retiring = _Retiring()

    def subjects(self) -> Sequence[SubjectRecord]:
        """None: `GpuSource` reports them."""
        return []

    def read(self, tape: Tape) -> None:
        """One reading of each GPU."""
        for device in self._gpus:
            if self._retiring.wants(device, "energy_total_mj"):
                with tape.reading():
                    answer = device.ask("nvmlDeviceGetTotalEnergyConsumption")
                self._retiring.write(tape, device, "energy_total_mj", answer)


class GpuPowerSamples(Source):
    """The driver's own buffer of power samples, finer than polling can be."""

    name = "gpu-power-samples"

    def __init__(self, nvml: Nvml, devices: Sequence[Device], utc_to_monotonic_ns: Callable[[int], int]) -> None:
        self.period_ns = SAMPLES_PERIOD_NS
        self._kind = nvml.module.NVML_TOTAL_POWER_SAMPLES
        self._gpus = [device for device in devices if not device.is_mig]
        self._to_monotonic_ns = utc_to_monotonic_ns
        self._last_us = {device.uuid: 0 for device in devices}
        self._retiring = _Retiring()

    def subjects(self) -> Sequence[SubjectRecord]:
        """None: `GpuSource` reports them."""
        return []

    def read(self, tape: Tape) -> None:
        """The samples since the last call, at their own times."""
        for device in self._gpus:
            if not self._retiring.wants(device, "power_sample_mw"):
                continue
            with tape.reading():
                answer = device.ask("nvmlDeviceGetSamples", self._kind, self._last_us[device.uuid])
            if answer.refusal is Refusal.NOT_FOUND:  # none since then
                continue
            if not answer.ok:
                self._retiring.write(tape, device, "power_sample_mw", answer)
                continue
            kind, samples = answer.value
            for sample in samples:
                if sample.timeStamp > self._last_us[device.uuid]:
                    self._last_us[device.uuid] = sample.timeStamp
                    value = float(getattr(sample.sampleValue, VALUE_MEMBERS[int(kind)]))
                    tape.write(
                        device.uuid, "power_sample_mw", value, at_ns=self._to_monotonic_ns(sample.timeStamp * 1000)
                    )


class GpuMemorySource(Source):
    """Memory in use: of the whole device, and of each measured process by its id."""

    name = "gpu-memory"

    def __init__(self, devices: Sequence[Device], period_ns: int) -> None:
        self.period_ns = max(period_ns, MEMORY_PERIOD_NS)
        self._devices = {device.uuid: device for device in devices}
        self._retiring = _Retiring()
        self._followed: tuple[tuple[TrackedProcess, ProcessTree], ...] = ()
        self._matched: set[str] = set()

    def subjects(self) -> Sequence[SubjectRecord]:
        """None: `GpuSource` reports them."""
        return []

    def follow(self, process: TrackedProcess) -> None:
        """Read this process too from now on."""
        if process.gpu_uuid in self._devices:
            self._followed = (*self._followed, (process, ProcessTree(process.pid)))

    def read(self, tape: Tape) -> None:
        """One reading of each device, and of each process on it."""
        for device in self._devices.values():
            if self._retiring.wants(device, "memory_used_bytes"):
                with tape.reading():
                    answer = device.ask("nvmlDeviceGetMemoryInfo")
                self._retiring.write(tape, device, "memory_used_bytes", answer, lambda memory: float(memory.used))
        for uuid in dict.fromkeys(process.gpu_uuid for process, _ in self._followed):
            assert uuid is not None
            self._read_processes(tape, self._devices[uuid])

    def _read_processes(self, tape: Tape, device: Device) -> None:
        with tape.reading():
            answers = [
                device.ask(function)
                for function in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses")
            ]
        refused = answers[0] if not answers[0].ok else None
        used = {entry.pid: entry.usedGpuMemory for answer in answers if answer.ok for entry in answer.value}
        for process, tree in self._followed:
            if process.gpu_uuid != device.uuid:
                continue
            pids = tree.pids()
            if not pids:
                continue
            if refused is not None:
                tape.fail(process.subject, "process_memory_bytes", refused.reason or "no reason given")
            else:
                self._write_process(tape, process.subject, [used[pid] for pid in pids & used.keys()])

    def _write_process(self, tape: Tape, subject: str, used: Sequence[int | None]) -> None:
        sizes = [size for size in used if size is not None]
        if len(sizes) < len(used):
            tape.fail(subject, "process_memory_bytes", "the driver lists the process, but not its memory")
        elif sizes or subject in self._matched:  # one that was there and is not any more has given all back
            self._matched.add(subject)
            tape.write(subject, "process_memory_bytes", float(sum(sizes)))
        else:
            tape.fail(
                subject,
                "process_memory_bytes",
                "the driver lists no process of this tree: it has no CUDA context yet, or is in another pid namespace",
            )


class GpuLinkSource(Source):
    """PCIe and NVLink, and the power limit: PCIe's reading takes 20 ms, for it counts that long (nvml.h)."""

    name = "gpu-links"

    def __init__(self, nvml: Nvml, devices: Sequence[Device]) -> None:
        self.period_ns = SLOW_PERIOD_NS
        self._gpus = [device for device in devices if not device.is_mig]
        self._retiring = _Retiring()
        module = nvml.module
        self._pcie = {
            "pcie_rx_kb_per_s": module.NVML_PCIE_UTIL_RX_BYTES,
            "pcie_tx_kb_per_s": module.NVML_PCIE_UTIL_TX_BYTES,
        }
        self._nvlink = {
            "nvlink_rx_kib": module.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX,
            "nvlink_tx_kib": module.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX,
        }

    def subjects(self) -> Sequence[SubjectRecord]:
        """None: `GpuSource` reports them."""
        return []

    def read(self, tape: Tape) -> None:
        """One reading of each GPU."""
        for device in self._gpus:
            for metric, counter in self._pcie.items():
                if self._retiring.wants(device, metric):
                    with tape.reading():
                        answer = device.ask("nvmlDeviceGetPcieThroughput", counter)
                    self._retiring.write(tape, device, metric, answer)
            self._read_nvlink(tape, device)
            if self._retiring.wants(device, "power_limit_mw"):
                with tape.reading():
                    answer = device.ask("nvmlDeviceGetEnforcedPowerLimit")
                self._retiring.write(tape, device, "power_limit_mw", answer)

    def _read_nvlink(self, tape: Tape, device: Device) -> None:
        wanted = [metric for metric in self._nvlink if self._retiring.wants(device, metric)]
        if not wanted:
            return
        with tape.reading():
            fields: list[FieldReading] = device.fields([(self._nvlink[metric], ALL_LINKS) for metric in wanted])
        for metric, field in zip(wanted, fields, strict=True):
            self._retiring.write(tape, device, metric, field.answer)


def gpu_sources(
    nvml: Nvml, uuids: Sequence[str], period_ns: int, utc_to_monotonic_ns: Callable[[int], int]
) -> list[Source]:
    """All sources of these devices; none where there are none."""
    devices = chosen_devices(nvml, uuids)
    if not devices:
        return []
    return [
        GpuSource(nvml, devices, period_ns),
        GpuEnergySource(devices, period_ns),
        GpuPowerSamples(nvml, devices, utc_to_monotonic_ns),
        GpuMemorySource(devices, period_ns),
        GpuLinkSource(nvml, devices),
    ]
