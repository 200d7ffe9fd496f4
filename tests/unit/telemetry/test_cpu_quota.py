"""Quotas of control groups, of files as Linux has them, in and around containers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from perfharness.telemetry.cpu_quota import NO_GROUPS, NO_QUOTA, ControlGroups, CpuQuotaSource, Quota
from perfharness.telemetry.protocol import FollowedProcess
from perfharness.telemetry.source import Keys, SamplerContext, Tape

PID = 42
PROCESS = FollowedProcess(folder="proc_0_gpu_0", pid=PID)
V2 = "30 23 0:26 {root} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"


class Machine:
    """Files below a folder."""

    def __init__(self, root: Path, mounts: str, groups: str) -> None:
        self.root = root
        self.write("proc/self/mountinfo", "23 1 0:20 / /proc rw - proc proc rw\n" + mounts)
        self.write(f"proc/{PID}/cgroup", groups)

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")

    def group_v2(self, path: str, limit: str, throttled_us: int = 0, periods: int = 0, used_us: int = 0) -> None:
        folder = f"sys/fs/cgroup{path}"
        self.write(f"{folder}/cpu.max", limit)
        self.write(
            f"{folder}/cpu.stat",
            f"usage_usec {used_us}\nnr_periods 9\nnr_throttled {periods}\nthrottled_usec {throttled_us}",
        )

    def limited(self) -> list[Quota | None] | None:
        found = ControlGroups(PID, self.root).limited()
        return None if found is None else [group.read() for group in found]


def test_a_docker_container_seen_from_inside(tmp_path: Path) -> None:
    machine = Machine(tmp_path, V2.format(root="/"), "0::/")
    machine.group_v2("", "150000 100000", throttled_us=7, periods=2, used_us=5)
    assert machine.limited() == [Quota(150_000_000, 100_000_000, 7_000, 2, 5_000)]


def test_limits_of_kubernetes_on_the_pod_and_its_container(tmp_path: Path) -> None:
    machine = Machine(tmp_path, V2.format(root="/"), "0::/kubepods/pod1/box/inner")
    machine.group_v2("/kubepods/pod1/box/inner", "max 100000")
    machine.group_v2("/kubepods/pod1/box", "200000 100000", throttled_us=3)
    machine.group_v2("/kubepods/pod1", "400000 100000", throttled_us=4)
    machine.group_v2("/kubepods", "max 100000")
    machine.write("sys/fs/cgroup/cpu.stat", "usage_usec 10")  # the topmost group has no limits
    found = machine.limited()
    assert found is not None
    assert [(quota.quota_ns, quota.throttled_ns) for quota in found if quota] == [
        (200_000_000, 3_000), (400_000_000, 4_000),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("mounts", "groups"),
    [("", "0::/"), (V2.format(root="/"), "0::/../other")],
)
def test_groups_that_cannot_be_seen_are_not_known(tmp_path: Path, mounts: str, groups: str) -> None:
    machine = Machine(tmp_path, mounts, groups)
    assert machine.limited() is None
    read = Readings(machine)
    read.at(1)
    metrics = ("quota_cpus", "quota_throttled_ns", "quota_throttled_periods")
    assert read.values() == {metric: [None] for metric in metrics}
    assert read.tape.failures == Counter({(PROCESS.subject, metric, NO_GROUPS): 1 for metric in metrics})


class Readings:
    """A source at moments of a made-up clock, s."""

    def __init__(self, machine: Machine) -> None:
        self.now_ns = 0
        self.keys = Keys()
        self.tape = Tape(self.keys, lambda: self.now_ns)
        self.source = CpuQuotaSource(SamplerContext(50_000_000), machine.root)
        self.source.follow(PROCESS)

    def at(self, second: float) -> None:
        self.now_ns = int(1e9 * second)
        self.source.read(self.tape)

    def values(self) -> dict[str, list[float | None]]:
        found: dict[str, list[float | None]] = {}
        for reading in self.tape.take():
            value = None if reading.value != reading.value else reading.value
            found.setdefault(self.keys.names[reading.key][1], []).append(value)
        return found


def test_what_several_groups_lose_is_not_counted_twice(tmp_path: Path) -> None:
    machine = Machine(tmp_path, V2.format(root="/"), "0::/pod/box")
    read = Readings(machine)
    for second, (of_box, of_pod) in enumerate([(100, 50), (130, 55), (130, 75)]):
        machine.group_v2("/pod/box", "200000 100000", throttled_us=of_box, periods=of_box, used_us=10 * of_box)
        machine.group_v2("/pod", "400000 100000", throttled_us=of_pod, periods=of_pod, used_us=20 * of_pod)
        read.at(second)
    found = read.values()
    assert found["quota_throttled_ns"] == [0, 30_000, 50_000]  # since it is followed: 30 us of box, 20 us of pod
    assert found["quota_throttled_periods"] == [0, 30, 50]
    assert found["quota_cpu_time_ns"] == [0, 300_000, 700_000]
    assert (found["quota_cpus"], found["quota_period_ns"]) == ([2.0] * 3, [100_000_000] * 3)


def test_a_process_is_looked_up_once_a_second(tmp_path: Path) -> None:
    machine = Machine(tmp_path, V2.format(root="/"), "0::/a")
    machine.group_v2("/a", "max 100000")
    read = Readings(machine)
    read.at(0.0)
    machine.group_v2("/a", "50000 100000", throttled_us=5)
    read.at(0.5)
    assert read.values() == {"quota_throttled_ns": [0], "quota_throttled_periods": [0], "quota_cpus": [None]}
    assert read.tape.failures == Counter({(PROCESS.subject, "quota_cpus", NO_QUOTA): 1})
    read.at(1.0)
    machine.group_v2("/a", "50000 100000", throttled_us=8, periods=1)
    read.at(1.02)
    assert read.values() == {
        "quota_throttled_ns": [0, 3_000], "quota_throttled_periods": [0, 1], "quota_cpu_time_ns": [0, 0],
        "quota_cpus": [0.5], "quota_period_ns": [100_000_000],
    }  # fmt: skip


def test_a_process_that_ended_gives_no_reason(tmp_path: Path) -> None:
    machine = Machine(tmp_path, V2.format(root="/"), "0::/")
    machine.group_v2("", "50000 100000")
    read = Readings(machine)
    read.at(0.0)
    (tmp_path / f"proc/{PID}/cgroup").unlink()
    read.at(1.0)
    read.at(2.0)
    assert not read.tape.failures
    assert read.values()["quota_throttled_ns"] == [0]
