"""Records a machine's NVML: the answer of every query that we use, and changes of some over a minute.

Only queries are allowed, nothing is set. UUIDs are replaced by made-up ones, serial numbers and names of processes
are not asked for. Needs `pynvml` and nothing else, so that it runs on a bare machine; `nvml_record` has the format.
"""

from __future__ import annotations

import ctypes
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from perfharness.testing.nvml_values import argument_key, device, to_json

READ_ONLY = ("nvmlInit", "nvmlShutdown", "nvmlDeviceGet", "nvmlSystemGet")
AFFINITY_WORDS = 64
NVLINKS = range(18)
FAST_PERIOD_S, SLOW_PERIOD_S = 0.010, 0.5
CLOCKS = range(4)
TIMESTAMPS_KEPT = 200

MACHINE_QUERIES = (
    "nvmlSystemGetDriverVersion",
    "nvmlSystemGetNVMLVersion",
    "nvmlSystemGetCudaDriverVersion",
    "nvmlSystemGetCudaDriverVersion_v2",
    "nvmlDeviceGetCount",
)
DEVICE_QUERIES: tuple[tuple[str, tuple[Sequence[int], ...]], ...] = (
    *(
        (f"nvmlDeviceGet{name}", ())
        for name in (
            "UUID", "Index", "Name", "MinorNumber", "Brand", "Architecture", "CudaComputeCapability", "PciInfo",
            "MigMode", "MaxMigDeviceCount", "IsMigDeviceHandle", "PersistenceMode", "ComputeMode", "EccMode",
            "PowerManagementMode", "PowerManagementLimit", "PowerManagementDefaultLimit",
            "PowerManagementLimitConstraints", "EnforcedPowerLimit", "PowerUsage", "PowerSource", "PowerState",
            "TotalEnergyConsumption", "AutoBoostedClocksEnabled", "SupportedMemoryClocks",
            "SupportedPerformanceStates", "PerformanceState", "PerformanceModes", "CurrentClockFreqs",
            "SupportedClocksEventReasons", "SupportedClocksThrottleReasons", "CurrentClocksEventReasons",
            "CurrentClocksThrottleReasons", "UtilizationRates", "EncoderUtilization", "MemoryInfo",
            "BAR1MemoryInfo", "ComputeRunningProcesses", "ComputeRunningProcesses_v2", "ComputeRunningProcesses_v3",
            "GraphicsRunningProcesses", "MPSComputeRunningProcesses", "AccountingMode", "NumaNodeId", "NumGpuCores",
            "MemoryBusWidth", "CurrPcieLinkGeneration", "CurrPcieLinkWidth", "MaxPcieLinkGeneration",
            "MaxPcieLinkWidth", "PcieSpeed", "PcieReplayCounter", "VirtualizationMode", "AddressingMode",
            "MarginTemperature", "GspFirmwareVersion", "NumFans",
        )
    ),
    ("nvmlDeviceGetMaxClockInfo", (CLOCKS,)),
    ("nvmlDeviceGetClockInfo", (CLOCKS,)),
    ("nvmlDeviceGetApplicationsClock", (CLOCKS,)),
    ("nvmlDeviceGetDefaultApplicationsClock", (CLOCKS,)),
    ("nvmlDeviceGetMaxCustomerBoostClock", (CLOCKS,)),
    ("nvmlDeviceGetClock", (CLOCKS, range(4))),
    ("nvmlDeviceGetMinMaxClockOfPState", (CLOCKS, (0, 2))),
    ("nvmlDeviceGetAPIRestriction", (range(2),)),
    ("nvmlDeviceGetTemperature", (range(1),)),
    ("nvmlDeviceGetTemperatureThreshold", (range(8),)),
    ("nvmlDeviceGetProcessUtilization", ((0,),)),
    ("nvmlDeviceGetPcieThroughput", (range(2),)),
    ("nvmlDeviceGetNvLinkState", (NVLINKS,)),
    ("nvmlDeviceGetViolationStatus", (range(11),)),
    ("nvmlDeviceGetMemoryInfo", ((0x2000028,),)),
)  # fmt: skip
"""Name, and the values of each further argument; every combination is queried."""

FAST_QUERIES: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("nvmlDeviceGetPowerUsage", ()),
    *(("nvmlDeviceGetClockInfo", (kind,)) for kind in CLOCKS),
    ("nvmlDeviceGetUtilizationRates", ()),
    ("nvmlDeviceGetTemperature", (0,)),
    ("nvmlDeviceGetCurrentClocksEventReasons", ()),
    ("nvmlDeviceGetPerformanceState", ()),
    ("nvmlDeviceGetMemoryInfo", ()),
    ("nvmlDeviceGetTotalEnergyConsumption", ()),
)
SLOW_QUERIES: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("nvmlDeviceGetPcieThroughput", (0,)),
    ("nvmlDeviceGetPcieThroughput", (1,)),
    ("nvmlDeviceGetComputeRunningProcesses", ()),
    ("nvmlDeviceGetGraphicsRunningProcesses", ()),
    ("nvmlDeviceGetEnforcedPowerLimit", ()),
)
SAMPLE_KINDS = range(10)


@dataclass
class Changes:
    """The answers of one query, each with its start time."""

    at_ns: list[int] = field(default_factory=list)
    answers: list[dict[str, Any]] = field(default_factory=list)
    value_type: int = 0

    def note(self, at_ns: int, answer: dict[str, Any]) -> None:
        """Add an answer if it differs from the last."""
        if not self.answers or self.answers[-1] != answer:
            self.at_ns.append(at_ns)
            self.answers.append(answer)


class NvmlRecorder:
    """Queries an initialised NVML and records its answers.

    Args:
        nvml: the module `pynvml`, or one that answers like it.
    """

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._begin_ns = time.monotonic_ns()
        self._begin_unix_us = time.time_ns() // 1000
        self._uuids: dict[Any, str] = {}
        self._real: dict[str, str] = {}
        self._calls: dict[str, tuple[str, list[Any], Changes]] = {}
        self._fields: dict[tuple[str, int, int], Changes] = {}
        self._samples: dict[tuple[str, int], dict[str, Any]] = {}
        self._costs_ns: dict[str, list[int]] = {}
        self._timestamps: list[list[int]] = []
        self._faults: dict[str, str] = {}
        self.devices: list[tuple[Any, str]] = []
        self._lock = threading.Lock()

    def find_devices(self) -> None:
        """Find every GPU and its MIG instances; their names are replaced."""
        for index in range(self._nvml.nvmlDeviceGetCount()):
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            gpu = self._name(handle, f"GPU-{index:08x}-0000-4000-8000-000000000000")
            self._keep("nvmlDeviceGetHandleByIndex", [index], {"value": device(gpu)})
            for position in range(7):
                place = [device(gpu), position]
                try:
                    instance = self._nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, position)
                except self._nvml.NVMLError as error:
                    self._keep("nvmlDeviceGetMigDeviceHandleByIndex", place, {"error": error.value})
                    continue
                name = self._name(instance, f"MIG-{index:08x}-{position:04x}-4000-8000-000000000000")
                self._keep("nvmlDeviceGetMigDeviceHandleByIndex", place, {"value": device(name)})
                self._keep("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", [device(name)], {"value": device(gpu)})

    def _name(self, handle: Any, uuid: str) -> str:
        real = self._nvml.nvmlDeviceGetUUID(handle)
        self._real[real.decode() if isinstance(real, bytes) else real] = uuid
        self._uuids[_identity(handle)] = uuid
        self.devices.append((handle, uuid))
        return uuid

    def ask_once(self) -> None:
        """Make every query with every argument once."""
        for name in MACHINE_QUERIES:
            self.call(name)
        for handle, _ in self.devices:
            for name, choices in DEVICE_QUERIES:
                for arguments in product(*choices):
                    self.call(name, handle, *arguments)
            self._ask_dependent(handle)
        for (first, _), (second, _) in product(self.devices, repeat=2):
            if first is not second:
                self.call("nvmlDeviceGetTopologyCommonAncestor", first, second)
        for handle, uuid in self.devices:
            for number in range(1, int(getattr(self._nvml, "NVML_FI_MAX", 300))):
                self._ask_fields(handle, uuid, [(number, 0)])
            self._ask_fields(handle, uuid, self._link_fields())

    def _ask_dependent(self, handle: Any) -> None:
        """Queries whose arguments are other queries' answers, and those that need a size."""
        try:
            memory_clocks = self._nvml.nvmlDeviceGetSupportedMemoryClocks(handle)
        except self._nvml.NVMLError:
            memory_clocks = []
        for clock in memory_clocks:
            self.call("nvmlDeviceGetSupportedGraphicsClocks", handle, clock)
        self.call("nvmlDeviceGetCpuAffinity", handle, size=AFFINITY_WORDS)
        for scope in range(2):
            self.call("nvmlDeviceGetCpuAffinityWithinScope", handle, scope, size=AFFINITY_WORDS)
            self.call("nvmlDeviceGetMemoryAffinity", handle, scope, size=AFFINITY_WORDS)

    def _link_fields(self) -> list[tuple[int, int]]:
        names = ("DATA_TX", "DATA_RX", "RAW_TX", "RAW_RX")
        numbers = [getattr(self._nvml, f"NVML_FI_DEV_NVLINK_THROUGHPUT_{name}") for name in names]
        return [*product(numbers, NVLINKS)]

    def watch(self, duration_s: float) -> None:
        """Poll the queries whose answers change, quick ones every 10 ms, slow ones twice a second in parallel."""
        end_ns = time.monotonic_ns() + int(duration_s * 1e9)
        slow = threading.Thread(target=self._watch_slow, args=(end_ns,))
        slow.start()
        nvml = self._nvml
        power = [(nvml.NVML_FI_DEV_POWER_AVERAGE, 0), (nvml.NVML_FI_DEV_POWER_INSTANT, 0)]
        others = [(nvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, 0), (nvml.NVML_FI_DEV_MEMORY_TEMP, 0)]
        for _ in _ticks(FAST_PERIOD_S, end_ns):
            for handle, uuid in self.devices:
                self._ask_fields(handle, uuid, power, keep_timestamps=True)
                self._ask_fields(handle, uuid, others)
                for name, arguments in FAST_QUERIES:
                    self.call(name, handle, *arguments)
        slow.join()

    def _watch_slow(self, end_ns: int) -> None:
        for _ in _ticks(SLOW_PERIOD_S, end_ns):
            for handle, uuid in self.devices:
                for name, arguments in SLOW_QUERIES:
                    self.call(name, handle, *arguments)
                self._ask_fields(handle, uuid, self._link_fields())
                for kind in SAMPLE_KINDS:
                    self._ask_samples(handle, uuid, kind)

    def call(self, name: str, *arguments: Any, size: int | None = None) -> None:
        """Query, and record the answer."""
        if not name.startswith(READ_ONLY):
            raise ValueError(f"{name} is no query; a recorder changes nothing")
        function = getattr(self._nvml, name, None)
        if function is None:
            return
        given = [arguments[0], size, *arguments[1:]] if size is not None else [*arguments]
        begin = time.monotonic_ns()
        try:
            answer = {"value": self._json(function(*given))}
        except self._nvml.NVMLError as error:
            answer = {"error": error.value}
        except Exception as error:  # a defect of pynvml in one query must not lose the others
            self._faults[name] = f"{type(error).__name__}: {error}"
            return
        self._cost(name, begin)
        self._keep(name, [self._json(item) for item in arguments], answer)

    def _json(self, value: Any) -> Any:
        return self._anonymous(to_json(value, lambda item: self._uuids.get(_identity(item))))

    def _anonymous(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._real.get(value, value)
        if isinstance(value, list):
            return [self._anonymous(item) for item in value]
        return {name: self._anonymous(item) for name, item in value.items()} if isinstance(value, dict) else value

    def _keep(self, name: str, arguments: list[Any], answer: dict[str, Any]) -> None:
        with self._lock:
            kept = self._calls.setdefault(argument_key(name, arguments), (name, arguments, Changes()))
            kept[2].note(self._now_ns() if kept[2].answers else 0, answer)

    def _ask_fields(self, handle: Any, uuid: str, ids: list[tuple[int, int]], *, keep_timestamps: bool = False) -> None:
        begin = time.monotonic_ns()
        try:
            values = list(self._nvml.nvmlDeviceGetFieldValues(handle, ids))
        except self._nvml.NVMLError as error:
            answers = [(0, {"error": error.value})] * len(ids)
        else:
            answers = [_field_answer(value) for value in values]
            if keep_timestamps and len(self._timestamps) < TIMESTAMPS_KEPT:
                asked_us = time.time_ns() // 1000
                self._timestamps += [[value.fieldId, asked_us - value.timestamp, value.latencyUsec] for value in values]
        self._cost(f"nvmlDeviceGetFieldValues({','.join(str(number) for number, _ in ids[:4])})", begin)
        for (number, scope), (kind, answer) in zip(ids, answers, strict=True):
            changes = self._fields.setdefault((uuid, number, scope), Changes())
            changes.value_type = kind or changes.value_type
            changes.note(self._now_ns() if changes.answers else 0, answer)

    def _ask_samples(self, handle: Any, uuid: str, kind: int) -> None:
        kept = self._samples.setdefault((uuid, kind), {"device": uuid, "kind": kind, "at_us": [], "values": []})
        last = kept["at_us"][-1] + self._begin_unix_us if kept["at_us"] else 0
        begin = time.monotonic_ns()
        try:
            value_type, samples = self._nvml.nvmlDeviceGetSamples(handle, kind, last)
        except self._nvml.NVMLError as error:
            if not kept["at_us"]:
                kept["error"] = error.value
            return
        self._cost("nvmlDeviceGetSamples", begin)
        kept.pop("error", None)
        kept["value_type"] = value_type
        new = [sample for sample in samples if sample.timeStamp > last]
        kept["capacity"] = max(kept.get("capacity", 0), len(new))
        member = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")[value_type]
        kept["at_us"] += [sample.timeStamp - self._begin_unix_us for sample in new]
        kept["values"] += [getattr(sample.sampleValue, member) for sample in new]

    def _cost(self, name: str, begin_ns: int) -> None:
        self._costs_ns.setdefault(name, []).append(time.monotonic_ns() - begin_ns)

    def _now_ns(self) -> int:
        return time.monotonic_ns() - self._begin_ns

    def record(self, about: dict[str, Any]) -> dict[str, Any]:
        """The record, as `nvml_record.NvmlRecord` reads it."""
        return {
            "schema_version": 1,
            "about": {
                **about,
                "median_cost_us": {
                    name: round(statistics.median(costs) / 1000, 1) for name, costs in self._costs_ns.items()
                },
                "field_age_and_latency_us": self._timestamps,
                "queries_that_pynvml_failed_at": self._faults,
            },
            "duration_ns": self._now_ns(),
            "calls": [
                {"function": name, "arguments": arguments, "at_ns": changes.at_ns, "answers": changes.answers}
                for name, arguments, changes in self._calls.values()
            ],
            "fields": [
                {
                    "device": uuid,
                    "field": number,
                    "scope": scope,
                    "value_type": changes.value_type,
                    "at_ns": changes.at_ns,
                    "answers": changes.answers,
                }
                for (uuid, number, scope), changes in self._fields.items()
            ],
            "samples": list(self._samples.values()),
        }


def _identity(handle: Any) -> Any:
    """Key that distinguishes handles: a pointer's address, or the replay's handle itself."""
    if isinstance(handle, ctypes._Pointer):
        return ctypes.cast(handle, ctypes.c_void_p).value
    try:
        hash(handle)
    except TypeError:
        return id(handle)
    return None if isinstance(handle, (int, str, bytes, type(None))) else handle


def _field_answer(value: Any) -> tuple[int, dict[str, Any]]:
    if value.nvmlReturn:
        return 0, {"error": int(value.nvmlReturn)}
    kind = int(value.valueType)
    member = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")[kind]
    return kind, {"value": getattr(value.value, member)}


def _ticks(period_s: float, end_ns: int) -> Iterator[int]:
    """One tick per period; missed ones are skipped."""
    tick = 0
    begin_ns = time.monotonic_ns()
    while time.monotonic_ns() < end_ns:
        yield tick
        tick = int((time.monotonic_ns() - begin_ns) / 1e9 / period_s) + 1
        due_ns = begin_ns + int(tick * period_s * 1e9)
        time.sleep(max(0, min(due_ns, end_ns) - time.monotonic_ns()) / 1e9)
