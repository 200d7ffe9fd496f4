"""Start the processes of a plan: each with its tracer, a recorder of its end (`child.py`), its logs and its folder."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import psutil

from perfharness.boot import FOLLOW
from perfharness.errors import LaunchError
from perfharness.model.environment import (
    ANNOTATIONS,
    CAPTURE_BATCHES,
    EXPLAIN,
    HISTORY,
    HISTORY_OFF,
    LAUNCHED,
    OUTER_RANK,
    OUTPUT_DIR,
    SAMPLING,
    START_BARRIER,
    START_BARRIER_LIMIT,
    TRACER,
)
from perfharness.model.manifest import GpuRecord
from perfharness.model.ranks import outer_rank
from perfharness_launcher.nsys.command_line import TRACER_LOG, NsysTracing, profile_command
from perfharness_launcher.processes import child
from perfharness_launcher.processes.barrier import LIMIT_MARGIN_S
from perfharness_launcher.processes.orphans import RUN_ID_VARIABLE, is_alive

STDOUT_LOG = "stdout.log"
STDERR_LOG = "stderr.log"

TMP_NAME = ".tmp"
"""Folder of nsys's temporary files in the folder of the process: the recording has the whole environment in it, and
nsys makes it readable by all users."""

END_S = 5.0
"""How long the end of a killed process may take."""

SOCKET_NAME = "0123-4567-89ab-cdef.1234567"
"""At least as long as the names of the sockets that nsys makes in its temporary folder."""


@dataclass(frozen=True)
class Placement:
    """Where one process is put.

    Args:
        cpus: it may run on these and no others; empty: not bound.
        how: for messages.
    """

    cpus: tuple[int, ...] = ()
    how: str = "not bound"


def cpu_list(cpus: Iterable[int]) -> str:
    """`{0, 1, 2, 8}` -> `0-2,8`, as the kernel writes it."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in runs)


@dataclass(frozen=True)
class ProcessSpec:
    """One process of a plan.

    Args:
        index: over all GPUs.
        gpus: that it sees, in this order; empty on a machine without one.
        folder: its name inside the run folder, `proc_X_gpu_Y`, of several GPUs `proc_X_gpu_A-B`.
        command: the measured command.
        environment: what is added to, or set over, the launcher's own environment.
        placement: CPUs and memory of the measured process, without its tracer's own processes.
    """

    index: int
    gpus: tuple[GpuRecord, ...]
    folder: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    placement: Placement = field(default_factory=Placement)

    def environment_in(self, run_dir: Path) -> dict[str, str]:
        """The environment, the folder of the process included."""
        return {**self.environment, OUTPUT_DIR: str(run_dir / self.folder)}


@dataclass(frozen=True)
class ProcessGroup:
    """Processes that are started together.

    Args:
        nsys: how nsys traces them; None: it does not.
        timeout_s: for each process, from its start; None: no limit.
        barrier_timeout_s: how long those at the start barrier wait for the others, from the first one
            on; None: there is no barrier.
    """

    processes: tuple[ProcessSpec, ...]
    nsys: NsysTracing | None = None
    timeout_s: float | None = None
    barrier_timeout_s: float | None = None


@dataclass
class ChildStatus:
    """What `child.py` has reported so far, and how it ended."""

    ready: bool = False
    helper: psutil.Process | None = None
    pid: int | None = None
    start_unix_ns: int | None = None
    cpus: list[int] | None = None
    placement_problems: list[str] = field(default_factory=list)
    ended: Mapping[str, Any] | None = None
    not_started: str | None = None
    lost: bool = False
    """`child.py` was killed after it had started the process, and so was the process."""

    left: list[str] = field(default_factory=list)


@dataclass
class RunningProcess:
    """One measured process with its tracer, helper and logs.

    Args:
        argv: the tracer's command line, the helper's in it.
        starts: how often its tracer was started.
    """

    spec: ProcessSpec
    folder: Path
    control: int
    status_file: BinaryIO
    popen: subprocess.Popen[bytes]
    argv: list[str]
    environment: dict[str, str]
    tmp_dir: Path | None = None
    starts: int = 1
    status: ChildStatus = field(default_factory=ChildStatus)
    _unread: bytes = b""

    def refresh(self) -> None:
        """Read what `child.py` has written since the last time, and check whether it is still alive."""
        if self.is_over:
            return
        gone = self._is_gone()
        self._read()
        if gone and not self.is_over:
            self.give_up(self._why_gone())

    def leftovers(self) -> list[str]:
        """Command lines of what the measured process left running and its helper had to end."""
        self._read()
        return self.status.left

    def _read(self) -> None:
        *lines, self._unread = (self._unread + self.status_file.read()).split(b"\n")
        for line in lines:
            self._apply(json.loads(line))

    def _is_gone(self) -> bool:
        """Whether no helper is left to report on the measured process."""
        if self.status.helper is not None:
            return not is_alive(self.status.helper)
        return self.popen.poll() is not None

    def _why_gone(self) -> str:
        if self.status.helper is None and self.tmp_dir is not None:
            return f"its tracer ended first, with exit code {self.popen.returncode}"
        return "the helper that starts it was killed"

    def give_up(self, why: str) -> None:
        """Have the process and its helper killed, for nothing more will be reported of it."""
        if self.status.helper is not None and is_alive(self.status.helper):
            with contextlib.suppress(psutil.Error):
                self.status.helper.kill()
        if self.status.pid is None:
            self.status.not_started = why
        else:
            child.signal_group(self.status.pid, signal.SIGKILL)
            self.status.lost = True

    def restart(self) -> None:
        """Start the tracer again, before the script has run."""
        self.kill_tracer()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(END_S)
        self.starts += 1
        self.status = ChildStatus()
        self.popen = _popen(self.argv, self.environment, self.folder / TRACER_LOG)

    def _apply(self, report: dict[str, Any]) -> None:
        state = report["state"]
        if state == "ready":
            self.status.ready = True
            with contextlib.suppress(psutil.Error):
                self.status.helper = psutil.Process(report["recorder_pid"])
        elif state == "started":
            self.status.pid = report["pid"]
            self.status.start_unix_ns = report["start_unix_ns"]
            self.status.cpus = report["cpus"]
            self.status.placement_problems = report["problems"]
        elif state == "ended":
            self.status.ended = report
        elif state == "not_started":
            self.status.not_started = report["error"]
        elif state == "left":
            self.status.left = report["commands"]

    @property
    def is_measured(self) -> bool:
        """Whether the measured process has started and not ended."""
        return self.status.pid is not None and not self.is_over

    @property
    def is_over(self) -> bool:
        """Whether the measured process has ended or will never start; the tracer may still be at work."""
        return self.status.ended is not None or self.status.not_started is not None or self.status.lost

    def send(self, order: bytes) -> None:
        """Send `child.py` an order, `GO` or `RELEASE`."""
        os.write(self.control, order)

    def signal_measured(self, number: signal.Signals) -> None:
        """Send a signal to the measured process and its own children."""
        if self.is_measured and self.status.pid is not None:
            child.signal_group(self.status.pid, number)

    def kill_tracer(self) -> None:
        """End the tracer's own process group, at the very last."""
        if self.popen.poll() is None:
            child.signal_group(self.popen.pid, signal.SIGKILL)

    def close(self) -> None:
        """Release its resources, once all of it has ended."""
        with contextlib.suppress(OSError):
            os.close(self.control)
        self.status_file.close()
        if self.tmp_dir is not None:
            shutil.rmtree(self.tmp_dir, ignore_errors=True)


def start(
    spec: ProcessSpec,
    group: ProcessGroup,
    run_dir: Path,
    control_dir: Path,
    run_id: str,
    barrier_dir: Path | None = None,
) -> RunningProcess:
    """Start one process of a group up to the point where it waits for the start signal.

    Args:
        run_dir: where the folder of the process is made.
        control_dir: a folder on a file system that knows FIFOs.
        barrier_dir: where the start barrier is held; None: there is none.
    """
    folder = run_dir / spec.folder
    folder.mkdir(parents=True, exist_ok=True)
    control_path = control_dir / f"control_{spec.index}"
    status_path = control_dir / f"status_{spec.index}"
    os.mkfifo(control_path)
    status_path.touch()
    control = os.open(control_path, os.O_RDWR)  # open for reading too, so that writing never fails
    command = _watched(spec, folder, control_path, status_path)
    environment = {
        **os.environ,
        **dict.fromkeys((ANNOTATIONS, CAPTURE_BATCHES, EXPLAIN, SAMPLING), ""),  # not those of a launch around this one
        HISTORY: HISTORY_OFF,
        OUTER_RANK: outer_rank(os.environ),
        **spec.environment_in(run_dir),
        RUN_ID_VARIABLE: run_id,
        START_BARRIER: str(barrier_dir or ""),  # empty: not that of a launch around this one
        START_BARRIER_LIMIT: str(math.ceil(group.barrier_timeout_s or 0) + LIMIT_MARGIN_S),
    }
    if environment.get(TRACER, "none") != "none" or environment[ANNOTATIONS] or environment[EXPLAIN]:
        path = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join([str(FOLLOW), *([path] if path else [])])
        environment[LAUNCHED] = "1"
    tmp_dir = None
    if group.nsys is not None:
        command = profile_command(group.nsys, folder, command)
        tmp_dir = _tmp_dir(folder)
        environment |= {"TMPDIR": str(tmp_dir), child.TMPDIR_BEFORE: os.environ.get("TMPDIR", "")}
    try:
        popen = _popen(command, environment, folder / TRACER_LOG)
    except OSError as error:
        os.close(control)
        if tmp_dir is not None:
            shutil.rmtree(tmp_dir, ignore_errors=True)
        raise LaunchError(f"{spec.folder} cannot be started ({command[0]}): {error.strerror}") from error
    return RunningProcess(spec, folder, control, status_path.open("rb"), popen, command, environment, tmp_dir)


def _popen(command: list[str], environment: Mapping[str, str], log_path: Path) -> subprocess.Popen[bytes]:
    with log_path.open("ab") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )


def _tmp_dir(folder: Path) -> Path:
    """A folder that only this user can read and in which sockets can be made.

    Their names are short, and not every file system has them.
    """
    made = folder / TMP_NAME
    made.mkdir(mode=0o700, exist_ok=True)
    try:
        with socket.socket(socket.AF_UNIX) as trial:
            trial.bind(str(made / SOCKET_NAME))
        (made / SOCKET_NAME).unlink()
    except OSError:
        made.rmdir()
        return Path(tempfile.mkdtemp(prefix="perfharness-"))
    return made


def planned_command(spec: ProcessSpec, nsys: NsysTracing | None, run_dir: Path) -> list[str]:
    """The command line as a user would type it: the tracer and the measured command, without the helper."""
    return list(spec.command) if nsys is None else profile_command(nsys, run_dir / spec.folder, spec.command)


def _watched(spec: ProcessSpec, folder: Path, control_path: Path, status_path: Path) -> list[str]:
    return [
        sys.executable,
        "-I",
        "-S",
        str(Path(child.__file__).resolve()),
        str(control_path),
        str(status_path),
        str(folder / STDOUT_LOG),
        str(folder / STDERR_LOG),
        f"{_umask():o}",
        json.dumps(spec.placement.cpus) if spec.placement.cpus else "",
        *spec.command,
    ]


def _umask() -> int:
    """The umask of this process, which can only be read by setting it."""
    umask = os.umask(0o077)
    os.umask(umask)
    return umask
