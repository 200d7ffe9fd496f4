"""Memory of a case: its use, and an enforced limit.

A watchdog polls the memory in use and ends the process over the limit: outside of the timed rounds, and once after
them.
"""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from perfharness.errors import OutOfMemoryError
from perfharness.telemetry.nvml import Device

PERIOD_S = 0.02
"""Polling period of the watchdog; shorter allocations are missed."""

RUNNING_PROCESSES = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses")


class MemoryLimitError(OutOfMemoryError):
    """The case used, or would have used, more than its limit."""


class GpuView:
    """NVML's view of this process's GPU or MIG instance, while it is open; everything is unknown without one."""

    def __init__(self, device: Device | None) -> None:
        self._device = device
        self._before = self._memory("used")
        self.memory_source: str | None = None
        """Source of the figure of `used_bytes`."""

    def used_bytes(self) -> int | None:
        """Memory of this process on the GPU, including its CUDA context; None if unknown.

        If the driver does not list the process under its id (as in a container): growth of the GPU's used memory, by
        any process, since the view was created.
        """
        self.memory_source = None
        if (own := self._used_by_process()) is not None:
            self.memory_source = "NVML, of this process"
            return own
        now = self._memory("used")
        if now is None or self._before is None:
            return None
        self.memory_source = "NVML, of the whole GPU, minus the earlier use"
        return max(0, now - self._before)

    def total_bytes(self) -> int | None:
        """Memory of the GPU or MIG instance."""
        return self._memory("total")

    def sm_clock_mhz(self) -> float | None:
        """Current clock; for a MIG instance, that of its GPU."""
        if self._device is None:
            return None
        answer = self._device.gpu.ask("nvmlDeviceGetClockInfo", self._device.nvml.NVML_CLOCK_SM)
        return float(answer.value) if answer.ok else None

    def _memory(self, which: str) -> int | None:
        memory = self._asked("nvmlDeviceGetMemoryInfo")
        return None if memory is None else int(getattr(memory, which))

    def _used_by_process(self) -> int | None:
        entries = [entry for function in RUNNING_PROCESSES for entry in self._asked(function) or ()]
        found = [entry.usedGpuMemory for entry in entries if entry.pid == os.getpid()]
        sizes = [int(size) for size in found if size is not None]
        return max(sizes) if sizes and len(sizes) == len(found) else None

    def _asked(self, function: str) -> Any:
        answer = None if self._device is None else self._device.ask(function)
        return answer.value if answer is not None and answer.ok else None


def host_bytes() -> int:
    """Current resident memory of this process."""
    return int(psutil.Process().memory_info().rss)


def host_peak_bytes() -> int:
    """Peak resident memory since the program began (proc_pid_status(5), VmHWM).

    `ru_maxrss` of getrusage(2) includes the time before the exec, with a copy of the parent.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class MemoryWatchdog:
    """Polls the memory in use outside of timed rounds.

    `exceeded` is called from the watchdog's thread with the memory in use, and ends the process.
    """

    def __init__(
        self,
        limit_bytes: int,
        used_bytes: Callable[[], int | None],
        exceeded: Callable[[int], None],
        period_s: float = PERIOD_S,
    ) -> None:
        self._limit, self._used, self._exceeded, self._period_s = limit_bytes, used_bytes, exceeded, period_s
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="perfharness-memory", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop polling before timed rounds; a last check may raise `MemoryLimitError`."""
        self._done.set()
        self._thread.join()
        if (over := self._over_limit()) is not None:
            raise MemoryLimitError(limit_sentence(over, self._limit))

    def _over_limit(self) -> int | None:
        used = self._used()
        return used if used is not None and used > self._limit else None

    def _watch(self) -> None:
        while not self._done.wait(self._period_s):
            if (over := self._over_limit()) is not None:
                self._exceeded(over)
                return


def limit_sentence(used_bytes: int, limit_bytes: int) -> str:
    """Reason for a case over its limit."""
    return (
        f"it used {used_bytes / 1e9:.3f} GB, more than the limit of {limit_bytes / 1e9:.3f} GB; "
        "raise --memory-limit, or use smaller batches"
    )


def size_on_disk(path: Path | None) -> int | None:
    """Bytes of a file, or of all files in a folder; None if the model is not a file."""
    if path is None or not path.exists():
        return None
    if path.is_file():
        return path.stat().st_size
    return sum(entry.stat().st_size for entry in path.rglob("*") if entry.is_file())
