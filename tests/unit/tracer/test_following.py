"""How children are followed, and what of the probe's samples is a worker's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from perfharness.boot import FOLLOW
from perfharness.model import environment
from perfharness.trace.host_samples import _since_fork
from perfharness_launcher import children


def run_with_hook(code: str, *options: str, **environ: str) -> str:
    path = os.pathsep.join(part for part in (str(FOLLOW), os.environ.get("PYTHONPATH")) if part)
    given = {name: value for name, value in os.environ.items() if not name.startswith("PERFHARNESS_")}
    done = subprocess.run(
        [sys.executable, *options, "-c", code],
        env={**given, "PYTHONPATH": path, **environ}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.strip()


def test_a_python_that_makes_no_ranges_imports_nothing_of_ours(tmp_path: Path) -> None:
    code = "import sys, json, multiprocessing; print([one for one in sys.modules if one.startswith('perfharness')])"
    variables = {environment.OUTPUT_DIR: str(tmp_path), environment.TRACER: "embedded"}
    assert run_with_hook(code, **variables) == "[]"
    assert list(tmp_path.iterdir()) == []


def test_a_python_that_empties_its_environment_runs_and_is_named(tmp_path: Path) -> None:
    code = "import os; os.environ.clear(); import perfharness.recorder; print('ran')"
    assert run_with_hook(code, PERFHARNESS_OUTPUT_DIR=str(tmp_path), PERFHARNESS_TRACER="embedded") == "ran"
    (finding,) = children.unfollowed(tmp_path, "proc_0_gpu_0", "embedded")
    assert finding.code == "child-not-followed"


def test_the_users_own_hook_fails_as_it_does_without_ours(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import not_there_at_all\n")
    code = "import sys; print(sys.path.count(''), 'sitecustomize' in sys.modules)"
    for first in (str(FOLLOW), ""):
        path = os.pathsep.join(part for part in (first, str(tmp_path), os.environ.get("PYTHONPATH")) if part)
        done = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True,
            check=True,
        )  # fmt: skip
        assert "not_there_at_all" in done.stderr
        assert done.stdout == "1 False\n"


def test_the_parents_frames_are_no_part_of_a_worker() -> None:
    functions = [
        ("work", "script.py"),
        ("BaseProcess.run", "lib/multiprocessing/process.py"),
        ("BaseProcess._bootstrap", "lib/multiprocessing/process.py"),
        ("BaseProcess.start", "lib/multiprocessing/process.py"),
        ("<module>", "script.py"),
    ]
    assert _since_fork([0, 1, 2, 3, 4], functions) == [0, 1, 2]
    assert _since_fork([3, 4], functions) == [3, 4]
    assert _since_fork([0, 4], functions) == [0, 4]
