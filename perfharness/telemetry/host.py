"""The host: CPU, memory, storage of the machine, and of each measured process with all that it started.

Two sources: what is cheap goes with the period of the others, what walks over processes and threads once a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from perfharness.model.telemetry import HOST, SubjectRecord, core_subject
from perfharness.telemetry.process_tree import ProcessTree
from perfharness.telemetry.source import Source, Tape, TrackedProcess

MIN_PERIOD_NS = 200_000_000
"""The kernel counts CPU time in steps of 10 ms: shares of less than this would be steps of more than 5 %."""

SLOW_PERIOD_NS = 1_000_000_000


class _Share:
    """CPU time between two calls, as a share of the available time."""

    def __init__(self) -> None:
        self._before: Any = None

    def of(self, times: Any) -> tuple[float, float] | None:
        """Busy and I/O wait in percent since the last call; None at the first, and where no time has passed."""
        before, self._before = self._before, times
        if before is None:
            return None
        spent = {name: max(0.0, getattr(times, name) - getattr(before, name)) for name in times._fields}
        for guest in ("guest", "guest_nice"):  # counted in user and nice too
            spent.pop(guest, None)
        total = sum(spent.values())
        if total <= 0:
            return None
        io_wait = spent.get("iowait", 0.0)
        return 100.0 * (total - spent["idle"] - io_wait) / total, 100.0 * io_wait / total


class HostSource(Source):
    """The machine and its cores.

    Args:
        period_ns: asked for; shares of CPU time are not read more often than `MIN_PERIOD_NS`.
        system: psutil, or what answers like it.
    """

    name = "host"

    def __init__(self, period_ns: int, system: Any = psutil) -> None:
        self.period_ns = max(period_ns, MIN_PERIOD_NS)
        self._system = system
        self._cores = list(range(system.cpu_count() or 0))
        self._machine = _Share()
        self._shares = [_Share() for _ in self._cores]

    def subjects(self) -> Sequence[SubjectRecord]:
        """The machine, and each core."""
        cores = [SubjectRecord(subject=core_subject(core), kind="core") for core in self._cores]
        return [SubjectRecord(subject=HOST, kind="host"), *cores]

    def read(self, tape: Tape) -> None:
        """One reading."""
        self._read_cpu(tape)
        self._read_counters(tape)

    def _read_cpu(self, tape: Tape) -> None:
        with tape.reading():
            per_core = self._system.cpu_times(percpu=True)
            machine = self._system.cpu_times()
        share = self._machine.of(machine)
        if share is not None:
            tape.write(HOST, "cpu_percent", share[0])
            tape.write(HOST, "io_wait_percent", share[1])
        for core, times in enumerate(per_core[: len(self._shares)]):
            core_share = self._shares[core].of(times)
            if core_share is not None:
                tape.write(core_subject(core), "cpu_percent", core_share[0])

    def _read_counters(self, tape: Tape) -> None:
        with tape.reading():
            memory = self._system.virtual_memory()
            switches = self._system.cpu_stats().ctx_switches
            storage = _storage(self._system)
        tape.write(HOST, "memory_used_bytes", memory.total - memory.available)
        tape.write(HOST, "context_switches", switches)
        if storage is None:
            for metric in ("read_bytes", "write_bytes"):
                tape.fail(HOST, metric, "the system reports no storage device")
        else:
            tape.write(HOST, "read_bytes", storage.read_bytes)
            tape.write(HOST, "write_bytes", storage.write_bytes)


def _storage(system: Any) -> Any:
    try:
        return system.disk_io_counters()
    except (OSError, RuntimeError, psutil.Error):
        return None


class _FollowedProcesses(Source):
    """Reads the followed processes, each with its descendants."""

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self._clock_ns = clock_ns
        self._trees: tuple[tuple[TrackedProcess, ProcessTree], ...] = ()

    def subjects(self) -> Sequence[SubjectRecord]:
        """None at the start: `follow` adds them."""
        return []

    def follow(self, process: TrackedProcess) -> None:
        """Read this process too from now on."""
        # Another thread may be reading: the tuple is replaced, never changed.
        self._trees = (*self._trees, (process, ProcessTree(process.pid, clock_ns=self._clock_ns)))


class ProcessSource(_FollowedProcesses):
    """CPU time, memory and I/O of each measured process and what it started."""

    name = "processes"

    def __init__(self, period_ns: int, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        super().__init__(clock_ns)
        self.period_ns = max(period_ns, MIN_PERIOD_NS)
        self._before: dict[str, tuple[int, float]] = {}

    def read(self, tape: Tape) -> None:
        """One reading of each process that still runs."""
        for process, tree in self._trees:
            with tape.reading():
                usage = tree.usage()
            if usage is None:
                continue
            subject = process.subject
            tape.write(subject, "cpu_time_ns", usage.cpu_time_ns)
            before = self._before.get(subject)
            self._before[subject] = (tape.read_at_ns, usage.cpu_time_ns)
            if before is not None and tape.read_at_ns > before[0]:
                tape.write(
                    subject, "cpu_percent", 100.0 * (usage.cpu_time_ns - before[1]) / (tape.read_at_ns - before[0])
                )
            tape.write(subject, "rss_bytes", usage.rss_bytes)
            tape.write(subject, "threads", usage.threads)
            if usage.read_bytes is None or usage.write_bytes is None:
                for metric in ("read_bytes", "write_bytes"):
                    tape.fail(subject, metric, "no permission to read /proc/PID/io")
            else:
                tape.write(subject, "read_bytes", usage.read_bytes)
                tape.write(subject, "write_bytes", usage.write_bytes)


class ThreadSource(_FollowedProcesses):
    """Context switches of each measured process: /proc has them by thread, so there is much to read."""

    name = "threads"

    def __init__(self, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        super().__init__(clock_ns)
        self.period_ns = SLOW_PERIOD_NS

    def read(self, tape: Tape) -> None:
        """One reading of each process that still runs."""
        for process, tree in self._trees:
            with tape.reading():
                switches = tree.context_switches()
            if switches is not None:
                tape.write(process.subject, "context_switches", switches[0] + switches[1])
                tape.write(process.subject, "involuntary_context_switches", switches[1])


def proc_is_there() -> bool:
    """Whether the system has a /proc with processes."""
    return Path("/proc/self/stat").exists()
