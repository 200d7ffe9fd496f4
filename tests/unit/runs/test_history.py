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

from perfharness.cli.main import run
from perfharness.runs.history import Entry, History
from tests.integration.launches import CHECKOUT, PATIENCE_S, environment, perfharness
from tests.integration.postgres_server import postgres_server
from tests.unit.bench_results import made_up, suite_of
from tests.unit.compared_runs import write_launch

WRITERS, RUNS_EACH, FIGURES_EACH = 2, 6, 20
Captured = pytest.CaptureFixture[str]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "data" / "history.db"
    monkeypatch.setenv("PERFHARNESS_HISTORY", str(path))
    return path


def made(number: int, value: float = 10.0, *, stage: str = "toy/batch/decode", **facts: Any) -> Entry:
    entered = {
        "id": f"run-{number:03}", "created": f"2026-01-01T00:{number:02}:00+00:00", "kind": "launch",
        "folder": f"/runs/{number}", "script": "toy.py", "model": None, "backend": None, "precision": None,
        "machine": "host", "gpu": "none", "driver": None, "commit": None, "exit": 0, "setup": "0", **facts,
    }  # fmt: skip
    key = {"run": entered["id"], "stage": stage, "metric": "cpu_time"}
    return Entry(entered, [{**key, "value": value, "low": None, "high": None, "count": 40}])


def printed(capsys: Captured, *words: str) -> Any:
    capsys.readouterr()
    assert run(["history", *words, "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out or "null")


def values(capsys: Captured, *words: str) -> list[float]:
    return [point["value"] for point in printed(capsys, *words)["points"]]


def added(folder: Path) -> Entry:
    """The entry of a folder."""
    assert run(["history", "add", str(folder)]) == 0
    newest = next(one for one in History().runs() if one["folder"] == str(folder))
    return History().entry(newest["id"])


# ---- what is entered ----


@pytest.mark.parametrize(("settings", "code"), [({}, 0), ({"ended": "failed"}, 1), ({"errors": ["no-batches"]}, 3)])
def test_a_launch(place: Path, tmp_path: Path, settings: dict[str, Any], code: int) -> None:
    entry = added(write_launch(tmp_path / "out", {"decode": 8.0, "infer": None}, **settings))
    assert [entry.run[name] for name in ("kind", "script", "exit")] == ["launch", "toy.py", code]
    figures = {(one["stage"], one["metric"]): (one["value"], one["count"]) for one in entry.figures}
    assert figures["toy/batch/decode", "cpu_time"] == (8.0, 40)
    assert figures["toy/batch/decode", "cpu_time_per_item"] == (2.0, 40)
    assert figures["toy/batch/decode", "p95"] == (pytest.approx(8.8), 40)
    assert figures["", "throughput"] == (100.0, None)
    assert ("toy/batch/infer", "cpu_time") not in figures


def test_what_changes_the_numbers_changes_the_setup(place: Path, tmp_path: Path) -> None:
    more: list[dict[str, Any]] = [
        {}, {"start_s": 9.0, "run_id": "other"}, {"warmup_batches": 3}, {"script_arguments": ["8"]},
        {"environment": {"cpu": "Xeon"}},
    ]  # fmt: skip
    first, again, *others = (
        added(write_launch(tmp_path / str(number), {"decode": 8.0}, **settings)).run["setup"]
        for number, settings in enumerate(more)
    )
    assert first == again
    assert len({first, *others}) == len(others) + 1


def test_promises_are_the_savings_of_the_advice(place: Path, tmp_path: Path) -> None:
    shutil.copytree(CHECKOUT / "tests/golden/runs/explained", tmp_path / "out")
    assert run(["analyze", str(tmp_path / "out")]) == 0
    causes = {
        ("/".join(stage["path"]), cause["code"], cause["saves_ms"])
        for path in (tmp_path / "out").glob("proc_*/benchmark.json")
        for stage in json.loads(path.read_text())["diagnosis"]["stages"]
        for cause in stage["causes"]
    }
    promises = [(one["stage"], one["cause"], one["saves_ms"]) for one in added(tmp_path / "out").promises]
    assert promises
    assert causes.issuperset(promises)


def test_a_suite(place: Path, tmp_path: Path) -> None:
    suite = suite_of(made_up("torch"), made_up("onnxruntime", 4), made_up("jax", status="failed", reason="no memory"))
    (tmp_path / "bench.json").write_text(suite.model_dump_json())
    entry = added(tmp_path)
    found = [entry.run[name] for name in ("kind", "model", "backend", "precision", "exit")]
    assert found == ["bench", "net", "torch, onnxruntime, jax", "fp32", 1]
    latency = suite.cases[0].latency
    assert latency is not None
    (one,) = (row for row in entry.figures if row["stage"].startswith("net/torch") and row["metric"] == "mean")
    expected = (latency.mean.value, latency.mean.low, latency.iterations)
    assert (one["value"], one["low"], one["count"]) == expected
    assert not any("jax" in row["stage"] for row in entry.figures)


# ---- the verb ----


def test_the_verb(place: Path, tmp_path: Path, capsys: Captured) -> None:
    out = write_launch(tmp_path / "out", {"decode": 8.0})
    for _ in range(2):  # a run that is added again replaces itself
        assert run(["history", "add", str(out)]) == 0
    (entered,) = printed(capsys)["runs"]
    assert (entered["folder"], entered["commit"]) == (str(out), None)
    assert (values(capsys, "decode", "cpu_time"), values(capsys, "throughput")) == ([8.0], [100.0])
    for words in ([], ["decode", "cpu_time"], ["--format", "md"]):
        assert run(["history", *words]) == 0
    assert printed(capsys, "--script", "other.py")["runs"] == []
    assert run(["history", "forget", entered["id"][3:]]) == 0
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
    assert run(["history", *words]) == code
    assert len(History().runs()) == 3


def test_a_side_of_a_comparison(place: Path, tmp_path: Path, capsys: Captured) -> None:
    base, new = (write_launch(tmp_path / name, {"decode": ms}) for name, ms in (("base", 8.0), ("new", 16.0)))
    side = f"history:{added(base).run['id']}"
    capsys.readouterr()
    assert run(["compare", side, str(new), "--stage", "decode", "--format", "json"]) == 0
    assert {row["ratio"] for row in json.loads(capsys.readouterr().out)["versions"][0]["rows"]} == {2.0}
    shutil.rmtree(base)
    assert run(["compare", side, str(new)]) == 1
    shutil.copytree(new, base)
    assert run(["compare", side, str(new)]) == 1


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([10.0] * 5, [10.0] * 4, None),
        ([10.0] * 5, [10.4] * 5, (10.0, 10.4, False)),
        ([10.0] * 5, [11.0] * 5, (10.0, 11.0, True)),
        ([10.0] * 5, [9.0] * 5, (10.0, 9.0, True)),
        ([10.0, 10.1, 9.9, 10.0, 30.0], [12.0, 12.1, 11.9, 12.0, 1.0], (10.0, 12.0, True)),
        ([10.0, 8.0, 12.0, 9.0, 11.0], [12.0, 10.0, 14.0, 11.0, 13.0], (10.0, 12.0, False)),
        ([99.0, 0.0, 0.0, 0.0, 0.0, 0.0], [0.0] * 5, (0.0, 0.0, False)),
    ],
)
def test_a_change(
    place: Path, before: list[float], after: list[float], expected: tuple[float, float, bool] | None, capsys: Captured
) -> None:
    for number, value in enumerate([*before, *after]):
        History().add(made(number, value))
    change = printed(capsys, "decode", "cpu_time")["change"]
    names = ("median_before", "median_after", "has_changed")
    assert change == (None if expected is None else dict(zip(names, expected, strict=True)))


def test_a_series_has_runs_that_are_alike(place: Path, capsys: Captured) -> None:
    kinds: list[dict[str, Any]] = [{}, {"setup": "1"}, {"machine": "other"}, {"script": "b.py"}, {"exit": 1}, {}]
    for number, facts in enumerate(kinds):
        History().add(made(number, float(number), **facts))
    found = printed(capsys, "decode", "cpu_time")
    assert (found["failed"], found["others"], values(capsys, "decode", "cpu_time")) == (1, 3, [0.0, 5.0])
    assert values(capsys, "toy/batch/decode", "cpu_time", "--script", "b.py") == [3.0]
    History().add(made(9, stage="s", exit=1))
    assert values(capsys, "s", "cpu_time") == []


# ---- several writers ----

WRITE = """
import json, sys
from perfharness.runs.history import Entry, History
for entry in json.loads(sys.stdin.readline()):
    History().add(Entry(**entry))
"""


def run_of(writer: int, number: int) -> Entry:
    entry = made(10 * writer + number)
    row = {"run": entry.run["id"], "metric": "cpu_time", "low": None, "high": None}
    rows = [{**row, "stage": f"s{place}", "value": place + 0.5, "count": place} for place in range(FIGURES_EACH)]
    return Entry(entry.run, rows, [{"run": entry.run["id"], "stage": "s0", "cause": "cpu-bound", "saves_ms": 1.5}])


def write_together(where: str) -> None:
    """Writers at once into a history that none of them finds made."""
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
def test_postgresql(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    with postgres_server() as url:
        monkeypatch.setenv("PERFHARNESS_HISTORY", url)
        write_together(url)
        assert run(["history", "forget", "run-000"]) == 0
        History().add(made(99, 7.0, stage="a/100%_/work"))
        assert values(capsys, "work", "cpu_time") == [7.0]
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
def test_a_fault_is_one_line(
    place: Path, fault: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    out = write_launch(tmp_path / "out", {"decode": 8.0})
    monkeypatch.setattr("perfharness.runs.history.PATIENCE_S", 0)
    with fault(place):
        assert run(["history", "add", str(out)]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert str(place) in line


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
def test_where_there_is_none(named: str, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setenv("PERFHARNESS_HISTORY", named)
    assert run(["history"]) in (1, 2)
    assert "hunter2" not in capsys.readouterr().err
    assert run(["doctor", "--format", "json"]) in (0, 3)
    assert "hunter2" not in capsys.readouterr().out
