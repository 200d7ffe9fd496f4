"""What lies in the current folder is never run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from perfharness_launcher.machine import ask_interpreter
from tests.integration.launches import PATIENCE_S, environment

NAMES = "json types numpy nvtx typer pydantic sqlite3 runpy importlib perfharness linecache"
SCRIPT = """
from perfharness import PerfRecorder
perf = PerfRecorder("rec")
for index in range(3):
    with perf.batch(index, total_items=1):
        pass
perf.finalize()
"""


@pytest.mark.slow
def test_nothing_in_the_current_folder_is_run(tmp_path: Path) -> None:
    current, script, annotations = tmp_path / "current", tmp_path / "script.py", tmp_path / "annotations.toml"
    current.mkdir()
    for name in NAMES.split():
        (current / f"{name}.py").write_text(f"open({str(tmp_path / 'marks')!r}, 'a').write('{name} ')")
    script.write_text(SCRIPT)
    annotations.write_text("[[range]]\nfunction = 'html:escape'\n")
    command = str(Path(sys.executable).with_name("perfharness"))
    for arguments in (
        ("launch", "--tracer", "embedded", "--annotate", annotations, "-o", tmp_path / "out", script),
        ("launch", "--dry-run", script),
        ("doctor",),
    ):
        done = subprocess.run(
            [command, *map(str, arguments)],
            capture_output=True, text=True, cwd=current, env=environment(), timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0 or arguments == ("doctor",), done.stderr
    assert not (tmp_path / "marks").exists()
    assert ask_interpreter(sys.executable).has_perfharness
