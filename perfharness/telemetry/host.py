"""CPU, memory and storage of the machine and its cores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil

from perfharness.model.telemetry import HOST, SubjectRecord, core_subject
from perfharness.telemetry.readings import Values

GUESTS = ("guest", "guest_nice")
"""Already included in user time."""

CPUINFO = Path("/proc/cpuinfo")
NO_STEAL = "this virtual machine has counted none since it started; its hypervisor may not report it"
NO_STORAGE = "the system reports no storage device"


class Host:
    """Readings of the machine and its cores.

    Args:
        system: psutil or a replacement.
        cpuinfo: path like /proc/cpuinfo.
    """

    def __init__(self, system: Any = psutil, cpuinfo: Path = CPUINFO) -> None:
        self._system, self._is_virtual = system, _is_virtual(cpuinfo)
        self._before: list[Any] = []
        cores = range(system.cpu_count() or 0)
        self.subjects = [
            SubjectRecord(subject=HOST, kind="host"),
            *(SubjectRecord(subject=core_subject(core), kind="core") for core in cores),
        ]

    def read(self) -> Values:
        """Read once."""
        system = self._system
        values: Values = {}
        times = [system.cpu_times(), *system.cpu_times(percpu=True)]
        for record, before, now in zip(self.subjects, self._before, times, strict=False):  # cores may go offline
            shares = _cpu_shares(before, now)
            if record.kind == "core" and shares:
                values[record.subject, "cpu_percent"] = shares["cpu_percent"]
            elif shares:
                values |= {(HOST, metric): share for metric, share in shares.items()}
                if self._is_virtual and not getattr(now, "steal", 0.0):
                    values[HOST, "steal_percent"] = NO_STEAL
        self._before = times
        memory = system.virtual_memory()
        values[HOST, "memory_used_bytes"] = memory.total - memory.available
        values[HOST, "context_switches"] = system.cpu_stats().ctx_switches
        try:
            storage = system.disk_io_counters()
        except (OSError, RuntimeError, psutil.Error):
            storage = None
        for metric in ("read_bytes", "write_bytes"):
            values[HOST, metric] = NO_STORAGE if storage is None else getattr(storage, metric)
        return values


def _cpu_shares(before: Any, now: Any) -> dict[str, float]:
    """Percent of the CPU time between two readings; empty if no time passed."""
    spent = {name: max(0.0, getattr(now, name) - getattr(before, name)) for name in now._fields if name not in GUESTS}
    total = sum(spent.values())
    if total <= 0:
        return {}
    io_wait, steal = spent.get("iowait", 0.0), spent.get("steal", 0.0)
    parts = {"cpu_percent": total - spent["idle"] - io_wait, "io_wait_percent": io_wait, "steal_percent": steal}
    return {metric: 100.0 * part / total for metric, part in parts.items()}


def _is_virtual(cpuinfo: Path) -> bool:
    """Whether the CPU flags report a hypervisor (x86)."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    return any("hypervisor" in line.split() for line in lines if line.startswith("flags"))
