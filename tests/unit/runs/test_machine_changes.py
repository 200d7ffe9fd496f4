"""What changed on the machine between launches, by hand; and the readings around a launch."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import perfharness
from perfharness.model.conditions import MACHINE_LOAD, LoopTime, MachineLoad, condition
from perfharness.runs.series.machine import (
    LEAST,
    LaunchConditions,
    MachineChange,
    conditions_of,
    machine_changes,
    unsteady_findings,
)
from perfharness_launcher.conditions import Run, machine_load
from tests.unit.export_runs import process_record, run_folder
from tests.unit.run_records import manifest_of


def loaded(before_ms: float = 1.0, after_ms: float | None = None, **more: Any) -> MachineLoad:
    after_ms = before_ms if after_ms is None else after_ms
    before, after = (LoopTime(wall_ms=ms, cpu_ms=1.0) for ms in (before_ms, after_ms))
    return MachineLoad(cpus=2, loop_before=before, loop_after=after, **more)


def changes(*launches: tuple[MachineLoad | None, list[str] | None, dict[str, float]]) -> list[MachineChange]:
    return machine_changes([LaunchConditions("abcdefgh"[at], *one) for at, one in enumerate(launches)])


@pytest.mark.parametrize(
    ("launches", "sizes", "worst"),
    [
        (
            [(loaded(1.0, steal_share=0.0), None, {}), (loaded(1.2, steal_share=0.03), None, {})],
            {"loop_ms": 0.2, "steal_share": 0.03},
            "b",
        ),
        ([(loaded(), None, {}), (loaded(), None, {}), (None, None, {})], {"loop_ms": 0.0}, "a"),
        ([(None, None, {"sm": 1900.0}), (None, None, {"sm": 1520.0})], {"sm": 0.25}, "b"),
        ([(loaded(), [], {}), (loaded(), ["train.py"], {})], {"gpu_users": None, "loop_ms": 0.0}, "b"),
        ([(None, ["x"], {}), (None, ["x"], {})], {}, None),
        ([(loaded(), None, {})], {}, None),
        ([(None, None, {}), (None, None, {})], {}, None),
    ],
)
def test_by_hand(launches: list[Any], sizes: dict[str, float | None], worst: str | None) -> None:
    found = changes(*launches)
    assert {one.measure: one.relative for one in found} == pytest.approx(sizes)
    assert worst is None or found[0].worst == worst


@given(st.lists(st.floats(1.0, 100.0), min_size=2, max_size=8), st.floats(0, 10))
def test_a_finding_exactly_where_it_changed_by_more(loops: list[float], effect: float) -> None:
    found = changes(*((loaded(loop), None, {}) for loop in loops))
    relative = max(loops) / min(loops) - 1
    assert found[0].relative == pytest.approx(relative, abs=1e-6)
    if abs(relative - max(effect, LEAST)) > 1e-5:
        assert bool(unsteady_findings(found, effect, "x")) == (relative > max(effect, LEAST))


@pytest.mark.parametrize(
    ("third", "codes"),
    [
        ((2.9, 2.7), ["machine-unsteady"]),
        ((2.9, 1.9), []),  # a neighbour of some milliseconds is in one reading of 50 ms, and not in the launch
    ],
)
def test_a_loop_that_does_not_repeat_within_a_launch_says_nothing(third: tuple[float, float], codes: list[str]) -> None:
    pairs = [(1.8, 1.9), (1.9, 1.8), third, (1.8, 1.9), (1.9, 1.8)]
    found = changes(*((loaded(*pair), None, {}) for pair in pairs))
    assert (found[0].relative or 0) > 0.2
    assert [one.code for one in unsteady_findings(found, 0.07, "the interval")] == codes


def test_another_program_on_a_gpu_is_always_reported() -> None:
    found = changes((loaded(), [], {}), (loaded(), ["train.py"], {}), (loaded(), None, {}))
    (finding,) = unsteady_findings(found, 0.99, "the interval")
    assert "train.py" in finding.message


ONE, OTHER = {"pid": 7, "name": "train"}, {"pid": 8, "name": None}


@pytest.mark.parametrize(
    ("gpus", "users"),
    [
        ([], None),
        ([{"foreign_before": [], "foreign_after": [], "reason": None}], []),
        ([{"foreign_before": [ONE], "foreign_after": [ONE, OTHER]}], ["a program without a name", "train"]),
        ([{"foreign_before": [ONE], "foreign_after": [{"pid": 9, "name": "train"}]}], ["train", "train"]),
        ([{"foreign_before": [], "reason": "no permission"}], None),
    ],
)
def test_gpu_users_as_the_launch_recorded_them(gpus: list[dict[str, Any]], users: list[str] | None) -> None:
    companions = {"exclusive": {"gpus": gpus}} if gpus else {}
    manifest = manifest_of().model_copy(update={"companions": companions})
    assert conditions_of("a", manifest, {}).gpu_users == users


def test_of_run_folders(tmp_path: Path) -> None:
    folders = [tmp_path / side / "launch_0" for side in ("a", "b")]
    for folder, loop in zip(folders, (1.0, 1.5), strict=True):
        run_folder(folder, process_record(0))
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["companions"] = {"yardstick": loaded(loop).model_dump(mode="json")}
        (folder / "manifest.json").write_text(json.dumps(manifest))
    (found,) = perfharness.machine_changes(folders)
    assert found.relative == pytest.approx(0.5)
    assert found.by_launch == {"a/launch_0": 1.0, "b/launch_0": 1.5}


def test_the_load_around_a_launch(tmp_path: Path) -> None:
    run = Run(tmp_path, "run")
    run.enter([machine_load])
    run.leave()
    found = condition(run.records, MACHINE_LOAD, MachineLoad)
    assert found is not None
    assert found.loop_ms > 0
    assert (found.steal_share is None) == (found.steal_reason is not None)
    assert found.load_before is not None
    assert found.cpus == len(os.sched_getaffinity(0))
