"""Every source runs through the same contract; then what each of them is for."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections import Counter, namedtuple
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pynvml
import pytest

from perfharness.model.telemetry import (
    GPM_EDGE_ERROR,
    GPM_RATES,
    GPM_SHARES,
    GPM_WINDOW,
    HOST,
    clock_event_names,
    member_subject,
    process_subject,
)
from perfharness.telemetry.gpm import GpmSource
from perfharness.telemetry.gpu import (
    GpuEnergySource,
    GpuLinkSource,
    GpuMemorySource,
    GpuPowerSamples,
    GpuSource,
    NvmlSource,
    chosen_devices,
)
from perfharness.telemetry.host import NO_STEAL, HostSource, ProcessSource
from perfharness.telemetry.nvml import REFUSALS, open_nvml
from perfharness.telemetry.process_tree import ProcessTree, TreeUsage
from perfharness.telemetry.protocol import FollowedProcess
from perfharness.telemetry.source import Keys, SamplerContext, Source, Tape
from perfharness.telemetry.sources import SOURCES, make_sources
from tests.support.nvml_cards import GIB, error, gpu_uuid, h100_machine, mig_uuid, value
from tests.support.nvml_record import NvmlRecord, Recorded, device
from tests.support.replayed_nvml import ReplayedNvml
from tests.support.steps import Fault, Steps

MS = 1_000_000
PERIOD_NS = 50 * MS
UTC_NS = 1_700_000_000_000_000_000
GPU = gpu_uuid(0)
ME = FollowedProcess(folder="proc_0_gpu_0", pid=os.getpid(), gpu_uuids=[GPU])
CORES = {f"core:{core}" for core in range(os.cpu_count() or 1)}
Make = Callable[[SamplerContext], Source]


class Readings:
    """What a source reads of a replayed machine: values by subject and metric, times, failures."""

    def __init__(
        self, make: Make, record: NvmlRecord | None = None, count: int = 1, every_ms: int = 1000, *, gpu: str = GPU,
        others: Sequence[str] = (), later_ms: int = 0, follow: FollowedProcess | None = None,
        between: Callable[[], None] = lambda: None,
        faults: Sequence[Fault] = (), before: Callable[[str], int | None] | None = None,
    ) -> None:  # fmt: skip
        now_ns, steps = 10**12, Steps(list(faults))
        if before is not None:
            steps.before = before  # type: ignore[method-assign,assignment]
        replay = ReplayedNvml(record or h100_machine(), clock_ns=lambda: now_ns, unix_ns=lambda: UTC_NS, steps=steps)
        keys = Keys()
        tape = Tape(keys, lambda: now_ns)
        with open_nvml(replay) as nvml:
            now_ns += later_ms * MS
            source = make(SamplerContext(PERIOD_NS, nvml, chosen_devices(nvml, [gpu, *others]), UTC_NS))
            if follow is not None:
                source.follow(follow)
            self.subjects = source.subjects()
            for _ in range(count):
                source.read(tape)
                now_ns += every_ms * MS
                between()
        self.period_ns = source.period_ns
        self.failures = tape.failures
        readings = tape.take()
        self.times = [reading.time_monotonic_ns for reading in readings]
        self.of: dict[tuple[str, str], list[float | None]] = {}
        for number, _, found, _ in readings:
            self.of.setdefault(keys.names[number], []).append(None if math.isnan(found) else found)

    def __getitem__(self, metric: str) -> list[float | None]:
        """The readings of the only subject that has the metric."""
        [found] = [readings for (_, name), readings in self.of.items() if name == metric]
        return found


@pytest.mark.parametrize("kind", SOURCES)
def test_each_source_keeps_the_contract(kind: type[Source]) -> None:
    read = Readings(kind, count=6, every_ms=50, follow=ME)
    assert read.period_ns >= min(PERIOD_NS, kind.period_limits_ns[1])
    assert read.of
    # Other tests may have given this process children, which are read alone, too.
    members = {subject for subject, _ in read.of if subject.startswith(f"{ME.subject}#")}
    subjects = {GPU: "gpu", ME.subject: "process", **dict.fromkeys(members, "process")}
    found = {(metric, subjects.get(subject, "host")) for subject, metric in read.of}
    assert found <= {(metric.name, metric.of) for metric in kind.metrics}
    assert {subject for subject, _ in read.of if subject not in subjects} <= {HOST, *CORES}
    nulls = sum(readings.count(None) for readings in read.of.values())
    assert nulls == sum(read.failures.values())  # each null has its reason


def test_sources_of_gpus_are_made_where_there_are_some() -> None:
    with open_nvml(ReplayedNvml(h100_machine())) as nvml:
        made = make_sources(SamplerContext(PERIOD_NS, nvml, chosen_devices(nvml, [GPU])))
        without = make_sources(SamplerContext(PERIOD_NS, nvml, chosen_devices(nvml, ["GPU-other"])))
    assert [type(source) for source in made] == list(SOURCES)
    assert [type(source) for source in without] == [source for source in SOURCES if not issubclass(source, NvmlSource)]
    periods = [make(SamplerContext(10_000 * MS, nvml, nvml.devices)).period_ns for make in SOURCES]
    assert periods == [min(10_000 * MS, source.period_limits_ns[1]) for source in SOURCES]


def test_clocks_power_and_temperature_of_the_gpu_with_that_uuid() -> None:
    """The load begins after 2 s; the average lags by a tick."""
    record = h100_machine(2)
    value(record, "nvmlDeviceGetTemperature", device(gpu_uuid(1)), 0, result=77)
    read = Readings(GpuSource, record, 5, gpu=gpu_uuid(1))
    assert [(item.subject, item.kind, item.gpu_index) for item in read.subjects] == [(gpu_uuid(1), "gpu", 1)]
    idle, load = (
        {"power_instant_mw": 70_000, "sm_clock_mhz": 345, "gpu_utilization_percent": 0, "clock_event_reasons": 1},
        {"power_instant_mw": 520_000, "sm_clock_mhz": 1755, "gpu_utilization_percent": 97, "clock_event_reasons": 4},
    )
    assert {subject for subject, _ in read.of} == {gpu_uuid(1)}
    for metric in idle:
        assert read[metric] == [idle[metric]] * 2 + [load[metric]] * 3
    assert read["power_average_mw"] == [70_000] * 3 + [520_000] * 2
    assert (read["temperature_c"], read["pstate"]) == ([77] * 5, [0] * 5)


def test_energy_of_six_seconds_of_load() -> None:
    energy = Readings(GpuEnergySource, count=10)["energy_total_mj"]
    assert (energy[9] or 0) - (energy[1] or 0) == 6 * 520_000 + 2 * 70_000


def test_a_refusal_for_good_is_one_null_and_any_other_is_asked_again() -> None:
    record = h100_machine()
    error(record, "nvmlDeviceGetTemperature", device(GPU), 0, code=pynvml.NVML_ERROR_NOT_SUPPORTED)
    error(record, "nvmlDeviceGetUtilizationRates", device(GPU), code=pynvml.NVML_ERROR_UNKNOWN)
    read = Readings(GpuSource, record, 4)
    assert read["temperature_c"] == [None]
    assert read["gpu_utilization_percent"] == read["memory_utilization_percent"] == [None] * 4
    assert sum(read.failures.values()) == 1 + 2 * 4


def test_old_drivers_call_the_event_reasons_throttle_reasons() -> None:
    record = h100_machine()
    function = "nvmlDeviceGetCurrentClocksEventReasons"
    error(record, function, device(GPU), code=pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    value(record, "nvmlDeviceGetCurrentClocksThrottleReasons", device(GPU), result=0x44)
    assert Readings(GpuSource, record, 2)["clock_event_reasons"] == [0x44, 0x44]
    assert clock_event_names(0x44) == ["sw_power_cap", "hw_thermal_slowdown"]
    assert clock_event_names(0x8004) == ["sw_power_cap", "0x8000"]


def test_power_samples_are_drained_once_each_at_their_own_times() -> None:
    read = Readings(GpuPowerSamples, count=4, later_ms=2000)
    found, times = read["power_sample_mw"], read.times
    assert len(set(times)) == len(times) == len(found)
    assert {after - before for before, after in pairwise(times)} == {20 * MS}
    assert times[found.index(520_000)] == 2_000 * MS


def test_a_mig_instance_has_its_own_memory_and_its_parents_power() -> None:
    record, instance = h100_machine(1, mig_instances={0: 2}), mig_uuid(0, 1)
    clocks = Readings(GpuSource, record, gpu=instance)
    kinds = [(item.subject, item.kind, item.parent_uuid) for item in clocks.subjects]
    assert kinds == [(GPU, "gpu", None), (instance, "mig", GPU)]
    assert (GPU, "power_instant_mw") in clocks.of
    assert (instance, "power_instant_mw") not in clocks.of
    assert (instance, "memory_used_bytes") in Readings(GpuMemorySource, record, gpu=instance).of


def _listing(*processes: tuple[int, int | None]) -> NvmlRecord:
    record = h100_machine()
    listed = [{"struct": {"pid": pid, "usedGpuMemory": used}} for pid, used in processes]
    value(record, "nvmlDeviceGetComputeRunningProcesses", device(GPU), result=listed)
    return record


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
    read = Readings(GpuMemorySource, _listing(*listed), follow=ME)
    assert read["memory_used_bytes"] == [GIB]
    assert read["process_memory_bytes"] == [expected]


@pytest.mark.parametrize(
    ("on_second", "expected"),
    [([(os.getpid(), 2 * GIB)], 3 * GIB), ([], GIB), ([(os.getpid(), None)], None), (None, None)],
    ids=["on both", "on one", "not told", "refused"],
)
def test_memory_of_a_process_is_that_of_all_its_gpus(
    on_second: list[tuple[int, int | None]] | None, expected: int | None
) -> None:
    record, second = h100_machine(2), gpu_uuid(1)
    for uuid, listed in ((GPU, [(os.getpid(), GIB)]), (second, on_second)):
        function = "nvmlDeviceGetComputeRunningProcesses"
        if listed is None:
            error(record, function, device(uuid), code=pynvml.NVML_ERROR_NO_PERMISSION)
        else:
            result = [{"struct": {"pid": pid, "usedGpuMemory": used}} for pid, used in listed]
            value(record, function, device(uuid), result=result)
    both = ME.model_copy(update={"gpu_uuids": [GPU, second]})
    read = Readings(GpuMemorySource, record, follow=both, others=[second])
    assert read["process_memory_bytes"] == [expected]


def test_memory_on_a_gpu_that_is_not_sampled_is_not_left_out() -> None:
    both = ME.model_copy(update={"gpu_uuids": [GPU, gpu_uuid(1)]})
    assert Readings(GpuMemorySource, _listing((os.getpid(), GIB)), follow=both)["process_memory_bytes"] == [None]


def test_a_process_that_was_listed_and_is_not_any_more_has_given_its_memory_back() -> None:
    record = _listing((os.getpid(), GIB))
    call = record.call("nvmlDeviceGetComputeRunningProcesses", device(GPU))
    assert call is not None
    call.at_ns, call.answers = [0, 1000 * MS], [*call.answers, call.answers[0].model_copy(update={"value": []})]
    assert Readings(GpuMemorySource, record, 2, follow=ME)["process_memory_bytes"] == [GIB, 0]


def test_links_and_limit() -> None:
    read = Readings(GpuLinkSource, count=4)
    assert read["pcie_rx_kb_per_s"] == read["pcie_tx_kb_per_s"] == [0, 0, 250_000, 250_000]
    assert read["power_limit_mw"] == [650_000] * 4
    assert read["nvlink_rx_kib"] == [None]  # this card has none: refused for good


Times = namedtuple("Times", "user system idle iowait guest steal")
Memory = namedtuple("Memory", "total available")
Stats = namedtuple("Stats", "ctx_switches")


class MadeUpSystem:
    """One second of two cores: one computes, the other waits for storage half of the time."""

    seconds = 0.0
    stolen = 0.0

    def cpu_count(self) -> int:
        return 2

    def cpu_times(self, percpu: bool = False) -> Any:
        now = self.seconds
        stolen = self.stolen * now
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


def host_after_a_second(cpuinfo: Path, stolen: float = 0.0) -> Readings:
    system = MadeUpSystem()
    system.stolen = stolen
    return Readings(
        lambda context: HostSource(context, system, cpuinfo), count=2,
        between=lambda: setattr(system, "seconds", 1.0),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "stolen", "expected"),
    [("fpu hypervisor", 0.5, 25.0), ("fpu hypervisor", 0.0, None), ("fpu", 0.0, 0.0)],
)
def test_a_virtual_machine_that_never_counted_steal_may_not_know(
    tmp_path: Path, flags: str, stolen: float, expected: float | None
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor : 0\nflags : {flags}\n")
    read = host_after_a_second(cpuinfo, stolen)
    assert read["steal_percent"] == [expected]
    assert read.of["host", "cpu_percent"] == [50]  # with what was stolen
    assert read.failures["host", "steal_percent", NO_STEAL] == (expected is None)


def test_shares_of_cpu_time_by_hand(tmp_path: Path) -> None:
    read = host_after_a_second(tmp_path / "absent")
    assert read.of == {
        ("host", "cpu_percent"): [50],
        ("host", "steal_percent"): [0],
        ("host", "io_wait_percent"): [25],
        ("core:0", "cpu_percent"): [100],
        ("core:1", "cpu_percent"): [0],
        ("host", "memory_used_bytes"): [70, 70],
        ("host", "context_switches"): [123, 123],
        ("host", "read_bytes"): [None, None],
        ("host", "write_bytes"): [None, None],
    }
    reason = "the system reports no storage device"
    assert read.failures == Counter({("host", "read_bytes", reason): 2, ("host", "write_bytes", reason): 2})


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
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-uc", CHILDREN], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        child = int(process.stdout.readline())
        tree = ProcessTree(process.pid, lambda: 0)
        usage, switches = tree.usage(), tree.context_switches()
        assert usage is not None
        assert switches is not None
        assert child in tree.pids()
        assert usage.cpu_time_ns > 20 * MS
        assert usage.rss_bytes > 2 << 20
        assert usage.threads >= 2
        alone = {pid: one for (pid, _), one in tree.alone.items()}
        assert set(alone) == {process.pid, child}
        assert sum(one.cpu_time_ns for one in alone.values()) == pytest.approx(usage.cpu_time_ns)
        assert alone[child].cpu_time_ns > 0
        print(file=process.stdin, flush=True)
        assert process.stdout.readline() == "gone\n"
        after, later = tree.usage(), tree.context_switches()
        assert after is not None
        assert later is not None
        assert tree.pids() == {process.pid}
        assert after.cpu_time_ns >= usage.cpu_time_ns
        assert after.threads == 1
        assert sum(later) >= sum(switches) > 0
        print(file=process.stdin, flush=True)
        process.wait()
        for gone in (tree, ProcessTree(process.pid)):
            assert (gone.usage(), gone.context_switches(), gone.pids()) == (None, None, set())


def test_of_a_tree_of_several_each_process_is_read_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The root from when it has a child; of another process with the same pid nothing is written."""
    usage = TreeUsage(10 * MS, 100, 1, 0, 0)
    steps: list[dict[tuple[int, float], TreeUsage]] = [
        {(7, 1.0): usage},
        {(7, 1.0): usage, (8, 2.0): usage},
        {(7, 1.0): usage, (8, 3.0): usage},
    ]
    source = ProcessSource(SamplerContext(period_ns=MS))
    source.follow(FollowedProcess(folder="proc_0_gpu_0", pid=7))
    ((_, tree),) = source.followed
    tape, written = Tape(Keys()), []
    for alone in steps:
        monkeypatch.setattr(tree, "usage", lambda: usage)
        tree.alone = alone
        source.read(tape)
        names = tape._keys.names
        taken = [(*names[one.key], one.value) for one in tape.take()]
        written.append({subject: value for subject, metric, value in taken if metric == "cpu_time_ns"})
    root, child = member_subject("proc_0_gpu_0", 7), member_subject("proc_0_gpu_0", 8)
    assert [set(one) - {process_subject("proc_0_gpu_0")} for one in written] == [set(), {root, child}, {root, child}]
    assert written[1][child] == 10 * MS
    assert math.isnan(written[2][child])
    assert tape.failures[child, "cpu_time_ns", "another process has got its pid"] == 1


def without_refreshes() -> NvmlRecord:
    """A card whose counters are refreshed at each sample."""
    record = h100_machine(mig_instances={0: 2})
    record.gpm_refresh_ns = 0
    return record


def test_counters_are_means_over_exactly_the_time_between_two_readings() -> None:
    """The load begins after 2 s: of the window from 1.75 to 2.25 s it is there for one half."""
    read = Readings(GpmSource, without_refreshes(), count=5, every_ms=500, later_ms=750)
    assert read[GPM_WINDOW] == [500 * MS] * 3
    assert read["gpm_tensor_percent"] == [0.0, pytest.approx(45.5), 91.0]
    assert read["gpm_dram_percent"] == [0.0, pytest.approx(11.5), 23.0]
    assert read["gpm_pcie_rx_mib_per_s"] == [2.0, pytest.approx(251.0), 500.0]
    assert {metric for _, metric in read.of} == {GPM_WINDOW, GPM_EDGE_ERROR, *GPM_SHARES, *GPM_RATES}
    assert not read.failures


def test_without_a_refresh_there_is_no_reading() -> None:
    """Refreshed every 100 ms and sampled every 20: windows from refresh to refresh, and no zeros in between."""
    read = Readings(GpmSource, count=31, every_ms=20, later_ms=3000)
    assert read[GPM_WINDOW] == [100 * MS] * 5
    assert read["gpm_tensor_percent"] == [91.0] * 5
    assert read["gpm_dram_percent"] == [23.0] * 5
    assert not read.failures


def test_a_card_without_counters_is_one_null_a_metric() -> None:
    record = h100_machine()
    record.gpm.clear()
    read = Readings(GpmSource, record, 3)
    assert read["gpm_dram_percent"] == read[GPM_WINDOW] == [None]
    assert sum(read.failures.values()) == len((GPM_WINDOW, GPM_EDGE_ERROR, *GPM_SHARES, *GPM_RATES))


@pytest.mark.parametrize(
    "function", ["nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc", "nvmlGpmSampleGet", "nvmlGpmMetricsGet"]
)
@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_NO_PERMISSION])
def test_refused_counters_are_null_with_the_reason(function: str, code: int) -> None:
    read = Readings(GpmSource, without_refreshes(), count=3, faults=[Fault(name=function, error=code)])
    assert read["gpm_dram_percent"] == [None]
    [reason] = {reason for _, metric, reason in read.failures if metric == "gpm_dram_percent"}
    assert reason == REFUSALS[code][1]


def test_one_refused_counter_leaves_the_others() -> None:
    record = without_refreshes()
    [fp64] = [item for item in record.gpm if (item.device, item.metric) == (GPU, pynvml.NVML_GPM_METRIC_FP64_UTIL)]
    fp64.answers, fp64.at_ns = [Recorded(error=pynvml.NVML_ERROR_NOT_SUPPORTED)], [0]
    read = Readings(GpmSource, record, 5, later_ms=3000)
    assert read["gpm_fp64_percent"] == [None]
    assert read["gpm_tensor_percent"] == [91.0] * 3


def test_after_a_failed_sample_a_new_window_begins() -> None:
    """Samples every 100 ms, the fourth fails; the first window of each row has a begin that is not known."""
    calls = iter(range(10))

    def fourth(name: str) -> int | None:
        return pynvml.NVML_ERROR_TIMEOUT if name == "nvmlGpmSampleGet" and next(calls) == 3 else None

    read = Readings(GpmSource, without_refreshes(), count=7, every_ms=100, later_ms=3000, before=fourth)
    assert read[GPM_WINDOW] == [100 * MS, None, 100 * MS]
    assert read["gpm_tensor_percent"] == [91.0, None, 91.0]


def test_counters_of_a_mig_instance_are_its_own() -> None:
    read = Readings(GpmSource, without_refreshes(), 4, later_ms=3000, gpu=mig_uuid(0, 1))
    assert read.of[mig_uuid(0, 1), "gpm_tensor_percent"] == [45.5] * 2
    assert read.of[GPU, "gpm_tensor_percent"] == [91.0] * 2
