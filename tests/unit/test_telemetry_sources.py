"""Every source runs through the same contract; then what each of them is for."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest

from perfharness.model.telemetry import GPU_METRICS, HOST_METRICS, PROCESS_METRICS, clock_event_names, process_subject
from perfharness.telemetry.gpu import (
    GpuEnergySource,
    GpuLinkSource,
    GpuMemorySource,
    GpuPowerSamples,
    GpuSource,
    chosen_devices,
    gpu_sources,
)
from perfharness.telemetry.host import HostSource, ProcessSource, ThreadSource
from perfharness.telemetry.nvml import Nvml, open_nvml
from perfharness.telemetry.process_tree import ProcessTree
from perfharness.telemetry.source import Keys, Source, Tape, TrackedProcess
from perfharness.testing.nvml_cards import GIB, error, gpu_uuid, h100_machine, mig_uuid, value
from perfharness.testing.nvml_record import NvmlRecord, device
from perfharness.testing.replayed_nvml import ReplayedNvml

MS = 1_000_000
PERIOD_NS = 50 * MS
UTC_NS = 1_700_000_000_000_000_000
KNOWN = {metric.name for metric in (*GPU_METRICS, *PROCESS_METRICS, *HOST_METRICS)}


class Machine:
    """A replayed NVML whose time the test moves."""

    def __init__(self, record: NvmlRecord) -> None:
        self.now_ns = 10**12
        self.replay = ReplayedNvml(record, clock_ns=lambda: self.now_ns, unix_ns=lambda: UTC_NS)
        self.keys = Keys()
        self._open = open_nvml(self.replay)

    def __enter__(self) -> Nvml:
        return self._open.__enter__()

    def __exit__(self, *_: object) -> None:
        self._open.__exit__(None, None, None)

    def readings(self, source: Source, count: int = 1, every_ms: int = 50) -> dict[tuple[str, str], list[float]]:
        tape = Tape(self.keys, lambda: self.now_ns)
        for _ in range(count):
            source.read(tape)
            self.now_ns += every_ms * MS
        self.failures = tape.failures
        columns = tape.take()
        found: dict[tuple[str, str], list[float]] = {}
        for number, reading in zip(columns.key, columns.value, strict=True):
            found.setdefault(self.keys.names[number], []).append(reading)
        self.times = list(columns.time_monotonic_ns)
        return found


def _gpu(nvml: Nvml) -> list[Source]:
    return gpu_sources(nvml, [gpu_uuid(0)], PERIOD_NS, lambda unix_ns: unix_ns - UTC_NS)


HOST_SOURCES: list[Callable[[], Source]] = [
    lambda: HostSource(PERIOD_NS),
    lambda: ProcessSource(PERIOD_NS),
    ThreadSource,
]


@pytest.mark.parametrize("number", range(8))
def test_each_source_keeps_the_contract(number: int) -> None:
    machine = Machine(h100_machine())
    with machine as nvml:
        source = ([*_gpu(nvml), *(make() for make in HOST_SOURCES)])[number]
        source.follow(TrackedProcess(process_subject("proc_0_gpu_0"), os.getpid(), gpu_uuid(0)))
        assert source.period_ns >= PERIOD_NS
        found = machine.readings(source, 3)
        assert found
        assert {metric for _, metric in found} <= KNOWN
        known = {record.subject for record in [*GpuSource(nvml, chosen_devices(nvml, [gpu_uuid(0)]), 1).subjects()]}
        known |= {record.subject for record in HostSource(1).subjects()} | {process_subject("proc_0_gpu_0")}
        assert {subject for subject, _ in found} <= known
        failed = sum(math.isnan(reading) for readings in found.values() for reading in readings)
        assert failed == sum(machine.failures.values())  # each null has its reason
        source.close()


def test_a_gpu_is_read_by_its_uuid_not_by_its_place() -> None:
    record = h100_machine(2)
    value(record, "nvmlDeviceGetTemperature", device(gpu_uuid(1)), 0, result=77)
    machine = Machine(record)
    with machine as nvml:
        source = GpuSource(nvml, chosen_devices(nvml, [gpu_uuid(1)]), PERIOD_NS)
        found = machine.readings(source)
        assert {subject for subject, _ in found} == {gpu_uuid(1)}
        assert found[gpu_uuid(1), "temperature_c"] == [77]
        assert [(item.subject, item.kind, item.gpu_index) for item in source.subjects()] == [(gpu_uuid(1), "gpu", 1)]


def test_power_comes_by_field_instantaneous_and_averaged() -> None:
    machine = Machine(h100_machine())
    with machine as nvml:
        source = GpuSource(nvml, chosen_devices(nvml, [gpu_uuid(0)]), PERIOD_NS)
        found = machine.readings(source, 5, every_ms=1000)  # the load begins after 2 s; the average lags by a tick
        assert found[gpu_uuid(0), "power_instant_mw"] == [70_000, 70_000, 520_000, 520_000, 520_000]
        assert found[gpu_uuid(0), "power_average_mw"] == [70_000, 70_000, 70_000, 520_000, 520_000]
        assert found[gpu_uuid(0), "sm_clock_mhz"][-1] == 1755
        assert clock_event_names(int(found[gpu_uuid(0), "clock_event_reasons"][-1])) == ["sw_power_cap"]


def test_energy_of_six_seconds_of_load() -> None:
    machine = Machine(h100_machine())
    with machine as nvml:
        found = machine.readings(GpuEnergySource(chosen_devices(nvml, [gpu_uuid(0)]), PERIOD_NS), 10, every_ms=1000)
        energy = found[gpu_uuid(0), "energy_total_mj"]
        assert energy[9] - energy[1] == 6 * 520_000 + 2 * 70_000


def test_a_refusal_for_good_is_one_null_and_any_other_is_asked_again() -> None:
    record = h100_machine()
    gpu = device(gpu_uuid(0))
    error(record, "nvmlDeviceGetTemperature", gpu, 0, code=pynvml.NVML_ERROR_NOT_SUPPORTED)
    error(record, "nvmlDeviceGetUtilizationRates", gpu, code=pynvml.NVML_ERROR_UNKNOWN)
    machine = Machine(record)
    with machine as nvml:
        found = machine.readings(GpuSource(nvml, chosen_devices(nvml, [gpu_uuid(0)]), PERIOD_NS), 4)
        assert len(found[gpu_uuid(0), "temperature_c"]) == 1
        assert len(found[gpu_uuid(0), "gpu_utilization_percent"]) == 4
        assert all(math.isnan(reading) for reading in found[gpu_uuid(0), "gpu_utilization_percent"])
        assert found[gpu_uuid(0), "pstate"] == [0, 0, 0, 0]
        assert sum(machine.failures.values()) == 1 + 2 * 4


def test_old_drivers_call_the_event_reasons_throttle_reasons() -> None:
    record = h100_machine()
    gpu = device(gpu_uuid(0))
    error(record, "nvmlDeviceGetCurrentClocksEventReasons", gpu, code=pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    value(record, "nvmlDeviceGetCurrentClocksThrottleReasons", gpu, result=0x44)
    machine = Machine(record)
    with machine as nvml:
        found = machine.readings(GpuSource(nvml, chosen_devices(nvml, [gpu_uuid(0)]), PERIOD_NS), 2)
        assert found[gpu_uuid(0), "clock_event_reasons"] == [0x44, 0x44]
        assert clock_event_names(0x44) == ["sw_power_cap", "hw_thermal_slowdown"]
        assert clock_event_names(0x8004) == ["sw_power_cap", "0x8000"]


def test_power_samples_are_drained_once_each_at_their_own_times() -> None:
    machine = Machine(h100_machine())
    with machine as nvml:
        machine.now_ns += 2_000 * MS
        source = GpuPowerSamples(nvml, chosen_devices(nvml, [gpu_uuid(0)]), lambda unix_ns: unix_ns - UTC_NS)
        found = machine.readings(source, 4, every_ms=1000)[gpu_uuid(0), "power_sample_mw"]
        assert len(set(machine.times)) == len(machine.times) == len(found)
        assert {after - before for before, after in zip(machine.times, machine.times[1:], strict=False)} == {20 * MS}
        loaded = [time for time, power in zip(machine.times, found, strict=True) if power == 520_000]
        assert loaded[0] == 2_000 * MS


def test_a_mig_instance_has_its_own_memory_and_its_parents_power() -> None:
    machine = Machine(h100_machine(1, mig_instances={0: 2}))
    with machine as nvml:
        devices = chosen_devices(nvml, [mig_uuid(0, 1)])
        assert [item.uuid for item in devices] == [gpu_uuid(0), mig_uuid(0, 1)]
        sources = gpu_sources(nvml, [mig_uuid(0, 1)], PERIOD_NS, int)
        found: dict[tuple[str, str], list[float]] = {}
        for source in sources:
            found |= machine.readings(source)
        assert (gpu_uuid(0), "power_instant_mw") in found
        assert (mig_uuid(0, 1), "memory_used_bytes") in found
        assert (mig_uuid(0, 1), "power_instant_mw") not in found
        kinds = {item.subject: (item.kind, item.parent_uuid) for item in sources[0].subjects()}
        assert kinds == {gpu_uuid(0): ("gpu", None), mig_uuid(0, 1): ("mig", gpu_uuid(0))}


def _process(pid: int, used: int | None) -> dict[str, Any]:
    return {"struct": {"pid": pid, "usedGpuMemory": used}}


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ([(os.getpid(), 3 * GIB), (1, GIB)], 3 * GIB),
        ([(1, GIB)], None),  # of another pid namespace, or no context yet: not 0
        ([], None),
        ([(os.getpid(), None)], None),
    ],
)
def test_memory_of_a_process_is_found_by_its_pid(listed: list[tuple[int, int | None]], expected: int | None) -> None:
    record = h100_machine()
    gpu = device(gpu_uuid(0))
    value(record, "nvmlDeviceGetComputeRunningProcesses", gpu, result=[_process(*entry) for entry in listed])
    machine = Machine(record)
    with machine as nvml:
        source = GpuMemorySource(chosen_devices(nvml, [gpu_uuid(0)]), PERIOD_NS)
        source.follow(TrackedProcess("process:proc_0_gpu_0", os.getpid(), gpu_uuid(0)))
        found = machine.readings(source)
        assert found[gpu_uuid(0), "memory_used_bytes"] == [GIB]
        (memory,) = found["process:proc_0_gpu_0", "process_memory_bytes"]
        assert (None if math.isnan(memory) else memory) == expected


def test_a_process_that_was_listed_and_is_not_any_more_has_given_its_memory_back() -> None:
    record = h100_machine()
    gpu = device(gpu_uuid(0))
    source_record = "nvmlDeviceGetComputeRunningProcesses"
    value(record, source_record, gpu, result=[_process(os.getpid(), GIB)])
    machine = Machine(record)
    with machine as nvml:
        source = GpuMemorySource(chosen_devices(nvml, [gpu_uuid(0)]), PERIOD_NS)
        source.follow(TrackedProcess("p", os.getpid(), gpu_uuid(0)))
        assert machine.readings(source)["p", "process_memory_bytes"] == [GIB]
        source._write_process(tape := Tape(machine.keys), "p", [])
        assert list(tape.take().value) == [0.0]


def test_links_and_limit() -> None:
    machine = Machine(h100_machine())
    with machine as nvml:
        found = machine.readings(GpuLinkSource(nvml, chosen_devices(nvml, [gpu_uuid(0)])), 4, every_ms=1000)
        assert found[gpu_uuid(0), "pcie_rx_kb_per_s"] == [0, 0, 250_000, 250_000]
        assert found[gpu_uuid(0), "power_limit_mw"] == [650_000] * 4
        assert len(found[gpu_uuid(0), "nvlink_rx_kib"]) == 1  # this card has none: refused for good


Times = namedtuple("Times", "user system idle iowait guest")
Memory = namedtuple("Memory", "total available")
Stats = namedtuple("Stats", "ctx_switches")


class MadeUpSystem:
    """One second of two cores: one computes, the other waits for storage half of the time."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def cpu_count(self) -> int:
        return 2

    def cpu_times(self, percpu: bool = False) -> Any:
        now = self.seconds
        cores = [Times(0.75 * now, 0.25 * now, 0.0, 0.0, 0.75 * now), Times(0.0, 0.0, 0.5 * now, 0.5 * now, 0.0)]
        return cores if percpu else Times(*(a + b for a, b in zip(*cores, strict=True)))

    def virtual_memory(self) -> Any:
        return Memory(100, 30)

    def cpu_stats(self) -> Any:
        return Stats(123)

    def disk_io_counters(self) -> Any:
        return None


def test_shares_of_cpu_time_by_hand() -> None:
    system = MadeUpSystem()
    source, keys = HostSource(PERIOD_NS, system), Keys()
    tape = Tape(keys)
    source.read(tape)
    system.seconds = 1.0
    source.read(tape)
    columns = tape.take()
    found: dict[Any, list[float]] = {}
    for number, reading in zip(columns.key, columns.value, strict=True):
        found.setdefault(keys.names[number], []).append(reading)
    assert found["host", "cpu_percent"] == [50]
    assert found["host", "io_wait_percent"] == [25]
    assert found["core:0", "cpu_percent"] == [100]
    assert found["core:1", "cpu_percent"] == [0]
    assert found["host", "memory_used_bytes"] == [70, 70]
    assert all(map(math.isnan, found["host", "read_bytes"]))
    assert tape.failures["host", "read_bytes", "the system reports no storage device"] == 2


CHILDREN = """
import subprocess, sys
code = "import sys; sum(range(4_000_000)); print(1, flush=True); sys.stdin.read()"
child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
sys.stdin.readline()
child.communicate()
print("gone", flush=True)
sys.stdin.readline()
"""


def test_what_a_child_used_stays_counted_after_its_end() -> None:
    now = 0
    with subprocess.Popen([sys.executable, "-c", CHILDREN], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        child = int(process.stdout.readline())
        tree = ProcessTree(process.pid, lambda: now)
        with_child = tree.usage()
        switches = tree.context_switches()
        assert with_child is not None
        assert switches is not None
        assert child in tree.pids()
        assert with_child.cpu_time_ns > 20 * MS
        assert with_child.rss_bytes > 2 << 20
        assert with_child.threads >= 2
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"gone\n"
        after = tree.usage()
        assert after is not None
        assert tree.pids() == {process.pid}
        assert after.cpu_time_ns >= with_child.cpu_time_ns
        assert after.threads == 1
        later = tree.context_switches()
        assert later is not None
        assert sum(later) >= sum(switches)
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.wait()
        assert tree.usage() is None
        assert tree.context_switches() is None


def test_a_process_that_is_gone_already_has_no_usage() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    tree = ProcessTree(process.pid)
    assert tree.usage() is None
    assert tree.pids() == set()


def test_thread_switches_are_those_of_all_threads(tmp_path: Path) -> None:
    source, keys = ThreadSource(), Keys()
    source.follow(TrackedProcess("process:me", os.getpid()))
    tape = Tape(keys)
    source.read(tape)
    assert keys.names == [("process:me", "context_switches"), ("process:me", "involuntary_context_switches")]
    total, involuntary = tape.take().value
    assert total >= involuntary >= 0
    assert total > 0
