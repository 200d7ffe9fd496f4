"""The history: what is entered, read back and refused, by several writers, in SQLite and PostgreSQL."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from perfharness.cli.main import run as run_cli
from perfharness.errors import HistoryError
from perfharness.model.manifest import BENCH_NAME
from perfharness.runs.history import Entry, History, change_of, launch_entry, record, suite_entry
from tests.integration.launches import CHECKOUT, PATIENCE_S, environment, perfharness
from tests.integration.postgres_server import postgres_server
from tests.unit.bench_results import made_up, suite_of
from tests.unit.compared_runs import write_launch

WRITERS, RUNS_EACH, FIGURES_EACH = 2, 6, 20


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "data" / "history.db"
    monkeypatch.setenv("PERFHARNESS_HISTORY", str(path))
    return path


def made(number: int, value: float = 10.0, *, stage: str = "toy/batch/decode", **facts: Any) -> Entry:
    run = {
        "id": f"run-{number:03}", "created": f"2026-01-01T00:{number:02}:00+00:00", "kind": "launch",
        "folder": f"/runs/{number}", "script": "toy.py", "model": None, "backend": None, "precision": None,
        "machine": "host", "gpu": "none", "driver": None, "commit": None, "exit": 0, "setup": "0", **facts,
    }  # fmt: skip
    key = {"run": run["id"], "stage": stage, "metric": "cpu_time"}
    return Entry(run, [{**key, "value": value, "low": None, "high": None, "count": 40}])


def printed(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    capsys.readouterr()
    assert run_cli(["history", *words, "--format", "json"]) == code
    return json.loads(capsys.readouterr().out or "null")


@pytest.mark.parametrize(
    ("settings", "code"),
    [({}, 0), ({"ended": "failed"}, 1), ({"errors": ["too-few-batches"]}, 3)],
)
def test_a_launch(tmp_path: Path, settings: dict[str, Any], code: int) -> None:
    entry = launch_entry(write_launch(tmp_path / "out", {"decode": 8.0, "infer": None}, **settings))
    assert [entry.run[name] for name in ("kind", "script", "exit")] == ["launch", "toy.py", code]
    figures = {(one["stage"], one["metric"]): (one["value"], one["count"]) for one in entry.figures}
    assert figures["toy/batch/decode", "cpu_time"] == (8.0, 40)
    assert figures["toy/batch/decode", "cpu_time_per_item"] == (2.0, 40)
    assert figures["", "throughput"] == (100.0, None)
    assert ("toy/batch/infer", "cpu_time") not in figures


def test_what_changes_the_numbers_changes_the_setup(tmp_path: Path) -> None:
    more: list[dict[str, Any]] = [
        {}, {"start_s": 9.0, "run_id": "other"}, {"warmup_batches": 3}, {"script_arguments": ["8"]},
        {"environment": {"cpu": "Xeon"}},
    ]  # fmt: skip
    first, again, *others = (
        launch_entry(write_launch(tmp_path / str(number), {"decode": 8.0}, **settings)).run["setup"]
        for number, settings in enumerate(more)
    )
    assert first == again
    assert len({first, *others}) == len(others) + 1


def test_promises_are_the_savings_of_the_advice(tmp_path: Path) -> None:
    shutil.copytree(CHECKOUT / "tests/golden/runs/explained", tmp_path / "out")
    assert run_cli(["analyze", str(tmp_path / "out")]) == 0
    entry = launch_entry(tmp_path / "out")
    causes = {
        ("/".join(stage["path"]), cause["code"], cause["saves_ms"])
        for path in (tmp_path / "out").glob("proc_*/benchmark.json")
        for stage in json.loads(path.read_text())["diagnosis"]["stages"]
        for cause in stage["causes"]
    }
    promises = [(one["stage"], one["cause"], one["saves_ms"]) for one in entry.promises]
    assert promises
    assert causes.issuperset(promises)


def test_a_suite(tmp_path: Path, place: Path) -> None:
    suite = suite_of(made_up("torch"), made_up("onnxruntime", 4), made_up("jax", status="failed", reason="no memory"))
    entry = suite_entry(suite, tmp_path, 1)
    found = [entry.run[name] for name in ("kind", "model", "backend", "precision", "exit")]
    assert found == ["bench", "net", "torch, onnxruntime, jax", "fp32", 1]
    mean = suite.cases[0].latency
    assert mean is not None
    (one,) = (row for row in entry.figures if row["stage"].startswith("net/torch") and row["metric"] == "mean")
    assert (one["value"], one["low"], one["count"]) == (mean.mean.value, mean.mean.low, mean.iterations)
    assert not any("jax" in row["stage"] for row in entry.figures)
    (tmp_path / BENCH_NAME).write_text(suite.model_dump_json())
    assert run_cli(["history", "add", str(tmp_path)]) == 0
    assert History().entry(entry.run["id"]).run == entry.run


def test_the_verb(tmp_path: Path, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = write_launch(tmp_path / "out", {"decode": 8.0})
    for _ in range(2):  # a run that is added again replaces itself
        assert run_cli(["history", "add", str(out)]) == 0
    (run,) = printed(capsys)["runs"]
    assert (run["folder"], run["commit"]) == (str(out), None)
    series = printed(capsys, "decode", "cpu_time")
    assert ([point["value"] for point in series["points"]], series["change"]) == ([8.0], None)
    assert [point["value"] for point in printed(capsys, "throughput")["points"]] == [100.0]
    for words in ([], ["decode", "cpu_time"], ["--format", "md"]):
        assert run_cli(["history", *words]) == 0
    assert printed(capsys, "--script", "other.py")["runs"] == []
    assert run_cli(["history", "forget", run["id"][3:]]) == 0
    assert printed(capsys)["runs"] == []


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["add"], 2), (["forget"], 2), (["a", "b", "c"], 2), (["add", "nowhere"], 1), (["forget", "run-9"], 1),
        (["forget", "run"], 1), (["decode", "gpu_time"], 1), (["resize", "cpu_time"], 1), (["work", "cpu_time"], 2),
    ],
)  # fmt: skip
def test_what_is_not_there(place: Path, words: list[str], code: int) -> None:
    for number, stage in enumerate(("toy/batch/decode", "toy/a/work", "toy/b/work")):
        History().add(made(number, stage=stage))
    assert run_cli(["history", *words]) == code
    assert len(History().runs()) == 3


def test_a_side_of_a_comparison(tmp_path: Path, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, new = (write_launch(tmp_path / name, {"decode": ms}) for name, ms in (("base", 8.0), ("new", 16.0)))
    assert run_cli(["history", "add", str(base)]) == 0
    (run,) = History().runs()
    capsys.readouterr()
    assert run_cli(["compare", f"history:{run['id']}", str(new), "--stage", "decode", "--format", "json"]) == 0
    assert {row["ratio"] for row in json.loads(capsys.readouterr().out)["versions"][0]["rows"]} == {2.0}
    shutil.rmtree(base)
    assert run_cli(["compare", f"history:{run['id']}", str(new)]) == 1
    shutil.copytree(new, base)
    assert run_cli(["compare", f"history:{run['id']}", str(new)]) == 1


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([10.0] * 5, [10.0] * 4, None),
        ([10.0] * 5, [10.4] * 5, (10.0, 10.4, False)),
        ([10.0] * 5, [11.0] * 5, (10.0, 11.0, True)),
        ([10.0] * 5, [9.0] * 5, (10.0, 9.0, True)),
        ([10.0, 10.1, 9.9, 10.0, 30.0], [12.0, 12.1, 11.9, 12.0, 1.0], (10.0, 12.0, True)),
        ([10.0, 8.0, 12.0, 9.0, 11.0], [12.0, 10.0, 14.0, 11.0, 13.0], (10.0, 12.0, False)),
        ([0.0] * 5, [0.0] * 5, (0.0, 0.0, False)),
    ],
)
def test_a_change(before: list[float], after: list[float], expected: tuple[float, float, bool] | None) -> None:
    assert change_of([99.0, *before, *after][-len(before + after) :]) == expected


def test_a_series_has_runs_that_are_alike(place: Path) -> None:
    kinds: list[dict[str, Any]] = [{}, {"setup": "1"}, {"machine": "other"}, {"script": "b.py"}, {"exit": 1}, {}]
    for number, facts in enumerate(kinds):
        History().add(made(number, float(number), **facts))
    found = History().series("decode", "cpu_time")
    assert ([point["value"] for point in found.points], found.failed, found.others) == ([0.0, 5.0], 1, 3)
    own = History().series("toy/batch/decode", "cpu_time", "b.py")
    assert ([point["value"] for point in own.points], own.failed, own.others) == ([3.0], 0, 0)
    History().add(made(9, stage="s", exit=1))
    assert (list(History().series("s", "cpu_time").points), run_cli(["history", "s", "cpu_time"])) == ([], 0)


# ---- several writers ----

WRITE = """
import json, sys
from perfharness.runs.history import Entry, History
for entry in json.loads(sys.stdin.readline()):
    History().add(Entry(**entry))
"""


def run_of(writer: int, number: int) -> Entry:
    run = made(10 * writer + number).run
    rows = [
        {"run": run["id"], "stage": f"s{place}", "metric": "cpu_time", "value": place + 0.5, "low": None, "high": None,
         "count": place}
        for place in range(FIGURES_EACH)
    ]  # fmt: skip
    return Entry(run, rows, [{"run": run["id"], "stage": "s0", "cause": "cpu-bound", "saves_ms": 1.5}])


def write_together(where: str) -> None:
    """Four writers at once into a history that none of them finds made."""
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITE],
            cwd=CHECKOUT, env=environment(PERFHARNESS_HISTORY=where), text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for _ in range(WRITERS)
    ]  # fmt: skip
    for writer, process in enumerate(writers):
        assert process.stdin is not None
        entries = [asdict(run_of(writer, number)) for number in range(RUNS_EACH)]
        process.stdin.write(f"{json.dumps(entries)}\n")
        process.stdin.flush()
    for process in writers:
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, errors
    expected = [run_of(writer, number) for writer in range(WRITERS) for number in range(RUNS_EACH)]
    assert len(History().runs()) == len(expected)
    for entry in expected:
        found = History().entry(entry.run["id"])
        assert (found.run, found.promises) == (entry.run, entry.promises)
        assert sorted(found.figures, key=lambda one: int(one["count"])) == entry.figures


def test_writers_at_the_same_time_lose_nothing(place: Path) -> None:
    write_together(str(place))
    with closing(sqlite3.connect(place)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.slow
def test_postgresql(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with postgres_server() as url:
        monkeypatch.setenv("PERFHARNESS_HISTORY", url)
        write_together(url)
        assert History().forget("run-000") == "run-000"
        History().add(made(99, 7.0, stage="a/100%_/work"))
        assert [point["value"] for point in History().series("work", "cpu_time").points] == [7.0]
        assert len(printed(capsys, "--limit", "3")["runs"]) == 3


# ---- a history that fails ----


@contextmanager
def broken(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True)
    path.write_bytes(b"no database " * 100)
    yield


@contextmanager
def locked(path: Path) -> Iterator[None]:
    History()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        yield


@contextmanager
def of_another_version(path: Path) -> Iterator[None]:
    History()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE history_version SET version = 99")
    yield


@contextmanager
def a_folder(path: Path) -> Iterator[None]:
    path.mkdir(parents=True)
    yield


@pytest.mark.parametrize("fault", [broken, locked, of_another_version, a_folder])
def test_a_fault_is_a_warning_of_a_measurement_and_one_line_of_the_verb(
    place: Path, fault: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = write_launch(tmp_path / "out", {"decode": 8.0})
    monkeypatch.setattr("perfharness.runs.history.PATIENCE_S", 0)
    with fault(place):
        (finding,) = record(lambda: made(1))
        assert (finding.code, finding.severity.value) == ("run-not-in-history", "warning")
        with pytest.raises(HistoryError):
            History().add(made(2))
        capsys.readouterr()
        assert run_cli(["history", "add", str(out)]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert str(place) in line


def test_what_cannot_be_read_is_a_warning(place: Path, tmp_path: Path) -> None:
    (finding,) = record(lambda: launch_entry(tmp_path))
    assert finding.code == "run-not-in-history"
    assert History().runs() == []


SCRIPT = """
import os, sys
from perfharness import PerfRecorder
open(sys.argv[1], "a").write(os.environ["PERFHARNESS_HISTORY"])
perf = PerfRecorder("rec")
for i in range(6):
    with perf.batch(i, total_items=2):
        pass
perf.finalize()
"""


@pytest.mark.parametrize(("options", "entered"), [((), 1), pytest.param(("--no-history",), 0, marks=pytest.mark.slow)])
def test_a_launch_enters_itself_after_its_processes(
    place: Path, tmp_path: Path, options: tuple[str, ...], entered: int
) -> None:
    done, seen = launched(tmp_path, *options)
    assert (done.returncode, seen) == (0, "off"), done.stderr
    assert len(History().runs()) == entered


def test_a_launch_with_a_broken_history_ends_as_any_other(place: Path, tmp_path: Path) -> None:
    with broken(place):
        done, _ = launched(tmp_path)
    assert (done.returncode, "history" in done.stderr) == (0, True), done.stderr


def launched(folder: Path, *options: str) -> tuple[subprocess.CompletedProcess[str], str]:
    (folder / "toy.py").write_text(SCRIPT)
    fast = ("--tracer", "ranges", "--no-telemetry", *options, "-o", folder / "out")
    done = perfharness("launch", *fast, folder / "toy.py", folder / "seen")
    return done, (folder / "seen").read_text()


@pytest.mark.parametrize("named", ["off", "postgresql://me:hunter2@/db?host=/nowhere", "nonsense://x"])
def test_where_there_is_none(named: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PERFHARNESS_HISTORY", named)
    assert [one.code for one in record(lambda: made(1))] == ([] if named == "off" else ["run-not-in-history"])
    assert run_cli(["history"]) in (1, 2)
    assert "hunter2" not in capsys.readouterr().err
    assert run_cli(["doctor", "--json"]) in (0, 3)
    assert "hunter2" not in capsys.readouterr().out
