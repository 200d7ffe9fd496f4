"""The run store on SQLite: what is stored of a result, how it is found again, and what is wrong with a store."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfharness.cli.doctor import store_check
from perfharness.cli.main import run as run_cli
from perfharness.errors import StoreError, UsageError
from perfharness.model.findings import Finding, Severity
from perfharness.model.manifest import RunManifest
from perfharness.runs.store.filters import RunFilter
from perfharness.runs.store.gather import (
    LONGEST_PATH_BYTES,
    launch_figures,
    run_id,
    short,
    stored_launch,
    stored_suite,
    unix_ns,
)
from perfharness.runs.store.location import Location, find_store, parse_location
from perfharness.runs.store.records import CPU, Figure, StoredRun
from perfharness.runs.store.register import Series, StoreSettings, add_series, register_launch
from perfharness.runs.store.store import RunStore
from perfharness.runs.store.tables import VERSION_TABLE, metadata
from tests.unit.bench_results import made_up, suite_of

DAY_NS = 86_400 * 10**9
PASSWORD = "hunter2secret"


def stored(name: str = "a" * 8, **more: Any) -> StoredRun:
    values: dict[str, Any] = {
        "run_id": f"20260101T000000-{name}",
        "kind": "launch",
        "folder": "/runs/out",
        "created": "2026-01-01T00:00:00+00:00",
        "created_unix_ns": unix_ns("2026-01-01T00:00:00+00:00"),
        "script": "src/pipeline.py",
        "script_path": "/home/user/src/pipeline.py",
        "setup": "0" * 16,
        "exit_code": 0,
        "figures": [Figure(path="rec/batch", metric=CPU, unit="ms", count=4, mean=2.5, p50=2.25, p95=None)],
    }
    return StoredRun(**{**values, **more})


def manifest(**more: Any) -> RunManifest:
    process = {"index": 0, "gpu_index": 0, "folder": "proc_0_gpu_0", "command": ["python"], "ended": "ok"}
    process |= {"trace": "trace.sqlite", "start_unix_ns": 1_767_225_600_500_000_000}
    values: dict[str, Any] = {
        "run_id": "20260101T000000-00000001",
        "created": "2026-01-01T00:00:00+00:00",
        "command": ["perfharness", "launch", "pipeline.py", "--api-key", PASSWORD],
        "script": "pipeline.py",
        "script_arguments": ["--api-key", PASSWORD],
        "num_processes_per_gpu": 1,
        "warmup_batches": 1,
        "working_dir": "/home/user",
        "tracer": {"kind": "embedded", "version": "1"},
        "environment": {"hostname": "box", "cpu": "EPYC"},
        "processes": [process],
    }
    return RunManifest(**{**values, **more})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "runs.sqlite"


@pytest.fixture
def store(path: Path) -> RunStore:
    return RunStore(Location(path=path), create=True)


def statistics(mean: float | None, count: int = 4) -> dict[str, Any]:
    return {"count": count, "mean": mean, "std": None, "min": 1.0, "p50": mean, "p90": None, "p95": None, "max": 9.0}


MEAN = {
    "stats_minus_warmup": {
        "rec": {
            "batch": {
                "cpu_time": statistics(2.5),
                "gpu_time": statistics(1.5),
                "gpu_busy_time": statistics(None),
                "cpu_time_per_item": statistics(0.5),
                "total_items": statistics(5.0),
                "de/code": {"cpu_time": statistics(1.25), "gpu_time": statistics(0.0)},
            }
        }
    },
    "throughput": {"items_per_second": None, "reason": "too few batches"},
    "energy": {"energy_per_item_j": 0.25, "energy_per_batch_j": None, "reason": None},
}


def test_figures_of_a_launch_are_those_of_its_file() -> None:
    found = {(one.path, one.metric): one for one in launch_figures(MEAN, has_gpu=True)}
    assert {key: (one.count, one.mean, one.p50) for key, one in found.items()} == {
        ("", "items_per_second"): (None, None, None),
        ("", "energy_per_item_j"): (None, 0.25, None),
        ("", "energy_per_batch_j"): (None, None, None),
        ("rec/batch", "cpu_time"): (4, 2.5, 2.5),
        ("rec/batch", "gpu_time"): (4, 1.5, 1.5),
        ("rec/batch", "gpu_busy_time"): (4, None, None),
        ("rec/batch", "cpu_time_per_item"): (4, 0.5, 0.5),
        ("rec/batch/de\\/code", "cpu_time"): (4, 1.25, 1.25),
        ("rec/batch/de\\/code", "gpu_time"): (4, 0.0, 0.0),
    }
    assert found["", "items_per_second"].reason == "too few batches"
    assert all(one.reason is not None for one in found.values() if one.mean is None)


def test_without_a_gpu_its_zeros_are_not_stored() -> None:
    metrics = {one.metric for one in launch_figures(MEAN, has_gpu=False)}
    assert metrics == {"items_per_second", "energy_per_item_j", "cpu_time", "cpu_time_per_item"}


def test_a_launch_says_when_how_and_on_what() -> None:
    findings = [Finding("x-y", severity, "…") for severity in (Severity.WARNING, Severity.NOTE, Severity.NOTE)]
    run = stored_launch(manifest(), MEAN, findings, Path("/runs/out"))
    assert (run.exit_code, run.errors, run.warnings, run.notes) == (0, 0, 1, 2)
    assert (run.num_processes, run.processes_ok, run.created_unix_ns) == (1, 1, 1_767_225_600_500_000_000)
    assert (run.script, run.script_path, run.folder) == ("pipeline.py", "/home/user/pipeline.py", "/runs/out")
    assert run.environment["hostname"] == "box"
    assert run.git_commit is None
    assert run.git_dirty is None


@pytest.mark.parametrize(
    ("ended", "severity", "code"),
    [("ok", Severity.WARNING, 0), ("ok", Severity.ERROR, 3), ("failed", Severity.ERROR, 1), ("timeout", None, 1)],
)
def test_a_launch_ends_in_the_store_as_its_command(ended: str, severity: Severity | None, code: int) -> None:
    process = manifest().processes[0].model_copy(update={"ended": ended})
    findings = [] if severity is None else [Finding("x-y", severity, "…")]
    assert stored_launch(manifest(processes=[process]), MEAN, findings, Path("/o")).exit_code == code


@pytest.mark.parametrize(
    ("change", "is_same"),
    [
        ({"run_id": "other"}, True),
        ({"script": "/elsewhere/pipeline.py"}, True),
        ({"script": "other.py"}, False),
        ({"script_arguments": ["--fast"]}, False),
        ({"warmup_batches": 2}, False),
        ({"num_processes_per_gpu": 2}, False),
        ({"tracer": {"kind": "nsys"}}, False),
        ({"tracer": {"kind": "embedded", "version": "2"}}, True),
        ({"environment": {"hostname": "other", "cpu": "EPYC"}}, False),
        ({"environment": {"hostname": "box", "cpu": "EPYC", "driver": "600"}}, True),
    ],
)
def test_the_setup_is_what_must_be_equal(change: dict[str, Any], is_same: bool) -> None:
    one, other = (stored_launch(manifest(**more), MEAN, [], Path("/o")).setup for more in ({}, change))
    assert (one == other) is is_same


def test_what_was_stored_is_read_back_whole(store: RunStore) -> None:
    run = stored(command=["a"], script_arguments=["b"], environment={"gpus": [{"name": "H200"}]}, git_dirty=False)
    store.add(run)
    assert store.find(run.run_id) == run
    again = run.model_copy(update={"exit_code": 3, "figures": []})
    store.tag([run.run_id], ["kept"])
    store.add(again)
    assert store.find(run.run_id) == again.model_copy(update={"tags": ["kept"]})
    assert store.count() == 1


@given(st.text(min_size=0, max_size=600), st.text(min_size=0, max_size=600))
def test_a_cut_path_fits_and_stays_different(one: str, other: str) -> None:
    for text in (one * 5, other * 5):
        assert len(short(text).encode()) <= LONGEST_PATH_BYTES
        assert short(short(text)) == short(text)
    if one.isascii() and other.isascii() and "\0" not in one + other:
        assert (short(one * 5) == short(other * 5)) is (one == other)


@given(st.datetimes(), st.integers(0, 10**6 - 1))
def test_times_are_exact(when: Any, microsecond: int) -> None:
    when = when.replace(microsecond=microsecond, tzinfo=None)
    since = when - type(when)(1970, 1, 1)
    expected = ((since.days * 86_400 + since.seconds) * 10**6 + since.microseconds) * 1000
    assert unix_ns(when.isoformat()) == expected


@pytest.fixture
def filled(store: RunStore) -> RunStore:
    begin = stored().created_unix_ns
    store.add(stored("first", git_commit="abcdef0123", tags=["good"]))
    store.add(stored("second", created_unix_ns=begin + DAY_NS, script="/x/other.py", script_path="/x/other.py"))
    store.add(stored("third", created_unix_ns=begin + 2 * DAY_NS, kind="bench", script="my_suite", script_path=None))
    return store


@pytest.mark.parametrize(
    ("which", "names"),
    [
        ({}, ["third", "second", "first"]),
        ({"limit": 1}, ["third"]),
        ({"script": "pipeline.py"}, ["first"]),
        ({"script": "src/pipeline.py"}, ["first"]),
        ({"script": "/home/user/src/pipeline.py"}, ["first"]),
        ({"script": "line.py"}, []),
        ({"script": "%"}, []),
        ({"tag": "good"}, ["first"]),
        ({"commit": "ABCD"}, ["first"]),
        ({"commit": "_bcd"}, []),
        ({"kind": "bench"}, ["third"]),
        ({"since_ns": stored().created_unix_ns + DAY_NS}, ["third", "second"]),
        ({"until_ns": stored().created_unix_ns + DAY_NS}, ["first"]),
    ],
)
def test_filters(filled: RunStore, which: dict[str, Any], names: list[str]) -> None:
    assert [run.run_id.rpartition("-")[2] for run in filled.runs(RunFilter(**which))] == names


def test_a_run_has_several_names(filled: RunStore, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "manifest.json").write_text(manifest(run_id=stored("second").run_id).model_dump_json())
    assert filled.find("latest").run_id == stored("third").run_id
    assert filled.find("seco").run_id == stored("second").run_id
    assert filled.find(str(folder)).run_id == stored("second").run_id
    for name in ("20260101T000000", "nothing", "sec", str(tmp_path), "%%%%"):
        with pytest.raises(StoreError):
            filled.find(name)


def test_a_folder_names_the_run_that_is_in_it_now(filled: RunStore, tmp_path: Path) -> None:
    """Every launch with the same -o takes the place of the one before."""
    folder = tmp_path / "out"
    filled.add(stored("before", folder=str(folder)))
    folder.mkdir()
    (folder / "manifest.json").write_text(manifest(run_id="after").model_dump_json())
    with pytest.raises(StoreError):
        filled.find(str(folder))


def test_a_series_holds_its_launches_and_takes_them_along(store: RunStore) -> None:
    manifests = [manifest(run_id=f"2026010{day}T000000-0000000{day}") for day in (1, 2)]
    for one in manifests:
        store.add(stored_launch(one, MEAN, [], Path("/runs")))
    add_series(
        store,
        Series("sweep", Path("/runs"), "2026-01-03T00:00:00", [], "pipeline.py", [], [one.run_id for one in manifests]),
    )
    (series,) = store.runs(RunFilter())
    launches = store.launches_of(series)
    assert [(one.run_id, one.position) for one in launches] == [(one.run_id, n) for n, one in enumerate(manifests)]
    assert (series.kind, series.num_processes, series.processes_ok) == ("sweep", 2, 2)
    store.add(stored_launch(manifests[0], MEAN, [], Path("/elsewhere")))  # stored again: still a part of it
    assert [one.series_id for one in store.launches_of(series)] == [series.run_id] * 2
    assert series.run_id == run_id("sweep", Path("/runs"), "2026-01-03T00:00:00")
    store.save_baseline("main", [series.run_id])
    with pytest.raises(StoreError, match="baseline"):
        store.delete([manifests[0].run_id])  # the baseline would be of fewer launches
    store.delete_baseline("main")
    store.delete([series.run_id])
    assert store.count() == 0


def test_deleting_leaves_no_row_of_any_table(filled: RunStore, path: Path) -> None:
    filled.delete(["first", "second", "third"])
    with closing(sqlite3.connect(path)) as connection, connection:
        tables = [name for name in metadata.tables if name != VERSION_TABLE]
        assert {connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in tables} == {0}


def test_no_secret_is_in_the_file(store: RunStore, path: Path) -> None:
    store.add(stored_launch(manifest(), MEAN, [], Path("/runs/out")))
    assert all(PASSWORD.encode() not in file.read_bytes() for file in path.parent.iterdir())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("off", None),
        ("", None),
        ("/a/b.sqlite", "/a/b.sqlite"),
        ("sqlite:////a/b.sqlite", "/a/b.sqlite"),
        (f"postgresql://me:{PASSWORD}@host/db", "postgresql://me:***@host/db"),
        ("postgres://host/db", "postgresql://host/db"),
    ],
)
def test_places(text: str, expected: str | None) -> None:
    found = parse_location(text, "--store")
    assert (None if found is None else str(found)) == expected


@pytest.mark.parametrize("text", ["mysql://host/db", "sqlite://", "sqlite:///", "https://x"])
def test_places_that_are_none(text: str) -> None:
    with pytest.raises(UsageError):
        parse_location(text, "--store")


@pytest.mark.parametrize(
    ("named", "environ", "expected"),
    [
        ("/n/x", {"PERFHARNESS_STORE": "/e/x", "HOME": "/h"}, "/n/x"),
        (None, {"PERFHARNESS_STORE": "/e/x", "HOME": "/h"}, "/e/x"),
        (None, {"PERFHARNESS_STORE": "off", "HOME": "/h"}, None),
        (None, {"XDG_DATA_HOME": "/d", "HOME": "/h"}, "/d/perfharness/runs.sqlite"),
        (None, {"XDG_DATA_HOME": "relative", "HOME": "/h"}, "/h/.local/share/perfharness/runs.sqlite"),
        (None, {}, None),
    ],
)
def test_which_store_is_meant(named: str | None, environ: dict[str, str], expected: str | None) -> None:
    found = find_store(named, environ)
    assert (None if found is None else str(found)) == expected


# ---- what can be wrong with a store ----


def of_something_else(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE NVTX_EVENTS (start INTEGER)")


def newer(path: Path) -> None:
    RunStore(Location(path=path), create=True)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")


def locked(path: Path) -> None:
    RunStore(Location(path=path), create=True)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    HOLDERS.append(holder)


HOLDERS: list[sqlite3.Connection] = []


@pytest.mark.parametrize("damage", [of_something_else, newer, locked])
def test_a_store_that_cannot_be_used_is_one_sentence_and_stays_as_it_is(
    path: Path, damage: Callable[[Path], None]
) -> None:
    path.parent.mkdir()
    damage(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(StoreError) as caught:
        RunStore(Location(path=path), create=True, patience_s=0.05).add(stored())
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    assert (path.read_bytes() if path.is_file() else None) == before
    while HOLDERS:
        HOLDERS.pop().close()


@pytest.mark.parametrize("place", ["/proc/1/store/runs.sqlite", "/dev/null/runs.sqlite"])
def test_a_place_that_cannot_be_written_is_a_finding_of_the_launch(place: str) -> None:
    found = register_launch(manifest(), MEAN, [], Path("/o"), StoreSettings(place))
    assert [(one.code, one.severity) for one in found] == [("run-not-stored", Severity.WARNING)]


def test_reading_makes_no_file(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(StoreError):
        RunStore(Location(path=path))
    assert run_cli(["runs", "list", "--store", str(path), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"runs": []}
    assert run_cli(["runs", "show", "latest", "--store", str(path)]) == 1
    assert not path.parent.exists()


@pytest.mark.parametrize(("damage", "health"), [(None, "good"), ("x" * 5000, "warning")])
def test_the_doctor_looks_at_the_store(
    store: RunStore, path: Path, monkeypatch: pytest.MonkeyPatch, damage: str | None, health: str
) -> None:
    monkeypatch.setenv("PERFHARNESS_STORE", str(path))
    store.add(stored())
    if damage is not None:
        path.write_text(damage)
    assert store_check().health == health
    monkeypatch.setenv("PERFHARNESS_STORE", "off")
    assert store_check().health == "absent"
    monkeypatch.setenv("PERFHARNESS_STORE", str(path.with_name("none")))
    assert store_check().health == "absent"
    assert not path.with_name("none").exists()


# ---- the verbs ----


def cli(path: Path, *arguments: str) -> int:
    return run_cli(["runs", *arguments, "--store", str(path)])


def test_the_verbs(filled: RunStore, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli(path, "list", "--script", "pipeline.py", "--format", "json") == 0
    assert [run["run_id"] for run in json.loads(capsys.readouterr().out)["runs"]] == [stored("first").run_id]
    assert cli(path, "list", "--since", "2026-01-02", "--until", "2026-01-02", "--format", "json") == 0
    assert [run["run_id"] for run in json.loads(capsys.readouterr().out)["runs"]] == [stored("second").run_id]
    assert cli(path, "tag", "first", "second", "--add", "x", "--remove", "good") == 0
    assert filled.find("first").tags == ["x"]
    assert cli(path, "show", "first", "--format", "json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["figures"][0]["mean"], shown["launches"]) == (2.5, [])
    assert cli(path, "delete", "first", "--dry-run") == 0
    assert cli(path, "delete", "second") == 0
    assert [run.run_id for run in filled.runs()] == [stored("third").run_id, stored("first").run_id]


@pytest.mark.parametrize("what", ["there", "replaced", "gone"])
def test_a_run_stays_where_its_folder_does_not(
    store: RunStore, path: Path, tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    store.add(stored_launch(manifest(), MEAN, [], folder))
    if what != "gone":
        folder.mkdir()
        made = manifest() if what == "there" else manifest(run_id="another")
        (folder / "manifest.json").write_text(made.model_dump_json())
    assert cli(path, "list", "--format", "json") == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert (run["run_id"], run["folder_state"]) == (manifest().run_id, what)
    assert cli(path, "show", "latest") == 0


# ---- suites ----


def test_figures_of_a_suite_are_those_of_its_cases() -> None:
    case = made_up("torch", 8, rate=200.0, latency_ms=40.0, memory_bytes=1000, energy_j=0.5)
    failed = made_up("keras", 8, status="out-of-memory", reason="no room")
    run = stored_suite(suite_of(case, failed), Path("/bench"), 1)
    found = {(one.path, one.metric): (one.mean, one.reason) for one in run.figures}
    name = case.case.case_id
    assert found[name, "latency"] == (40.0, None)
    assert found[name, "items_per_second"] == (200.0, None)
    assert found[name, "energy_per_item_j"] == (0.5, None)
    assert found[name, "device_peak_bytes"] == (1000.0, None)
    assert found[failed.case.case_id, "latency"] == (None, "no room")
    assert (run.kind, run.num_processes, run.processes_ok, run.exit_code) == ("bench", 2, 1, 1)
