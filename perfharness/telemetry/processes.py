"""CPU time, memory, I/O and scheduling of each measured process and its children."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from perfharness.model.telemetry import member_subject, process_subject
from perfharness.telemetry.readings import Values

SEARCH_NS, SEARCH_SHARE = 1_000_000_000, 100
"""Search period for children, extended so that searching takes at most a hundredth of a CPU."""

THREADS_SHARE = 50
"""Reading threads takes at most a fiftieth of a CPU."""

NO_IO = "no permission to read /proc/PID/io"
NO_SCHEDSTAT = "the kernel does not count how long threads wait for a CPU (/proc/PID/schedstat)"

SUMMED = ("cpu_time_ns", "read_bytes", "write_bytes")
"""Counters that include ended processes; `read_bytes` and `write_bytes` are None if unknown."""

Used = dict[str, int | None]
"""Use of one process by metric; memory and threads are current values."""


@dataclass
class FollowedProcess:
    """A running measured process.

    Args:
        folder: its folder in the run, which is its name.
        pid: process ID in the namespace of this process.
        gpu_uuids: UUIDs of its GPUs.
    """

    folder: str
    pid: int
    gpu_uuids: tuple[str, ...] = ()
    pids: frozenset[int] = frozenset()
    """Itself and its descendants at the last reading."""

    cpus_allowed: int | None = None

    @property
    def subject(self) -> str:
        """Subject of its readings."""
        return process_subject(self.folder)


def read_each(
    followed: list[FollowedProcess], reader: Callable[[FollowedProcess], Callable[[], Values]]
) -> Callable[[], Values]:
    """Combine one reader per followed process; processes added to the list later are included."""
    readers: dict[str, Callable[[], Values]] = {}

    def read() -> Values:
        values: Values = {}
        for process in list(followed):
            if process.subject not in readers:
                readers[process.subject] = reader(process)
            values |= readers[process.subject]()
        return values

    return read


class ProcessTree:
    """A process and its descendants, with counters that never fall, because ended processes stay included."""

    def __init__(self, process: FollowedProcess) -> None:
        self._process = process
        self._members: dict[int, psutil.Process] = {}
        self._search_at_ns = self._threads_at_ns = 0
        self._used: dict[int, Used] = {}
        self._threads: dict[tuple[int, int], tuple[int, ...]] = {}
        self._has_children = False
        self._before: dict[str, tuple[int, int]] = {}

    def read(self) -> Values:
        """Read once; empty after the process and its descendants have ended."""
        now_ns, subject = time.monotonic_ns(), self._process.subject
        if now_ns >= self._search_at_ns:
            began_ns = time.thread_time_ns()
            self._search()
            self._search_at_ns = now_ns + max(SEARCH_NS, SEARCH_SHARE * (time.thread_time_ns() - began_ns))
        running = {pid: used for pid, member in self._members.items() if (used := _used(member)) is not None}
        for pid, used in running.items():  # the kernel counts pages per CPU, so its maximum may fall slightly
            used["peak_rss_bytes"] = max(used["peak_rss_bytes"] or 0, self._used.get(pid, used)["peak_rss_bytes"] or 0)
        self._members = {pid: self._members[pid] for pid in running}
        self._process.pids = frozenset(running)
        if not running:
            return {}
        self._used |= running
        of_all = list(self._used.values())
        total: Used = {metric: _sum(of_all if metric in SUMMED else running.values(), metric) for metric in of_all[0]}
        total["peak_rss_bytes"] = max(used["peak_rss_bytes"] or 0 for used in of_all)
        values = self._values(subject, total, now_ns)
        self._has_children |= len(running) > 1
        if self._has_children:  # measured children are known only at the end
            for pid, used in running.items():
                values |= self._values(member_subject(self._process.folder, pid), used, now_ns)
        if now_ns >= self._threads_at_ns:
            began_ns = time.thread_time_ns()
            values |= self._of_threads(subject)
            self._threads_at_ns = now_ns + THREADS_SHARE * (time.thread_time_ns() - began_ns)
        return values

    def _search(self) -> None:
        """Find new descendants; orphans are kept."""
        try:
            root = psutil.Process(self._process.pid)
            found = [root, *root.children(recursive=True)]
            self._process.cpus_allowed = len(os.sched_getaffinity(root.pid))
        except (psutil.Error, OSError):
            return
        self._members = {member.pid: member for member in found} | self._members

    def _values(self, subject: str, used: Used, now_ns: int) -> Values:
        values: Values = {(subject, metric): NO_IO if value is None else value for metric, value in used.items()}
        now = now_ns, used["cpu_time_ns"] or 0
        before, self._before[subject] = self._before.get(subject), now
        if before is not None:
            values[subject, "cpu_percent"] = 100.0 * (now[1] - before[1]) / (now_ns - before[0])
        return values

    def _of_threads(self, subject: str) -> Values:
        """Per-thread counters of /proc, summed over all threads seen."""
        for pid in self._process.pids:
            self._threads.update(_threads(pid))
        if not self._threads:
            return {}
        run_ns, ready_ns, switches, forced = map(sum, zip(*self._threads.values(), strict=True))
        is_known = all(run_ns >= 0 for run_ns, *_ in self._threads.values())
        return {
            (subject, "context_switches"): switches + forced,
            (subject, "involuntary_context_switches"): forced,
            (subject, "thread_run_ns"): run_ns if is_known else NO_SCHEDSTAT,
            (subject, "thread_ready_ns"): ready_ns if is_known else NO_SCHEDSTAT,
        }


def _used(process: psutil.Process) -> Used | None:
    """Use of a process; None if it has ended or is a zombie."""
    status, io = _counts(Path(f"/proc/{process.pid}/status")), None
    try:
        if not process.is_running() or b"VmRSS" not in status:
            return None
        times = process.cpu_times()
        with contextlib.suppress(psutil.AccessDenied, NotImplementedError):
            io = process.io_counters()
    except psutil.Error:
        return None
    return {
        "cpu_time_ns": round((times.user + times.system) * 1e9),
        "rss_bytes": 1024 * status[b"VmRSS"],
        "peak_rss_bytes": 1024 * status[b"VmHWM"],
        "threads": status[b"Threads"],
        "read_bytes": None if io is None else io.read_bytes,
        "write_bytes": None if io is None else io.write_bytes,
    }


def _threads(pid: int) -> Iterator[tuple[tuple[int, int], tuple[int, ...]]]:
    """Yield running and ready time (-1 if unknown), voluntary and forced context switches per thread."""
    try:
        folders = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return
    for folder in folders:
        try:
            run_ns, ready_ns, _ = map(int, (folder / "schedstat").read_bytes().split())
        except (OSError, ValueError):
            run_ns = ready_ns = -1
        if counts := _counts(folder / "status"):
            switches = counts[b"voluntary_ctxt_switches"], counts[b"nonvoluntary_ctxt_switches"]
            yield (pid, int(folder.name)), (run_ns, ready_ns, *switches)


_COUNT = re.compile(rb"^(Threads|Vm(?:RSS|HWM)|\w*voluntary_ctxt_switches):\s+(\d+)", re.MULTILINE)


def _counts(status: Path) -> dict[bytes, int]:
    """Numbers in a status file (proc_pid_status(5)), memory in KiB; empty if missing."""
    try:
        return {name: int(number) for name, number in _COUNT.findall(status.read_bytes())}
    except OSError:
        return {}


def _sum(all_used: Iterable[Used], metric: str) -> int | None:
    values = [used[metric] for used in all_used]
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
