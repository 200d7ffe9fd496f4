"""A server that the launcher starts and traces, and the generator, which loads it from its own process."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

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
        grace_s: how long the generator waits for answers at the end.
    """

    @contextmanager
    def condition(run: Run) -> Iterator[None]:
        generators: list[tuple[subprocess.Popen[bytes], Path]] = []

        def start(process: RunningProcess) -> None:
            """The generator waits until the server is ready."""
            path = process.folder / GENERATOR_LOG
            not_for_it = {environment.RUN_ID, environment.OUTPUT_DIR}
            with path.open("ab") as log:
                generator = subprocess.Popen(
                    [*command, "--beside", str(process.folder), str(process.pid)],
                    stdin=subprocess.PIPE,  # the generator ends with it, also if the launcher is killed
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={name: value for name, value in os.environ.items() if name not in not_for_it},
                    start_new_session=True,
                )
            generators.append((generator, path))

        def end() -> None:
            for generator, _ in generators:
                assert generator.stdin is not None
                with suppress(OSError):
                    generator.stdin.close()

        def has_ended() -> bool:
            if run.interrupted():
                end()
            return any(generator.poll() is not None for generator, _ in generators)

        run.started.append(start)
        run.done.append(has_ended)
        yield
        end()  # after a crash of the server or an interrupted launch
        for generator, log in generators:
            try:
                generator.wait(grace_s + END_S)
            except subprocess.TimeoutExpired:
                generator.kill()
                generator.wait()
            run.records["load"] = {"exit_code": generator.returncode}
            if generator.returncode:
                last = log.read_text(errors="replace").strip().splitlines()[-1:]
                text = ": ".join([f"The generator of the load ended with exit code {generator.returncode}", *last])
                hint = f"See its output in {GENERATOR_LOG}"
                run.findings.append(Finding("load-generator-failed", Severity.ERROR, text, hint))

    return condition
