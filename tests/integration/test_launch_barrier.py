"""The start barrier and the throughput it makes honest: real processes of which one starts late."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.integration.launches import PATIENCE_S, environment, launching, read, run_to_the_end

SCRIPT = """
import os, sys, time
from perfharness import PerfRecorder
index = int(os.environ["PERFHARNESS_PROCESS_INDEX"])
late_s, batches, mode = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else ""
perf = PerfRecorder("rec")
if index == 1:
    time.sleep(late_s)
    if mode == "dies":
        open(__file__ + ".dies", "w")
        sys.exit(3)
while mode == "dies" and not os.path.exists(__file__ + ".dies"):
    time.sleep(0.01)
if mode == "after" and index == 1 or mode == "dies" and index == 2:
    while not os.path.exists(__file__ + ".ended"):
        time.sleep(0.01)
    if mode == "dies":
        sys.exit(0)
with perf.range("pipeline"):
    for i in range(batches):
        with perf.batch(i, total_items=1):
            time.sleep(0.02)
        print("done", i, flush=True)
open(__file__ + ".ended", "w")
perf.finalize()
"""


def arguments_of(tmp_path: Path, *given: object) -> tuple[object, ...]:
    """Options of the launch, `|`, and those of the script."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    place = given.index("|")
    return ("-o", tmp_path / "out", *given[:place], script, *given[place + 1 :])


def launch(tmp_path: Path, *given: object) -> tuple[int, dict[str, Any], dict[str, Any]]:
    done = run_to_the_end(arguments_of(tmp_path, *given), environment())
    out = tmp_path / "out"
    assert (out / "manifest.json").exists(), done.stdout + done.stderr
    return done.returncode, read(out, "manifest.json"), read(out, "benchmark_mean.json")


def test_a_process_that_starts_late_is_waited_for(tmp_path: Path) -> None:
    code, manifest, mean = launch(tmp_path, "-np", 2, "-w", 2, "--tracer", "embedded", "|", 1.5, 30)
    assert code == 0, manifest["findings"]
    barrier = manifest["start_barrier"]
    arrived = barrier["arrived_unix_ns"]
    late_ms = (arrived["proc_1_gpu_0"] - arrived["proc_0_gpu_0"]) / 1e6
    assert late_ms > 0
    assert barrier["opened_unix_ns"] >= arrived["proc_1_gpu_0"]

    early = read(tmp_path / "out", "proc_0_gpu_0/benchmark.json")
    pipeline = early["data"]["rec"]["pipeline"]
    journal = read(tmp_path / "out", "proc_0_gpu_0/recorder.json")
    wait_ms = journal["start_barrier"][0]["waited_ns"] / 1e6
    assert wait_ms > late_ms - 1
    batches = [pipeline[f"batch_{index}"] for index in range(30)]
    assert all(batch["cpu_time"] < wait_ms for batch in batches)
    assert pipeline["cpu_time"] == pytest.approx(sum(batch["cpu_time"] for batch in batches), abs=wait_ms / 2)
    assert "start-barrier-wait" in {finding["code"] for finding in early["meta"]["findings"]}
    assert mean["throughput"]["items_per_second"] is not None
    assert mean["throughput"]["window_ms"] > 0


def test_without_it_there_is_no_common_window(tmp_path: Path) -> None:
    """One process begins when the other has ended."""
    options = ("-np", 2, "-w", 1, "--tracer", "embedded", "--no-barrier")
    _, manifest, mean = launch(tmp_path, *options, "|", 0, 10, "after")
    assert not mean["throughput"]["window_ms"]
    assert mean["throughput"]["items_per_second"] is None
    assert manifest["start_barrier"] is None
    assert read(tmp_path / "out", "proc_0_gpu_0/recorder.json")["start_barrier"] is None


def test_one_that_dies_and_one_that_never_comes_hold_nobody_up(tmp_path: Path) -> None:
    options = ("-np", 3, "-w", 1, "--tracer", "none", "--barrier-timeout", 4)
    code, manifest, _ = launch(tmp_path, *options, "|", 0, 5, "dies")
    assert code == 1
    assert [process["ended"] for process in manifest["processes"]] == ["ok", "failed", "ok"]
    missed = [one["process"] for one in manifest["findings"] if one["code"] == "start-barrier-missed"]
    assert sorted(filter(None, missed)) == ["proc_1_gpu_0", "proc_2_gpu_0"]


@pytest.mark.slow
def test_ctrl_c_while_one_waits(tmp_path: Path) -> None:
    arguments = arguments_of(tmp_path, "-np", 2, "-w", 1, "--tracer", "embedded", "|", 600, 5)
    with launching(arguments, environment()) as launcher:
        assert launcher.stdout is not None
        for text in launcher.stdout:
            if "proc_0_gpu_0: waits at the start barrier" in text:
                break
        launcher.send_signal(signal.SIGINT)
        launcher.stdout.read()
        launcher.wait(PATIENCE_S)
    manifest = read(tmp_path / "out", "manifest.json")
    assert launcher.returncode == 1
    assert [process["ended"] for process in manifest["processes"]] == ["interrupted"] * 2
