"""Find and end what a run left behind: every process that carries the run's id in its environment.

nsys's agent starts a session of its own and outlives its parent, so neither process groups nor parents find it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Callable, Collection, Iterator

import psutil

RUN_ID_VARIABLE = "PERFHARNESS_RUN_ID"
PR_SET_CHILD_SUBREAPER = 36
PR_GET_CHILD_SUBREAPER = 37


@contextlib.contextmanager
def adopting_orphans() -> Iterator[None]:
    """While open, processes that lose their parent become ours, so that they can be found and reaped."""
    before = ctypes.c_int(0)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


def run_processes(run_id: str) -> list[psutil.Process]:
    """Living processes that carry the run's id, this one left out."""
    return [process for process in psutil.process_iter() if process.pid != os.getpid() and _carries(process, run_id)]


def _carries(process: psutil.Process, run_id: str) -> bool:
    try:
        return process.environ().get(RUN_ID_VARIABLE) == run_id
    except (psutil.Error, OSError):
        return False  # gone meanwhile, a zombie, or somebody else's


def end_leftovers(
    run_id: str,
    *,
    patience_s: float = 3.0,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[str]:
    """Wait for what is left to end by itself, then end it; returns the command lines of what had to be ended."""
    deadline = clock() + patience_s
    while (left := run_processes(run_id)) and clock() < deadline:
        reap_adopted()
        sleep(0.05)
    ended = [_describe(process) for process in left]
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, stubborn = psutil.wait_procs(left, timeout=2.0)
    for process in stubborn:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(stubborn, timeout=2.0)
    reap_adopted()
    return ended


def reap_adopted(ours: Collection[int] = ()) -> None:
    """Collect the exit status of orphans that ended; `ours` are waited for by somebody else."""
    for process in psutil.Process().children():
        if process.pid not in ours:
            with contextlib.suppress(psutil.Error, ChildProcessError):
                if process.status() == psutil.STATUS_ZOMBIE:
                    os.waitpid(process.pid, os.WNOHANG)


def _describe(process: psutil.Process) -> str:
    try:
        return f"{process.pid}: {' '.join(process.cmdline())[:200]}"
    except psutil.Error:
        return str(process.pid)
