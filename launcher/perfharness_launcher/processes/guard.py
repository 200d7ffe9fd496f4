"""Ends what a tracer leaves running when the launcher is killed.

Runs as a script (`python -I -S guard.py RUN_ID PATIENCE`), standard library only, in a session of its own. Its standard
input is a pipe through which the launcher names temporary folders, and which it holds open: a launch that comes to its
end kills this process first, so the end of the pipe means that the launcher has died. The helpers (`child.py`) then end
the measured processes, and a tracer may write its report for PATIENCE seconds. What carries the run's id after that is
killed, and the folders are removed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time

RUN_ID_VARIABLE = b"PERFHARNESS_RUN_ID"
POLL_S = 0.2


def main(arguments: list[str]) -> int:
    """Wait for the launcher to die, then for the run to end."""
    run_id, patience_s = arguments
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with open(0, "rb") as pipe:
        folders = [os.fsdecode(name) for name in pipe.read().split(b"\0") if name]
    deadline = time.monotonic() + float(patience_s)
    while (left := run_processes(run_id)) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    for pid in left:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def run_processes(run_id: str) -> list[int]:
    """Pids of the living processes that carry the run's id."""
    mark = b"%s=%s" % (RUN_ID_VARIABLE, run_id.encode())
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208 - as in child.py
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:  # noqa: PTH123
                if mark in file.read().split(b"\0"):
                    found.append(int(name))
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
