"""`perfharness launch` with the embedded tracer: traces of processes that end well, fail and are killed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from perfharness.cli.main import run
from perfharness.trace import open_trace
from tests.integration.launches import environment, manifest, run_to_the_end

SCRIPT = """
import os, signal, time
import nvtx
with nvtx.annotate("batch", domain="pipeline"):
    time.sleep(0.02)
if os.environ["PERFHARNESS_PROCESS_INDEX"] == "1":
    raise ValueError("bad frame 7")
if os.environ["PERFHARNESS_PROCESS_INDEX"] == "2":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def ended_badly(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A launch of three processes, of which one ends well, one with an exception, and one is killed."""
    folder = tmp_path_factory.mktemp("embedded")
    (folder / "script.py").write_text(SCRIPT)
    (folder / "perfharness.toml").write_text('[launch]\nbatch-pattern = "batch"\n')
    options = ("-np", 3, "--tracer", "embedded", "-w", 0, "-o", folder / "out")
    done = run_to_the_end((*options, folder / "script.py"), environment())
    assert done.returncode == 1, done.stderr
    return folder / "out"


def names(trace: Path) -> list[str]:
    opened = open_trace(trace)
    return [opened.names[code] for code in opened.ranges.name]


def test_a_process_that_ends_badly_leaves_what_it_recorded(ended_badly: Path) -> None:
    found = manifest(ended_badly)
    assert [record["ended"] for record in found["processes"]] == ["ok", "failed", "failed"]
    failed = [finding["process"] for finding in found["findings"] if finding["code"] == "process-failed"]
    assert failed == ["proc_1_gpu_0", "proc_2_gpu_0"]
    for record in found["processes"]:
        folder = ended_badly / record["folder"]
        assert record["trace"] == "trace.sqlite"
        assert names(folder / "trace.sqlite") == ["batch"]
        assert (folder / "benchmark.json").exists()
        assert not list(folder.glob(".ranges_*"))


def test_a_run_without_a_number_does_not_replace_one_with_numbers(ended_badly: Path, tmp_path: Path) -> None:
    """And what lies beside is a whole run folder."""
    out, before = tmp_path / "out", manifest(ended_badly)
    shutil.copytree(ended_badly, out)
    results = {path: path.read_bytes() for path in out.rglob("benchmark*.json")}
    assert results
    fails = tmp_path / "fails.py"
    fails.write_text("import sys; sys.exit(7)")
    assert run_to_the_end(("--tracer", "embedded", "-o", out, fails, "-np", "2"), environment()).returncode == 1
    assert manifest(out) == before
    (aside,) = out.glob("run-*")
    assert manifest(aside)["processes"][0]["exit_code"] == 7
    assert run(["analyze", str(aside)]) == 3
    assert {path: path.read_bytes() for path in results} == results


NO_BATCH = """
import time
from perfharness import PerfRecorder
perf = PerfRecorder("app")
with perf.range("work"):
    time.sleep(0.02)
perf.finalize()
"""


@pytest.mark.parametrize(("script", "code"), [("print(1)", 3), (NO_BATCH, 0)])
def test_a_launch_that_measured_nothing_is_3(tmp_path: Path, script: str, code: int) -> None:
    (tmp_path / "script.py").write_text(script)
    done = run_to_the_end(("--tracer", "embedded", "-o", tmp_path / "out", tmp_path / "script.py"), environment())
    assert done.returncode == code, done.stdout + done.stderr
    if script == NO_BATCH:
        (row,) = [cells for line in done.stdout.splitlines() if (cells := line.split())[:1] == ["work"]]
        assert row[1] == "1"
        assert float(row[2]) >= 20


REMOVED = """
import os, shutil
from perfharness import PerfRecorder
perf = PerfRecorder("app")
for number, _ in perf.batches(range(4), items=1):
    if number == 1:
        shutil.rmtree(os.environ["PERFHARNESS_OUTPUT_DIR"])
perf.finalize()
"""


def test_a_script_that_removes_its_output_folder_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(REMOVED)
    out = tmp_path / "out"
    done = run_to_the_end(("--tracer", "embedded", "-w", "0", "-o", out, tmp_path / "script.py"), environment())
    assert done.returncode == 1, done.stderr
    found = {finding["code"]: finding["severity"] for finding in manifest(out)["findings"]}
    assert found == {"output-folder-removed": "error"}
