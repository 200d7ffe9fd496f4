"""Client side of `recorder.windows`: find processes to record, and record their next batches."""

from __future__ import annotations

import json
import math
import os
import select
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from perfharness.errors import LaunchError, ResultError, UsageError
from perfharness.files import locked, read_model
from perfharness.model.manifest import MANIFEST_NAME, ProcessRecord, RunManifest
from perfharness.recorder.windows import socket_folders, user_of
from perfharness_launcher.staging import unfinished_runs

ANSWER_S = 10.0
"""Longest wait for a greeting, which needs the interpreter lock."""

IDLE_S = 1.0
CLOSE_S = 120.0
"""Longest wait for the end of a window, when a process with CUDA writes its trace."""

POLL_S = 0.1
HOW_TO_START = (
    "Start it by `perfharness launch --on-demand SCRIPT`, or with PERFHARNESS_ON_DEMAND=1 and a PerfRecorder."
)

Progress = Callable[[int, int], object]
"""Called with the numbers of ended and wanted batches."""


class Recordable:
    """An open connection to a process that can be recorded, with its greeting (`facts`).

    Attributes:
        batches: number of batches that ended in the window.
        is_open, is_closed: whether the window is open, and whether it ended in order.
    """

    def __init__(self, connection: socket.socket, facts: dict[str, Any]) -> None:
        self.connection, self.facts = connection, facts
        self.batches, self.is_open, self.is_closed = 0, False, False
        self.problem = ""
        self._unread = b""

    @property
    def pid(self) -> int:
        """Pid of the process."""
        return int(self.facts["pid"])

    def open(self, folder: Path, file_name: str, batches: int) -> None:
        """Request a window."""
        request = {"folder": str(folder), "file_name": file_name, "batches": batches}
        with suppress(OSError):
            self.connection.sendall(json.dumps(request).encode() + b"\n")
        self.is_open = True

    def read(self) -> None:
        """Read reports. If the connection ends before the last one, the process died."""
        received = b""
        with suppress(OSError):
            received = self.connection.recv(1 << 16)
        self.is_open = bool(received)
        self._unread += received
        *lines, self._unread = self._unread.split(b"\n")
        for report in map(json.loads, lines):
            self.batches = report.get("batches", self.batches)
            self.problem = report.get("error", "")
            self.is_closed = report.get("is_closed", False)
            self.is_open = not self.is_closed


@dataclass(frozen=True)
class Target:
    """A process tree to record, with the record of its root and the processes that listen."""

    record: ProcessRecord
    processes: Sequence[Recordable]


def find_targets(target: int | Path) -> list[Target]:
    """Find the processes to record below a pid, or of a running launch.

    Raises `UsageError` if no process can be recorded, `LaunchError` if one is being recorded already.
    """
    if isinstance(target, Path):
        records = _launched(target)
    else:
        _check_owner(target)
        records = [ProcessRecord(index=0, gpu_index=0, folder="proc_0_gpu_0", command=[], pid=target, ended="cut_off")]
    found = [Target(record, _listening_below(record.pid)) for record in records if record.pid is not None]
    found = [one for one in found if one.processes]
    if not found:
        what = f"Process {target}" if isinstance(target, int) else f"No process of the launch in {target}"
        verb = "cannot" if isinstance(target, int) else "can"
        raise UsageError(f"{what} {verb} be recorded. {HOW_TO_START}")
    every = [process for one in found for process in one.processes]
    busy = [process.pid for process in every if process.facts["is_busy"]]
    if busy:
        hang_up(every)
        raise LaunchError(f"Process {busy[0]} is being recorded already; wait for the end of that window.")
    return found


def _check_owner(pid: int) -> None:
    """Raise `UsageError` if the process does not exist or belongs to another user."""
    try:
        process = psutil.Process(pid)
        owner, user = process.uids().effective, process.username()
    except (psutil.Error, OverflowError):
        raise UsageError(f"There is no process {pid}.") from None
    if os.geteuid() not in (0, owner):
        raise UsageError(f"Process {pid} belongs to {user}; run perfharness record as that user.")


def _launched(folder: Path) -> list[ProcessRecord]:
    """Processes of the launch that writes to a folder."""
    for run in unfinished_runs(folder):
        try:
            with locked(run):
                continue  # its launcher was killed
        except BlockingIOError:
            with suppress(ResultError):
                manifest = read_model(run / MANIFEST_NAME, RunManifest)
                if manifest is not None:
                    return manifest.processes
    raise UsageError(f"No launch is writing to {folder}. Name the -o of `perfharness launch --on-demand`, or a PID.")


def _listening_below(pid: int | None) -> list[Recordable]:
    """Connect to a process and its descendants, as far as they listen."""
    found = []
    with suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with suppress(psutil.Error):
                recordable = _connected(process.pid, process.uids().effective)
                found += [] if recordable is None else [recordable]
    return found


def _connected(pid: int, user: int) -> Recordable | None:
    for folder in socket_folders(user):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(ANSWER_S)
        try:
            connection.connect(str(folder / f"{pid}.sock"))
            greeting = b""
            while not greeting.endswith(b"\n") and (received := connection.recv(1 << 16)):
                greeting += received
            facts = json.loads(greeting)
            if user_of(connection) == user and facts["pid"] == pid:
                return Recordable(connection, facts)
        except (OSError, ValueError):
            pass
        connection.close()
    return None


def wait(
    processes: Sequence[Recordable], wanted: int, timeout_s: float, progress: Progress, interrupted: Callable[[], bool]
) -> None:
    """Wait until each window has its batches, then end the windows.

    The wait ends `IDLE_S` after one process has all its batches if the others have none.

    Args:
        timeout_s: longest time without any batch.
        interrupted: whether the user asked to end the windows.
    """
    last_s, first_full_s = time.monotonic(), math.inf
    while waiting := [one for one in processes if one.is_open]:
        now_s, before = time.monotonic(), sum(one.batches for one in processes)
        is_rest_idle = now_s - first_full_s > IDLE_S and not any(one.batches for one in waiting)
        if is_rest_idle or now_s - last_s > timeout_s or interrupted():
            break
        _read(processes, POLL_S)
        done = sum(one.batches for one in processes)
        if done > before:
            last_s = now_s
            progress(done, wanted * len(processes))
        if any(one.batches >= wanted for one in processes):
            first_full_s = min(first_full_s, now_s)
    deadline_s = time.monotonic() + CLOSE_S
    for one in processes:
        with suppress(OSError):
            one.connection.shutdown(socket.SHUT_WR)
    while any(one.is_open for one in processes) and time.monotonic() < deadline_s:
        _read(processes, POLL_S)


def hang_up(processes: Sequence[Recordable]) -> None:
    """Close the connections, which ends open windows."""
    for one in processes:
        one.connection.close()


def _read(processes: Sequence[Recordable], timeout_s: float) -> None:
    is_open = {one.connection: one for one in processes if one.is_open}
    readable, _, _ = select.select(list(is_open), [], [], timeout_s)
    for connection in readable:
        is_open[connection].read()
