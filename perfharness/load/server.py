"""A server that the launcher starts and traces, and the generator, which loads it from its own process."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from perfharness.model import environment
from perfharness.model.findings import Finding, Severity
from perfharness_launcher.conditions import Condition, Run
from perfharness_launcher.process import RunningProcess

GENERATOR_LOG = "load.log"
"""Output of the generator, in the folder of the server."""

END_S = 5.0
"""Maximum time for the generator to write its files, after the grace period."""


def load_of(command: Sequence[str], grace_s: float) -> Condition:
    """Send load to the only process of a launch, and end the process after the load.

    Args:
        command: command of the generator; `--beside FOLDER PID` is appended: output folder and the server's process.
        grace_s: how long the generator waits for answers after it is told to end.
    """

    @contextmanager
    def condition(run: Run) -> Iterator[None]:
        generators: list[subprocess.Popen[bytes]] = []
        logs: list[Path] = []

        def start(process: RunningProcess) -> None:
            """The generator waits until the server is ready."""
            logs.append(process.folder / GENERATOR_LOG)
            with logs[-1].open("ab") as log:
                generators.append(_generator([*command, "--beside", str(process.folder), str(process.pid)], log))

        def has_ended() -> bool:
            if run.interrupted():
                _end(generators)
            return any(generator.poll() is not None for generator in generators)

        run.started.append(start)
        run.done.append(has_ended)
        yield
        _end(generators)  # after a crash of the server or an interrupted launch
        for generator, log in zip(generators, logs, strict=True):
            try:
                generator.wait(grace_s + END_S)
            except subprocess.TimeoutExpired:
                generator.kill()
                generator.wait()
            run.records["load"] = {"exit_code": generator.returncode}
            if generator.returncode:
                text = f"The generator of the load ended with exit code {generator.returncode}{_last_line(log)}"
                hint = f"See its output in {GENERATOR_LOG}"
                run.findings.append(Finding("load-generator-failed", Severity.ERROR, text, hint))

    return condition


def _generator(command: Sequence[str], log: BinaryIO) -> subprocess.Popen[bytes]:
    not_for_it = {environment.RUN_ID, environment.OUTPUT_DIR}
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,  # its end tells the generator to end, also if the launcher is killed
        stdout=log,
        stderr=subprocess.STDOUT,
        env={name: value for name, value in os.environ.items() if name not in not_for_it},
        start_new_session=True,
    )


def _end(generators: Sequence[subprocess.Popen[bytes]]) -> None:
    for generator in generators:
        assert generator.stdin is not None
        with suppress(OSError):
            generator.stdin.close()


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines()
    return f": {lines[-1]}" if lines else ""
