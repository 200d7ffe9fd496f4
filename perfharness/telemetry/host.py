"""The host: CPU, memory, storage of the machine, and of each measured process with all that it started.

Two sources: what is cheap goes with the period of the others, what walks over processes and threads once a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from perfharness.model.telemetry import HOST, SubjectRecord, core_subject, member_subject
from perfharness.telemetry.process_tree import TreeUsage
from perfharness.telemetry.source import FollowingSource, Metric, SamplerContext, Source, Tape

SHARE_PERIODS_NS = (200_000_000, 1 << 62)
"""The kernel counts CPU time in steps of 10 ms: shares of less than the first would be steps of more than 5 %."""

IDLE = ("idle", "iowait", "steal")
GUESTS = ("guest", "guest_nice")
"""Their time is counted as a user's, too."""

CPUINFO = Path("/proc/cpuinfo")
NO_STEAL = "this virtual machine has counted none since it started: its hypervisor may not report it"


class _Shares(NamedTuple):
    """Percent of the available CPU time."""

    busy: float
    io_wait: float
    steal: float


class _Share:
    """CPU time between two calls, as a share of the available time."""

    def __init__(self) -> None:
        self._before: Any = None

    def of(self, times: Any) -> _Shares | None:
        """Since the last call; None at the first, and where no time has passed."""
        before, self._before = self._before, times
        if before is None:
            return None
        spent = {
            name: max(0.0, getattr(times, name) - getattr(before, name)) for name in times._fields if name not in GUESTS
        }
        total = sum(spent.values())
        if total <= 0:
            return None
        io_wait, steal = spent.get("iowait", 0.0), spent.get("steal", 0.0)
        return _Shares(*(100.0 * part / total for part in (total - spent["idle"] - io_wait, io_wait, steal)))


class HostSource(Source):
    """The machine and its cores.

    Args:
        system: psutil, or what answers like it.
        cpuinfo: as /proc/cpuinfo.
    """

    name = "host"
    metrics = (
        Metric(
            "cpu_percent", "CPU time of all processes, with `steal_percent`, 100 is all cores; or of one core", "host",
            computed=True,
        ),
        Metric(
            "steal_percent",
            "CPU time that a virtual machine wanted and its hypervisor gave to others, 100 is all cores", "host",
            computed=True,
        ),
        Metric(
            "io_wait_percent", "idle CPU time in which a process waited for storage, 100 is all cores", "host",
            computed=True,
        ),
        Metric("memory_used_bytes", "memory in use, without caches", "host", computed=True),
        Metric("context_switches", "context switches of the machine", "host", counter=True, computed=True),
        Metric("read_bytes", "read from storage", "host", counter=True, computed=True),
        Metric("write_bytes", "written to storage", "host", counter=True, computed=True),
    )  # fmt: skip
    period_limits_ns = SHARE_PERIODS_NS

    def __init__(self, context: SamplerContext, system: Any = psutil, cpuinfo: Path = CPUINFO) -> None:
        super().__init__(context)
        self._system = system
        self._is_virtual = is_virtual(cpuinfo)
        self._machine = _Share()
        self._shares = [_Share() for _ in range(system.cpu_count() or 0)]

    def subjects(self) -> Sequence[SubjectRecord]:
        """The machine, and each core."""
        cores = [SubjectRecord(subject=core_subject(core), kind="core") for core in range(len(self._shares))]
        return [SubjectRecord(subject=HOST, kind="host"), *cores]

    def read(self, tape: Tape) -> None:
        """One reading."""
        with tape.reading():
            per_core = self._system.cpu_times(percpu=True)
            machine = self._system.cpu_times()
        if (share := self._machine.of(machine)) is not None:
            tape.write(HOST, "cpu_percent", share.busy)
            tape.write(HOST, "io_wait_percent", share.io_wait)
            if self._is_virtual and not getattr(machine, "steal", 0.0):
                tape.fail(HOST, "steal_percent", NO_STEAL)
            else:
                tape.write(HOST, "steal_percent", share.steal)
        for core, (before, times) in enumerate(zip(self._shares, per_core, strict=False)):  # a core may be switched off
            if (share := before.of(times)) is not None:
                tape.write(core_subject(core), "cpu_percent", share.busy)
        with tape.reading():
            memory = self._system.virtual_memory()
            switches = self._system.cpu_stats().ctx_switches
            storage = _storage(self._system)
        tape.write(HOST, "memory_used_bytes", memory.total - memory.available)
        tape.write(HOST, "context_switches", switches)
        for metric in ("read_bytes", "write_bytes"):
            if storage is None:
                tape.fail(HOST, metric, "the system reports no storage device")
            else:
                tape.write(HOST, metric, getattr(storage, metric))


def is_virtual(cpuinfo: Path = CPUINFO) -> bool:
    """Whether the CPUs say so (x86)."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    flags = next((line for line in lines if line.startswith("flags")), "")
    return "hypervisor" in flags.split()


def _storage(system: Any) -> Any:
    try:
        return system.disk_io_counters()
    except (OSError, RuntimeError, psutil.Error):
        return None


class ProcessSource(FollowingSource):
    """CPU time, memory and I/O of each launched process with what it started, and of each process of such a tree alone:
    which of them are measured is known at the end.
    """

    name = "processes"
    metrics = (
        Metric("cpu_percent", "CPU time of the process tree, 100 is one core", "process", computed=True),
        Metric(
            "cpu_time_ns", "CPU time of the process tree since it started", "process", counter=True, computed=True
        ),
        Metric("rss_bytes", "resident memory of the process tree", "process", computed=True),
        Metric("threads", "threads of the process tree", "process", computed=True),
        Metric("read_bytes", "read from storage by the process tree", "process", counter=True, computed=True),
        Metric("write_bytes", "written to storage by the process tree", "process", counter=True, computed=True),
    )  # fmt: skip
    period_limits_ns = SHARE_PERIODS_NS

    def __init__(self, context: SamplerContext) -> None:
        super().__init__(context)
        self._before: dict[str, tuple[int, float]] = {}
        self._began: dict[str, float] = {}  # each process of a tree of several, by its subject

    def read(self, tape: Tape) -> None:
        """One reading of each process that still runs, and where it has started others, of each of these alone."""
        for process, tree in self.followed:
            with tape.reading():
                usage = tree.usage()
            if usage is None:
                continue
            self._write(tape, process.subject, usage)
            if len(tree.alone) == 1 and member_subject(process.folder, process.pid) not in self._began:
                continue
            for (pid, began), alone in tree.alone.items():
                subject = member_subject(process.folder, pid)
                if self._began.setdefault(subject, began) == began:
                    self._write(tape, subject, alone)
                else:
                    for metric in self.metrics:
                        tape.fail(subject, metric.name, "another process has got its pid")

    def _write(self, tape: Tape, subject: str, usage: TreeUsage) -> None:
        before = self._before.get(subject)
        self._before[subject] = (tape.read_at_ns, usage.cpu_time_ns)
        if before is not None and tape.read_at_ns > before[0]:
            share = (usage.cpu_time_ns - before[1]) / (tape.read_at_ns - before[0])
            tape.write(subject, "cpu_percent", 100.0 * share)
        for metric, value in vars(usage).items():
            if value is None:
                tape.fail(subject, metric, "no permission to read /proc/PID/io")
            else:
                tape.write(subject, metric, value)


class ThreadSource(FollowingSource):
    """Context switches of each measured process: /proc has them by thread, so there is much to read."""

    name = "threads"
    metrics = (
        Metric("context_switches", "context switches of the process tree", "process", counter=True, computed=True),
        Metric(
            "involuntary_context_switches", "those that the scheduler forced", "process", counter=True, computed=True
        ),
    )  # fmt: skip
    period_limits_ns = (1_000_000_000, 1_000_000_000)

    def read(self, tape: Tape) -> None:
        """One reading of each process that still runs."""
        for process, tree in self.followed:
            with tape.reading():
                switches = tree.context_switches()
            if switches is not None:
                tape.write(process.subject, "context_switches", switches[0] + switches[1])
                tape.write(process.subject, "involuntary_context_switches", switches[1])
