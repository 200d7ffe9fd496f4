"""Replicas under the same load: what is planned on which machine, and what is chosen of which figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfharness.load.profile import Profile, checked_profile
from perfharness.load.replicas.plan import plan_replicas
from perfharness.load.replicas.result import ReplicaCase
from perfharness.load.replicas.run import judge
from perfharness.runs.series.repeat_file import OverLaunches


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.py").write_text("def answer():\n    pass\n")
    return "app.py:answer"


def load(**settings: Any) -> Profile:
    phase = {name: settings.pop(name) for name in ("rate",) if name in settings}
    return checked_profile({"phases": [{"duration": 1, **phase}], **settings})


def planned(target: str, profile: Profile, tmp_path: Path, **settings: Any) -> Any:
    given = {"tracer": "none", "telemetry": False, **settings.pop("launch", {})}
    return plan_replicas(target, profile, given, folder=tmp_path / "mps", **settings)


def test_users_of_a_closed_loop_are_those_of_all_replicas(target: str, tmp_path: Path) -> None:
    cases = planned(target, load(concurrency=8), tmp_path, numbers=(1, 2, 4))
    assert [(case.name, case.plan.spec.profile.concurrency) for case in cases] == [
        ("plain_1", 8), ("plain_2", 4), ("plain_4", 2),
    ]  # fmt: skip
    assert [len(case.plan.launch.processes) for case in cases] == [1, 2, 4]
    alone = planned(target, load(), tmp_path, numbers=(2, 3))
    assert [case.plan.spec.profile.concurrency for case in alone] == [3, 2]  # six users in all


def test_each_replica_of_an_open_loop_has_the_workers_that_were_asked_for(target: str, tmp_path: Path) -> None:
    cases = planned(target, load(rate=50, concurrency=3), tmp_path, numbers=(1, 2))
    assert [case.plan.spec.profile.concurrency for case in cases] == [3, 3]


def case(name: str, **figures: list[float]) -> ReplicaCase:
    return ReplicaCase(
        name=name,
        sharing="plain",
        replicas=int(name[-1]),
        processes=int(name[-1]),
        figures={
            each: OverLaunches(values=list(values), mean=sum(values) / len(values), std=None, low=None, high=None,
                               scope=None)
            for each, values in figures.items()
        },
        standing="not-measured",
        judged_by="",
    )  # fmt: skip


PLACES = [[0, 2, 4], [1, 3, 5]]


def test_of_an_open_loop_the_faster_of_those_that_keep_up() -> None:
    cases = [
        case("plain_1", answers_per_second=[50, 50, 50.01], p99_ms=[30, 31, 30.5], p50_ms=[9, 9, 9.1]),
        case("plain_2", answers_per_second=[50, 50, 50.02], p99_ms=[20, 20.5, 20.2], p50_ms=[10, 10, 10.1]),
    ]
    found = judge(cases, load(rate=50), PLACES)
    assert (found["judged_by"], found["best"], found["chosen"], found["proven"]) == (
        "p99_ms", "plain_2", "plain_2", True,
    )  # fmt: skip
    assert found["cases"][0].ratio == pytest.approx(1.507, abs=0.001)


def test_of_an_open_loop_one_that_does_not_keep_up_is_worse_whatever_its_latency() -> None:
    cases = [
        case("plain_1", answers_per_second=[30, 30.1, 29.9], p99_ms=[10, 10, 10]),
        case("plain_2", answers_per_second=[50, 50, 50.01], p99_ms=[20, 20, 20.1]),
    ]
    found = judge(cases, load(rate=50), PLACES)
    assert (found["judged_by"], found["chosen"], found["proven"]) == ("answers_per_second", "plain_2", True)


def test_nothing_measured_is_no_choice() -> None:
    found = judge([case("plain_1"), case("plain_2")], load(), [[], []])
    assert (found["best"], found["chosen"], found["proven"]) == (None, None, False)
