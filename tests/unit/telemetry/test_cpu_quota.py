"""Quotas of control groups, from files as Linux has them, in and around containers."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfharness.telemetry.cpu_quota import NO_GROUPS, NO_QUOTA, CpuQuota
from perfharness.telemetry.processes import FollowedProcess

PID = 42
PROCESS = FollowedProcess("proc_0_gpu_0", PID)


class Machine:
    """Files below a folder, and readings at moments of a made-up clock, s."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, groups: str) -> None:
        self.root = root
        self.now_s = 0.0
        self.write(f"proc/{PID}/cgroup", groups)
        monkeypatch.setattr("time.monotonic_ns", lambda: int(self.now_s * 1e9))
        self.quotas = CpuQuota(PROCESS, root)

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")

    def group(self, path: str, limit: str, throttled_us: int = 0, periods: int = 0, used_us: int = 0) -> None:
        self.write(f"sys/fs/cgroup{path}/cpu.max", limit)
        stat = f"usage_usec {used_us}\nnr_periods 9\nnr_throttled {periods}\nthrottled_usec {throttled_us}"
        self.write(f"sys/fs/cgroup{path}/cpu.stat", stat)

    def read(self, at_s: float = 0.0) -> dict[str, object]:
        self.now_s = at_s
        return {metric.removeprefix("quota_"): value for (_, metric), value in self.quotas.read().items()}


def test_limits_of_a_pod_and_its_container_are_not_counted_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(tmp_path, monkeypatch, "0::/pod/box/inner")
    machine.group("/pod/box/inner", "max 100000")
    machine.write("sys/fs/cgroup/cpu.stat", "usage_usec 10")  # the topmost group has no limits
    found = []
    for second, (of_box, of_pod) in enumerate([(100, 50), (130, 55), (130, 75)]):
        machine.group("/pod/box", "200000 100000", throttled_us=of_box, periods=of_box, used_us=10 * of_box)
        machine.group("/pod", "400000 100000", throttled_us=of_pod, periods=of_pod, used_us=20 * of_pod)
        found.append(machine.read(second))
    # since it is followed: 30 us of box, 20 us of pod
    same = {"cpus": 2.0, "period_ns": 100_000_000}
    assert found == [
        {**same, "throttled_ns": 0, "throttled_periods": 0, "cpu_time_ns": 0},
        {**same, "throttled_ns": 30_000, "throttled_periods": 30, "cpu_time_ns": 300_000},
        {**same, "throttled_ns": 50_000, "throttled_periods": 50, "cpu_time_ns": 700_000},
    ]


def test_a_quota_is_searched_for_once_a_second_until_the_process_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(tmp_path, monkeypatch, "0::/a")
    machine.group("/a", "max 100000")
    assert machine.read() == {"throttled_ns": 0, "throttled_periods": 0, "cpus": NO_QUOTA}
    machine.group("/a", "50000 100000", throttled_us=5)
    assert machine.read(0.5) == {}
    assert machine.read(1.0)["cpus"] == 0.5
    machine.group("/a", "50000 100000", throttled_us=8, periods=1)
    assert machine.read(1.02) == {"throttled_ns": 3_000, "throttled_periods": 1, "cpu_time_ns": 0}
    (tmp_path / f"proc/{PID}/cgroup").unlink()
    assert machine.read(2.0) == machine.read(3.0) == {}


@pytest.mark.parametrize("groups", ["0::/", "0::/../other", "4:cpu:/\n0::/a"], ids=["not mounted", "above", "v1"])
def test_groups_that_cannot_be_seen_are_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: str) -> None:
    machine = Machine(tmp_path, monkeypatch, groups)
    machine.group("/a", "50000 100000")
    assert machine.read() == dict.fromkeys(("cpus", "throttled_ns", "throttled_periods"), NO_GROUPS)
    assert machine.read(0.5) == {}
