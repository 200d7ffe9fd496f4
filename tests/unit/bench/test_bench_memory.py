"""A memory limit holds: watchdog, kernel, and what NVML says of this process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfharness.bench.memory import (
    GpuView,
    MemoryLimitError,
    MemoryWatchdog,
    host_bytes,
    host_peak_bytes,
    size_on_disk,
)
from perfharness.telemetry.nvml import Answer, Device, Nvml, Refusal

UUID = "GPU-1"


class FakeNvml:
    """Three functions of `pynvml`."""

    NVML_CLOCK_SM = 1

    class NVMLError(Exception):
        value = 3

    def __init__(self, used: list[int], processes: dict[int, int | None]) -> None:
        self.used, self.processes = used, processes

    def nvmlDeviceGetMemoryInfo(self, _handle: Any) -> Any:  # noqa: N802
        used = self.used.pop(0) if len(self.used) > 1 else self.used[0]
        return SimpleNamespace(used=used, free=100 - used)

    def nvmlDeviceGetComputeRunningProcesses(self, _handle: Any) -> Any:  # noqa: N802
        return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in self.processes.items()]

    def nvmlDeviceGetClockInfo(self, _handle: Any, kind: int) -> int:  # noqa: N802
        assert kind == self.NVML_CLOCK_SM
        return 1980


def view(used: list[int], processes: dict[int, int | None]) -> GpuView:
    module = FakeNvml(used, processes)
    return GpuView(Nvml(module, Answer(None), (Device(module, "handle", UUID, 0),)), UUID)


@pytest.mark.parametrize(
    ("used", "processes", "bytes_", "source"),
    [
        ([10], {os.getpid(): 7, os.getpid() + 1: 50}, 7, "NVML, of this process"),
        # where the process is not listed, or without a size, the GPU's growth stands for it
        ([10, 35], {1: 50}, 25, "NVML, of the whole GPU, less what was in use before"),
        ([10, 35], {os.getpid(): None}, 25, "NVML, of the whole GPU, less what was in use before"),
    ],
)
def test_memory_by_nvml(used: list[int], processes: dict[int, int | None], bytes_: int, source: str) -> None:
    seen = view(used, processes)
    assert (seen.used_bytes(), seen.memory_source, seen.sm_clock_mhz()) == (bytes_, source, 1980.0)


def test_without_nvml_nothing_is_known() -> None:
    closed = GpuView(Nvml(FakeNvml([1], {}), Answer(None, Refusal.OTHER, "no driver")), UUID)
    assert (closed.used_bytes(), closed.sm_clock_mhz()) == (None, None)
    assert closed.memory_source == ""


def test_the_watchdog_sees_the_limit_crossed() -> None:
    used, seen, crossed = [10], list[int](), threading.Event()

    def exceeded(size: int) -> None:
        seen.append(size)
        crossed.set()

    watchdog = MemoryWatchdog(100, lambda: used[0], exceeded, period_s=0.001)
    watchdog.start()
    used[0] = 101
    assert crossed.wait(10)
    assert seen == [101]
    with pytest.raises(MemoryLimitError, match="limit"):
        watchdog.stop()
    used[0] = 100
    watchdog.check()


def test_nothing_runs_beside_the_timed_rounds() -> None:
    before = threading.active_count()
    watchdog = MemoryWatchdog(100, lambda: 1, lambda _: None)
    watchdog.start()
    assert threading.active_count() == before + 1
    watchdog.stop()
    assert threading.active_count() == before
    without = MemoryWatchdog(None, lambda: 1, lambda _: None)
    without.start()
    assert threading.active_count() == before
    without.stop()


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


def test_size_on_disk(tmp_path: Path) -> None:
    (tmp_path / "saved" / "variables").mkdir(parents=True)
    (tmp_path / "saved" / "saved_model.pb").write_bytes(b"x" * 10)
    (tmp_path / "saved" / "variables" / "data").write_bytes(b"x" * 5)
    assert size_on_disk(tmp_path / "saved") == 15
    assert size_on_disk(tmp_path / "saved" / "saved_model.pb") == 10
    assert size_on_disk(None) is None
