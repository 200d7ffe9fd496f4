"""Kills during a measurement: no process hangs, nothing is left behind, measured results stay."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from perfharness.model.bench_suite import BenchSuiteResult
from perfharness.testing.fake_backend import FAKE_BACKEND, FakeScript, write_model
from tests.integration.launches import PATIENCE_S, environment, processes_naming

pytestmark = pytest.mark.slow

FOREVER = "import time\n\n\ndef create(backend, precision):\n    time.sleep(600)\n"


def perfharness(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "perfharness", *map(str, arguments)]


def start(*arguments: object, cwd: Path | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        perfharness(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(), cwd=cwd
    )


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
    return found


def suite(folder: Path) -> list[object]:
    """Two cases: the first is measured at once, the second takes for ever."""
    write_model(folder / "net.py", FakeScript(execute_ms=0.1))
    (folder / "slow.py").write_text(FOREVER)
    flags = ["--backend", FAKE_BACKEND, "--model", folder / "net.py:create", "--model", folder / "slow.py:create"]
    return [*flags, "--device", "cpu", "--iterations", "5", "--passes", "latency", "--in-order", "--no-charts"]


def statuses(out: Path) -> list[str]:
    return [one.status for one in BenchSuiteResult.model_validate_json((out / "bench.json").read_text()).cases]


def test_two_benches_on_one_folder_and_a_killed_helper(tmp_path: Path) -> None:
    """The second ends at once and touches nothing; the first ends although the helper of its case is killed."""
    out = tmp_path / "out"
    first = start("bench", *suite(tmp_path), "-o", out)
    try:
        running = wait_for(lambda: list((out / "cases").glob(".*slow*.running/status.json")), "the slow case")[0]
        second = start("bench", *suite(tmp_path), "-o", out, "--resume")
        said = second.communicate(timeout=PATIENCE_S)[1]
        assert second.returncode == 1
        assert len(said.strip().splitlines()) == 1
        assert running.exists()
        (helper,) = [one for one in psutil.Process(first.pid).children() if "child.py" in " ".join(one.cmdline())]
        helper.kill()
        stdout, stderr = first.communicate(timeout=PATIENCE_S)
    finally:
        first.kill()
    assert first.returncode == 1, stdout + stderr
    assert statuses(out) == ["ok", "failed"]
    assert "net-" in stderr
    assert "[1/2]" not in stdout, "progress is no result"
    wait_for(lambda: not processes_naming(str(out)), "the end of all")


@pytest.mark.parametrize("verb", ["bench", "compare-engines"])
def test_the_case_ends_with_a_killed_parent(tmp_path: Path, verb: str) -> None:
    out = tmp_path / "out"
    if verb == "bench":
        parent = start("bench", *suite(tmp_path), "-o", out)
    else:
        np.save(tmp_path / "a.npy", np.zeros((3, 8, 8), np.float32))
        (tmp_path / "slow.py").write_text(FOREVER)
        parent = start(verb, "--engines", tmp_path / "slow.py:create", "--backends", FAKE_BACKEND,
                       "--image", tmp_path / "a.npy", "--device", "cpu", "-o", out)  # fmt: skip
    logs = "cases/.*slow*.running/status.json" if verb == "bench" else "**/stderr.log"
    wait_for(lambda: list(out.glob(logs)) and len(processes_naming(str(out))) > 1, "the case")
    os.kill(parent.pid, signal.SIGKILL)
    parent.communicate(timeout=PATIENCE_S)
    wait_for(lambda: not processes_naming(str(out)), "the end of all")
    if verb == "bench":
        assert statuses(out) == ["ok", "not-run"]
        assert not start("bench", "show", out).communicate(timeout=PATIENCE_S)[1]


def test_nothing_in_the_current_folder_is_run(tmp_path: Path) -> None:
    """As `python /elsewhere/script.py` would, a case leaves the modules of the current folder alone."""
    here = tmp_path / "here"
    here.mkdir()
    for name in ("json", "types", "runpy", "numpy", "perfharness"):
        (here / f"{name}.py").write_text(f"open({str(tmp_path / 'was_run')!r}, 'w').close()\nraise SystemExit(9)\n")
    write_model(tmp_path / "net.py", FakeScript(execute_ms=0.1))
    script = Path(sys.executable).with_name("perfharness")
    done = subprocess.run(
        [script, "bench", "--backend", FAKE_BACKEND, "--model", f"{tmp_path / 'net.py'}:create", "--device", "cpu",
         "--iterations", "5", "--passes", "latency", "--no-charts", "-o", tmp_path / "out"],
        capture_output=True, text=True, cwd=here, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (tmp_path / "was_run").exists()
