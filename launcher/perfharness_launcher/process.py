"""Start one process of a plan, with its tracer and its helper (`hold.py`), and follow its state."""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import psutil

from perfharness.boot import FOLLOW
from perfharness.errors import LaunchError
from perfharness.model import environment as variables
from perfharness.model.manifest import GpuRecord
from perfharness.model.ranks import outer_rank
from perfharness_launcher import hold
from perfharness_launcher.barrier import LIMIT_MARGIN_S
from perfharness_launcher.nsys import TRACER_LOG, NsysTracing, attempts, profile_command

STDOUT_LOG = "stdout.log"
STDERR_LOG = "stderr.log"


@dataclass(frozen=True)
class Placement:
    """CPUs of one process.

    Args:
        cpus: the only ones it may run on; empty: not bound.
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
        placement: CPUs of the measured process; its tracer's own processes are not bound.
    """

    index: int
    gpus: tuple[GpuRecord, ...]
    folder: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    placement: Placement = field(default_factory=Placement)

    def environment_in(self, run_dir: Path) -> dict[str, str]:
        """The environment, the folder of the process included."""
        return {**self.environment, variables.OUTPUT_DIR: str(run_dir / self.folder)}


@dataclass(frozen=True)
class ProcessGroup:
    """Processes that are started together.

    Args:
        nsys: how nsys traces them; None: it does not.
        timeout_s: for each process, from its start; None: no limit.
        barrier_timeout_s: longest wait at the start barrier, from the first arrival on; None: no barrier.
    """

    processes: tuple[ProcessSpec, ...]
    nsys: NsysTracing | None = None
    timeout_s: float | None = None
    barrier_timeout_s: float | None = None


@dataclass
class RunningProcess:
    """One measured process with its tracer and helper, from its start to its end.

    Attributes:
        tracer: the process that was started here: nsys, or the helper itself.
        helper: its pid; None: it has not reported yet.
        pid: of the measured process; None: not started.
        ended: what the helper reported of its end: `exit_code`, `signal`, `duration_ns`, `user_s`, `system_s`,
            `max_rss_bytes`.
        not_started: why it never started.
        lost: whether the helper was killed, and the measured process with it.
        stopped: why the launcher ended it; `done`: it was no longer needed.
        status: descriptor, readable when the helper has reported something.
        tracer_killed: whether the launcher killed a tracer that had not written its report.
        tracer_restarts: how often nsys was started again before the process began.
    """

    spec: ProcessSpec
    folder: Path
    argv: list[str]
    environment: dict[str, str]
    control: int
    status: int
    max_starts: int
    tracer: subprocess.Popen[bytes] = field(init=False)
    helper: int | None = None
    pid: int | None = None
    start_unix_ns: int | None = None
    cpus: list[int] | None = None
    placement_problems: list[str] = field(default_factory=list)
    ended: Mapping[str, Any] | None = None
    not_started: str | None = None
    lost: bool = False
    stopped: Literal["timeout", "interrupted", "done"] | None = None
    is_announced: bool = False
    signals_sent: int = 0
    next_signal_at: float = 0.0
    is_released: bool = False
    tracer_killed: bool = False
    tracer_restarts: int = 0
    _unread: bytes = b""

    def start_tracer(self) -> None:
        """Start the tracer, or the helper where there is none, in a session of its own."""
        with (self.folder / TRACER_LOG).open("ab") as log:
            self.tracer = subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment,
                start_new_session=True,
            )

    @property
    def is_measured(self) -> bool:
        """Whether the measured process has started and not ended."""
        return self.pid is not None and not self.is_over

    @property
    def is_over(self) -> bool:
        """Whether the measured process has ended or will never start; the tracer may still be at work."""
        return self.ended is not None or self.not_started is not None or self.lost

    @property
    def is_tracing(self) -> bool:
        """Whether the tracer, or the helper, still runs."""
        return self.tracer.poll() is None

    @property
    def tracer_exit_code(self) -> int | None:
        """Exit code of a tracer that has ended."""
        return self.tracer.returncode

    def refresh(self) -> None:
        """Read what the helper has reported; start nsys again where it failed before the process began."""
        is_gone = not self.is_tracing and (self.helper is None or not is_alive(self.helper))
        self._read()
        if self.is_over or not is_gone:
            return
        if self.pid is None and self.tracer_restarts + 1 < self.max_starts:
            self.tracer_restarts += 1
            self.start_tracer()
        elif self.pid is None:
            self.not_started = f"its tracer ended first, with exit code {self.tracer_exit_code}"
        else:
            self.lost = True

    def give_up(self, why: str) -> None:
        """Kill the process, its helper and, where it never started, its tracer; `why` it did not start."""
        self.send_signal(signal.SIGKILL)
        if self.pid is None:
            self.not_started = why
            self.release()
            self.kill_tracer()
        elif self.helper is not None:
            self.lost = True
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.helper, signal.SIGKILL)

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the measured process and its process group."""
        if self.is_measured and self.pid is not None:
            hold.signal_group(self.pid, number)

    def release(self) -> None:
        """Let the tracer write its report."""
        if not self.is_released:
            os.close(self.control)
            self.is_released = True

    def kill_tracer(self) -> None:
        """Kill the process group of the tracer."""
        if self.is_tracing:
            hold.signal_group(self.tracer.pid, signal.SIGKILL)

    def close(self) -> None:
        """Close its descriptors, once all has ended."""
        self.release()
        os.close(self.status)

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while text := os.read(self.status, select.PIPE_BUF):
                self._unread += text
        *lines, self._unread = self._unread.split(b"\n")
        for report in map(json.loads, lines):
            match report["state"]:
                case "started":
                    self.helper, self.pid, self.start_unix_ns = report["hold"], report["pid"], report["start_unix_ns"]
                    self.cpus, self.placement_problems = report["cpus"], report["problems"]
                case "ended":
                    self.ended = report
                case "not_started":
                    self.not_started = report["error"]


def start(
    spec: ProcessSpec, group: ProcessGroup, run_dir: Path, run_id: str, own_dir: Path, barrier_dir: Path | None
) -> RunningProcess:
    """Start one process of a group.

    Args:
        run_dir: where the folder of the process is made.
        own_dir: a new private folder for its FIFOs and the temporary files of its tracer, which hold the environment.
        barrier_dir: folder of the start barrier.

    Raises:
        LaunchError: its tracer cannot be started.
    """
    folder = run_dir / spec.folder
    folder.mkdir(parents=True, exist_ok=True)
    own_dir.mkdir(mode=0o700)
    for name in ("control", "status"):
        os.mkfifo(own_dir / name)
    control, status = (os.open(own_dir / name, os.O_RDWR | os.O_NONBLOCK) for name in ("control", "status"))
    settings = {
        "control": str(own_dir / "control"),
        "status": str(own_dir / "status"),
        "stdout": str(folder / STDOUT_LOG),
        "stderr": str(folder / STDERR_LOG),
        "umask": _umask(),
        "cpus": spec.placement.cpus,
        "environment": {} if group.nsys is None else {"TMPDIR": os.environ.get("TMPDIR")},
    }
    argv = [sys.executable, "-I", "-S", hold.__file__, json.dumps(settings), *spec.command]
    environment = _environment(spec, group, run_dir, run_id, barrier_dir)
    if group.nsys is not None:
        argv = profile_command(group.nsys, folder, argv)
        environment["TMPDIR"] = str(own_dir)
    starts = attempts(group.nsys.install) if group.nsys is not None else 1
    process = RunningProcess(spec, folder, argv, environment, control, status, starts)
    try:
        process.start_tracer()
    except OSError as error:
        process.close()
        raise LaunchError(f"{spec.folder} cannot be started ({argv[0]}): {error.strerror}") from error
    return process


def _environment(
    spec: ProcessSpec, group: ProcessGroup, run_dir: Path, run_id: str, barrier_dir: Path | None
) -> dict[str, str]:
    """The environment of a process; nothing of a launch around this one is left in it."""
    others = (variables.ANNOTATIONS, variables.CAPTURE_BATCHES, variables.EXPLAIN, variables.SAMPLING)
    environment = {
        **os.environ,
        **dict.fromkeys(others, ""),
        variables.HISTORY: variables.HISTORY_OFF,
        variables.OUTER_RANK: outer_rank(os.environ),
        **spec.environment_in(run_dir),
        variables.RUN_ID: run_id,
        variables.START_BARRIER: str(barrier_dir or ""),
        variables.START_BARRIER_LIMIT: str(math.ceil(group.barrier_timeout_s or 0) + LIMIT_MARGIN_S),
    }
    is_traced = environment.get(variables.TRACER, "none") != "none"
    if is_traced or environment[variables.ANNOTATIONS] or environment[variables.EXPLAIN]:
        path = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join([str(FOLLOW), *([path] if path else [])])
        environment[variables.LAUNCHED] = "1"
    return environment


def planned_command(spec: ProcessSpec, nsys: NsysTracing | None, run_dir: Path) -> list[str]:
    """The command line as a user would type it: the tracer and the measured command, without the helper."""
    return list(spec.command) if nsys is None else profile_command(nsys, run_dir / spec.folder, spec.command)


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def carries(process: psutil.Process, run_id: str) -> bool:
    """Whether the run's id is in the environment of a process, as far as that can be read."""
    try:
        return process.environ().get(variables.RUN_ID) == run_id
    except (psutil.Error, OSError):
        return False


def _umask() -> int:
    """The umask of this process, which can only be read by setting it."""
    umask = os.umask(0o077)
    os.umask(umask)
    return umask
