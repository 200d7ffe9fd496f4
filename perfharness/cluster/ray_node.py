"""Actor that starts a launch on a node of a Ray cluster. Its driver is `cluster.ray`."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from perfharness.cluster.wire import files_of

NODE_MODULE = "perfharness.cli.node"
POLL_S = 0.2
CLOSE_S = 30.0
"""Longest time for a launch to end its processes."""

CHUNK_BYTES = 16 << 20
"""Part of a file per object."""

SET_BY_RAY = ("OMP_NUM_THREADS", "PYTHONBREAKPOINT", "PYTHONUNBUFFERED")
"""Variables that Ray sets in its workers; removed unless the node or the job sets them."""

PR_SET_PDEATHSIG = 1


class NodeLaunch:
    """The launch on a node, in a folder unless the job of Ray has a working directory."""

    def __init__(self, folder: str) -> None:
        import ray

        job = ray.get_runtime_context().runtime_env
        self._folder = str(Path.cwd()) if "working_dir" in job else folder
        kept = {*job.get("env_vars", {}), *_variables_of_raylet()}
        self._environ = {name: value for name, value in os.environ.items() if name not in SET_BY_RAY or name in kept}
        self._home = Path(tempfile.mkdtemp(prefix="perfharness-ray-"))
        self._out, errors = self._home / "out", self._home / "errors"
        self._writing, self._reading = errors.open("wb"), errors.open("rb")
        self._process: subprocess.Popen[bytes] | None = None
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, 0)  # Ray starts workers with niceness 15

    def describe(self) -> tuple[str, str, int, int]:
        """Return Ray's ID and host of this node, a free port, and the niceness of the launch."""
        import ray

        node = ray.get_runtime_context().get_node_id()
        with socket.socket() as free:
            free.bind(("", 0))
            return node, ray.util.get_node_ip_address(), free.getsockname()[1], os.nice(0)

    def plan(self, order: Mapping[str, Any], variables: Mapping[str, str]) -> tuple[int, str, str]:
        """Return exit code, output and errors of a launch with `--dry-run`."""
        if not Path(self._folder).is_dir():
            return 2, "", f"no folder {self._folder}; share it, or use ray job submit --working-dir"
        process = self._start({**order, "dry_run": True}, variables, subprocess.PIPE, subprocess.PIPE)
        output, errors = process.communicate()
        return process.returncode, output.decode(errors="replace"), errors.decode(errors="replace")

    def start(self, order: Mapping[str, Any], variables: Mapping[str, str]) -> None:
        """Start the launch."""
        self._process = self._start(order, variables, subprocess.DEVNULL, self._writing)

    def _start(
        self, order: Mapping[str, Any], variables: Mapping[str, str], output: int, errors: Any
    ) -> subprocess.Popen[bytes]:
        libc = ctypes.CDLL(None)

        def prepare() -> None:
            signal.pthread_sigmask(signal.SIG_SETMASK, ())  # Ray blocks SIGINT
            libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)

        options = {**order["options"], "output_dir": str(self._out)}
        file = self._home / "order.json"
        file.write_text(json.dumps({**order, "options": options}))
        with file.open() as stdin:
            return subprocess.Popen(
                [sys.executable, "-m", NODE_MODULE],
                stdin=stdin,
                stdout=output,
                stderr=errors,
                cwd=self._folder,
                env={**self._environ, **variables},
                start_new_session=True,
                preexec_fn=prepare,
            )

    def poll(self) -> tuple[bytes, int | None]:
        """Return new output and, if the launch ends within `POLL_S`, its exit code."""
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(POLL_S)
        code = self._process.poll()
        return self._reading.read(), code

    def interrupt(self) -> None:
        """Interrupt the launch as Ctrl-C does."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)

    def files(self) -> list[tuple[str, int]]:
        """Return path in the run folder and bytes of each file of the results."""
        return [(path.relative_to(self._out).as_posix(), path.stat().st_size) for path in files_of(self._out)]

    def read(self, name: str, offset: int) -> bytes:
        """Return part of a file."""
        with (self._out / name).open("rb") as file:
            file.seek(offset)
            return file.read(CHUNK_BYTES)

    def close(self) -> None:
        """End the launch, and remove its folder."""
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):  # the second kills the measured processes
            if self._process is not None and self._process.poll() is None:
                self._process.send_signal(number)
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(CLOSE_S / 3)
        shutil.rmtree(self._home, ignore_errors=True)


def _variables_of_raylet() -> set[str]:
    """Names of variables in the environment of this node's raylet."""
    try:
        environ = Path("/proc", os.environ.get("RAY_RAYLET_PID", "self"), "environ").read_bytes()
    except OSError:
        return set()
    return {entry.partition("=")[0] for entry in environ.decode(errors="replace").split("\0")}
