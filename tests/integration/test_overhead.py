"""Traced and untraced launches in turn, of a script that takes longer when traced; and launches of ranges only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfharness.cli.main import run
from tests.integration.launches import environment, manifest, run_to_the_end

SCRIPT = """
import os, time
from perfharness import PerfRecorder
perf = PerfRecorder("rec")
traced = os.environ["PERFHARNESS_TRACER"] != "ranges"
with perf.range("pipeline"):
    for _ in perf.batches([[0, 0]] * 4, items=len):
        with perf.range("slow"):
            time.sleep(0.2 if traced else 0.02)
perf.finalize()
"""
BATCH = "rec/pipeline/batch"
QUICK = ("--tracer", "embedded", "--no-telemetry", "-w", "0")


@pytest.mark.slow
def test_a_planted_cost_is_found(script: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run_to_the_end(("--overhead", "--repeat", 2, "-o", out, *QUICK, "--format", "json", script), environment())
    assert done.returncode == 3, done.stderr
    found = json.loads((out / "overhead.json").read_text())
    assert json.loads(done.stdout)["stages"] == found["stages"]
    assert found["stages"][BATCH]["overhead"] > 1
    assert found["stages"][f"{BATCH}/slow"]["untraced"]["mean"] >= 20
    assert found["latency"][BATCH]["cpu_time"]["mean"] >= 20
    assert found["tracer"]["kind"] == "embedded"
    assert sorted(found["order"]) == [f"{kind}/launch_{n}" for kind in ("traced", "untraced") for n in range(2)]
    kinds = [manifest(out / folder)["tracer"]["kind"] for folder in sorted(found["order"])]
    assert kinds == ["embedded", "embedded", "ranges", "ranges"]
    assert run(["analyze", str(out), "-q"]) == 0, "the traced launches"


def test_ranges_only(script: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run_to_the_end(("-o", out, *QUICK[2:], "--tracer", "ranges", script), environment())
    assert done.returncode == 0, done.stderr
    mean = json.loads((out / "benchmark_mean.json").read_text())
    slow = mean["stats_minus_warmup"]["rec"]["pipeline"]["batch"]["slow"]
    assert slow["cpu_time"]["count"] == 4
    assert slow["cpu_time"]["mean"] >= 20


@pytest.mark.parametrize(
    "options",
    [("--tracer", "none"), ("--explain",), ("--np-sweep", "1,2"), ("--cold-start", "1")],
)
def test_what_does_not_go_with_it(script: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    assert run(["launch", "--overhead", "-o", str(tmp_path / "out"), *options, "--dry-run", str(script)]) == 2


def test_ranges_is_not_explained(script: Path) -> None:
    assert run(["launch", "--tracer", "ranges", "--explain", "--dry-run", str(script)]) == 2
