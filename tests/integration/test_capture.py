"""Launches that trace some of the batches only, by the embedded tracer and by a real nsys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfharness.trace import open_trace
from tests.integration.launches import NSYS, NVTX_SITE, environment, manifest, run_to_the_end

SCRIPT = """
import threading, time
from perfharness import PerfRecorder
perf = PerfRecorder("rec")
together = threading.Barrier(2)

def loop():
    with perf.range("pipeline"):
        for index, _ in perf.batches([[0] * 4] * 20, items=len):
            with perf.range("early" if index < 5 else "late"):
                time.sleep(0.001)
            together.wait()

threads = [threading.Thread(target=loop) for _ in range(2)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
perf.finalize()
"""
QUICK = ("--no-telemetry", "-w", "0")
TRACERS = [
    pytest.param(("--tracer", "embedded"), id="embedded"),
    pytest.param(("--tracer", "nsys"), id="nsys", marks=[pytest.mark.nsys, pytest.mark.slow]),
]


def captured(folder: Path, options: tuple[str, ...], wanted: str) -> tuple[int, dict[str, Any], Path]:
    (folder / "script.py").write_text(SCRIPT)
    sites: tuple[str, ...] = ()
    if "nsys" in options:
        options, sites = (*options, "--nsys", NSYS), (NVTX_SITE,)
    out = folder / "out"
    command = (*options, *QUICK, "--capture-batches", wanted, "-o", out, folder / "script.py")
    done = run_to_the_end(command, environment(*sites))
    return done.returncode, json.loads((out / "benchmark_mean.json").read_text()), out


@pytest.mark.parametrize("options", TRACERS)
def test_some_batches_of_the_loop_that_comes_first(options: tuple[str, ...], tmp_path: Path) -> None:
    code, mean, out = captured(tmp_path, options, "5:12")
    assert code == 0, mean["meta"]["findings"]
    batch = mean["stats_minus_warmup"]["rec"]["pipeline"]["batch"]
    assert batch["cpu_time"]["count"] == batch["late"]["cpu_time"]["count"] == 7
    assert "early" not in batch
    codes = {finding["code"] for finding in mean["meta"]["findings"]}
    assert "batches-captured" in codes
    assert not {"trace-missing-ranges", "trace-incomplete", "range-not-closed"} & codes
    assert manifest(out)["capture_batches"] == "5:12"
    ranges = open_trace(out / "proc_0_gpu_0" / "trace.sqlite").ranges
    assert len(ranges.start_ns) in (15, 16), "the pipeline, 7 batches of a stage; of nsys the range of the capture"
    data = json.loads((out / "proc_0_gpu_0" / "benchmark.json").read_text())
    assert [key for key in data["data"]["rec"]["pipeline"] if key.startswith("batch_")] == [
        f"batch_{n}" for n in range(5, 12)
    ]
    assert "startup" not in data


@pytest.mark.slow
def test_no_such_batches(tmp_path: Path) -> None:
    code, mean, _ = captured(tmp_path, ("--tracer", "embedded"), "500:600")
    assert code in (1, 3)
    assert {"batches-captured", "trace-missing"} & {finding["code"] for finding in mean["meta"]["findings"]}
