"""What a launch leaves, exported: two real processes on one time axis, and their tables."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

import perfharness
from tests.integration import launches
from tests.integration.launches import CHECKOUT
from tests.schemas import valid


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    done = launches.perfharness(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_a_launch_is_exported(tmp_path: Path) -> None:
    out = tmp_path / "out"
    script = str(CHECKOUT / "samples" / "toy_pipeline.py")
    done = run(
        "launch", "-np", "2", "-w", "1", "--tracer", "embedded", "--format", "json", "-o", str(out),
        script, "--batches", "4", "--stage-ms", "20",
    )  # fmt: skip
    assert json.loads(done.stdout) == json.loads((out / "benchmark_mean.json").read_text())
    assert "proc_1_gpu_0" in done.stderr, "progress"
    run("export", str(out), "-o", str(tmp_path / "t.json"))
    content = valid("chrome_trace", tmp_path / "t.json")
    batches = [event for event in content["traceEvents"] if event.get("cat") == "batch"]
    assert [event["args"]["warmup"] for event in batches] == 2 * [True, False, False, True]
    opened = perfharness.open_run(out)
    assert opened.manifest is not None
    begin = min(process.start_unix_ns or 0 for process in opened.manifest.processes)
    table = opened.batches()
    # The same moments, by way of the timeline and by way of the table.
    assert [round(event["ts"] * 1000) + begin for event in batches] == table["start_unix_ns"].to_pylist()
    for process in opened.manifest.processes:
        assert process.start_unix_ns is not None
        assert process.duration_s is not None
        mine = table.filter([name == process.folder for name in table["process"].to_pylist()])
        last = mine["start_unix_ns"][-1].as_py() + mine["duration_ns"][-1].as_py()
        slack_ns = 1_000_000_000  # two clocks were read, by two processes
        assert process.start_unix_ns - slack_ns < mine["start_unix_ns"][0].as_py()
        assert last < process.start_unix_ns + process.duration_s * 1e9 + slack_ns
    stages = opened.stages()
    assert stages["stage"].to_pylist() == 8 * ["stage_1", "stage_2"]
    assert min(stages["duration_ns"].to_pylist()) >= 20_000_000
    assert opened.benchmark is not None
    expected = opened.benchmark["mean_data"]["toy_pipeline"]["pipeline"]["batch"]["cpu_time"]
    assert sum(table["duration_ns"].to_pylist()) / 8 / 1e6 == pytest.approx(expected, abs=1e-5)
