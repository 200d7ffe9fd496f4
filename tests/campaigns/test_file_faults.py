"""Faults at file operations while a run is put in place and while it is analysed again: nothing good is lost.

Each fault is a process of its own, which has the run of a real launch before it and fails, or is killed, at one
operation (tests/unit/runs/test_run_swap.py does the same inside of one process, for what Python itself opens and
renames). Afterwards the next command looks: the old run or the new one has to be there, whole.

    PERFHARNESS_TEST_FAULT_PLACES   at most so many places per kind of operation and fault (6; 120 takes an hour)
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.campaigns.faulty_process import ERRORS, KINDS, TOY, Ground
from tests.integration.launches import command, environment

PLACES = int(os.environ.get("PERFHARNESS_TEST_FAULT_PLACES", "6"))
HERE = Path(__file__).parent

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600 + 120 * PLACES),
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler (cc)"),
]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("library") / "file_faults.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", path, HERE / "file_faults.c", "-ldl"], check=True)
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two runs of real launches, `old` and `new`, and the script they are of."""
    path = tmp_path_factory.mktemp("faults")
    (path / "toy.py").write_text(TOY)
    for name in ("old", "new"):
        launch(path, path / name, environment())
    yield path
    shutil.rmtree(path)


def launch(place: Path, out: Path, environ: dict[str, str], *, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command("-np", 2, "--tracer", "embedded", "--no-telemetry", "-o", out, place / "toy.py"),
        capture_output=True, text=True, env=environ, timeout=300, check=check,
    )  # fmt: skip


@pytest.mark.parametrize("action", ["finish_launch", "analyze"])
def test_one_whole_run_is_there_after_a_fault_at_any_operation(library: Path, place: Path, action: str) -> None:
    environ = environment(LD_PRELOAD=str(library), OMP_NUM_THREADS="1")
    done = subprocess.run(
        [sys.executable, "-m", "tests.campaigns.faulty_process", str(library), str(place), action, str(PLACES)],
        capture_output=True, text=True, env=environ, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {kind for kind, count in found["operations"].items() if count} >= {"open", "write", "rename", "fsync"}
    assert found["faults"] >= 4 * len(KINDS)
    assert found["wrong"] == []


@pytest.mark.parametrize("kind", ["open", "write", "rename", "mkdir", "fsync", "unlink"])
def test_a_launch_with_a_fault_at_an_operation_of_its_own(library: Path, place: Path, kind: str) -> None:
    ground = Ground(place)
    wrong = []
    for name in ("ENOSPC", "EIO", "killed"):
        for at in (1, 2, 4, 7, 11, 16)[: max(1, PLACES // 6)]:
            shutil.rmtree(ground.out, ignore_errors=True)
            shutil.copytree(ground.old, ground.out)
            environ = environment(
                LD_PRELOAD=str(library), FAULT_FOLDER=str(ground.out), FAULT_KIND=str(KINDS.index(kind)),
                FAULT_AT=str(at), FAULT_ERROR=str(ERRORS[name]),
            )  # fmt: skip
            done = launch(place, ground.out, environ, check=False)
            problem = ground.problem(any_run=True)
            if "Traceback" in done.stderr or "fault of perfharness" in done.stderr:
                problem = done.stderr[-300:]
            if problem is not None:
                wrong.append(f"{name} at {at}, exit code {done.returncode}: {problem}")
    assert wrong == []
