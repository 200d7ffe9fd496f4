"""What lies in the current folder is never run, and what lies beside the script is the script's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from perfharness.boot import without_current_folder
from perfharness.trace import open_trace
from perfharness.tracer.output import complete_traces
from perfharness_launcher.plan.machine import ask_interpreter
from tests.integration.launches import PATIENCE_S, environment

NAMES = (
    "json",
    "types",
    "numpy",
    "nvtx",
    "typer",
    "pydantic",
    "sqlite3",
    "runpy",
    "importlib",
    "perfharness",
    "linecache",
)
SCRIPT = """
from perfharness import PerfRecorder
perf = PerfRecorder("rec")
for index in range(3):
    with perf.batch(index, total_items=1):
        pass
perf.finalize()
"""


@pytest.fixture
def trapped(tmp_path: Path) -> Path:
    """A folder in which a module of each name marks that it was run."""
    folder = tmp_path / "current"
    folder.mkdir()
    for name in NAMES:
        (folder / f"{name}.py").write_text(f"open({str(tmp_path / 'marks')!r}, 'a').write('{name} ')")
    return folder


def perfharness(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        without_current_folder([sys.executable, "-m", "perfharness", *map(str, arguments)]),
        capture_output=True, text=True, cwd=cwd, env=environment(), timeout=PATIENCE_S, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_nothing_in_the_current_folder_is_run(trapped: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    annotations = tmp_path / "annotations.toml"
    annotations.write_text("[[range]]\nfunction = 'json:dumps'\n")
    done = perfharness(
        "launch", "--tracer", "embedded", "--annotate", annotations, "-o", tmp_path / "out", script, cwd=trapped
    )
    assert done.returncode == 0, done.stderr
    assert perfharness("launch", "--dry-run", script, cwd=trapped).returncode == 0
    perfharness("doctor", cwd=trapped)  # its exit code is about what this machine can measure
    assert not (tmp_path / "marks").exists()
    assert ask_interpreter(sys.executable).has_perfharness


def test_what_lies_beside_the_script_is_imported_by_it_and_by_nobody_else(tmp_path: Path) -> None:
    names = ("typing", "random", "sqlite3", "numpy", "json", "perfharness")
    for name in names:
        (tmp_path / f"{name}.py").write_text("MARK = 1\n")
    script = tmp_path / "script.py"
    script.write_text("".join(f"import {name}; print(hasattr({name}, 'MARK'))\n" for name in names))
    out = tmp_path / "out"
    out.mkdir()
    own = {**environment(), "PERFHARNESS_OUTPUT_DIR": str(out), "PERFHARNESS_TRACER": "embedded"}
    plain, traced = (
        subprocess.run(command, capture_output=True, text=True, env=own, timeout=PATIENCE_S, check=True).stdout
        for command in (
            [sys.executable, str(script)],
            without_current_folder([sys.executable, "-m", "perfharness.tracer", str(script)]),
        )
    )
    assert traced == plain
    assert [len(open_trace(trace).ranges) for trace in complete_traces(out)] == [0]


def test_a_flag_of_the_users_is_as_it_was(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys; print(sys.path[0], getattr(sys.flags, 'safe_path', None), __name__)")
    own = {**os.environ, **environment(), "PERFHARNESS_OUTPUT_DIR": str(tmp_path)}
    for flag in ([], ["-P"] if sys.version_info >= (3, 11) else []):
        module = without_current_folder([sys.executable, "-m", "perfharness.tracer", str(script)])
        plain, traced = (
            subprocess.run([sys.executable, *flag, *rest], capture_output=True, text=True, env=own, check=True).stdout
            for rest in ([str(script)], module[1:])
        )
        assert traced == plain
