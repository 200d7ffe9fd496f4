"""What is sampled of a replayed GPU, of the host and of a process; then each kind of reading by a table."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import namedtuple
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pynvml
import pytest

from perfharness.model.telemetry import (
    GPM_RATES,
    GPM_SHARES,
    HOST,
    SampleLog,
    clock_event_names,
    member_subject,
    process_subject,
)
from perfharness.telemetry import gpu
from perfharness.telemetry.gpm import GpmCounters
from perfharness.telemetry.gpu import PowerSamples, ProcessMemory, Questions, chosen_devices
from perfharness.telemetry.host import NO_STEAL, Host
from perfharness.telemetry.nvml import open_nvml
from perfharness.telemetry.processes import FollowedProcess
from perfharness.telemetry.readings import Values
from perfharness.telemetry.sampler import sampling
from perfharness.telemetry.store import read_sample_log
from tests.support.nvml_cards import GIB, error, gpu_uuid, h100_machine, mig_uuid, value
from tests.support.nvml_record import NvmlRecord, Recorded, device
from tests.support.replayed_nvml import ReplayedNvml, replay_environment
from tests.support.steps import Fault, Steps

MS = 1_000_000
GPU, OTHER = gpu_uuid(0), gpu_uuid(1)
FOLDER = "proc_0_gpu_0"
SUBJECT = process_subject(FOLDER)
PAGE = (Path(__file__).parents[3] / "docs/reference/results.md").read_text()
ROWS = re.findall(r"^\| (`[^|]*) \|", PAGE.partition("## Telemetry metrics")[2].partition("\n## ")[0], re.MULTILINE)
DOCUMENTED = re.findall(r"`(\w+)`", " ".join(ROWS))

PROGRAM = """
import subprocess, sys, threading, time
child = subprocess.Popen([sys.executable, "-c", "import sys; x = bytearray(90 << 20); del x; sys.stdin.read()"],
                         stdin=subprocess.PIPE)
def spin():
    end = time.thread_time() + 0.3
    while time.thread_time() < end:
        sum(range(1000))
spin()
time.sleep(0.5)
child.communicate()
time.sleep(0.5)
"""


class Sampled:
    """The file of a sampler beside a process and its child."""

    def __init__(self, folder: Path) -> None:
        self.before_ns = time.time_ns()
        with sampling(folder / "telemetry.parquet", 50 * MS, [GPU], idle_s=0.2) as sampler:
            self.begin_ns = time.time_ns()
            with subprocess.Popen([sys.executable, "-c", PROGRAM]) as process:
                self.followed = FollowedProcess(FOLDER, process.pid, (GPU,))
                sampler.follow(self.followed)
            self.end_ns = time.time_ns()
        self.log: SampleLog = read_sample_log(folder / "telemetry.parquet")

    def values(self, metric: str, subject: str = SUBJECT) -> Any:
        return self.log.series[subject, metric].value


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> Sampled:
    folder = tmp_path_factory.mktemp("sampler")
    with pytest.MonkeyPatch.context() as patch:
        for name, text in replay_environment(h100_machine().write(folder / "record.json")).items():
            patch.setenv(name, text)
        return Sampled(folder)


def test_everything_that_the_reference_names_is_sampled(sampled: Sampled) -> None:
    log = sampled.log
    # A process has a quota, or a reason in place of these.
    found = {metric for _, metric in log.series} | {"quota_period_ns", "quota_cpu_time_ns"}
    assert found == set(DOCUMENTED)
    assert {one.kind for one in log.subjects()} == {"gpu", "host", "core", "process"}
    nulls = sum(int((~series.is_read).sum()) for series in log.series.values())
    assert nulls == sum(failure.count for failure in log.meta.failures)
    assert (log.meta.ended, log.meta.driver) == ("stopped", "580.65.06")


def test_a_run_is_covered_from_before_its_first_process_to_its_end(sampled: Sampled) -> None:
    meta, power = sampled.log.meta, sampled.log.series[GPU, "power_instant_mw"]
    assert meta.idle_start_unix_ns is not None
    assert meta.idle_end_unix_ns is not None
    assert sampled.before_ns < meta.idle_start_unix_ns + 200 * MS <= meta.idle_end_unix_ns <= sampled.begin_ns + MS
    assert power.time_unix_ns[0] < sampled.begin_ns < sampled.end_ns < power.time_unix_ns[-1]
    for series in sampled.log.series.values():
        assert (np.diff(series.time_monotonic_ns) > 0).all()


def test_a_process_is_read_with_what_it_started_and_each_alone(sampled: Sampled) -> None:
    times = sampled.values("cpu_time_ns")
    assert times[-1] >= 290 * MS
    for metric in ("cpu_time_ns", "thread_run_ns", "thread_ready_ns", "context_switches", "peak_rss_bytes"):
        assert (np.diff(sampled.values(metric)) >= 0).all(), metric
    assert sampled.values("thread_run_ns")[-1] == pytest.approx(times[-1], abs=40 * MS)
    assert sampled.values("peak_rss_bytes")[-1] > 90 << 20  # of the child, which held it too shortly to be seen
    assert sampled.followed.cpus_allowed == len(os.sched_getaffinity(0))
    members = {subject for subject, _ in sampled.log.series if subject.startswith(f"{SUBJECT}#")}
    assert member_subject(FOLDER, sampled.followed.pid) in members
    assert len(members) == 2


def test_without_a_gpu_or_nvml_the_host_is_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = h100_machine()
    error(record, "nvmlInit", code=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    monkeypatch.setattr("importlib.import_module", lambda _: ReplayedNvml(record))
    with sampling(tmp_path / "telemetry.parquet", 50 * MS, [GPU]) as sampler:
        pass
    assert sampler.nvml_problem
    assert {one.kind for one in sampler.log.subjects()} == {"host", "core"}
    assert (HOST, "memory_used_bytes") in sampler.log.series


def readings(
    make: Callable[[Questions], Callable[[], Values]], record: NvmlRecord | None = None, count: int = 1,
    every_ms: int = 1000, *, uuid: str = GPU, later_ms: int = 0, faults: Sequence[Fault] = (),
) -> dict[str, list[Any]]:  # fmt: skip
    """What is read of a device at moments of a made-up clock, by metric; a reason stands as it is."""
    now_ns = 10**12
    replay = ReplayedNvml(
        record or h100_machine(), clock_ns=lambda: now_ns, unix_ns=lambda: 0, steps=Steps(list(faults))
    )
    found: dict[str, list[Any]] = {}
    with open_nvml(replay) as nvml:
        now_ns += later_ms * MS
        read = make(Questions(chosen_devices(nvml, [uuid])[-1]))
        for _ in range(count):
            for (_, metric), number in read().items():
                found.setdefault(metric, []).extend(number if isinstance(number, list) else [number])
            now_ns += every_ms * MS
    return found


def asking(read: Callable[[Questions], Values]) -> Callable[[Questions], Callable[[], Values]]:
    return lambda questions: lambda: read(questions)


def test_clocks_power_and_temperature_follow_the_load() -> None:
    """The load begins after 2 s; the average lags by a tick."""
    read = readings(asking(gpu.sensors), count=5)
    idle, load = (
        {"power_instant_mw": 70_000, "sm_clock_mhz": 345, "gpu_utilization_percent": 0, "clock_event_reasons": 1},
        {"power_instant_mw": 520_000, "sm_clock_mhz": 1755, "gpu_utilization_percent": 97, "clock_event_reasons": 4},
    )
    for metric in idle:
        assert read[metric] == [idle[metric]] * 2 + [load[metric]] * 3
    assert read["power_average_mw"] == [70_000] * 3 + [520_000] * 2
    energy = readings(asking(gpu.energy), count=10)["energy_total_mj"]
    assert energy[9] - energy[1] == 6 * 520_000 + 2 * 70_000
    links = readings(asking(gpu.links), count=4)
    assert links["pcie_rx_kb_per_s"] == links["pcie_tx_kb_per_s"] == [0, 0, 250_000, 250_000]
    assert links["power_limit_mw"] == [650_000] * 4
    assert len(links["nvlink_rx_kib"]) == 1  # this card has none: refused for good


def test_a_refusal_for_good_is_one_reason_and_any_other_is_asked_again() -> None:
    record = h100_machine()
    error(record, "nvmlDeviceGetTemperature", device(GPU), 0, code=pynvml.NVML_ERROR_NOT_SUPPORTED)
    error(record, "nvmlDeviceGetUtilizationRates", device(GPU), code=pynvml.NVML_ERROR_UNKNOWN)
    function = "nvmlDeviceGetCurrentClocksEventReasons"
    error(record, function, device(GPU), code=pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)  # as old drivers
    value(record, "nvmlDeviceGetCurrentClocksThrottleReasons", device(GPU), result=0x44)
    read = readings(asking(gpu.sensors), record, 4)
    assert [type(one) for one in read["temperature_c"]] == [str]
    assert [type(one) for one in read["gpu_utilization_percent"]] == [str] * 4
    assert read["clock_event_reasons"] == [0x44] * 4
    assert clock_event_names(0x8044) == ["sw_power_cap", "hw_thermal_slowdown", "0x8000"]


def test_power_samples_are_drained_once_each_at_their_own_times() -> None:
    found = readings(lambda one: PowerSamples(one, 0).read, count=4, later_ms=2000)["power_sample_mw"]
    times = [time_ns for time_ns, _ in found]
    assert set(np.diff(times)) == {20 * MS}
    assert next(time_ns for time_ns, milliwatts in found if milliwatts == 520_000) == 2_000 * MS


def test_a_mig_instance_has_its_own_memory_and_counters() -> None:
    record, instance = h100_machine(1, mig_instances={0: 2}), mig_uuid(0, 1)
    with open_nvml(ReplayedNvml(record)) as nvml:
        assert [one.uuid for one in chosen_devices(nvml, [instance])] == [GPU, instance]
    assert readings(asking(gpu.memory), record, uuid=instance) == {"memory_used_bytes": [0]}
    record.gpm_refresh_ns = 0
    means = counters(record, uuid=instance)["gpm_tensor_percent"]
    assert [mean for _, mean in means] == [45.5] * 4


ME = os.getpid()
Listed = list[tuple[int, int | None]]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([(ME, 3 * GIB), (1, GIB)], [], 3 * GIB),
        ([(ME, GIB)], [(ME, 2 * GIB)], 3 * GIB),
        ([(1, GIB)], [], None),  # of another pid namespace, or no context yet: not 0
        ([(ME, None)], [], None),
        ([(ME, GIB)], [(ME, None)], None),
        ([(ME, GIB)], None, None),
        ([(ME, GIB)], "not sampled", None),
    ],
)
def test_memory_of_a_process_is_that_of_all_its_gpus(first: Listed, second: Any, expected: int | None) -> None:
    record = h100_machine(2)
    for uuid, listed in ((GPU, first), (OTHER, second)):
        if listed is None:
            function = "nvmlDeviceGetComputeRunningProcesses"
            error(record, function, device(uuid), code=pynvml.NVML_ERROR_NO_PERMISSION)
        elif listed != "not sampled":
            result = [{"struct": {"pid": pid, "usedGpuMemory": used}} for pid, used in listed]
            value(record, "nvmlDeviceGetComputeRunningProcesses", device(uuid), result=result)
    process = FollowedProcess(FOLDER, ME, (GPU, OTHER), frozenset({ME}))
    with open_nvml(ReplayedNvml(record)) as nvml:
        chosen = [GPU] if second == "not sampled" else [GPU, OTHER]
        memory = ProcessMemory(chosen_devices(nvml, chosen), [process])
        (found,) = memory.read().values()
        assert found == expected if expected is not None else isinstance(found, str)
        value(record, "nvmlDeviceGetComputeRunningProcesses", device(GPU), result=[])


def counters(record: NvmlRecord | None = None, count: int = 5, **options: Any) -> dict[str, list[Any]]:
    now: list[int] = []

    def make(questions: Questions) -> Callable[[], Values]:
        clock: Callable[[], int] = questions.nvml._clock_ns
        now.append(clock())
        return GpmCounters(questions.device, clock).read

    return readings(make, record, count, **{"every_ms": 500, "later_ms": 3000, **options})


def without_refreshes() -> NvmlRecord:
    """A card whose counters are refreshed at each sample."""
    record = h100_machine()
    record.gpm_refresh_ns = 0
    return record


def means(read: dict[str, list[Any]], metric: str) -> list[Any]:
    return [one if isinstance(one, str) else one[1] for one in read[metric]]


def test_counters_are_means_over_exactly_the_time_between_two_readings() -> None:
    """The load begins after 2 s: from 1.75 to 2.25 s it is there for one half."""
    read = counters(without_refreshes(), later_ms=1250, count=4)
    assert means(read, "gpm_tensor_percent") == [0.0, pytest.approx(45.5), 91.0]
    assert means(read, "gpm_dram_percent") == [0.0, pytest.approx(11.5), 23.0]
    assert means(read, "gpm_pcie_rx_mib_per_s") == [2.0, pytest.approx(251.0), 500.0]
    assert set(read) == {*GPM_SHARES, *GPM_RATES}


def test_without_a_refresh_there_is_no_reading() -> None:
    """Refreshed every 100 ms and sampled every 50: no zeros in between."""
    read = counters(count=12, every_ms=50)
    assert len(means(read, "gpm_tensor_percent")) in (5, 6)
    assert set(means(read, "gpm_tensor_percent")) == {91.0}
    assert set(means(read, "gpm_dram_percent")) == {23.0}


@pytest.mark.parametrize(
    "function", ["nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc", "nvmlGpmSampleGet", "nvmlGpmMetricsGet"]
)
@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_NO_PERMISSION])
def test_refused_counters_are_one_reason(function: str, code: int) -> None:
    read = counters(without_refreshes(), faults=[Fault(name=function, error=code)])
    assert [type(one) for one in read["gpm_dram_percent"]] == [str]


def test_one_refused_counter_leaves_the_others_and_a_card_without_any_has_a_reason() -> None:
    record = without_refreshes()
    [fp64] = [item for item in record.gpm if item.metric == pynvml.NVML_GPM_METRIC_FP64_UTIL]
    fp64.answers, fp64.at_ns = [Recorded(error=pynvml.NVML_ERROR_NOT_SUPPORTED)], [0]
    read = counters(record)
    assert [type(one) for one in read["gpm_fp64_percent"]] == [str]
    assert means(read, "gpm_tensor_percent") == [91.0] * 4
    record.gpm.clear()
    assert [type(one) for one in counters(record)["gpm_tensor_percent"]] == [str]


def test_after_a_failed_sample_a_new_window_begins() -> None:
    # Steps: nvmlInit and those of one device, support, two samples, then the samples and means in turns.
    calls = iter(range(100))

    def make(questions: Questions) -> Callable[[], Values]:
        steps = questions.nvml.steps

        def fourth(name: str) -> int | None:
            return pynvml.NVML_ERROR_TIMEOUT if name == "nvmlGpmSampleGet" and next(calls) == 3 else None

        steps.before = fourth
        return GpmCounters(questions.device, questions.nvml._clock_ns).read

    read = readings(make, without_refreshes(), count=7, every_ms=100, later_ms=3000)
    found = [one if isinstance(one, float) else type(one) for one in means(read, "gpm_tensor_percent")]
    assert found == [91.0, 91.0, str, 91.0, 91.0]


Times = namedtuple("Times", "user system idle iowait guest steal")
Memory = namedtuple("Memory", "total available")
Stats = namedtuple("Stats", "ctx_switches")


class MadeUpSystem:
    """Two cores: one computes, the other waits for storage half of the time."""

    seconds = 0.0

    def __init__(self, stolen: float) -> None:
        self.stolen = stolen

    def cpu_count(self) -> int:
        return 2

    def cpu_times(self, percpu: bool = False) -> Any:
        now, stolen = self.seconds, self.stolen * self.seconds
        cores = [
            Times(0.75 * now - stolen, 0.25 * now, 0.0, 0.0, 0.75 * now - stolen, stolen),
            Times(0.0, 0.0, 0.5 * now, 0.5 * now, 0.0, 0.0),
        ]
        return cores if percpu else Times(*(a + b for a, b in zip(*cores, strict=True)))

    def virtual_memory(self) -> Any:
        return Memory(100, 30)

    def cpu_stats(self) -> Any:
        return Stats(123)

    def disk_io_counters(self) -> Any:
        return None


@pytest.mark.parametrize(
    ("flags", "stolen", "steal"),
    [("fpu hypervisor", 0.5, 25.0), ("fpu hypervisor", 0.0, NO_STEAL), ("fpu", 0.0, 0.0)],
)
def test_shares_of_cpu_time_by_hand(tmp_path: Path, flags: str, stolen: float, steal: float | str) -> None:
    """A virtual machine that never counted steal may not know of any."""
    (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags : {flags}\n")
    system = MadeUpSystem(stolen)
    host = Host(system, tmp_path / "cpuinfo")
    host.read()
    system.seconds = 1.0
    found = host.read()
    assert isinstance(found.pop((HOST, "read_bytes")), str)
    assert isinstance(found.pop((HOST, "write_bytes")), str)
    assert found == {
        (HOST, "cpu_percent"): 50,  # with what was stolen
        (HOST, "io_wait_percent"): 25,
        (HOST, "steal_percent"): steal,
        ("core:0", "cpu_percent"): 100,
        ("core:1", "cpu_percent"): 0,
        (HOST, "memory_used_bytes"): 70,
        (HOST, "context_switches"): 123,
    }
