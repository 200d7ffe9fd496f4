"""Launches in the run store, and several writers of one SQLite file."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from perfharness.cli.main import run as verb
from perfharness.runs.store.filters import RunFilter
from perfharness.runs.store.folders import holds
from perfharness.runs.store.location import Location
from perfharness.runs.store.records import CPU
from perfharness.runs.store.store import RunStore
from tests.integration.launches import environment, manifest, perfharness, run_to_the_end
from tests.integration.store_writers import crash_and_go_on, write_together

SCRIPT = """
import os, sys
from perfharness import PerfRecorder
open(sys.argv[1], "a").write(os.environ.get("PERFHARNESS_STORE", "unset") + "\\n")
perf = PerfRecorder("rec")
for i in range(6):
    with perf.batch(i, total_items=2):
        with perf.range("work"):
            sum(range(1000))
perf.finalize()
"""
FAST = ("--tracer", "embedded", "--measure-idle", "0", "-w", "1")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "data" / "perfharness" / "runs.sqlite"


def opened(place: Path) -> RunStore:
    return RunStore(Location(path=place))


def test_a_launch_is_stored_with_the_numbers_of_its_files(script: Path, place: Path, tmp_path: Path) -> None:
    default = {name: value for name, value in environment().items() if name != "PERFHARNESS_STORE"}
    seen = tmp_path / "seen"
    done = run_to_the_end(
        (*FAST, "-o", tmp_path / "out", script, seen), {**default, "XDG_DATA_HOME": str(tmp_path / "data")}
    )
    assert done.returncode == 0, done.stderr
    run = opened(place).find(str(tmp_path / "out"))
    mean = json.loads((tmp_path / "out" / "benchmark_mean.json").read_text())
    figure = run.figure("rec/batch/work", CPU)
    assert figure is not None
    expected = mean["stats_minus_warmup"]["rec"]["batch"]["work"]["cpu_time"]
    assert (figure.count, figure.mean, figure.p50) == (4, expected["mean"], expected["p50"])
    assert (run.run_id, run.exit_code) == (manifest(tmp_path / "out")["run_id"], 0)
    assert seen.read_text() == "off\n"


def test_a_launch_that_cannot_be_stored_is_as_any_other(script: Path, place: Path, tmp_path: Path) -> None:
    nowhere = environment(PERFHARNESS_STORE="/dev/null/store")
    done = run_to_the_end((*FAST, "-o", tmp_path / "b", script, tmp_path / "x"), nowhere)
    assert done.returncode == 0
    assert "/dev/null/store" in done.stderr
    assert (tmp_path / "b" / "benchmark_mean.json").exists()
    assert verb(["launch", *FAST, "--store", "mysql://x", "-o", str(tmp_path / "c"), str(script)]) == 2
    assert not (tmp_path / "c").exists()
    assert perfharness("runs", "add", tmp_path / "b", PERFHARNESS_STORE=str(place)).returncode == 0
    assert [run.run_id for run in opened(place).runs()] == [manifest(tmp_path / "b")["run_id"]]


def test_a_repeat_is_a_series_of_its_launches(script: Path, place: Path, tmp_path: Path) -> None:
    here = environment(PERFHARNESS_STORE=str(place))
    done = run_to_the_end((*FAST, "--repeat", "2", "-o", tmp_path / "out", script, tmp_path / "x"), here)
    assert done.returncode == 0, done.stderr
    (series,) = opened(place).runs(RunFilter())
    ids = [manifest(tmp_path / "out" / f"launch_{number}")["run_id"] for number in range(2)]
    assert [run.run_id for run in opened(place).launches_of(series)] == ids
    assert holds(tmp_path / "out", series)
    series = opened(place).find(series.run_id)
    work = json.loads((tmp_path / "out" / "repeat.json").read_text())["stages"]["rec/batch/work"]["cpu_time"]
    figure = series.figure("rec/batch/work", CPU)
    assert figure is not None
    assert (figure.mean, figure.count) == (work["mean"], 2)
    assert perfharness("runs", "add", tmp_path / "out", PERFHARNESS_STORE=str(place)).returncode == 0
    assert opened(place).runs(RunFilter(), "all") == [series]


def test_four_writers_at_once(place: Path) -> None:
    write_together(str(place))
    with closing(sqlite3.connect(place)) as connection, connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_killed_writer(place: Path) -> None:
    crash_and_go_on(str(place))
