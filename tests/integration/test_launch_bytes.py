"""Bytes that are no UTF-8 in a script's name and arguments are carried through; an output folder of them is refused."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from perfharness.cli.main import run
from tests.integration.launches import PATIENCE_S, command, environment, manifest

NAME = os.fsdecode(b"caf\xe9.py")
ARGUMENT = os.fsdecode(b"a\xff")
SCRIPT = """
import os, sys
from perfharness import PerfRecorder
perf = PerfRecorder("rec")
with perf.range("pipeline"):
    for index in range(4):
        with perf.batch(index, total_items=1):
            pass
perf.finalize()
print(os.fsencode(sys.argv[1]) == b"a\\xff")
"""


def test_a_script_and_an_argument_that_are_no_utf_8(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(SCRIPT)
    out = tmp_path / "out"
    done = subprocess.run(
        command("--tracer", "embedded", "-o", out, tmp_path / NAME, ARGUMENT),
        capture_output=True, env=environment(), timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (out / "proc_0_gpu_0" / "stdout.log").read_text() == "True\n"
    assert manifest(out)["processes"][0]["command"][-1] == "a\\udcff"
    assert len(json.loads((out / "proc_0_gpu_0" / "benchmark.json").read_text())["data"]["rec"]["pipeline"]) > 4


def test_an_output_folder_that_is_no_utf_8_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("open('ran', 'w')")
    out = os.fsdecode(b"o\xe9")
    assert run(["launch", "--tracer", "none", "-o", str(tmp_path / out), str(tmp_path / "script.py")]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]
