"""Kills during a measurement: no process hangs, nothing is left behind, measured results stay."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.integration.bench_runs import start, suite_in
from tests.integration.launches import PATIENCE_S, processes_naming, wait_for
from tests.support.fake_backend import FAKE_BACKEND, FakeScript, write_model

pytestmark = pytest.mark.slow

FOREVER = "import time\n\n\ndef create(backend, precision):\n    time.sleep(600)\n"
QUICK = ("--backend", FAKE_BACKEND, "--device", "cpu", "--iterations", "5", "--passes", "latency", "--no-charts")


def suite(folder: Path) -> list[object]:
    """Two cases: the first is measured at once, the second takes for ever."""
    write_model(folder / "net.py", FakeScript(execute_ms=0.1))
    (folder / "slow.py").write_text(FOREVER)
    models = ["--model", folder / "net.py:create", "--model", folder / "slow.py:create"]
    return ["bench", *QUICK, *models, "--in-order", "-o", folder / "out"]


def statuses(out: Path) -> list[str]:
    return [one.status for one in suite_in(out).cases]


def test_two_benches_on_one_folder_and_a_killed_helper(tmp_path: Path) -> None:
    """The second ends at once and touches nothing; the first ends although the helper of its case is killed."""
    out = tmp_path / "out"
    first = start(*suite(tmp_path))
    try:
        wait_for(lambda: any(out.glob("cases/.*slow*.running/result.json")))
        second = start(*suite(tmp_path), "--resume")
        second.communicate(timeout=PATIENCE_S)
        assert second.returncode == 1
        assert any(out.glob("cases/.*slow*.running/result.json"))
        (helper,) = [one for one in psutil.Process(first.pid).children() if "hold.py" in " ".join(one.cmdline())]
        helper.kill()
        stdout, stderr = first.communicate(timeout=PATIENCE_S)
    finally:
        first.kill()
    assert first.returncode == 1, stdout + stderr
    assert statuses(out) == ["ok", "failed"]
    wait_for(lambda: not processes_naming(str(out)))


@pytest.mark.parametrize("verb", ["bench", "compare-engines"])
def test_the_case_ends_with_a_killed_parent(tmp_path: Path, verb: str) -> None:
    out, words = tmp_path / "out", suite(tmp_path)
    if verb == "compare-engines":
        np.save(tmp_path / "a.npy", np.zeros((3, 8, 8), np.float32))
        words = [verb, "--engines", tmp_path / "slow.py:create", "--backends", FAKE_BACKEND,
                 "--image", tmp_path / "a.npy", "--device", "cpu", "-o", out]  # fmt: skip
    parent = start(*words)
    logs = "cases/.*slow*.running/result.json" if verb == "bench" else "**/stderr.log"
    wait_for(lambda: any(out.glob(logs)) and len(processes_naming(str(out))) > 1)
    os.kill(parent.pid, signal.SIGKILL)
    parent.communicate(timeout=PATIENCE_S)
    wait_for(lambda: not processes_naming(str(out)))
    if verb == "bench":
        assert statuses(out) == ["ok", "not-run"]


def test_nothing_in_the_current_folder_is_run(tmp_path: Path) -> None:
    """As `python /elsewhere/script.py` would, a case leaves the modules of the current folder alone."""
    here = tmp_path / "here"
    here.mkdir()
    for name in ("json", "types", "runpy", "numpy", "perfharness"):
        (here / f"{name}.py").write_text(f"open({str(tmp_path / 'was_run')!r}, 'w').close()\nraise SystemExit(9)\n")
    model = write_model(tmp_path / "net.py", FakeScript(execute_ms=0.1))
    script = Path(sys.executable).with_name("perfharness")
    done = subprocess.run(
        [script, "bench", *QUICK, "--model", model, "-o", tmp_path / "out"],
        capture_output=True, text=True, cwd=here, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (tmp_path / "was_run").exists()
