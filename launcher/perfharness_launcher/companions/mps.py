"""NVIDIA's Multi-Process Service (MPS) beside a launch: found, or started in a folder of its own and ended again.

No compute mode is ever changed. A process is a client of MPS where the environment names the pipes of a daemon that
answers; where it names a folder without them, it shares the GPU in turns, also while a daemon runs.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from perfharness.errors import LaunchError
from perfharness.model.findings import Finding, Severity
from perfharness_launcher.companions.companion import Companion, CompanionContext, CompanionReport, MeasuredProcess

PROGRAM = "nvidia-cuda-mps-control"
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
DEFAULT_PIPES = "/tmp/nvidia-mps"
"""Where CUDA looks when nothing is said."""

ANSWER_S = 5.0
"""How long the daemon may take to answer."""

START_S, END_S = 10.0, 10.0
POLL_S = 0.5
"""How often it is asked for its clients, until there are as many as processes."""


@dataclass(frozen=True)
class MpsFacts:
    """What there is of MPS on this machine.

    Args:
        program: the control program; None: there is none.
        pipes: of a daemon that answers; None: none does.
    """

    program: str | None = None
    pipes: Path | None = None

    @property
    def problem(self) -> str | None:
        """Why no running daemon can be used; None: one can."""
        if self.program is None:
            return f"{PROGRAM}, which comes with the NVIDIA driver, is not on the PATH"
        return "no MPS daemon answers" if self.pipes is None else None


def find_mps() -> MpsFacts:
    """The control program, and whether a daemon answers it; nothing is started."""
    program = shutil.which(PROGRAM)
    if program is None:
        return MpsFacts()
    pipes = Path(os.environ.get(PIPES) or DEFAULT_PIPES)
    return MpsFacts(program, pipes if ask(program, pipes, "get_server_list") is not None else None)


def ask(program: str, pipes: Path, command: str) -> list[str] | None:
    """What the daemon answers to a command, word by word; None: there is none, or it does not answer."""
    try:
        done = subprocess.run(
            [program], input=f"{command}\n", capture_output=True, text=True, timeout=ANSWER_S, check=False,
            env={**os.environ, PIPES: str(pipes)},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.split() if done.returncode == 0 else None


class MpsCompanion(Companion):
    """Watches that the processes are clients of MPS; where it is asked to, it also runs the daemon.

    Args:
        program: the control program.
        pipes: folder of the daemon's pipes, which the processes' environment names.
        starts: whether the daemon is started, in that folder, and ended.
    """

    name = "mps"
    essential = True

    def __init__(self, program: str, pipes: Path, *, starts: bool) -> None:
        self._program, self._pipes, self._starts = program, pipes, starts
        self._daemon: subprocess.Popen[bytes] | None = None
        self._before: frozenset[str] = frozenset()
        self._clients: set[str] = set()
        self._processes = 0
        self._ended = threading.Event()
        self._watcher: threading.Thread | None = None

    def start(self, context: CompanionContext) -> None:
        """Start the daemon, if asked to. Raises `LaunchError`."""
        if self._starts:
            self._start_daemon([gpu.uuid for gpu in context.gpus])
        self._before = self._seen()

    def _start_daemon(self, gpus: Sequence[str]) -> None:
        logs = self._pipes.with_name(f"{self._pipes.name}_logs")
        for folder in (self._pipes, logs):
            folder.mkdir(parents=True, exist_ok=True)
        environ = {**os.environ, PIPES: str(self._pipes), LOGS: str(logs), "CUDA_VISIBLE_DEVICES": ",".join(gpus)}
        printed = logs / "printed.log"
        with printed.open("wb") as file:
            self._daemon = subprocess.Popen(
                [self._program, "-f"], stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env=environ,
                start_new_session=True,
            )  # fmt: skip
        limit = time.monotonic() + START_S
        while time.monotonic() < limit and self._daemon.poll() is None:
            if ask(self._program, self._pipes, "get_server_list") is not None:
                return
            time.sleep(0.05)
        self._end_daemon()
        said = printed.read_text(errors="replace").strip().splitlines()
        raise LaunchError(f"the MPS daemon did not start{f': {said[-1]}' if said else ''}")

    def process_started(self, process: MeasuredProcess) -> None:
        """Watch for one more client."""
        del process
        self._processes += 1
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._watch, name="mps", daemon=True)
            self._watcher.start()

    def _watch(self) -> None:
        while not self._ended.wait(POLL_S) and len(self._clients) < self._processes:
            self._clients |= self._seen() - self._before

    def _seen(self) -> frozenset[str]:
        """Clients of all servers, as the daemon names them."""
        servers = ask(self._program, self._pipes, "get_server_list") or []
        return frozenset(
            f"{server}/{client}"
            for server in servers
            for client in ask(self._program, self._pipes, f"get_client_list {server}") or []
        )

    def stop(self) -> CompanionReport:
        """End the daemon that was started, and report whether the processes used MPS."""
        self._ended.set()
        if self._watcher is not None:
            self._watcher.join()
        if self._starts:
            self._end_daemon()
        findings = []
        if len(self._clients) < self._processes:
            findings.append(
                Finding(
                    "mps-not-used",
                    Severity.ERROR if not self._clients else Severity.WARNING,
                    f"{len(self._clients)} of {self._processes} processes were seen as clients of MPS, so they did not "
                    "all share the GPU through it.",
                    "A client uses CUDA, runs as the daemon's user, and lives for a second or longer.",
                )
            )
        return CompanionReport(findings, {"started": self._starts, "clients": len(self._clients)})

    def _end_daemon(self) -> None:
        daemon = self._daemon
        if daemon is None:
            return
        if daemon.poll() is None:
            ask(self._program, self._pipes, "quit")
        for signum in (None, signal.SIGTERM, signal.SIGKILL):
            if signum is not None:
                daemon.send_signal(signum)
            with suppress(subprocess.TimeoutExpired):
                daemon.wait(END_S)
                return
