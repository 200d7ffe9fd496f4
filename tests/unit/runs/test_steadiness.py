"""What moved on the machine between launches, by hand; and the companion's readings of the kernel's counters."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfharness.model.yardstick import LoopTime, Yardstick, yardstick_of
from perfharness.runs.series.steadiness import (
    LEAST,
    LaunchConditions,
    Unsteadiness,
    conditions_of,
    movements_of,
    unsteadiness,
    unsteady_findings,
)
from perfharness_launcher.companions.yardstick import machine_load
from perfharness_launcher.conditions import Run
from tests.unit.export_runs import process_record, recorded_trace, run_folder
from tests.unit.run_records import manifest_of


def ruler(loop_ms: float = 1.0, **more: Any) -> Yardstick:
    loop = LoopTime(turns=10, wall_ms=loop_ms, cpu_ms=1.0, min_ms=1.0)
    return Yardstick.model_validate({"window_s": 2.0, "cpus": 2, "loop_before": loop, "loop_after": loop, **more})


def launch(name: str, yardstick: Yardstick | None = None, users: list[str] | None = None, **more: Any) -> Any:
    return LaunchConditions(name, yardstick, users, **more)


def sizes(found: Unsteadiness) -> dict[str, float | None]:
    return {one.measure: one.relative for one in found.movements}


def test_by_hand() -> None:
    found = movements_of(
        [
            launch("a", ruler(1.0, others_cpus=0.1, steal_share=0.0, pressure_share=0.05)),
            launch("b", ruler(1.2, others_cpus=1.1, steal_share=0.03, pressure_share=0.45)),
        ]
    )
    assert sizes(found) == {
        "others_cpus": pytest.approx(0.5),  # one of two CPUs
        "loop_ms": pytest.approx(0.2),
        "steal_share": pytest.approx(0.03),
    }
    assert found.relative == pytest.approx(0.5)
    assert {one.worst for one in found.movements} == {"b"}
    assert [one.measure for one in found.beyond(0.3)] == ["others_cpus"]
    assert [one.measure for one in found.beyond(0.0)] == [one.measure for one in found.movements]


def test_waiting_counts_only_where_the_time_of_others_is_not_known() -> None:
    """PSI has the waiting of the launch itself in it: what a program with many threads does is no neighbour."""
    known = [
        launch(name, ruler(1.0, others_cpus=0.1, pressure_share=share)) for name, share in (("a", 0.1), ("b", 0.5))
    ]
    assert "pressure_share" not in sizes(movements_of(known))
    unknown = [*known, launch("c", ruler(1.0, pressure_share=0.2))]
    assert sizes(movements_of(unknown))["pressure_share"] == pytest.approx(0.4)


def test_what_is_not_known_is_left_out_and_one_launch_cannot_move() -> None:
    found = movements_of([launch("a", ruler(1.0, others_cpus=None)), launch("b", ruler(1.0)), launch("c")])
    assert sizes(found) == {"loop_ms": 0.0}
    assert found.missing == ["c"]
    assert movements_of([launch("a", ruler())]).relative is None
    assert movements_of([launch("a"), launch("b")]).relative is None


def test_another_program_on_the_gpu_of_some_has_no_size_and_is_always_reported() -> None:
    found = movements_of([launch("a", ruler(), []), launch("b", ruler(), ["train.py"]), launch("c", ruler(), None)])
    assert [one.relative for one in found.movements if one.relative is None] == [None]
    (finding,) = unsteady_findings(found, 0.99, "the interval")
    assert (finding.code, "train.py" in finding.message) == ("machine-unsteady", True)
    same = movements_of([launch("a", ruler(), ["x"]), launch("b", ruler(), ["x"])])
    assert None not in [one.relative for one in same.movements]
    assert unsteady_findings(same, 0.0, "the interval") == []


def test_gpu_users_as_the_launch_recorded_them() -> None:
    def users(*gpus: dict[str, Any]) -> Any:
        companions = {"exclusive": {"gpus": list(gpus)}} if gpus else {}
        return conditions_of("a", manifest_of().model_copy(update={"companions": companions}), {}).gpu_users

    one, other = {"pid": 7, "name": "train"}, {"pid": 8, "name": None}
    assert users() is None
    assert users({"foreign_before": [], "foreign_during": [], "reason": None}) == []
    assert users({"foreign_before": [one], "foreign_during": [one, other]}) == ["a program without a name", "train"]
    assert users({"foreign_before": [one], "foreign_during": [{"pid": 9, "name": "train"}]}) == ["train", "train"]
    assert users({"foreign_before": [], "reason": "no permission"}) is None


def test_clocks_of_gpus_count() -> None:
    found = movements_of([launch("a", gpu_mhz={"sm": 1900.0}), launch("b", gpu_mhz={"sm": 1520.0})])
    assert sizes(found) == {"sm": pytest.approx(0.25)}
    assert found.movements[0].worst == "b"


@given(st.lists(st.floats(1.0, 100.0), min_size=2, max_size=8), st.floats(0, 10))
def test_a_finding_exactly_where_it_moved_by_more(loops: list[float], effect: float) -> None:
    found = movements_of([launch(f"l{number}", ruler(loop)) for number, loop in enumerate(loops)])
    relative = max(loops) / min(loops) - 1
    assert found.relative == pytest.approx(relative, abs=1e-6)
    if abs(relative - max(effect, LEAST)) > 1e-5:
        assert bool(unsteady_findings(found, effect, "x")) == (relative > max(effect, LEAST))


def test_a_loop_that_does_not_repeat_within_a_launch_says_nothing_about_launches() -> None:
    """A neighbour of some milliseconds is in one reading of 50 ms, and not in the launch."""

    def read(*pairs: tuple[float, float]) -> Unsteadiness:
        loops = [[LoopTime(turns=10, wall_ms=ms, cpu_ms=1.0, min_ms=1.0) for ms in pair] for pair in pairs]
        rulers = [ruler(loop_before=one, loop_after=other) for one, other in loops]
        return movements_of([launch(f"l{number}", one) for number, one in enumerate(rulers)])

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
        manifest["companions"] = {"yardstick": ruler(loop).model_dump(mode="json")}
        (folder / "manifest.json").write_text(json.dumps(manifest))
    found = unsteadiness(folders)
    assert sizes(found) == {"loop_ms": pytest.approx(0.5)}
    assert found.movements[0].by_launch == {"a/launch_0": 1.0, "b/launch_0": 1.5}


BUSY = "import sys, time\nwhile time.process_time() < float(sys.argv[1]): pass\nprint(flush=True)\nsys.stdin.read()"


def busy(seconds: float) -> subprocess.Popen[str]:
    """A process that uses so much CPU time, and waits until its input is closed."""
    return subprocess.Popen(
        [sys.executable, "-c", BUSY, str(seconds)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def measured(tmp_path: Path, run_id: str, seconds: float, *, is_own: bool) -> tuple[Yardstick, int]:
    """A yardstick around a process that uses so much CPU time: the launch's own, or another."""
    stranger = None if is_own else busy(0.0)
    run = Run(tmp_path, run_id)
    run.enter([machine_load])
    process = busy(seconds) if is_own else stranger
    assert process is not None
    with process:
        assert process.stdout is not None
        if is_own:
            process.stdout.readline()
        run.leave()
        process.communicate("")
    found = yardstick_of(run.records)
    assert found is not None
    return found, process.pid


def test_cpu_time_of_a_process_of_the_launch_is_its_own(tmp_path: Path) -> None:
    found, pid = measured(tmp_path, "run", 0.4, is_own=True)
    assert found.own_cpu_s is not None
    assert found.own_cpu_s >= 0.35  # 0.4, which the kernel reports in steps of 10 ms, by user and system
    assert pid not in [one.pid for one in found.others]
    assert found.cpus == len(os.sched_getaffinity(0))
    assert (found.others_cpus is None) == (found.others_reason is not None)
    assert (found.steal_share is None) == (found.steal_reason is not None)
    assert (found.pressure_share is None) == (found.pressure_reason is not None)
