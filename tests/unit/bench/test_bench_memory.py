"""Memory of a case: what NVML says of this process, the watchdog, the host's peak."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from perfharness.bench.memory import GpuView, MemoryLimitError, MemoryWatchdog, host_bytes, host_peak_bytes
from perfharness.telemetry.nvml import Device

UUID = "GPU-1"
WHOLE = "NVML, of the whole GPU, minus the earlier use"


class FakeNvml:
    """Functions of `pynvml`."""

    NVML_CLOCK_SM = 1

    class NVMLError(Exception):
        value = 3

    def __init__(self, used: list[int], processes: dict[int, int | None]) -> None:
        self.used, self.processes = used, processes
        self.nvmlDeviceGetGraphicsRunningProcesses = lambda _handle: list[Any]()

    def nvmlDeviceGetMemoryInfo(self, _handle: Any) -> Any:  # noqa: N802
        used = self.used.pop(0) if len(self.used) > 1 else self.used[0]
        return SimpleNamespace(used=used, total=100)

    def nvmlDeviceGetComputeRunningProcesses(self, _handle: Any) -> Any:  # noqa: N802
        return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in self.processes.items()]

    def nvmlDeviceGetClockInfo(self, _handle: Any, kind: int) -> int:  # noqa: N802
        assert kind == self.NVML_CLOCK_SM
        return 1980


@pytest.mark.parametrize(
    ("used", "processes", "bytes_", "source"),
    [
        ([10], {os.getpid(): 7, os.getpid() + 1: 50}, 7, "NVML, of this process"),
        # where the process is not listed, or without a size, the GPU's growth stands for it
        ([10, 35], {1: 50}, 25, WHOLE),
        ([10, 35], {os.getpid(): None}, 25, WHOLE),
    ],
)
def test_memory_by_nvml(used: list[int], processes: dict[int, int | None], bytes_: int, source: str) -> None:
    view = GpuView(Device(FakeNvml(used, processes), "handle", UUID, 0))
    assert (view.used_bytes(), view.memory_source, view.sm_clock_mhz()) == (bytes_, source, 1980.0)
    assert view.total_bytes() == 100


def test_without_nvml_nothing_is_known() -> None:
    closed = GpuView(None)
    assert (closed.used_bytes(), closed.total_bytes(), closed.sm_clock_mhz()) == (None, None, None)


def test_the_watchdog_sees_the_limit_crossed_and_does_not_run_beside_timed_rounds() -> None:
    used, seen, crossed, before = [10], list[int](), threading.Event(), threading.active_count()

    def exceeded(size: int) -> None:
        seen.append(size)
        crossed.set()

    watchdog = MemoryWatchdog(100, lambda: used[0], exceeded, period_s=0.001)
    assert threading.active_count() == before + 1
    used[0] = 101
    assert crossed.wait(10)
    assert seen == [101]
    with pytest.raises(MemoryLimitError, match="limit"):
        watchdog.stop()
    assert threading.active_count() == before


def test_host_memory_is_that_of_this_process() -> None:
    before = host_bytes()
    block = bytearray(os.urandom(1)) * (64 << 20)
    assert host_bytes() - before > 50 << 20
    assert host_peak_bytes() >= host_bytes() - (1 << 20)
    del block


def test_what_the_parent_held_is_not_the_childs_peak() -> None:
    held = bytearray(300_000_000)  # resident, for zeros are written
    script = "from perfharness.bench.memory import host_peak_bytes as peak; print(peak())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert 1_000_000 < int(done.stdout) < len(held)
