"""The fixture of the package, in a pytest of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from perfharness import pytest_plugin
from tests.unit.compared_runs import write_side

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CHECKOUT = Path(__file__).parents[2]
BASE = [10.0, 10.05, 9.95, 10.02, 9.98]
TESTS = """
def test_slower(perfharness_compare):
    perfharness_compare({base!r}, {new!r})

def test_not_faster(perfharness_compare):
    found = perfharness_compare({base!r}, {new!r}, fail_on=["faster"], stages=["decode"])
    assert found.versions[0].rows[0].verdict == "slower"

def test_limit(perfharness_compare):
    perfharness_compare({base!r}, {base!r}, limits=["decode.p95 > 1ms"])

def test_no_such_verdict(perfharness_compare):
    perfharness_compare({base!r}, {base!r}, fail_on=["slow"])
"""


def test_it_fails_where_a_row_or_a_limit_does(tmp_path: Path) -> None:
    base, new = write_side(tmp_path / "a", BASE), write_side(tmp_path / "b", [1.1 * one for one in BASE], turn=1)
    tests = tmp_path / "test_gate.py"
    tests.write_text(TESTS.format(base=base, new=new))
    # Not by its entry point, which an environment may have from another version, or not at all.
    plugins = ["no:perfharness", pytest_plugin.__name__, "no:cacheprovider"]
    chosen = [part for plugin in plugins for part in ("-p", plugin)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rA", *chosen, str(tests)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    lines = [line.split() for line in done.stdout.splitlines() if "py::test" in line]
    outcomes = {line[1].split("::")[1]: line[0] for line in lines if line[0] in ("PASSED", "FAILED")}
    assert outcomes == {
        "test_slower": "FAILED", "test_not_faster": "PASSED", "test_limit": "FAILED", "test_no_such_verdict": "FAILED"
    }  # fmt: skip
    assert "toy/batch/decode" in done.stdout


def test_the_package_names_it() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"perfharness": pytest_plugin.__name__}
