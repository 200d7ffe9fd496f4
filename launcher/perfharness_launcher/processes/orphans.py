"""Finds all processes of a run, and ends them when the run is over.

The run's id in the environment finds nsys's agent, which starts a session of its own and outlives its parent. But a
process may change its title (which overwrites the environment that the kernel shows), clear its environment, fork twice
and start a session. So descendants count too: launcher and helper (`child.py`) are subreapers, so that an orphan of the
run always has one of them above it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from perfharness_launcher.processes.child import PR_SET_CHILD_SUBREAPER

RUN_ID_VARIABLE = "PERFHARNESS_RUN_ID"
"""Marks every process of a run, so that none is left running."""

PR_GET_CHILD_SUBREAPER = 37

Identity = tuple[int, float]
"""Pid and start time: pids are used again."""


@contextlib.contextmanager
def adopting_orphans() -> Iterator[None]:
    """While open, processes that lose their parent become children of this one, to be found and reaped."""
    before = ctypes.c_int(0)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


def is_alive(process: psutil.Process) -> bool:
    """Whether it runs: a zombie does not, nor does another process that got its pid."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _adopts_orphans() -> bool:
    found = ctypes.c_int(0)
    ctypes.CDLL(None, use_errno=True).prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(found), 0, 0, 0)
    return bool(found.value)


class RunProcesses:
    """The processes of one run, without this one.

    Where this process adopts orphans (`adopting_orphans`), these all belong to the run. It must start no others
    meanwhile, so a program that has the launcher inside it (a notebook) does not adopt: what clears the run's id from
    its environment and loses its helper is not found then.

    Args:
        run_id: what its processes carry in their environment, unless they took it out.
    """

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._adopts = _adopts_orphans()
        self._not_adopted = {_identity(child) for child in _children()}

    def start_of(self, pid: int) -> None:
        """A process that this one starts itself and waits for."""
        with contextlib.suppress(psutil.Error):
            self._not_adopted.add(_identity(psutil.Process(pid)))

    def living(self) -> list[psutil.Process]:
        """Those that carry the run's id, orphans adopted since the start, and all below both."""
        parents: dict[int, int] = {}
        processes: dict[int, psutil.Process] = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                parents[process.pid] = process.ppid()
                processes[process.pid] = process
        found = {process.pid for process in processes.values() if carries(process, self._run_id)}
        found |= {process.pid for process in self._adopted()}
        while below := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= below
        found.discard(os.getpid())
        return [processes[pid] for pid in sorted(found & processes.keys()) if is_alive(processes[pid])]

    def cpu_s(self) -> float:
        """CPU time of the living processes, in seconds."""
        used = 0.0
        for process in self.living():
            with contextlib.suppress(psutil.Error):
                used += sum(process.cpu_times()[:2])
        return used

    def reap(self) -> None:
        """Collect the exit status of orphans that ended."""
        for process in self._adopted():
            with contextlib.suppress(psutil.Error, ChildProcessError):
                if process.status() == psutil.STATUS_ZOMBIE:
                    os.waitpid(process.pid, os.WNOHANG)

    def kill_remains(self, tmp_dir: Path) -> None:
        """Kill what an nsys left that ended before the process began: its agent, which has its temporary folder."""
        for process in self.living():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get("TMPDIR") == str(tmp_dir):
                    process.kill()

    def end(self) -> list[str]:
        """Wait for what is left to end by itself, then end it; returns the command lines of what had to be ended."""
        left = self._wait_for_end(3.0)
        ended = [_describe(process) for process in left]
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.terminate()
        if left:
            left = self._wait_for_end(2.0)
        for _ in range(KILL_ROUNDS):  # whoever is killed may have started another one meanwhile
            if not left:
                break
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            left = self._wait_for_end(1.0)
        return ended

    def _wait_for_end(self, patience_s: float) -> list[psutil.Process]:
        deadline = time.monotonic() + patience_s
        while True:
            self.reap()
            left = self.living()
            if not left or time.monotonic() >= deadline:
                return left
            time.sleep(0.05)

    def _adopted(self) -> list[psutil.Process]:
        if not self._adopts:
            return []
        found = []
        for child in _children():
            with contextlib.suppress(psutil.Error):
                if _identity(child) not in self._not_adopted:
                    found.append(child)
        return found


KILL_ROUNDS = 3


def belongs(process: psutil.Process, run_id: str) -> bool:
    """Whether a process or one above it carries the run's id; in doubt it does not."""
    try:
        return any(carries(one, run_id) for one in (process, *process.parents()))
    except psutil.Error:
        return False


def carries(process: psutil.Process, run_id: str) -> bool:
    """Whether the run's id is in the environment of a process, as far as that can be read."""
    try:
        return process.environ().get(RUN_ID_VARIABLE) == run_id
    except (psutil.Error, OSError):
        return False  # gone meanwhile, a zombie, or another user's


def _children() -> list[psutil.Process]:
    return psutil.Process().children()


def _identity(process: psutil.Process) -> Identity:
    return process.pid, process.create_time()


def _describe(process: psutil.Process) -> str:
    try:
        return f"{process.pid}: {' '.join(process.cmdline())[:200]}"
    except psutil.Error:
        return str(process.pid)
