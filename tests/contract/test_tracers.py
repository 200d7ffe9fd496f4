"""What every tracer must do, nsys and the embedded one: the toy pipeline in two processes, and what is read from it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.integration.launches import NSYS, environment, perfharness, run_to_the_end, tracing
from tests.schemas import valid

ROOT = Path(__file__).parents[2]
STAGE_MS = 30.0
HOLDER_KEYS = {
    f"{time}{suffix}"
    for time in ("cpu_time", "gpu_time", "gpu_busy_time")
    for suffix in ("", "_per_item", "_minus_warmup", "_per_item_minus_warmup")
} | {"total_items", "total_items_minus_warmup", "count"}


def launch(output: Path, options: tuple[str, ...], *sites: str) -> subprocess.CompletedProcess[str]:
    script = (ROOT / "samples" / "toy_pipeline.py", "--stage-ms", STAGE_MS)
    return run_to_the_end(("-np", 2, "-w", 1, "-o", output, *options, *script), environment(*sites))


def load(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def check_run(output: Path) -> None:
    mean = valid("benchmark_mean", output / "benchmark_mean.json")
    assert mean["meta"]["processes"] == ["proc_0_gpu_0", "proc_1_gpu_0"]
    # One batch is left of three, and a rate takes three periods.
    rates = [mean["throughput"], *mean["throughput"]["processes"].values()]
    assert all(rate["items_per_second"] is None and rate["reason"] for rate in rates)
    assert mean["stats_minus_warmup"]["toy_pipeline"]["pipeline"]["batch"]["stage_1"]["cpu_time"]["count"] == 2
    for folder in mean["meta"]["processes"]:
        check_process(valid("benchmark", output / folder / "benchmark.json"))
        recorder = load(output / folder / "recorder.json")["recorders"][0]
        assert (recorder["ranges"], recorder["batches"], recorder["items"]) == (10, 3, 3)


def check_process(body: dict[str, Any]) -> None:
    pipeline = body["data"]["toy_pipeline"]["pipeline"]
    assert set(pipeline) == HOLDER_KEYS | {"batch_0", "batch_1", "batch_2"}
    assert (pipeline["total_items"], pipeline["total_items_minus_warmup"]) == (3, 1)
    assert [pipeline[f"batch_{i}"]["warmup"] for i in range(3)] == [True, False, True]
    for index in range(3):
        batch = pipeline[f"batch_{index}"]
        stages = [batch["stage_1"], batch["stage_2"]]
        # A sleep never ends early; how late it ends is the machine's affair.
        assert all(stage["cpu_time"] >= STAGE_MS for stage in stages)
        assert sum(stage["cpu_time"] for stage in stages) <= batch["cpu_time"] <= pipeline["cpu_time"]
        assert batch["stage_1"]["cpu_time_per_item"] == batch["stage_1"]["cpu_time"]
        assert (batch["gpu_time"], batch["gpu_busy_time"]) == (0.0, 0.0)
    rest = pipeline["cpu_time"] - pipeline["batch_0"]["cpu_time"] - pipeline["batch_2"]["cpu_time"]
    assert pipeline["cpu_time_minus_warmup"] == pytest.approx(rest, abs=1e-5)
    assert [f for f in body["meta"]["findings"] if f["severity"] != "note"] == []


def ranges_of(trace: Path) -> list[dict[str, Any]]:
    done = perfharness("export", trace, "--table", "ranges", "--format", "json", "-o", "-")
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def answers_of_nsys(trace: Path) -> list[dict[str, Any]]:
    options = ["--report", "nvtx_pushpop_trace", "--format", "json", "--quiet", "--output", "-"]
    command = [NSYS, "stats", *options, str(trace)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows: list[dict[str, Any]] = json.loads(out[out.index("[") :])
    return rows


def compare_with_nsys(trace: Path) -> None:
    """Name, thread, level, parent, start and duration of every range, to the nanosecond."""
    ours = {
        row["range_id"]: (
            f"{row['domain']}:{row['name']}", row["pid"], row["tid"], row["level"], row["parent_id"], row["start_ns"],
            row["duration_ns"],
        )
        for row in ranges_of(trace)
    }  # fmt: skip
    theirs = {
        row["RangeId"]: (
            row["Name"], row["PID"], row["TID"], row["Lvl"], row["ParentId"] or None, row["Start (ns)"],
            row["Duration (ns)"],
        )
        for row in answers_of_nsys(trace)
    }  # fmt: skip
    assert len(ours) == 10
    assert ours == theirs


@pytest.mark.nsys
def test_under_nsys(tmp_path: Path) -> None:
    options, sites = tracing("nsys")
    done = launch(tmp_path / "out", options, *sites)
    assert done.returncode == 0, done.stdout + done.stderr
    check_run(tmp_path / "out")
    for folder in ("proc_0_gpu_0", "proc_1_gpu_0"):
        assert (tmp_path / "out" / folder / "trace.nsys-rep").stat().st_size > 0
        compare_with_nsys(tmp_path / "out" / folder / "trace.sqlite")


def test_under_the_embedded_tracer(tmp_path: Path) -> None:
    """Where there is an nsys, it reads the file, too."""
    done = launch(tmp_path / "out", ("--tracer", "embedded"))
    assert done.returncode == 0, done.stdout + done.stderr
    check_run(tmp_path / "out")
    if NSYS:
        compare_with_nsys(tmp_path / "out" / "proc_0_gpu_0" / "trace.sqlite")


@pytest.mark.slow
@pytest.mark.nsys
def test_an_nvtx_that_nsys_does_not_know_is_named(tmp_path: Path) -> None:
    """nsys 2023.4 records nothing of the newest nvtx and says nothing; the result does, and exits with 3."""
    version = subprocess.run([NSYS, "--version"], capture_output=True, text=True, check=True).stdout
    if "2023.4" not in version:
        pytest.skip(f"this nsys may record the newest nvtx: {version.strip()}")
    done = launch(tmp_path / "out", ("--tracer", "nsys", "--nsys", NSYS))
    assert done.returncode == 3
    findings = load(tmp_path / "out" / "benchmark_mean.json")["meta"]["findings"]
    missing = [finding for finding in findings if finding["code"] == "trace-missing-ranges"]
    assert [finding["process"] for finding in missing] == ["proc_0_gpu_0", "proc_1_gpu_0"]
    assert "too new for nsys" in missing[0]["hint"]


INTERLEAVED = """
from perfharness import PerfRecorder
first, second = PerfRecorder("first"), PerfRecorder("second")
first.push_range("a")
second.push_range("b")
first.pop_range()
second.pop_range()
first.finalize()
second.finalize()
"""


@pytest.mark.parametrize("tracer", [pytest.param("nsys", marks=[pytest.mark.nsys, pytest.mark.slow]), "embedded"])
def test_recorders_that_do_not_nest_keep_their_own_times(tmp_path: Path, tracer: str) -> None:
    """
    a-----a
       b-----b
    """
    script = tmp_path / "interleaved.py"
    script.write_text(INTERLEAVED)
    options, sites = tracing(tracer)
    done = run_to_the_end((*options, "-o", tmp_path / "out", script), environment(*sites))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["name"]: row for row in ranges_of(tmp_path / "out" / "proc_0_gpu_0" / "trace.sqlite")}
    ends = {name: row["start_ns"] + row["duration_ns"] for name, row in rows.items()}
    assert rows["a"]["start_ns"] < rows["b"]["start_ns"] < ends["a"] < ends["b"]
    data = load(tmp_path / "out" / "proc_0_gpu_0" / "benchmark.json")["data"]
    assert {recorder: list(tree) for recorder, tree in data.items()} == {"first": ["a"], "second": ["b"]}
