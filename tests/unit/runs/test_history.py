"""The history: what is entered, read back and refused, by several writers, in SQLite and PostgreSQL."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from perfharness.cli.main import run
from tests.integration.launches import CHECKOUT, PATIENCE_S, environment, perfharness
from tests.integration.postgres_server import postgres_server
from tests.unit.bench_results import made_up, suite_of
from tests.unit.compared_runs import write_launch

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "data" / "history.db"
    monkeypatch.setenv("PERFHARNESS_HISTORY", str(path))
    return path


def printed(capsys: Captured, *words: str) -> Any:
    capsys.readouterr()
    assert run(["history", *words, "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out or "null")


def values(capsys: Captured, *words: str) -> list[float]:
    return [point["value"] for point in printed(capsys, *words)["points"]]


def written(folder: Path, number: int, value: float | None = 10.0, **settings: Any) -> Path:
    """A launch whose decoding took that long, one minute after the launch before."""
    made = {"run_id": f"run-{number:03}", "created": f"2026-01-01T00:{number:02}:00+00:00", **settings}
    return write_launch(folder / f"{number}", {"decode": value}, **made)


def add(*folders: Path) -> None:
    assert run(["history", "add", *map(str, folders)]) == 0


def rows(place: Path, table: str) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(place)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(f"SELECT * FROM history_{table}")]


# ---- what is entered ----


@pytest.mark.parametrize(("settings", "code"), [({}, 0), ({"ended": "failed"}, 1), ({"errors": ["no-batches"]}, 3)])
def test_a_launch(place: Path, tmp_path: Path, settings: dict[str, Any], code: int) -> None:
    add(write_launch(tmp_path / "out", {"decode": 8.0, "infer": None}, **settings))
    assert [(one["kind"], one["script"], one["exit"]) for one in rows(place, "run")] == [("launch", "toy.py", code)]
    figures = {(one["stage"], one["metric"]): (one["value"], one["count"]) for one in rows(place, "figure")}
    assert figures["toy/batch/decode", "cpu_time"] == (8.0, 40)
    assert figures["toy/batch/decode", "cpu_time_per_item"] == (2.0, 40)
    assert figures["toy/batch/decode", "p95"] == (pytest.approx(8.8), 40)
    assert figures["", "throughput"] == (100.0, None)
    assert ("toy/batch/infer", "cpu_time") not in figures


def test_what_changes_the_numbers_changes_the_setup(place: Path, tmp_path: Path) -> None:
    other: list[dict[str, Any]] = [
        {"warmup_batches": 3}, {"script_arguments": ["8"]}, {"environment": {"cpu": "Xeon"}},
    ]  # fmt: skip
    add(*(written(tmp_path, number, **more) for number, more in enumerate([{}, {"start_s": 9.0}, *other])))
    first, again, *others = (one["setup"] for one in rows(place, "run"))
    assert (first == again, len({first, *others})) == (True, 1 + len(others))


def test_promises_are_the_savings_of_the_advice(place: Path, tmp_path: Path) -> None:
    out = shutil.copytree(CHECKOUT / "tests/golden/runs/explained", tmp_path / "out")
    assert run(["analyze", str(out), "-q"]) == 0
    add(out)
    causes = {
        ("/".join(stage["path"]), cause["code"], cause["saves_ms"])
        for path in out.glob("proc_*/benchmark.json")
        for stage in json.loads(path.read_text())["diagnosis"]["stages"]
        for cause in stage["causes"]
    }
    promises = {(one["stage"], one["cause"], one["saves_ms"]) for one in rows(place, "promise")}
    assert promises
    assert causes >= promises


def test_a_suite(place: Path, tmp_path: Path) -> None:
    suite = suite_of(made_up("torch"), made_up("onnxruntime", 4), made_up("jax", status="failed", reason="no memory"))
    (tmp_path / "bench.json").write_text(suite.model_dump_json())
    add(tmp_path)
    (entry,) = rows(place, "run")
    found = [entry[name] for name in ("kind", "model", "backend", "precision", "exit")]
    assert found == ["bench", "net", "torch, onnxruntime, jax", "fp32", 1]
    figures = rows(place, "figure")
    (one,) = (row for row in figures if row["stage"].startswith("net/torch") and row["metric"] == "mean")
    assert (one["value"], one["low"], one["count"]) == (10.0, 9.8, 1000)
    assert not any("jax" in row["stage"] for row in figures)


# ---- the verb ----


def test_the_verb(place: Path, tmp_path: Path, capsys: Captured) -> None:
    out = written(tmp_path, 1, 8.0)
    add(out, out)  # a run that is added again replaces itself
    (entered,) = printed(capsys)["runs"]
    assert (entered["folder"], entered["commit"]) == (str(out), None)
    assert (values(capsys, "decode", "cpu_time"), values(capsys, "throughput")) == ([8.0], [100.0])
    for words in ([], ["decode", "cpu_time"], ["--format", "md"]):
        assert run(["history", *words]) == 0
    add(written(tmp_path, 2), written(tmp_path, 3))
    assert [one["id"] for one in printed(capsys, "--limit", "2")["runs"]] == ["run-003", "run-002"]
    assert printed(capsys, "--script", "other.py")["runs"] == []
    assert run(["history", "forget", "001", "run-002"]) == 0
    assert [one["id"] for one in printed(capsys)["runs"]] == ["run-003"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["add"], 2), (["forget"], 2), (["a", "b", "c"], 2), (["add", "nowhere"], 1), (["forget", "run-9"], 1),
        (["forget", "run"], 1), (["decode", "start_up"], 1), (["resize", "cpu_time"], 1), (["decode", "cpu_time"], 2),
    ],
)  # fmt: skip
def test_what_is_not_there(place: Path, tmp_path: Path, words: list[str], code: int) -> None:
    """Two stages are called `decode` in one of the runs."""
    folders = [written(tmp_path, number) for number in range(2)]
    tree = json.loads((folders[0] / "benchmark_mean.json").read_text())
    tree["stats_minus_warmup"]["toy"]["other"] = tree["stats_minus_warmup"]["toy"]["batch"]
    (folders[0] / "benchmark_mean.json").write_text(json.dumps(tree))
    add(*folders)
    assert run(["history", *words]) == code
    assert len(rows(place, "run")) == 2


def test_a_side_of_a_comparison(place: Path, tmp_path: Path, capsys: Captured) -> None:
    base, new = written(tmp_path, 1, 8.0), written(tmp_path, 2, 16.0)
    add(base)
    capsys.readouterr()
    assert run(["compare", "history:run-001", str(new), "--stage", "decode", "--format", "json"]) == 0
    assert {row["ratio"] for row in json.loads(capsys.readouterr().out)["versions"][0]["rows"]} == {2.0}
    shutil.rmtree(base)
    assert run(["compare", "history:run-001", str(new)]) == 1
    shutil.copytree(new, base)
    assert run(["compare", "history:run-001", str(new)]) == 1


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([10.0] * 5, [10.0] * 4, None),
        ([10.0] * 5, [10.4] * 5, (10.0, 10.4, False)),
        ([10.0] * 5, [9.0] * 5, (10.0, 9.0, True)),
        ([10.0, 10.1, 9.9, 10.0, 30.0], [12.0, 12.1, 11.9, 12.0, 1.0], (10.0, 12.0, True)),
        ([10.0, 8.0, 12.0, 9.0, 11.0], [12.0, 10.0, 14.0, 11.0, 13.0], (10.0, 12.0, False)),
        ([99.0, 0.0, 0.0, 0.0, 0.0, 0.0], [0.0] * 5, (0.0, 0.0, False)),
    ],
)
def test_a_change(
    place: Path, tmp_path: Path, before: list[float], after: list[float],
    expected: tuple[float, float, bool] | None, capsys: Captured,
) -> None:  # fmt: skip
    add(*(written(tmp_path, number, value) for number, value in enumerate([*before, *after])))
    change = printed(capsys, "decode", "cpu_time")["change"]
    names = ("median_before", "median_after", "has_changed")
    assert change == (None if expected is None else dict(zip(names, expected, strict=True)))


def test_a_series_has_runs_that_are_alike(place: Path, tmp_path: Path, capsys: Captured) -> None:
    kinds: list[dict[str, Any]] = [
        {}, {"warmup_batches": 5}, {"environment": {"hostname": "other"}}, {"script": "b.py"}, {"ended": "failed"}, {},
    ]  # fmt: skip
    add(*(written(tmp_path, number, float(number + 1), **settings) for number, settings in enumerate(kinds)))
    found = printed(capsys, "decode", "cpu_time")
    assert (found["failed"], found["others"], values(capsys, "decode", "cpu_time")) == (1, 3, [1.0, 6.0])
    assert values(capsys, "toy/batch/decode", "cpu_time", "--script", "b.py") == [4.0]


# ---- several writers, and a history that fails ----


def write_together(folder: Path, where: str, capsys: Captured) -> None:
    """Writers at once into a history that none of them finds made."""
    folders = [[str(written(folder, 10 * writer + number)) for number in range(6)] for writer in range(2)]
    writers = [
        subprocess.Popen(
            [sys.executable, "-m", "perfharness", "history", "add", *names],
            env=environment(PERFHARNESS_HISTORY=where), stderr=subprocess.PIPE, text=True,
        )
        for names in folders
    ]  # fmt: skip
    for process in writers:
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, errors
    assert len(printed(capsys)["runs"]) == len(values(capsys, "decode", "cpu_time")) == 12


def test_writers_at_the_same_time_lose_nothing(place: Path, tmp_path: Path, capsys: Captured) -> None:
    write_together(tmp_path, str(place), capsys)


@pytest.mark.slow
def test_postgresql(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    with postgres_server() as url:
        monkeypatch.setenv("PERFHARNESS_HISTORY", url)
        write_together(tmp_path, url, capsys)
        assert run(["history", "forget", "run-000"]) == 0
        assert len(values(capsys, "decode", "cpu_time")) == 11
        assert len(printed(capsys, "--limit", "3")["runs"]) == 3


@pytest.mark.parametrize("fault", ["no database", "another version", "a folder"])
def test_a_fault_is_one_line(place: Path, fault: str, tmp_path: Path, capsys: Captured) -> None:
    out = written(tmp_path, 1)
    if fault == "another version":
        add(out)
        with closing(sqlite3.connect(place)) as connection, connection:
            connection.execute("UPDATE history_version SET version = 99")
    else:
        place.parent.mkdir()
        place.mkdir() if fault == "a folder" else place.write_bytes(b"no database " * 100)
    capsys.readouterr()
    assert run(["history", "add", str(out)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert str(place) in line


@pytest.mark.parametrize("named", ["off", "postgresql://me:hunter2@/db?host=/nowhere", "nonsense://x"])
def test_where_there_is_none(named: str, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setenv("PERFHARNESS_HISTORY", named)
    assert run(["history"]) in (1, 2)
    assert run(["doctor", "--format", "json"]) in (0, 3)
    captured = capsys.readouterr()
    assert "hunter2" not in captured.out + captured.err


# ---- a launch ----

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


@pytest.mark.parametrize("how", ["", "broken", pytest.param("--no-history", marks=pytest.mark.slow)])
def test_a_launch_enters_itself_after_its_processes(place: Path, tmp_path: Path, how: str) -> None:
    """One with a broken history ends as any other."""
    (tmp_path / "toy.py").write_text(SCRIPT)
    if how == "broken":
        place.parent.mkdir()
        place.write_bytes(b"no database " * 100)
    options = [how] if how.startswith("-") else []
    fast = ("--tracer", "ranges", "--no-telemetry", *options, "-o", tmp_path / "out")
    done = perfharness("launch", *fast, tmp_path / "toy.py", tmp_path / "seen")
    assert (done.returncode, (tmp_path / "seen").read_text()) == (0, "off"), done.stderr
    assert ("history" in done.stderr) == (how == "broken")
    if how == "":
        assert [one["script"] for one in rows(place, "run")] == ["toy.py"]
    else:
        assert how == "broken" or not place.exists()
