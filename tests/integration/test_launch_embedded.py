"""`perfharness launch` with the embedded tracer: traces of processes that end well, fail, hang and are killed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfharness.cli.main import run
from perfharness.trace import open_trace
from tests.integration.launches import environment, run_to_the_end
from tests.integration.launches import manifest as manifest_of

SCRIPT = """
import os, signal, sys, time
import nvtx
mode = sys.argv[1]
with nvtx.annotate("batch", domain="pipeline"):
    time.sleep(0.02)
if os.environ["PERFHARNESS_PROCESS_INDEX"] == "1":
    if mode == "exit":
        sys.exit(3)
    if mode == "raise":
        raise ValueError("bad frame 7")
    if mode == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if mode == "hang":
        time.sleep(600)
"""


def launch(out: Path, mode: str, *options: str) -> tuple[int, dict[str, Any]]:
    script = out.parent / "script.py"
    script.write_text(SCRIPT)
    done = run_to_the_end(("-np", "2", "--tracer", "embedded", "-o", out, *options, script, mode), environment())
    return done.returncode, manifest_of(out)


def names(trace: Path) -> list[str]:
    opened = open_trace(trace)
    return [opened.names[code] for code in opened.ranges.name]


@pytest.mark.parametrize(
    ("mode", "options", "ended"),
    [
        pytest.param("exit", [], "failed", marks=pytest.mark.slow),
        ("raise", [], "failed"),
        pytest.param("hang", ["--timeout", "15"], "timeout", marks=pytest.mark.slow),
        ("kill", [], "failed"),
    ],
)
def test_a_process_that_ends_badly_leaves_what_it_recorded(
    tmp_path: Path, mode: str, options: list[str], ended: str
) -> None:
    code, manifest = launch(tmp_path / "out", mode, *options)
    assert code == 1
    assert [record["ended"] for record in manifest["processes"]] == ["ok", ended]
    found = [(finding["code"], finding["process"]) for finding in manifest["findings"]]
    assert (f"process-{ended}", "proc_1_gpu_0") in found
    for record in manifest["processes"]:
        folder = tmp_path / "out" / record["folder"]
        assert record["trace"] == "trace.sqlite"
        assert names(folder / "trace.sqlite") == ["batch"]
        assert (folder / "benchmark.json").exists()
        assert not list(folder.glob(".ranges_*"))


BATCHES = """
from perfharness import PerfRecorder
perf = PerfRecorder("app")
for _ in perf.batches(range(4), items=lambda one: 1):
    pass
perf.finalize()
"""
NO_BATCH = """
import time
from perfharness import PerfRecorder
perf = PerfRecorder("app")
with perf.range("work"):
    time.sleep(0.02)
perf.finalize()
"""


@pytest.mark.parametrize(
    ("script", "options", "code"),
    [
        (BATCHES, ["-w", "5000"], 3),
        ("print(1)", [], 3),
        (NO_BATCH, [], 0),
    ],
)
def test_a_launch_that_measured_nothing_is_3(tmp_path: Path, script: str, options: list[str], code: int) -> None:
    (tmp_path / "script.py").write_text(script)
    own = ("--tracer", "embedded", *options, "-o", tmp_path / "out", tmp_path / "script.py")
    done = run_to_the_end(own, environment())
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


def test_a_script_that_removes_its_output_folder_loses_its_output_only(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(REMOVED)
    out = tmp_path / "out"
    done = run_to_the_end(("--tracer", "embedded", "-w", "0", "-o", out, tmp_path / "script.py"), environment())
    assert done.returncode == 0, done.stderr
    assert [finding["code"] for finding in manifest_of(out)["findings"]] == ["output-folder-removed"]
    mean = json.loads((out / "benchmark_mean.json").read_text())
    assert mean["stats_minus_warmup"]["app"]["batch"]["cpu_time"]["count"] == 4
    assert mean["stats_minus_warmup"]["app"]["batch"]["total_items"]["mean"] == 1


def test_a_run_without_a_number_does_not_replace_a_good_one(tmp_path: Path) -> None:
    """And what lies beside is a whole run folder."""
    out = tmp_path / "out"
    code, before = launch(out, "well", "--batch-pattern", "batch", "--warmup-batches", "0")
    assert code == 0
    results = {path: path.read_bytes() for path in out.rglob("benchmark*.json")}
    fails = tmp_path / "fails.py"
    fails.write_text("import sys; sys.exit(7)")
    done = run_to_the_end(("--tracer", "embedded", "-o", out, fails, "-np", "2"), environment())
    assert done.returncode == 1
    assert manifest_of(out) == before
    (aside,) = out.glob("run-*")
    assert str(aside) in done.stdout + done.stderr
    assert json.loads((aside / "manifest.json").read_text())["processes"][0]["exit_code"] == 7
    assert run(["analyze", str(aside)]) == 3
    assert {path: path.read_bytes() for path in results} == results
