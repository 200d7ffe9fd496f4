"""`perfharness launch --explain`: two passes in one run folder, and what if one fails."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import perfharness
from perfharness.cli.main import run
from perfharness.host_probe import sample_file
from perfharness.trace import open_trace
from tests.integration.launches import (
    NSYS,
    NVTX_SITE,
    environment,
    launching,
    manifest,
    processes_naming,
    run_to_the_end,
    wait_for,
)

SCRIPT = """
import os, sys, time
from pathlib import Path
from perfharness import PerfRecorder

explaining = os.environ["PERFHARNESS_EXPLAIN"] == "1"
with (Path(__file__).parent / "passes").open("a") as log:
    print("explaining" if explaining else "measured", file=log)
mode = sys.argv[1] if len(sys.argv) > 1 else ""

def slow():
    until = time.thread_time() + 0.05
    while time.thread_time() < until:
        sum(range(1000))

if mode == "crash-measured":
    sys.exit(4)
if explaining and mode == "crash":
    sys.exit(3)
perf = PerfRecorder("pipe")
with perf.range("loop"):
    for _, batch in perf.batches([[1, 2]] * 12, items=len):
        with perf.range("decode"):
            time.sleep(0.002)
        with perf.range("infer"):
            time.sleep(0.004)
        if mode == "busy":
            with perf.range("busy"):
                slow()
        if explaining and mode == "hang":
            print("hanging", flush=True)
            time.sleep(600)
perf.finalize()
"""
LINE = next(number for number, line in enumerate(SCRIPT.splitlines(), 1) if "while time.thread_time" in line)


def explained(out: Path, script: Path, mode: str = "", *options: object) -> int:
    arguments = ("--explain", "--tracer", "embedded", "-o", out, *options, script, *([mode] if mode else []))
    return run_to_the_end(arguments, environment()).returncode


def passes(script: Path) -> list[str]:
    return (script.parent / "passes").read_text().split()


def mean(out: Path) -> dict[str, Any]:
    tree: dict[str, Any] = json.loads((out / "benchmark_mean.json").read_text())
    return tree


def codes(out: Path) -> list[str]:
    return [finding["code"] for finding in mean(out)["meta"]["findings"]]


def batches(out: Path) -> int:
    return int(mean(out)["stats_minus_warmup"]["pipe"]["loop"]["batch"]["cpu_time"]["count"])


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a script and of its run `out`: two passes of two processes."""
    folder = tmp_path_factory.mktemp("both")
    (folder / "script.py").write_text(SCRIPT)
    assert explained(folder / "out", folder / "script.py", "busy", "-np", 2) == 0
    return folder


def test_both_passes_of_two_processes(both: Path) -> None:
    out = both / "out"
    assert passes(both / "script.py") == ["measured"] * 2 + ["explaining"] * 2
    first, second = manifest(out), manifest(out / "explain")
    assert (first["explaining"], second["explaining"]) == (False, True)
    assert (first["explained"], second["explained"]) == (True, False)
    folders = ["proc_0_gpu_0", "proc_1_gpu_0"]
    assert [[process["folder"] for process in one["processes"]] for one in (first, second)] == [folders] * 2
    assert batches(out) == batches(out / "explain") == 20
    assert not list(both.glob("**/.perfharness-*"))
    for process in second["processes"]:
        assert not [word for word in process["command"] if ".perfharness-" in word]
    opened = perfharness.open_run(out)
    assert [process.name for process in opened.processes] == folders
    assert opened.explaining is not None
    assert [process.name for process in opened.explaining.processes] == folders
    assert opened.explaining.explaining is None
    assert opened.explaining.batches().num_rows == opened.batches().num_rows == 24


def test_the_function_its_line_and_its_stacks(both: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Which cause is first depends on what else the machine does; that the function is found does not."""
    assert run(["analyze", str(both / "out"), "--stage", "busy"]) == 0
    assert re.search(rf"busy +slow +\S*script\.py:({LINE}|{LINE + 1}) ", capsys.readouterr().out)
    assert run(["export", str(both / "out"), "-o", str(tmp_path / "stacks.txt")]) == 0
    counts: dict[bool, int] = {True: 0, False: 0}
    for line in (tmp_path / "stacks.txt").read_text("utf-8").splitlines():
        stack, count = line.rsplit(" ", 1)
        if "[busy];" in stack:
            counts[";slow (" in stack] += int(count)
    assert counts[True] > 9 * counts[False]


def test_analyzing_again_and_without_the_profiling_pass(both: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(both / "out", out)
    before = mean(out)
    assert run(["analyze", str(out)]) == 0
    assert mean(out)["stats_minus_warmup"] == before["stats_minus_warmup"]
    assert run(["analyze", str(out), "-w", "2"]) == 0
    assert batches(out) == batches(out / "explain") == 16
    shutil.rmtree(out / "explain")
    assert run(["analyze", str(out)]) == 0
    assert codes(out).count("profiling-pass-missing") == 1
    busy = stages(out)["busy"]
    assert busy["samples"] >= 10
    assert busy["functions"][0]["function"] == "slow"
    assert busy["functions"][0]["line"] in (LINE, LINE + 1)
    file = sample_file.SampleFile(str(out / "proc_0_gpu_0" / sample_file.FILE_NAME))  # where sampling is not possible
    clocks = {"pid": manifest(out)["processes"][0]["pid"], "interval_ns": 0, "monotonic_ns": 0, "unix_ns": 0}
    file.write_json(sample_file.META, clocks)
    file.write_json(sample_file.MISSING, ["the reason"])
    file.close()
    assert run(["analyze", str(out)]) == 0
    (found,) = (one for one in mean(out)["meta"]["findings"] if one["code"] == "no-stacks")
    assert (found["process"], "the reason" in found["message"]) == ("proc_0_gpu_0", True)


def stages(out: Path, process: str = "proc_0_gpu_0") -> dict[str, dict[str, Any]]:
    tree = json.loads((out / process / "benchmark.json").read_text())
    return {one["path"][-1]: one for one in tree["diagnosis"]["stages"]}


@pytest.mark.slow
@pytest.mark.nsys
def test_both_passes_under_nsys(script: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run_to_the_end(("--explain", "--tracer", "nsys", "--nsys", NSYS, "-o", out, script), environment(NVTX_SITE))
    assert done.returncode == 0, done.stderr
    assert passes(script) == ["measured", "explaining"]
    commands = [manifest(folder)["processes"][0]["command"] for folder in (out, out / "explain")]
    traced = [next(word for word in command if word.startswith("--trace=")) for command in commands]
    assert ["python-gil" in options for options in traced] == [False, True]
    locks = [open_trace(folder / "proc_0_gpu_0" / "trace.sqlite").lock_events for folder in (out, out / "explain")]
    assert locks[0] is None
    assert locks[1] is not None
    assert len(locks[1]) > 0
    assert f"--output={out}/explain/proc_0_gpu_0/trace" in commands[1]
    assert batches(out) == batches(out / "explain") == 10


def test_whatever_happens_to_the_second_pass_the_first_is_kept(script: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert explained(out, script, "crash") == 3
    assert passes(script) == ["measured", "explaining"]
    assert [process["ended"] for process in manifest(out)["processes"]] == ["ok"]
    assert [process["ended"] for process in manifest(out / "explain")["processes"]] == ["failed"]
    assert codes(out).count("explaining-pass-failed") == 1
    assert batches(out) == 10
    assert run(["analyze", str(out)]) == 3


@pytest.mark.slow
def test_a_launcher_that_is_killed_in_the_second_pass(script: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with launching(("--explain", "--tracer", "embedded", "-o", out, script, "hang"), environment()) as launcher:
        logs = ".perfharness-run-*/explain/.perfharness-run-*/proc_*/stdout.log"
        wait_for(lambda: any("hanging" in log.read_text() for log in out.glob(logs)))
        launcher.kill()
    (left,) = out.glob(".perfharness-run-*")
    wait_for(lambda: not processes_naming(str(left)))
    assert run(["analyze", str(left)]) == 0
    assert batches(left) == 10
    assert explained(out, script) == 0
    assert batches(out) == 10
    assert batches(out / "previous") == 10  # its measured pass was complete


def test_what_was_not_measured_is_not_explained(script: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert explained(out, script, "crash-measured") == 1
    assert passes(script) == ["measured"]
    assert not (out / "explain").exists()
    assert "profiling-pass-missing" in codes(out)
    assert not manifest(out)["explained"]


@pytest.mark.slow
def test_runs_in_one_folder_and_a_folder_of_the_users_own(script: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    notes = out / "explain" / "notes.txt"
    notes.parent.mkdir(parents=True)
    notes.write_text("mine")
    assert explained(out, script) == 2
    assert not (script.parent / "passes").exists()
    assert run_to_the_end(("--tracer", "embedded", "-o", out, script), environment()).returncode == 0
    assert notes.read_text() == "mine"
    notes.unlink()
    notes.parent.rmdir()
    assert explained(out, script) == 0
    assert manifest(out / "explain")["explaining"]
    assert run_to_the_end(("--tracer", "embedded", "-o", out, script), environment()).returncode == 0
    assert not (out / "explain").exists()  # it explained the run that was replaced
