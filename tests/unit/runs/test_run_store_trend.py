"""A stage over the runs of the store: which launches are points, where it stepped, what else changed there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfharness.cli.main import run as run_cli
from perfharness.errors import StoreError, UsageError
from perfharness.runs.store.filters import RunFilter
from perfharness.runs.store.location import Location
from perfharness.runs.store.records import CPU, THROUGHPUT, Figure, StoredRun
from perfharness.runs.store.register import Series, add_series
from perfharness.runs.store.store import RunStore
from perfharness.runs.store.trend import trend

DAY_NS = 86_400 * 10**9
BEGAN = "2026-01-01T00:00:00+00:00"
BEGAN_NS = 1_767_225_600 * 10**9
STEP_AT = 8


def launch(number: int, value: float | None, **more: Any) -> StoredRun:
    figures = [
        Figure(
            path="rec/batch/decode", metric=CPU, unit="ms", count=9, mean=value, p95=value and value * 2, reason="…"
        ),
        Figure(path="rec/batch/infer", metric=CPU, unit="ms", count=9, mean=5.0),
        Figure(metric=THROUGHPUT, unit="items/s", mean=value and 1000 / value),
    ]
    values: dict[str, Any] = {
        "run_id": f"launch_{number:03}",
        "kind": "launch",
        "folder": "/runs",
        "created": BEGAN,
        "created_unix_ns": BEGAN_NS + number * DAY_NS,
        "script": "pipeline.py",
        "setup": "aaaa",
        "setup_facts": {"script": "pipeline.py"},
        "environment": {
            "driver": "550" if number < STEP_AT else "560",
            "packages": {"torch": "2.5"},
            "script_sha256": str(number // STEP_AT) * 64,
        },
        "git_commit": f"{number // 4:040x}",
        "exit_code": 0,
        "figures": figures,
    }
    return StoredRun(**{**values, **more})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.sqlite"


@pytest.fixture
def store(path: Path) -> RunStore:
    """Sixteen launches; from the ninth on 10 % slower."""
    store = RunStore(Location(path=path), create=True)
    for number in range(2 * STEP_AT):
        store.add(launch(number, (10.0 if number < STEP_AT else 11.0) + 0.01 * (number % 3)))
    return store


def test_a_step_is_found_with_what_changed_there(store: RunStore) -> None:
    found = trend(store, "decode")
    assert (found.stage, found.metric, found.unit, len(found.points)) == ("rec/batch/decode", CPU, "ms", 16)
    (change,) = found.changes
    assert (change.place, change.run_id, change.before, change.after) == (8, "launch_008", 10.01, 11.01)
    facts = {fact.name: (fact.before, fact.after) for fact in change.facts}
    assert facts.pop("git_commit") == (f"{1:040x}", f"{2:040x}")
    assert facts == {"driver": ("550", "560"), "digest of script": ("0" * 12, "1" * 12)}


@pytest.mark.parametrize(
    ("stage", "metric", "name", "first"),
    [
        ("", None, THROUGHPUT, 100.0),
        ("", "throughput", THROUGHPUT, 100.0),
        ("rec/batch/decode", "cpu", CPU, 10.0),
        ("decode", "cpu_p95", "cpu_time_p95", 20.0),
        ("infer", "cpu_time", CPU, 5.0),
    ],
)
def test_names(store: RunStore, stage: str, metric: str | None, name: str, first: float) -> None:
    found = trend(store, stage, metric)
    assert (found.metric, found.points[0].value) == (name, first)


def test_what_is_no_point(store: RunStore) -> None:
    begin = 2 * STEP_AT
    store.add(launch(begin, 99.0, exit_code=1))
    store.add(launch(begin + 1, None))
    store.add(launch(begin + 2, 99.0))
    store.add(launch(3, 99.0, run_id="another_machine", setup="bbbb", created_unix_ns=BEGAN_NS + 3 * DAY_NS + 1))
    add_series(store, Series("cold-start", Path("/cold"), BEGAN, [], "pipeline.py", [], [f"launch_{begin + 2:03}"]))
    found = trend(store, "decode")
    assert [point.run_id for point in found.points] == [f"launch_{number:03}" for number in range(begin)]
    assert len(found.remarks) == 4
    assert [point.value for point in trend(store, "decode", setup="bb").points] == [99.0]


def test_points_are_in_the_order_of_their_commits(store: RunStore) -> None:
    # The newest commit was measured first; both launches of the oldest one last, when the machine had become slower.
    store = RunStore(Location(path=Path(str(store.location)).with_name("commits.sqlite")), create=True)
    for number, seconds in enumerate([300, 200, 100, 100]):
        store.add(launch(number, 10.0 + number, environment={"git_committed_unix_s": seconds}))
    found = trend(store, "decode")
    assert found.order == "commit"
    assert [point.value for point in found.points] == [12.0, 13.0, 11.0, 10.0]
    assert [point.committed_unix_s for point in found.points] == [100, 100, 200, 300]
    assert [point.value for point in trend(store, "decode", order="start").points] == [10.0, 11.0, 12.0, 13.0]
    # Where the date of one is not known, no place between the others is known for it either.
    store.add(launch(9, 20.0, environment={}))
    mixed, without = trend(store, "decode"), trend(store, "decode", order="commit")
    assert (mixed.order, [point.value for point in mixed.points]) == ("start", [10.0, 11.0, 12.0, 13.0, 20.0])
    assert [point.value for point in without.points] == [12.0, 13.0, 11.0, 10.0]
    assert (len(mixed.remarks), len(without.remarks)) == (2, 2)


def test_a_repeat_is_one_point(store: RunStore) -> None:
    repeat = Series("repeat", Path("/out"), BEGAN, [], "pipeline.py", [], ["launch_000", "launch_001", "launch_002"])
    series = add_series(store, repeat)
    first = trend(store, "decode").points[0]
    assert (first.run_id, first.launches, first.value) == (series.run_id, 3, (10.0 + 10.01 + 10.02) / 3)


def test_filters_are_those_of_the_list(store: RunStore) -> None:
    found = trend(store, "decode", which=RunFilter(until_ns=BEGAN_NS + 5 * DAY_NS))
    assert (len(found.points), found.changes) == (5, [])


def test_what_cannot_be_drawn_is_said(store: RunStore) -> None:
    with pytest.raises(StoreError):
        trend(store, "nothing")
    with pytest.raises(StoreError):
        trend(store, "decode", "gpu")
    store.add(launch(30, 1.0, figures=[Figure(path="other/decode", metric=CPU, mean=1.0)]))
    with pytest.raises(UsageError):
        trend(store, "decode")
    with pytest.raises(UsageError):
        trend(store, "infer", alpha=0.0)
    with pytest.raises(UsageError):
        trend(store, "infer", min_effect=2.0)


def test_the_verb_and_its_chart(store: RunStore, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    del store
    chart = path.with_name("trend.png")
    asked = ["runs", "trend", "decode", "--store", str(path)]
    assert run_cli([*asked, "--format", "json", "--chart", str(chart)]) == 0
    assert [change["place"] for change in json.loads(capsys.readouterr().out)["changes"]] == [8]
    assert chart.stat().st_size > 5000
    assert run_cli(asked) == 0
    assert "+10.0%" in capsys.readouterr().out
    for nothing in (["--order", "commit"], ["--setup", "zz"]):  # no commit of these has a date; no such setup
        assert run_cli([*asked, *nothing]) == 1
    assert run_cli([*asked, "--chart", "x.gif"]) == 2


def test_a_case_of_suites_has_a_trend_too(store: RunStore) -> None:
    for number in range(3):
        latency = Figure(path="net-torch-b1", metric="latency", unit="ms", count=9, mean=1.0 + number, p95=2.0)
        kinds: dict[str, Any] = {"kind": "bench", "setup": "suite", "exit_code": number, "figures": [latency]}
        store.add(launch(40 + number, None, **kinds))
    assert [point.value for point in trend(store, "net-torch-b1", "latency").points] == [1.0, 2.0, 3.0]
    assert trend(store, "net-torch-b1", "latency_p95").points[0].value == 2.0
