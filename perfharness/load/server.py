"""A server that is started and traced by the launcher, and the generator that loads it from a process of its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from perfharness.model import environment
from perfharness.model.findings import Finding, Severity
from perfharness_launcher.companions.companion import Companion, CompanionContext, CompanionReport, MeasuredProcess
from perfharness_launcher.processes.orphans import RUN_ID_VARIABLE

GENERATOR_LOG = "load.log"
"""What the generator prints, in the folder of the server."""

END_S = 5.0
"""How long the generator may take to write its files, beyond the grace period."""


class GeneratorCompanion(Companion):
    """Sends load to the only process of a launch, which is ended when all was sent.

    Args:
        command: of the generator; `--beside FOLDER PID` follows: where it writes, and the server's process.
        grace_s: how long it awaits answers when it is told to end.
    """

    name = "load"
    essential = True

    def __init__(self, command: Sequence[str], grace_s: float) -> None:
        self._command = list(command)
        self._grace_s = grace_s
        self._context: CompanionContext | None = None
        self._log: BinaryIO | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, context: CompanionContext) -> None:
        """Nothing yet: what is loaded has not started."""
        self._context = context

    def process_started(self, process: MeasuredProcess) -> None:
        """Start the generator, which waits until the server is ready."""
        assert self._context is not None
        folder = self._context.run_dir / process.folder
        self._log = (folder / GENERATOR_LOG).open("ab")
        not_for_it = {RUN_ID_VARIABLE, environment.OUTPUT_DIR}
        self._process = subprocess.Popen(
            [*self._command, "--beside", str(folder), str(process.pid)],
            stdin=subprocess.PIPE,  # its end tells the generator to end, also where the launcher is killed
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env={name: value for name, value in os.environ.items() if name not in not_for_it},
            start_new_session=True,
        )

    def is_done(self) -> bool:
        """Whether the generator has ended."""
        if self._context is not None and self._context.interrupted():
            self._tell()
        return self._process is not None and self._process.poll() is not None

    def stop(self) -> CompanionReport:
        """End the generator: of a server that crashed, or of a launch that was interrupted."""
        if self._process is None:
            return CompanionReport()
        self._tell()
        try:
            self._process.wait(self._grace_s + END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._log is not None
        self._log.close()
        code = self._process.returncode
        findings = []
        if code:
            text = f"The generator of the load ended with exit code {code}{_last_line(Path(self._log.name))}"
            findings.append(
                Finding("load-generator-failed", Severity.ERROR, text, f"{GENERATOR_LOG} has what it printed")
            )
        return CompanionReport(findings, {"exit_code": code})

    def _tell(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines()
    return f": {lines[-1]}" if lines else ""
