"""What changed on the machine between launches, by hand; and the readings around a launch."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfharness.model.conditions import MACHINE_LOAD, LoopTime, MachineLoad, condition
from perfharness.runs.series.launch_conditions import LaunchConditions, conditions_of
from perfharness.runs.series.steadiness import (
    LEAST,
    Unsteadiness,
    movements_of,
    unsteadiness,
    unsteady_findings,
)
from perfharness_launcher.conditions import Run, machine_load
from tests.unit.export_runs import process_record, recorded_trace, run_folder
from tests.unit.run_records import manifest_of


def loaded(before_ms: float = 1.0, after_ms: float | None = None, **more: Any) -> MachineLoad:
    loops = [LoopTime(wall_ms=ms, cpu_ms=1.0) for ms in (before_ms, before_ms if after_ms is None else after_ms)]
    return MachineLoad(cpus=2, loop_before=loops[0], loop_after=loops[1], **more)


def launch(name: str, load: MachineLoad | None = None, users: list[str] | None = None, **more: Any) -> Any:
    return LaunchConditions(name, load, users, **more)


def sizes(found: Unsteadiness) -> dict[str, float | None]:
    return {one.measure: one.relative for one in found.movements}


def test_by_hand() -> None:
    found = movements_of(
        [
            launch("a", loaded(1.0, steal_share=0.0)),
            launch("b", loaded(1.2, steal_share=0.03)),
        ]
    )
    assert sizes(found) == {
        "loop_ms": pytest.approx(0.2),
        "steal_share": pytest.approx(0.03),
    }
    assert found.relative == pytest.approx(0.2)
    assert {one.worst for one in found.movements} == {"b"}
    assert [one.measure for one in found.beyond(0.1)] == ["loop_ms"]
    assert [one.measure for one in found.beyond(0.0)] == [one.measure for one in found.movements]


def test_what_is_not_known_is_left_out_and_one_launch_cannot_move() -> None:
    found = movements_of([launch("a", loaded()), launch("b", loaded()), launch("c")])
    assert sizes(found) == {"loop_ms": 0.0}
    assert found.missing == ["c"]
    assert movements_of([launch("a", loaded())]).relative is None
    assert movements_of([launch("a"), launch("b")]).relative is None


def test_another_program_on_the_gpu_of_some_has_no_size_and_is_always_reported() -> None:
    found = movements_of([launch("a", loaded(), []), launch("b", loaded(), ["train.py"]), launch("c", loaded(), None)])
    assert [one.relative for one in found.movements if one.relative is None] == [None]
    (finding,) = unsteady_findings(found, 0.99, "the interval")
    assert (finding.code, "train.py" in finding.message) == ("machine-unsteady", True)
    same = movements_of([launch("a", loaded(), ["x"]), launch("b", loaded(), ["x"])])
    assert None not in [one.relative for one in same.movements]
    assert unsteady_findings(same, 0.0, "the interval") == []


def test_gpu_users_as_the_launch_recorded_them() -> None:
    def users(*gpus: dict[str, Any]) -> Any:
        companions = {"exclusive": {"gpus": list(gpus)}} if gpus else {}
        return conditions_of("a", manifest_of().model_copy(update={"companions": companions}), {}).gpu_users

    one, other = {"pid": 7, "name": "train"}, {"pid": 8, "name": None}
    assert users() is None
    assert users({"foreign_before": [], "foreign_after": [], "reason": None}) == []
    assert users({"foreign_before": [one], "foreign_after": [one, other]}) == ["a program without a name", "train"]
    assert users({"foreign_before": [one], "foreign_after": [{"pid": 9, "name": "train"}]}) == ["train", "train"]
    assert users({"foreign_before": [], "reason": "no permission"}) is None


def test_clocks_of_gpus_count() -> None:
    found = movements_of([launch("a", gpu_mhz={"sm": 1900.0}), launch("b", gpu_mhz={"sm": 1520.0})])
    assert sizes(found) == {"sm": pytest.approx(0.25)}
    assert found.movements[0].worst == "b"


@given(st.lists(st.floats(1.0, 100.0), min_size=2, max_size=8), st.floats(0, 10))
def test_a_finding_exactly_where_it_moved_by_more(loops: list[float], effect: float) -> None:
    found = movements_of([launch(f"l{number}", loaded(loop)) for number, loop in enumerate(loops)])
    relative = max(loops) / min(loops) - 1
    assert found.relative == pytest.approx(relative, abs=1e-6)
    if abs(relative - max(effect, LEAST)) > 1e-5:
        assert bool(unsteady_findings(found, effect, "x")) == (relative > max(effect, LEAST))


def test_a_loop_that_does_not_repeat_within_a_launch_says_nothing_about_launches() -> None:
    """A neighbour of some milliseconds is in one reading of 50 ms, and not in the launch."""

    def read(*pairs: tuple[float, float]) -> Unsteadiness:
        return movements_of([launch(f"l{number}", loaded(*pair)) for number, pair in enumerate(pairs)])

    scattered = read((1.8, 2.7), (1.9, 1.8), (2.9, 2.5), (1.8, 2.2), (2.6, 1.8))
    assert scattered.relative == pytest.approx(5.4 / 3.7 - 1, abs=1e-6)  # known, and not claimed
    assert unsteady_findings(scattered, 0.07, "the interval") == []
    slower = read((1.8, 1.9), (1.9, 1.8), (2.9, 2.7), (1.8, 1.9), (1.9, 1.8))
    assert [one.code for one in unsteady_findings(slower, 0.07, "the interval")] == ["machine-unsteady"]


def test_of_run_folders(tmp_path: Path) -> None:
    folders = [tmp_path / side / "launch_0" for side in ("a", "b")]
    for folder, loop in zip(folders, (1.0, 1.5), strict=True):
        recorded_trace(folder / "proc_0_gpu_0" / "trace.sqlite")
        run_folder(folder, process_record(0))
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["companions"] = {"yardstick": loaded(loop).model_dump(mode="json")}
        (folder / "manifest.json").write_text(json.dumps(manifest))
    found = unsteadiness(folders)
    assert sizes(found) == {"loop_ms": pytest.approx(0.5)}
    assert found.movements[0].by_launch == {"a/launch_0": 1.0, "b/launch_0": 1.5}


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
