"""The workflow for pull requests in docs/examples/ci: its commands, run in a repository whose head is slower."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.launches import environment

pytestmark = pytest.mark.slow

CHECKOUT = Path(__file__).parents[2]
WORKFLOWS = (CHECKOUT / "docs/examples/ci/performance.yml", CHECKOUT / ".github/workflows/test.yml")

SCRIPT = """
import time
from perfharness import PerfRecorder
perf = PerfRecorder("app")
for index, item in perf.batches(range(20), items=1):
    with perf.range("work"):
        time.sleep({seconds})
perf.finalize()
"""


def steps() -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml")
    workflow = yaml.safe_load(WORKFLOWS[0].read_text())
    return [step for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]


def test_workflows_follow_the_schema_of_github() -> None:
    pytest.importorskip("check_jsonschema")
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows"]
    done = subprocess.run([*check, *WORKFLOWS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_a_slower_head_fails_the_check_and_the_table_is_commented(tmp_path: Path) -> None:
    repository, programs = tmp_path / "repository", tmp_path / "bin"
    repository.mkdir()
    programs.mkdir()
    git = ("git", "-c", "user.name=n", "-c", "user.email=e@x")
    for command in (("init", "-q"), *((("add", "-A"), ("commit", "-q", "-m", "a version")) * 2)):
        if command[0] == "add":
            seconds = 0.02 if (repository / "pipeline.py").exists() else 0.005
            (repository / "pipeline.py").write_text(SCRIPT.format(seconds=seconds))
        subprocess.run([*git, *command], cwd=repository, check=True)
    commented = tmp_path / "comment"
    (programs / "gh").write_text(
        '#!/bin/sh\n[ "$*" = "pr comment 7 --edit-last --create-if-none --body-file comparison.md" ] && '
        f"cp comparison.md {commented}\n"
    )
    (programs / "gh").chmod(0o755)
    environ = environment(
        PATH=os.pathsep.join((str(programs), str(Path(sys.executable).parent), os.environ["PATH"])),
        GITHUB_STEP_SUMMARY=str(tmp_path / "summary"),
        NUMBER="7",
    )
    codes = {}
    for step in steps():
        if "name" in step:  # all but the installation
            done = subprocess.run(["bash", "-e", "-c", step["run"]], cwd=repository, env=environ, check=False)
            codes[step["name"]] = done.returncode
    assert codes == {"Measure base and head in turns": 0, "Comment": 0, "Check": 3}
    assert "slower" in commented.read_text()
    assert (tmp_path / "summary").read_text() == commented.read_text()
