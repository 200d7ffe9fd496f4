"""A process and all that it started, as counters that never fall: what a child used before it ended stays counted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

REFRESH_NS = 1_000_000_000
COST_SHARE = 100
"""The search for children may take a hundredth of the time: with thousands of processes it is rare."""


@dataclass(frozen=True)
class TreeUsage:
    """What a process tree used since it began, by the names of its metrics; memory and threads as they are now.

    I/O is None where the system does not report it.
    """

    cpu_time_ns: int
    rss_bytes: int
    threads: int
    read_bytes: int | None
    write_bytes: int | None


@dataclass
class _Last:
    """Counters of one process as they were when it was last seen."""

    cpu_time_s: float = 0.0
    read_bytes: int = 0
    write_bytes: int = 0


class ProcessTree:
    """Not thread-safe.

    Args:
        pid: of the root, in this process's namespace.
    """

    def __init__(self, pid: int, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock_ns = clock_ns
        self._last: dict[tuple[int, float], _Last] = {}
        self._switches: dict[tuple[int, int], tuple[int, int]] = {}
        self._refresh_at_ns = 0
        self.alone: dict[tuple[int, float], TreeUsage] = {}
        """Of the latest `usage`: what each process used itself, by pid and when it began."""

        self._members: list[psutil.Process] = []
        try:
            self._root: psutil.Process | None = psutil.Process(pid)
        except psutil.Error:
            self._root = None  # it has ended already

    def members(self) -> list[psutil.Process]:
        """The root and its descendants that live; children that lost their parent are kept."""
        if self._root is None:
            return []
        now = self._clock_ns()
        if now >= self._refresh_at_ns:
            known = {process.pid: process for process in self._members}
            for process in self._found():
                known.setdefault(process.pid, process)
            self._members = list(known.values())
            took = self._clock_ns() - now
            self._refresh_at_ns = now + max(REFRESH_NS, COST_SHARE * took)
        self._members = [process for process in self._members if process.is_running()]
        return self._members

    def pids(self) -> set[int]:
        """Process ids of the members."""
        return {process.pid for process in self.members()}

    def usage(self) -> TreeUsage | None:
        """What it used; None where none of it runs any more."""
        self.alone = {}
        for process in self.members():
            key = (process.pid, process.create_time())
            last = self._last.setdefault(key, _Last())
            try:
                with process.oneshot():
                    if process.status() == psutil.STATUS_ZOMBIE:
                        continue
                    times, rss, threads = process.cpu_times(), process.memory_info().rss, process.num_threads()
            except psutil.Error:
                continue
            last.cpu_time_s = max(last.cpu_time_s, times.user + times.system)
            has_io = self._read_io(process, last)
            self.alone[key] = _usage([last], rss, threads, has_io=has_io)
        if not self.alone:
            return None
        return _usage(
            self._last.values(),
            sum(one.rss_bytes for one in self.alone.values()),
            sum(one.threads for one in self.alone.values()),
            has_io=all(one.read_bytes is not None for one in self.alone.values()),
        )

    def context_switches(self) -> tuple[int, int] | None:
        """Voluntary and involuntary ones of all threads, those that ended included; None where nothing runs."""
        members = self.members()
        if not members:
            return None
        for process in members:
            for thread, counts in _thread_switches(process.pid):
                self._switches[process.pid, thread] = counts
        return sum(first for first, _ in self._switches.values()), sum(second for _, second in self._switches.values())

    def _found(self) -> Iterator[psutil.Process]:
        assert self._root is not None
        yield self._root
        try:
            yield from self._root.children(recursive=True)
        except psutil.Error:
            return

    @staticmethod
    def _read_io(process: psutil.Process, last: _Last) -> bool:
        try:
            io = process.io_counters()
        except psutil.NoSuchProcess:
            return True
        except (psutil.Error, OSError, NotImplementedError):
            return False
        last.read_bytes, last.write_bytes = io.read_bytes, io.write_bytes
        return True


def _usage(counted: Iterable[_Last], rss_bytes: int, threads: int, *, has_io: bool) -> TreeUsage:
    counted = list(counted)
    return TreeUsage(
        cpu_time_ns=round(sum(last.cpu_time_s for last in counted) * 1e9),
        rss_bytes=rss_bytes,
        threads=threads,
        read_bytes=sum(last.read_bytes for last in counted) if has_io else None,
        write_bytes=sum(last.write_bytes for last in counted) if has_io else None,
    )


def _thread_switches(pid: int) -> Iterator[tuple[int, tuple[int, int]]]:
    """Voluntary and involuntary context switches by thread (proc_pid_status(5)); those that end meanwhile not."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return
    for thread in threads:
        try:
            lines = (thread / "status").read_bytes().splitlines()
        except OSError:
            continue
        counts = {
            name: int(number)
            for name, _, number in (line.partition(b":") for line in lines)
            if name.endswith(b"voluntary_ctxt_switches")
        }
        if len(counts) == 2:
            yield int(thread.name), (counts[b"voluntary_ctxt_switches"], counts[b"nonvoluntary_ctxt_switches"])
