"""Real launches for tests: run to the end, or watched while they run."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from perfharness.boot import FOLLOW
from tests.integration import forked_command

CHECKOUT = Path(__file__).resolve().parents[2]
PATIENCE_S = forked_command.PATIENCE_S


NSYS = os.environ.get("PERFHARNESS_TEST_NSYS", "")
NVTX_SITE = os.environ.get("PERFHARNESS_TEST_NVTX_SITE", "")
"""A folder with an nvtx that this nsys records."""

TRACERS_SLOW_UNDER_NSYS = pytest.mark.parametrize(
    "tracer", ["embedded", pytest.param("nsys", marks=[pytest.mark.nsys, pytest.mark.slow])]
)

LAUNCH = ("launch", "--no-telemetry")
"""Without telemetry, to save its start; `--telemetry` asks for it."""


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "perfharness", *LAUNCH, *map(str, arguments)]


def environment(*sites: str, **more: str) -> dict[str, str]:
    """This one's, with the checkout importable, after the folders that are named, and a wide terminal."""
    path = [*sites, str(CHECKOUT), str(CHECKOUT / "launcher"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(part for part in path if part), "COLUMNS": "200", **more}


def in_a_launch(out: Path, tracer: str = "embedded", **more: str) -> dict[str, str]:
    """The environment of a launched process whose folder is `out`."""
    own = {"PERFHARNESS_OUTPUT_DIR": str(out), "PERFHARNESS_TRACER": tracer, "PERFHARNESS_LAUNCHED": "1"}
    return environment(str(FOLLOW), **own, **more)


def tracing(tracer: str) -> tuple[tuple[str, ...], list[str]]:
    """Options of a launch, and sites of its environment."""
    options = ("--tracer", tracer)
    return ((*options, "--nsys", NSYS), [NVTX_SITE]) if tracer == "nsys" else (options, [])


def perfharness(*arguments: object, **environ: str) -> subprocess.CompletedProcess[str]:
    """Any verb, in a process of its own."""
    return forked_command.run(arguments, environment(**environ))


def run_to_the_end(
    arguments: tuple[object, ...], environ: dict[str, str], cwd: Path | None = None, timeout_s: float = PATIENCE_S
) -> subprocess.CompletedProcess[str]:
    return forked_command.run((*LAUNCH, *arguments), environ, cwd, timeout_s)


@contextlib.contextmanager
def launching(arguments: tuple[object, ...], environ: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A launcher that runs while the test watches; always ended with the test."""
    with subprocess.Popen(
        command(*arguments),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environ, text=True,
    ) as launcher:  # fmt: skip
        try:
            yield launcher
        finally:
            if launcher.poll() is None:
                launcher.kill()


def read(out: Path, name: str) -> Any:
    return json.loads((out / name).read_text())


def manifest(out: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = read(out, "manifest.json")
    return loaded


def codes(out: Path) -> list[str]:
    """Codes of the findings in the manifest."""
    return [finding["code"] for finding in manifest(out)["findings"]]


def processes_naming(text: str) -> list[str]:
    """Command lines of living processes that name `text`, in their arguments or their environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            line = " ".join(process.cmdline())
            if process.pid != os.getpid() and (text in line or text in str(process.environ())):
                found.append(line)
    return found


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def hanging(out: Path, count: int) -> bool:
    """Whether so many processes of the run being written have reached the point where they hang."""
    logs = list(out.glob(".perfharness-run-*/proc_*/stdout.log"))
    return sum("hanging" in log.read_text() for log in logs) == count


def noted(out: Path, count: int) -> bool:
    """Whether the manifest of the run being written has the pids of so many processes."""
    (hidden,) = out.glob(".perfharness-run-*")
    return sum(record["pid"] is not None for record in manifest(hidden)["processes"]) == count
