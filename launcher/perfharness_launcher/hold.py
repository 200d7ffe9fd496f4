"""Start one measured process, report its start and end, and hold its tracer until the launcher lets go.

The tracer runs this script (`python -I -S hold.py SETTINGS COMMAND…`, standard library only). It

1. starts COMMAND in a new session; the kernel kills COMMAND if this process dies;
2. writes lines of JSON to STATUS: `started` and `ended`, or `not_started`;
3. waits for the end of CONTROL, so that no tracer writes its report while another process is measured;
4. kills its remaining children, which include orphans of COMMAND.

CONTROL is a FIFO. If it ends while COMMAND runs, the launcher is dead: COMMAND is ended too.
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
from typing import Any

STARTED = "PERFHARNESS_STARTED_UNIX_NS"
"""Environment variable of the measured process: its start in nanoseconds UTC."""

EXIT_NOT_STARTED = 127
APPENDED = os.O_WRONLY | os.O_CREAT | os.O_APPEND
GRACE_S = 2.0
"""Time between SIGINT, SIGTERM and SIGKILL if the launcher is dead."""

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def main(arguments: list[str]) -> int:
    """Run the command; return its exit code, or 128 + signal number as a shell does.

    Args:
        arguments: SETTINGS (JSON: paths `control`, `status`, `stdout` and `stderr`, `umask`, `cpus` to bind to, and
            `environment` to set for the command, null to unset), then the command.
    """
    settings, command = json.loads(arguments[0]), arguments[1:]
    os.umask(settings["umask"])  # nsys starts its program with 0
    libc, own_pid = ctypes.CDLL(None), os.getpid()
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    status = os.open(settings["status"], os.O_WRONLY | os.O_NONBLOCK)  # fails if the launcher is dead
    control = os.open(settings["control"], os.O_RDONLY | os.O_NONBLOCK)

    def report(state: str, **facts: Any) -> None:
        with contextlib.suppress(OSError):  # the launcher is dead
            os.write(status, json.dumps({"state": state, **facts}).encode() + b"\n")

    def die_with_parent() -> None:
        libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != own_pid:
            os.kill(os.getpid(), signal.SIGKILL)

    if has_ended(control):
        report("not_started", error="the launch was cancelled before the process started")
        return EXIT_NOT_STARTED
    problems = []
    try:
        os.sched_setaffinity(0, settings["cpus"] or os.sched_getaffinity(0))
    except OSError as error:
        problems.append(f"not bound to its CPUs ({error.strerror})")
    wakeup, writer = os.pipe()  # becomes readable when a child ends
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    start_ns, start_unix_ns = time.perf_counter_ns(), time.time_ns()
    environment = {**os.environ, **settings["environment"], STARTED: str(start_unix_ns)}
    try:
        out, err = (os.open(settings[name], APPENDED, 0o666) for name in ("stdout", "stderr"))
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env={name: value for name, value in environment.items() if value is not None},
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
    except OSError as error:
        report("not_started", error=f"{error.strerror}: {error.filename or command[0]}")
        return EXIT_NOT_STARTED
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # a tracer means COMMAND
        signal.signal(number, lambda number, _frame: signal_group(process.pid, number))
    cpus = sorted(os.sched_getaffinity(0))
    report("started", hold=own_pid, pid=process.pid, start_unix_ns=start_unix_ns, cpus=cpus, problems=problems)
    wait_status, usage = wait_for(process.pid, control, wakeup)
    process.returncode = code = os.waitstatus_to_exitcode(wait_status)
    report(
        "ended",
        exit_code=code if code >= 0 else None,
        signal=-code if code < 0 else None,
        duration_ns=time.perf_counter_ns() - start_ns,
        user_s=usage.ru_utime,
        system_s=usage.ru_stime,
        max_rss_bytes=usage.ru_maxrss * 1024,
    )
    while not has_ended(control):
        select.select([control], [], [])
    kill_children()
    return code if code >= 0 else 128 - code


def has_ended(control: int) -> bool:
    """Whether nobody has CONTROL open for writing."""
    try:
        return not os.read(control, 1)
    except BlockingIOError:
        return False


def wait_for(pid: int, control: int, wakeup: int) -> tuple[int, Any]:
    """Return wait status and resource usage of a process; end it if CONTROL ends first."""
    watched, timeout = [wakeup, control], None
    signals = [signal.SIGINT, signal.SIGTERM]
    while True:
        ended, wait_status, usage = os.wait4(-1, os.WNOHANG)
        if ended == pid:
            return wait_status, usage
        if ended:  # an orphan
            continue
        if wakeup in select.select(watched, [], [], timeout)[0]:
            os.read(wakeup, 64)
        else:
            watched, timeout = [wakeup], GRACE_S
            signal_group(pid, signals.pop(0) if signals else signal.SIGKILL)


def signal_group(pid: int, number: int) -> None:
    """Send a signal to a process group, if it still exists."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)


def kill_children() -> None:
    """Kill all descendants: children of a killed process become children of this one."""
    with contextlib.suppress(OSError):
        file = os.open("/proc/thread-self/children", os.O_RDONLY)
        while children := os.pread(file, 65_536, 0).split():
            for pid in map(int, children):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
