"""Start the processes of a plan: each with its tracer, a recorder of its end (`child.py`), its logs and its folder."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfharness.errors import LaunchError
from perfharness.model.environment import START_BARRIER
from perfharness.model.placement import Placement
from perfharness.model.plan import LaunchPlan, ProcessSpec
from perfharness_launcher import child
from perfharness_launcher.nsys_command import profile_command
from perfharness_launcher.orphans import RUN_ID_VARIABLE

STDOUT_LOG = "stdout.log"
STDERR_LOG = "stderr.log"
TRACER_LOG = "tracer.log"


@dataclass
class ChildStatus:
    """What `child.py` has told so far."""

    ready: bool = False
    pid: int | None = None
    start_unix_ns: int | None = None
    cpus: list[int] | None = None
    placement_problems: list[str] = field(default_factory=list)
    ended: Mapping[str, Any] | None = None
    not_started: str | None = None


@dataclass
class RunningProcess:
    """One measured process with all that stands around it."""

    spec: ProcessSpec
    folder: Path
    control: int
    status_path: Path
    popen: subprocess.Popen[bytes]
    command: list[str]
    status: ChildStatus = field(default_factory=ChildStatus)
    _read_bytes: int = 0

    def refresh(self) -> ChildStatus:
        """Read what `child.py` has written since the last time."""
        with self.status_path.open("rb") as file:
            file.seek(self._read_bytes)
            for line in file:
                if not line.endswith(b"\n"):
                    break  # in the middle of being written
                self._read_bytes += len(line)
                self._take(json.loads(line))
        return self.status

    def _take(self, told: dict[str, Any]) -> None:
        state = told["state"]
        if state == "ready":
            self.status.ready = True
        elif state == "started":
            self.status.pid = told["pid"]
            self.status.start_unix_ns = told["start_unix_ns"]
            self.status.cpus = told["cpus"]
            self.status.placement_problems = told["problems"]
        elif state == "ended":
            self.status.ended = told
        elif state == "not_started":
            self.status.not_started = told["error"]

    @property
    def is_measured(self) -> bool:
        """Whether the measured process has started and not ended."""
        return self.status.pid is not None and self.status.ended is None

    @property
    def is_over(self) -> bool:
        """Whether the measured process has ended or will never start; the tracer may still be at work."""
        return self.status.ended is not None or self.status.not_started is not None

    def say(self, word: bytes) -> None:
        """Tell `child.py` something."""
        os.write(self.control, word)

    def signal_measured(self, number: signal.Signals) -> None:
        """Send a signal to the measured process and its own children."""
        if self.is_measured and self.status.pid is not None:
            _signal_group(self.status.pid, number)

    def kill_tracer(self) -> None:
        """End the tracer's own process group, at the very last."""
        if self.popen.poll() is None:
            _signal_group(self.popen.pid, signal.SIGKILL)


def start(
    spec: ProcessSpec, plan: LaunchPlan, run_dir: Path, control_dir: Path, run_id: str, barrier_dir: Path | None = None
) -> RunningProcess:
    """Start one process up to the point where it waits for the word to go.

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
    watched = _watched(spec, folder, control_path, status_path)
    if plan.nsys is not None:
        command = profile_command(plan.nsys, folder, watched, cuda=plan.traces_cuda, os_calls=plan.options.trace_os)
        shown = profile_command(plan.nsys, folder, spec.command, cuda=plan.traces_cuda, os_calls=plan.options.trace_os)
    else:
        command, shown = watched, list(spec.command)
    environment = {
        **os.environ,
        **spec.environment_in(run_dir),
        RUN_ID_VARIABLE: run_id,
        START_BARRIER: str(barrier_dir or ""),  # empty: not that of a launch around this one
    }
    try:
        with (folder / TRACER_LOG).open("wb") as log:
            popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
    except OSError as error:
        os.close(control)
        raise LaunchError(f"{spec.folder} cannot be started ({command[0]}): {error.strerror}") from error
    return RunningProcess(spec, folder, control, status_path, popen, shown)


def planned_command(spec: ProcessSpec, plan: LaunchPlan, run_dir: Path) -> list[str]:
    """The command line as a user would type it: the tracer and the measured command, without our own helper."""
    if plan.nsys is None:
        return list(spec.command)
    return profile_command(
        plan.nsys, run_dir / spec.folder, spec.command, cuda=plan.traces_cuda, os_calls=plan.options.trace_os
    )


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
        _placement_argument(spec.placement),
        *spec.command,
    ]


def _placement_argument(placement: Placement) -> str:
    if not placement.cpus and placement.memory_node is None:
        return ""
    return json.dumps({"cpus": list(placement.cpus), "memory_node": placement.memory_node})


def _umask() -> int:
    """The umask of this process, which can only be read by setting it."""
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)
