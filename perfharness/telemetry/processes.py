"""CPU time, memory, I/O and scheduling of each measured process with all that it started."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from perfharness.model.telemetry import member_subject, process_subject
from perfharness.telemetry.readings import Values

SEARCH_NS, SEARCH_SHARE = 1_000_000_000, 100
"""Children are searched for so often, or as often as takes a hundredth of a CPU."""

THREADS_SHARE = 50
"""Threads are read as often as takes a fiftieth of a CPU."""

NO_IO = "no permission to read /proc/PID/io"
NO_SCHEDSTAT = "the kernel does not count how long threads wait for a CPU (/proc/PID/schedstat)"


@dataclass
class Used:
    """What one process has used; memory and threads as they are now. I/O is None where it is not reported."""

    cpu_time_ns: int = 0
    rss_bytes: int = 0
    peak_rss_bytes: int = 0
    threads: int = 0
    read_bytes: int | None = 0
    write_bytes: int | None = 0


@dataclass
class FollowedProcess:
    """A measured process that has begun.

    Args:
        folder: its folder in the run, which names it.
        pid: in this process's namespace.
        gpu_uuids: of its GPUs.
    """

    folder: str
    pid: int
    gpu_uuids: tuple[str, ...] = ()
    pids: frozenset[int] = frozenset()
    """It and its descendants that ran at the last reading."""

    cpus_allowed: int | None = None

    @property
    def subject(self) -> str:
        """The name of its readings."""
        return process_subject(self.folder)


class Processes:
    """Readings of the followed processes; not thread-safe."""

    def __init__(self, followed: list[FollowedProcess]) -> None:
        self._followed = followed
        self._trees: dict[str, _Tree] = {}

    def read(self) -> Values:
        """One reading of each process that still runs."""
        values: Values = {}
        for process in list(self._followed):
            tree = self._trees.get(process.subject)
            if tree is None:
                tree = self._trees[process.subject] = _Tree(process)
            values |= tree.read()
        return values


class _Tree:
    """A process and its descendants, as counters that never fall: what ended stays counted."""

    def __init__(self, process: FollowedProcess) -> None:
        self._process = process
        self._members: dict[int, psutil.Process] = {}
        self._search_at_ns = self._threads_at_ns = 0
        self._used: dict[int, Used] = {}
        self._threads: dict[tuple[int, int], _Thread] = {}
        self._has_children = False
        self._before: dict[str, tuple[int, int]] = {}

    def read(self) -> Values:
        now = time.monotonic_ns()
        running = dict(self._running(now))
        self._process.pids = frozenset(running)
        if not running:
            return {}
        subject = self._process.subject
        total = Used(
            cpu_time_ns=sum(one.cpu_time_ns for one in self._used.values()),
            rss_bytes=sum(one.rss_bytes for one in running.values()),
            peak_rss_bytes=max(one.peak_rss_bytes for one in self._used.values()),
            threads=sum(one.threads for one in running.values()),
            read_bytes=_sum([one.read_bytes for one in self._used.values()]),
            write_bytes=_sum([one.write_bytes for one in self._used.values()]),
        )
        values = self._values(subject, total, now)
        self._has_children |= len(running) > 1
        if self._has_children:  # which of them are measured is known at the end
            for pid, used in running.items():
                values |= self._values(member_subject(self._process.folder, pid), used, now)
        if now >= self._threads_at_ns:
            began_ns = time.thread_time_ns()
            values |= self._of_threads(subject)
            self._threads_at_ns = now + THREADS_SHARE * (time.thread_time_ns() - began_ns)
        return values

    def _running(self, now_ns: int) -> Iterator[tuple[int, Used]]:
        """Each process that runs, by its pid."""
        if now_ns >= self._search_at_ns:
            began_ns = time.thread_time_ns()
            self._search()
            self._search_at_ns = now_ns + max(SEARCH_NS, SEARCH_SHARE * (time.thread_time_ns() - began_ns))
        for pid, member in list(self._members.items()):
            status = _counts(Path(f"/proc/{pid}/status"))
            try:
                if not member.is_running() or b"VmRSS" not in status:  # it ended, or is a zombie
                    raise psutil.NoSuchProcess(pid)
                times = member.cpu_times()
            except psutil.Error:
                del self._members[pid]
                continue
            used = self._used.setdefault(pid, Used())
            used.cpu_time_ns = max(used.cpu_time_ns, round((times.user + times.system) * 1e9))
            used.rss_bytes, used.peak_rss_bytes = 1024 * status[b"VmRSS"], 1024 * status[b"VmHWM"]
            used.threads = status[b"Threads"]
            try:
                io = member.io_counters()
                used.read_bytes, used.write_bytes = io.read_bytes, io.write_bytes
            except psutil.NoSuchProcess:
                pass
            except (psutil.Error, OSError, NotImplementedError):
                used.read_bytes = used.write_bytes = None
            yield pid, used

    def _search(self) -> None:
        """Find new descendants; children that lost their parent are kept."""
        try:
            root = psutil.Process(self._process.pid)
            found = [root, *root.children(recursive=True)]
            self._process.cpus_allowed = len(os.sched_getaffinity(root.pid))
        except (psutil.Error, OSError):
            return
        for member in found:
            self._members.setdefault(member.pid, member)

    def _values(self, subject: str, used: Used, now_ns: int) -> Values:
        values: Values = {}
        before = self._before.get(subject)
        self._before[subject] = (now_ns, used.cpu_time_ns)
        if before is not None:
            values[subject, "cpu_percent"] = 100.0 * (used.cpu_time_ns - before[1]) / (now_ns - before[0])
        for metric, value in vars(used).items():
            values[subject, metric] = NO_IO if value is None else value
        return values

    def _of_threads(self, subject: str) -> Values:
        """Counters that /proc has by thread, of all threads that were seen."""
        knows_waits = True
        for pid in self._process.pids:
            for thread, found in _threads(pid):
                self._threads[pid, thread] = found
                knows_waits &= found.has_waits
        total = sum(self._threads.values(), _Thread())
        return {
            (subject, "context_switches"): total.switches + total.forced,
            (subject, "involuntary_context_switches"): total.forced,
            (subject, "thread_run_ns"): total.run_ns if knows_waits else NO_SCHEDSTAT,
            (subject, "thread_ready_ns"): total.ready_ns if knows_waits else NO_SCHEDSTAT,
        }


@dataclass(frozen=True)
class _Thread:
    """Counters of a thread.

    Args:
        run_ns, ready_ns: how long it ran, and was ready to run without a CPU; `has_waits`: whether the kernel says so.
        switches, forced: context switches by itself, and forced by the scheduler.
    """

    run_ns: int = 0
    ready_ns: int = 0
    switches: int = 0
    forced: int = 0
    has_waits: bool = True

    def __add__(self, other: _Thread) -> _Thread:
        return _Thread(
            self.run_ns + other.run_ns,
            self.ready_ns + other.ready_ns,
            self.switches + other.switches,
            self.forced + other.forced,
        )


def _threads(pid: int) -> Iterator[tuple[int, _Thread]]:
    """The threads of a process; those that end meanwhile are left out."""
    try:
        folders = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return
    for folder in folders:
        counts = _counts(folder / "status")
        if not counts:
            continue
        try:
            run_ns, ready_ns, _ = map(int, (folder / "schedstat").read_bytes().split())
        except (OSError, ValueError):
            run_ns = ready_ns = -1
        switches, forced = counts[b"voluntary_ctxt_switches"], counts[b"nonvoluntary_ctxt_switches"]
        yield int(folder.name), _Thread(run_ns, ready_ns, switches, forced, has_waits=run_ns >= 0)


_COUNT = re.compile(rb"^(Threads|Vm(?:RSS|HWM)|\w*voluntary_ctxt_switches):\s+(\d+)", re.MULTILINE)


def _counts(status: Path) -> dict[bytes, int]:
    """Numbers in a status file (proc_pid_status(5)), memory in KiB; empty where it is gone."""
    try:
        return {name: int(number) for name, number in _COUNT.findall(status.read_bytes())}
    except OSError:
        return {}


def _sum(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
