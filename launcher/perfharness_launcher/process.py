"""Start a process of a plan with its tracer and helper (`hold.py`), and follow its state."""

from __future__ import annotations

import contextlib
import json
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
from perfharness.boot.ranks import outer_rank
from perfharness.errors import LaunchError
from perfharness.model import environment as variables
from perfharness.model.manifest import GpuRecord
from perfharness_launcher import hold
from perfharness_launcher.nsys import TRACER_LOG, NsysTracing, attempts, profile_command

STDOUT_LOG = "stdout.log"
STDERR_LOG = "stderr.log"


@dataclass(frozen=True)
class ProcessSpec:
    """One process of a plan.

    Args:
        index: over all GPUs.
        folder: name inside the run folder: `proc_X_gpu_Y`, or `proc_X_gpu_A-B` with several GPUs.
        environment: added to the launcher's environment.
        cpus: CPUs that the process, but not its tracer, is bound to; empty if not bound.
    """

    index: int
    gpus: tuple[GpuRecord, ...]
    folder: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    cpus: tuple[int, ...] = ()

    def environment_in(self, run_dir: Path) -> dict[str, str]:
        """Environment with the folder of the process."""
        return {**self.environment, variables.OUTPUT_DIR: str(run_dir / self.folder)}


class RunningProcess:
    """A measured process with its tracer and helper. Raises `LaunchError` if the tracer cannot be started.

    Args:
        nsys: its tracer, or None to start the helper only.
        run_dir: parent of the process folder.
        own_dir: new private folder for FIFOs and temporary files of the tracer, which contain the environment.

    Attributes:
        status: descriptor, readable when the helper has reported.
        tracer: the started process: nsys, or the helper.
        helper, pid: pids of the helper and the measured process, or None before the first report.
        started, ended: reports of the helper (`hold.main`).
        lost: whether the helper was killed, and the measured process with it.
        stopped: why the launcher ended the process (`done`: no longer needed).
        tracer_killed: whether the launcher killed the tracer before its report was written.
    """

    def __init__(
        self,
        spec: ProcessSpec,
        nsys: NsysTracing | None,
        run_dir: Path,
        own_dir: Path,
        variables_of_run: Mapping[str, str],
    ) -> None:
        self.spec, self.folder = spec, run_dir / spec.folder
        self.helper: int | None = None
        self.pid: int | None = None
        self.start_unix_ns = 0
        self.started: Mapping[str, Any] = {}
        self.ended: Mapping[str, Any] = {}
        self.not_started: str | None = None
        self.lost = False
        self.stopped: Literal["timeout", "interrupted", "done"] | None = None
        self.signals_sent, self.next_signal_at = 0, 0.0
        self.tracer_killed, self.tracer_restarts = False, 0
        self._max_starts = 1 if nsys is None else attempts(nsys.install)
        self._unread = b""
        self.folder.mkdir(parents=True, exist_ok=True)
        own_dir.mkdir(mode=0o700)
        pipes = {name: str(own_dir / name) for name in ("control", "status")}
        for pipe in pipes.values():
            os.mkfifo(pipe)
        self._control: int | None
        self._control, self.status = (os.open(pipe, os.O_RDWR | os.O_NONBLOCK) for pipe in pipes.values())
        umask = os.umask(0o077)  # can only be read by setting it
        os.umask(umask)
        settings = {
            **pipes,
            "stdout": str(self.folder / STDOUT_LOG),
            "stderr": str(self.folder / STDERR_LOG),
            "umask": umask,
            "cpus": spec.cpus,
            "environment": {} if nsys is None else {"TMPDIR": os.environ.get("TMPDIR")},
        }
        self._argv = [sys.executable, "-I", "-S", hold.__file__, json.dumps(settings), *spec.command]
        self._environment = _environment({**variables_of_run, **spec.environment_in(run_dir)})
        if nsys is not None:
            self._argv = profile_command(nsys, self.folder, self._argv)
            self._environment["TMPDIR"] = str(own_dir)
        try:
            self._start_tracer()
        except OSError as error:
            self.close()
            raise LaunchError(f"{spec.folder} cannot be started ({self._argv[0]}): {error.strerror}") from error

    def _start_tracer(self) -> None:
        """Start the tracer, or only the helper, in a new session."""
        with (self.folder / TRACER_LOG).open("ab") as log:
            self.tracer = subprocess.Popen(
                self._argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )

    @property
    def is_over(self) -> bool:
        """Whether the measured process has ended or will not start; the tracer may still run."""
        return bool(self.ended) or self.not_started is not None or self.lost

    @property
    def is_tracing(self) -> bool:
        """Whether the tracer (or only the helper) still runs."""
        return self.tracer.poll() is None

    def refresh(self) -> bool:
        """Read reports of the helper; return whether the process has started since the last call.

        Restart an nsys that failed before the process began.
        """
        is_gone = not self.is_tracing and (self.helper is None or not is_alive(self.helper))
        before = self.pid
        self._read()
        if not self.is_over and is_gone:
            if self.pid is not None:
                self.lost = True
            elif self.tracer_restarts + 1 < self._max_starts:
                self.tracer_restarts += 1
                self._start_tracer()
            else:
                self.not_started = f"its tracer ended before, with exit code {self.tracer.returncode}"
        return self.pid != before

    def give_up(self, why: str) -> None:
        """Kill the process and its helper, or a tracer that has not started the process."""
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
        if self.pid is not None and not self.is_over:
            hold.signal_group(self.pid, number)

    def release(self) -> None:
        """Let the tracer write its report."""
        if self._control is not None:
            os.close(self._control)
            self._control = None

    def kill_tracer(self) -> None:
        """Kill the process group of the tracer."""
        if self.is_tracing:
            hold.signal_group(self.tracer.pid, signal.SIGKILL)

    def close(self) -> None:
        """Close the descriptors."""
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
                    self.started = report
                    self.helper, self.pid, self.start_unix_ns = report["hold"], report["pid"], report["start_unix_ns"]
                case "ended":
                    self.ended = report
                case "not_started":
                    self.not_started = report["error"]


def _environment(own: Mapping[str, str]) -> dict[str, str]:
    """Environment of a process, without settings of an outer launch and secrets (traces contain it)."""
    others = [variables.ANNOTATIONS, variables.CAPTURE_BATCHES, variables.ON_DEMAND, variables.NODES_TOKEN]
    others += [variables.EXPLAIN, variables.SAMPLING, variables.START_BARRIER, variables.START_BARRIER_LIMIT]
    outer = {variables.HISTORY: variables.HISTORY_OFF, variables.OUTER_RANK: outer_rank(os.environ)}
    environment = {**os.environ, **dict.fromkeys(others, ""), **outer, **own}
    is_traced = environment.get(variables.TRACER, "none") != "none"
    if is_traced or environment[variables.ANNOTATIONS] or environment[variables.EXPLAIN]:
        path = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join([str(FOLLOW), *([path] if path else [])])
        environment[variables.LAUNCHED] = "1"
    return environment


def planned_command(spec: ProcessSpec, nsys: NsysTracing | None, run_dir: Path) -> list[str]:
    """Command line of the tracer and the measured command, without the helper."""
    return list(spec.command) if nsys is None else profile_command(nsys, run_dir / spec.folder, spec.command)


def cpu_list(cpus: Iterable[int]) -> str:
    """`{0, 1, 2, 8}` -> `0-2,8`, as the kernel writes it."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in runs)


def is_alive(pid: int) -> bool:
    """Whether a process runs and is not a zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def carries(process: psutil.Process, run_id: str) -> bool:
    """Whether the environment of a process has the run's id; False if it is not readable."""
    try:
        return process.environ().get(variables.RUN_ID) == run_id
    except (psutil.Error, OSError):
        return False
