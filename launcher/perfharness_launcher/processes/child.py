"""Runs between the tracer and the measured process and reports its pid, times, and exit code or signal.

Runs as a script (`python -I -S child.py CONTROL STATUS STDOUT STDERR UMASK PLACEMENT COMMAND…`), standard library only:

* reports that it is ready and waits for the start signal, so that all processes of a launch start together;
* starts the command in a session of its own, its output going straight to the two log files, on the CPUs and with the
  memory that PLACEMENT gives it (JSON; empty: as they are);
* writes a line of JSON to STATUS at each step: `ready`, `started`, `ended` or `not_started`, and `left`;
* then holds until it is released, so that no tracer starts to import while another process is still being measured;
* is a subreaper: all that the measured process leaves behind, daemons too, stays below it, and is ended before it ends;
* ends the measured process and all below it when CONTROL is closed, that is when the launcher itself has died.
  Should this process be killed, the kernel kills the measured one.

CONTROL is a FIFO: `GO` and `RELEASE` come through it, its end means that the launcher is gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

GO = b"g"
RELEASE = b"r"
EXIT_NOT_STARTED = 127
ORPHAN_GRACE_S = 2.0
LEFTOVER_GRACE_S = 3.0
"""How long what the measured process leaves behind may take to end by itself."""

KILL_ROUNDS, KILL_S = 5, 1.0

TMPDIR_BEFORE = "PERFHARNESS_TMPDIR_BEFORE"
"""The measured process's own TMPDIR, where the tracer has another; empty: it has none."""

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def main(arguments: list[str]) -> int:
    """Run the command; returns its exit code, or 128 + signal number as a shell would."""
    control_path, status_path, stdout_path, stderr_path, umask, placement, *command = arguments
    os.umask(int(umask, 8))  # nsys starts its application with 0
    _restore_tmpdir()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with open(status_path, "a", buffering=1) as status:  # noqa: PTH123 - pathlib costs start-up time under a tracer

        def report(state: str, **facts: Any) -> None:
            status.write(json.dumps({"state": state, "unix_ns": time.time_ns(), **facts}) + "\n")

        wakeup = _wake_on_child_end()
        report("ready", recorder_pid=os.getpid())
        control = os.open(control_path, os.O_RDONLY | os.O_NONBLOCK)  # waits for no launcher that has died meanwhile
        os.set_blocking(control, True)
        if os.read(control, 1) != GO:
            report("not_started", error="the launch was called off before the process started")
            return EXIT_NOT_STARTED
        try:
            with open(stdout_path, "ab") as out, open(stderr_path, "ab") as err:  # noqa: PTH123
                start_ns = time.perf_counter_ns()
                start_unix_ns = time.time_ns()
                with _placed(placement) as problems:
                    process = subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=out,
                        stderr=err,
                        start_new_session=True,
                        preexec_fn=_dying_with(os.getpid(), libc),
                    )
        except OSError as error:
            report("not_started", error=f"{error.strerror}: {error.filename or command[0]}")
            return EXIT_NOT_STARTED
        _forward_signals(process.pid)
        report("started", pid=process.pid, start_unix_ns=start_unix_ns, cpus=_cpus_of(process.pid), problems=problems)
        wait_status, usage, launcher_died = _wait(process.pid, control, wakeup)
        duration_ns = time.perf_counter_ns() - start_ns
        process.returncode = code = os.waitstatus_to_exitcode(wait_status)
        report(
            "ended",
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            duration_ns=duration_ns,
            user_s=usage.ru_utime,
            system_s=usage.ru_stime,
            max_rss_bytes=usage.ru_maxrss * 1024,
        )
        if launcher_died or not os.read(control, 1):  # RELEASE, or the end
            _kill_descendants()
        elif left := _end_descendants():
            report("left", commands=left)
        return code if code >= 0 else 128 - code


def _restore_tmpdir() -> None:
    before = os.environ.pop(TMPDIR_BEFORE, None)
    if before:
        os.environ["TMPDIR"] = before
    elif before is not None:
        os.environ.pop("TMPDIR", None)


def _dying_with(helper: int, libc: ctypes.CDLL) -> Callable[[], None]:
    """What the measured process does before its program: have the kernel kill it when this process dies."""

    def prepare() -> None:
        libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != helper:  # it died before it could be asked for
            os.kill(os.getpid(), signal.SIGKILL)

    return prepare


@contextlib.contextmanager
def _placed(placement: str) -> Iterator[list[str]]:
    """While open, this process is where its child shall be, which a child takes over; gives what could not be done.

    Only this thread moves, so whatever a tracer runs in this process stays where it is.
    """
    problems: list[str] = []
    cpus = json.loads(placement) if placement else None
    before = os.sched_getaffinity(0)
    if cpus:
        try:
            os.sched_setaffinity(0, cpus)
        except OSError as error:
            problems.append(f"not bound to its CPUs ({error.strerror})")
    try:
        yield problems
    finally:
        if cpus:
            os.sched_setaffinity(0, before)


def _cpus_of(pid: int) -> list[int] | None:
    try:
        return sorted(os.sched_getaffinity(pid))
    except OSError:  # it has ended already
        return None


def _wake_on_child_end() -> int:
    """Read end of a pipe that becomes readable when a child ends."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return reader


def _forward_signals(pid: int) -> None:
    """A tracer that ends its application means the measured process, not this one."""

    def forward(number: int, _frame: Any) -> None:
        signal_group(pid, number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, forward)


def _wait(pid: int, control: int, wakeup: int) -> tuple[int, Any, bool]:
    """Wait status and resource usage of the process, and whether the launcher died, for which it was then ended."""
    escalation = [signal.SIGINT, signal.SIGTERM, signal.SIGKILL]
    watched = [control, wakeup]
    timeout: float | None = None
    while True:
        while True:  # orphans of the measured process become children of this one
            ended, wait_status, usage = os.wait4(-1, os.WNOHANG)
            if ended == pid:
                return wait_status, usage, control not in watched
            if not ended:
                break
        readable, _, _ = select.select(watched, [], [], timeout)
        if wakeup in readable:
            os.read(wakeup, 64)
        if control in readable and not os.read(control, 1):
            watched = [wakeup]
            timeout = 0.0
        if control not in watched and wakeup not in readable:
            signal_group(pid, escalation[0])
            escalation = escalation[1:] or escalation
            timeout = ORPHAN_GRACE_S


def _kill_descendants() -> None:
    """Kill all below this process; in rounds, for the children of killed processes become children of this one."""
    for _ in range(KILL_ROUNDS):
        below = _descendants()
        if not below:
            return
        for pid in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + KILL_S
        with contextlib.suppress(ChildProcessError):
            while time.monotonic() < deadline:
                if not os.waitpid(-1, os.WNOHANG)[0]:
                    time.sleep(0.02)


def _end_descendants() -> list[str]:
    """Wait for what is left below this process to end by itself, then end it; command lines of what had to be ended.

    Here, for no launcher that is killed from now on would find it: this process is the last one above it.
    """
    if not _any_descendant_after(LEFTOVER_GRACE_S):
        return []
    below = _descendants()
    commands = [_command_line(pid) for pid in below]
    for pid in below:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    if _any_descendant_after(ORPHAN_GRACE_S):
        _kill_descendants()
    return commands


def _any_descendant_after(seconds: float) -> bool:
    """Whether any process lives below this one so many seconds from now; returns as soon as none does."""
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not _descendants():
            return False
        if time.monotonic() >= deadline:
            return True
        time.sleep(0.05)


def _command_line(pid: int) -> str:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123
        return f"{pid}: {file.read().rstrip(bytes(1)).replace(bytes(1), b' ').decode(errors='replace')[:200]}"
    return str(pid)


def _descendants() -> list[int]:
    parents = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - pathlib costs start-up time under a tracer
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                state, parent = file.read().rpartition(b")")[2].split()[:2]
                if state != b"Z":
                    parents[int(name)] = int(parent)
    found: set[int] = set()
    while below := {pid for pid, parent in parents.items() if parent in found or parent == os.getpid()} - found:
        found |= below
    return sorted(found)


def signal_group(pid: int, number: int) -> None:
    """Send a signal to a process group, if it still is there."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
