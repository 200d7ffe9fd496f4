"""Every verb that reads results takes whatever was named; what is printed where, and the exit code."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import perfharness
from perfharness.cli.main import run
from tests.support.trace_builder import Recorded
from tests.unit.export_runs import process_record, recorded_trace, run_folder, series_of_runs, two_processes

RANGES = 11
"""Of a trace of `recorded_trace`."""

Captured = pytest.CaptureFixture[str]


def sweep(folder: Path) -> Path:
    """The launch with eight processes is of an earlier sweep."""
    two_processes(folder / "np_8")
    return series_of_runs(folder, "processes", ("1 process", "np_1"), ("2 processes", "np_2"))


def process_alone(folder: Path) -> Path:
    return recorded_trace(folder / "proc_0_gpu_0" / "trace.sqlite").parent


SOURCES: dict[str, tuple[Callable[[Path], Path], int]] = {
    "run": (two_processes, 2),
    "process": (lambda folder: two_processes(folder) / "proc_1_gpu_0", 1),
    "process without its run": (process_alone, 1),
    "sweep": (sweep, 4),
    "cold starts": (lambda folder: series_of_runs(folder, "cold", ("cold", "cold_0"), ("warm", "warm_0")), 4),
    "repeat": (lambda folder: series_of_runs(folder, "repeat", ("launch", "launch_0"), ("launch", "launch_1")), 4),
    "trace": (lambda folder: recorded_trace(folder / "a.sqlite"), 1),
}
"""What a user may name, and how many traces there are in it."""


@pytest.fixture(params=SOURCES)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, int]:
    make, traces = SOURCES[request.param]
    return make(tmp_path / "out"), traces


def test_every_verb_takes_it(source: tuple[Path, int], tmp_path: Path, capsys: Captured) -> None:
    path, traces = source
    assert run(["analyze", str(path), "--format", "json"]) == 0
    analysed = json.loads(capsys.readouterr().out)
    trees = [analysed] if "stats_minus_warmup" in analysed else list(analysed.values())
    batches = [tree["stats_minus_warmup"]["toy"]["pipeline"]["batch"]["cpu_time"] for tree in trees]
    assert {batch["mean"] for batch in batches} == {9.0}
    assert run(["analyze", str(path), "-v"]) == 0
    text = capsys.readouterr().out
    assert ("9.000" in text, "limited by" in text) == (True, True)

    assert run(["analyze", str(path), "--stage", "infer", "--format", "json"]) == 0
    diagnosed = json.loads(capsys.readouterr().out)
    assert [len(one["stages"]) for one in diagnosed.values()] == [1] * traces

    assert run(["export", str(path), "--table", "ranges", "-o", str(tmp_path / "r.json")]) == 0
    assert len(json.loads((tmp_path / "r.json").read_text())) == RANGES * traces
    assert run(["export", str(path), "-o", str(tmp_path / "t.json")]) == 0
    assert len(json.loads((tmp_path / "t.json").read_text())["otherData"]["processes"]) == traces
    opened = perfharness.open_run(path)
    assert (len(opened.processes), opened.ranges().num_rows) == (traces, RANGES * traces)


def test_several_are_analysed_at_once(tmp_path: Path, capsys: Captured) -> None:
    paths = [str(two_processes(tmp_path / "a")), str(sweep(tmp_path / "b"))]
    assert run(["analyze", *paths, "--format", "json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == [paths[0], f"{paths[1]}/np_1", f"{paths[1]}/np_2"]


# ---- exit codes ----


@pytest.mark.parametrize("options", [["-w", "5000"], ["--batch-pattern", "nomatch"], ["--domain", "nowhere"]])
@pytest.mark.parametrize("kind", ["run", "trace"])
def test_nothing_that_was_asked_for_is_3(kind: str, options: list[str], tmp_path: Path, capsys: Captured) -> None:
    path = str(SOURCES[kind][0](tmp_path / "out"))
    assert run(["analyze", path, *options]) == 3
    assert run(["analyze", path, *options, "--slowest", "1"]) == 3
    assert run(["export", path, *options, "-o", str(tmp_path / "t.json")]) == 3
    assert "error" in capsys.readouterr().err


def test_a_run_without_traces_is_3(tmp_path: Path) -> None:
    path = run_folder(tmp_path / "out", process_record(0, trace=None, ended="failed", exit_code=1))
    assert run(["analyze", str(path)]) == 3
    for options in (["--table", "ranges"], ["-o", str(tmp_path / "t.json")]):
        assert run(["export", str(path), *options]) == 1


# ---- what is printed ----


def cpu_only(path: Path) -> Path:
    trace = Recorded(gpu=False)
    for index in range(20):
        start = 100 * index
        trace.batch(index, start, start + 50)
        trace.stage("costly", start, start + 30)
        trace.stage("cheap", start + 30, start + 49.9)
        trace.stage("nothing", start + 49.9, start + 49.95)
    return trace.write(path)


def test_results_go_to_stdout_and_messages_to_stderr(tmp_path: Path, capsys: Captured) -> None:
    path = str(two_processes(tmp_path / "out"))
    assert run(["analyze", path, "-w", "5000", "--format", "json"]) == 3
    captured = capsys.readouterr()
    assert json.loads(captured.out)["stats_minus_warmup"]
    assert captured.err.count("error") == 1, "equal findings of two processes are one line"
    assert {"proc_0_gpu_0", "proc_1_gpu_0"} <= set(re.findall(r"proc_\d_gpu_0", captured.err))
    for options in ([], ["--stage", "infer"]):
        assert run(["analyze", path, *options, "--format", "md"]) == 0
        assert re.search(r"^\| :-- \|", capsys.readouterr().out, re.MULTILINE)


def test_quiet_leaves_errors_and_verbose_adds_notes(tmp_path: Path, capsys: Captured) -> None:
    path = str(cpu_only(tmp_path / "t.sqlite"))
    assert run(["analyze", path, "-w", "5000", "-q"]) == 3
    assert "error" in capsys.readouterr().err
    trace = Recorded()
    for index in range(3):
        trace.batch(index, 10 * index, 10 * index + 5, None)
    path = str(trace.write(tmp_path / "u.sqlite"))
    for options, told in ([], True), (["-q"], False):
        assert run(["analyze", path, *options]) == 0
        assert ("warning" in capsys.readouterr().err) is told
