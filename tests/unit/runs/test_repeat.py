"""Several launches of the same: order, folders, the file; without launching anything."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfharness.cli.main import run
from perfharness.errors import ResultError, UsageError
from perfharness.model.conditions import GpuWait, LoopTime, MachineLoad
from perfharness.model.manifest import RunManifest
from perfharness.model.result import BatchValues, ProcessResult, path_of, path_text
from perfharness.runs.analyze import analyze
from perfharness.runs.figures import loop_paths, run_figures, stage_figures
from perfharness.runs.series.folders import repeated_launches
from perfharness.runs.series.launch_conditions import LaunchConditions
from perfharness.runs.series.repeat import (
    RepeatCase,
    plan_repeats,
    repeat_options,
    repeat_request,
    shuffled_rounds,
    update_repeat,
)
from perfharness.runs.series.repeat_file import Repeat, RepeatRow, read_repeat
from perfharness.runs.series.repeat_numbers import LaunchNumbers, within_launch
from perfharness_launcher.options import LaunchOptions
from tests.schemas import valid
from tests.unit.export_runs import two_processes

BATCH = "toy/pipeline/batch"


def conditions(number: int, *, disturbed: bool = False) -> LaunchConditions:
    loop = LoopTime(wall_ms=2.0 if disturbed else 1.0, cpu_ms=1.0)
    return LaunchConditions(f"launch_{number}", MachineLoad(cpus=2, loop_before=loop, loop_after=loop), None)


def launches(*cpu_ms: float | None, disturbed: Sequence[int] = ()) -> list[LaunchNumbers]:
    return [
        LaunchNumbers(
            {BATCH: {"cpu_time": value, "gpu_time": 0.0}, f"{BATCH}/load": {"cpu_time": 1.0, "cpu_time_p99": None}},
            {"items_per_second": None if value is None else 1000 / value},
            [BATCH],
            conditions(number, disturbed=number in disturbed),
        )
        for number, value in enumerate(cpu_ms)
    ]


def case_of(folder: Path, numbers: list[LaunchNumbers], **request: Any) -> RepeatCase:
    case = RepeatCase(LaunchOptions(script="x.py", output_dir=folder), [], ["perfharness"], repeat_request(**request))
    for place, one in enumerate(numbers):
        case.add(RepeatRow(folder=f"launch_{place}", place=place, status="ok", run_id=f"id-{place}"), one)
    return case


@given(st.integers(1, 5), st.integers(1, 12), st.integers(0, 2**32))
def test_every_round_has_each_case_once_and_the_seed_decides(cases: int, count: int, seed: int) -> None:
    request = repeat_request(count, seed)
    order = shuffled_rounds(cases, request)
    assert order == shuffled_rounds(cases, request)
    rounds = [order[begin : begin + cases] for begin in range(0, len(order), cases)]
    assert len(rounds) == count
    assert all(sorted(one) == list(range(cases)) for one in rounds)


def test_the_order_of_several_cases_is_kept(tmp_path: Path) -> None:
    options = [LaunchOptions(script="x.py", output_dir=tmp_path / name) for name in ("a", "b")]
    request = repeat_request(2, 3)
    cases = plan_repeats(options, request, [["a"], ["b"]], [[], []])
    names = {0: "a", 1: "b"}
    wanted: dict[int, int] = {0: 0, 1: 0}
    order = []
    for case in shuffled_rounds(2, request):
        order.append(f"{names[case]}/launch_{wanted[case]}")
        wanted[case] += 1
    assert cases[0].order == cases[1].order == order
    for other in (tmp_path / "a", tmp_path / "a" / "b"):
        with pytest.raises(UsageError):
            plan_repeats([options[0], LaunchOptions(script="x.py", output_dir=other)], request, [[], []], [[], []])


@pytest.mark.parametrize("count", ["0", "-1", str(10**20), "two"])
def test_what_cannot_be_asked_for(count: str, tmp_path: Path) -> None:
    assert run(["launch", "--repeat", count, "--dry-run", "-o", str(tmp_path / "out"), "x.py"]) == 2


def test_folders_and_what_does_not_go_together(tmp_path: Path) -> None:
    request = repeat_request(2)
    options = LaunchOptions(script="x.py", output_dir=tmp_path)
    assert [one.output_dir.name for one in repeat_options(options, request)] == ["launch_0", "launch_1"]
    with pytest.raises(UsageError, match="--explain"):
        repeat_options(options.model_copy(update={"explain": True}), request)


def test_the_file_by_hand(tmp_path: Path) -> None:
    repeat = case_of(tmp_path, launches(9.0, 10.0, 11.0), count=3, seed=1).repeat
    batch = repeat.stages[BATCH]["cpu_time"]
    assert (batch.values, batch.mean, batch.std, batch.scope) == ([9.0, 10.0, 11.0], 10.0, 1.0, "launches")
    assert batch.low == pytest.approx(10 - 4.302653 / 3**0.5, rel=1e-6)
    assert set(repeat.stages[BATCH]) == {"cpu_time"}  # the GPU did nothing
    assert set(repeat.stages[f"{BATCH}/load"]) == {"cpu_time"}  # there were too few batches for the other
    assert repeat.run["items_per_second"].mean == pytest.approx((1000 / 9 + 100 + 1000 / 11) / 3)
    assert repeat.loops == [BATCH]
    written = valid("repeat", tmp_path / "repeat.json")
    assert read_repeat(tmp_path) == Repeat.model_validate(written)


def test_one_launch_has_no_interval_and_a_launch_without_a_stage_none_either(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    alone = case_of(tmp_path / "one", launches(9.0), count=1).repeat.stages[BATCH]["cpu_time"]
    assert (alone.mean, alone.low, alone.scope) == (9.0, None, None)
    assert alone.reason
    gap = case_of(tmp_path / "gap", launches(9.0, None, 10.0), count=3).repeat.stages[BATCH]["cpu_time"]
    assert (gap.values, gap.mean, gap.low) == ([9.0, None, 10.0], None, None)


def codes(case: RepeatCase) -> set[str]:
    return {finding.code for finding in case.repeat.findings}


def test_a_machine_that_moved_by_more_than_the_interval_is_a_finding(tmp_path: Path) -> None:
    values = (10.0, 10.1, 9.9, 10.0)
    assert codes(case_of(tmp_path / "a", launches(*values), count=4)) == set()
    case = case_of(tmp_path / "b", launches(*values, disturbed=[2]), count=4)
    (finding,) = case.repeat.findings
    assert finding.code == "machine-unsteady"
    assert "launch_2" in finding.message
    machine = case.repeat.machine
    assert machine is not None
    assert {one.worst for one in machine.movements if one.relative} == {"launch_2"}
    assert machine.relative == 1.0
    wide = case_of(tmp_path / "c", launches(5.0, 10.0, 15.0, disturbed=[2]), count=3)  # ±124 %
    assert codes(wide) == set()


OTHERS = (10.0, 10.2, 9.9, 10.1, 10.05)


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ((10.0, 11.0, 12.0, 13.0, 14.0), {"launches-drift"}),
        ((10.0, 14.0, 12.0, 11.0, 13.0), set()),
        ((14.0, *OTHERS), {"first-launch-differs"}),
        ((10.3, *OTHERS), set()),
        ((None, *OTHERS), set()),
    ],
)
def test_findings_about_the_launches(tmp_path: Path, values: tuple[float | None, ...], found: set[str]) -> None:
    assert codes(case_of(tmp_path, launches(*values), count=len(values))) == found


def test_launches_that_began_warm_are_a_finding(tmp_path: Path) -> None:
    case = RepeatCase(LaunchOptions(script="x.py", output_dir=tmp_path), [], [], repeat_request(2))
    wait: dict[str, Any] = {"gpu_uuid": "GPU-1", "target_c": 40.0, "begin_c": 60, "waited_s": 300.0}
    for place, (numbers, reached) in enumerate(zip(launches(10.0, 10.0), (True, False), strict=True)):
        waits = [GpuWait(**wait, end_c=40 if reached else 50, reached=reached)]
        case.add(RepeatRow(folder=f"launch_{place}", place=place, status="ok", waits=waits), numbers)
    (finding,) = case.repeat.findings
    assert finding.code == "launches-began-warm"
    assert "launch_1 at 50" in finding.message


def no_entries() -> Any:
    pytest.fail("entries are not needed")


def result_of(**processes: Any) -> list[ProcessResult]:
    """Processes with a stage of these times."""
    found = []
    for times in processes.values():
        values = BatchValues({"cpu_time": times}, np.zeros(len(times), bool), is_batch=False)
        found.append(ProcessResult([], no_entries, {path_of(BATCH): values}, {}, {}, [], True, []))
    return found


def test_one_launch_with_many_batches_has_an_interval_of_its_own(tmp_path: Path) -> None:
    batches = np.random.default_rng(3).normal(10, 1, 400)
    within = within_launch(result_of(a=batches), BATCH)
    assert within["cpu_time"] == pytest.approx(1.97 / 20, rel=0.5)
    numbers = LaunchNumbers({BATCH: {"cpu_time": 10.0}}, {}, [BATCH], None, {}, {BATCH: within})
    alone = case_of(tmp_path, [numbers], count=1).repeat.stages[BATCH]["cpu_time"]
    assert alone.scope == "within-launch"
    assert alone.high == pytest.approx(10 + within["cpu_time"], abs=1e-6)
    assert alone.reason  # why it is not about launches
    assert within_launch(result_of(a=batches[:100]), BATCH) == {}  # too few
    several = within_launch(result_of(a=np.asarray([9.0, 9.0]), b=np.asarray([11.0, 11.0])), BATCH)
    assert several["cpu_time"] == pytest.approx(12.706205, rel=1e-6)  # t of one degree, a standard error of 1
    assert within_launch(result_of(a=np.asarray([1.0, np.nan])), BATCH) == {}


def run_id(folder: Path) -> str:
    return RunManifest.model_validate_json((folder / "manifest.json").read_text()).run_id


def repeated(folder: Path, count: int = 3) -> RepeatCase:
    case = RepeatCase(LaunchOptions(script="x.py", output_dir=folder), [], ["perfharness"], repeat_request(count))
    for place in range(count):
        two_processes(folder / f"launch_{place}")
        (summary,) = analyze(folder / f"launch_{place}").summaries  # type: ignore[union-attr]
        row = RepeatRow(folder=f"launch_{place}", place=place, status="ok", run_id=run_id(folder / f"launch_{place}"))
        manifest = RunManifest.model_validate_json((folder / f"launch_{place}" / "manifest.json").read_text())
        case.add(row, LaunchNumbers.of(f"launch_{place}", manifest, summary))
    return case


def test_the_launches_of_a_folder(tmp_path: Path) -> None:
    case = repeated(tmp_path)
    two_processes(tmp_path / "launch_10")  # of an earlier, longer repeat
    assert repeated_launches(tmp_path) == tuple(case.launches) == tuple(tmp_path / f"launch_{n}" for n in range(3))
    (tmp_path / "repeat.json").unlink()
    assert [path.name for path in repeated_launches(tmp_path)] == ["launch_0", "launch_1", "launch_2", "launch_10"]


def test_launches_of_two_repeats_are_not_mixed(tmp_path: Path) -> None:
    case = repeated(tmp_path, 2)
    rows = [case.rows[0], case.rows[1].model_copy(update={"run_id": "another"})]
    other = RepeatCase(case.options, [], [], case.request)
    for row, numbers in zip(rows, case.numbers, strict=True):
        other.add(row, numbers)
    with pytest.raises(ResultError, match="launch_1"):
        repeated_launches(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"rows": [{"folder": "launch_0/../../launch_1", "place": 0, "status": "ok"}]},
        {"stages": 3},
    ],
)
def test_a_damaged_file_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    repeated(tmp_path, 2)
    content = json.loads((tmp_path / "repeat.json").read_text())
    (tmp_path / "repeat.json").write_text(json.dumps(content | change))
    with pytest.raises(ResultError):
        repeated_launches(tmp_path)
    assert run(["analyze", str(tmp_path)]) == 1


def test_a_launch_that_failed_is_listed_and_not_counted(tmp_path: Path) -> None:
    case = repeated(tmp_path, 2)
    case.add(RepeatRow(folder="launch_2", place=2, status="failed", reason="it broke"))
    assert len(repeated_launches(tmp_path)) == 2
    assert len(case.repeat.stages[BATCH]["cpu_time"].values) == 2
    assert [row.status for row in case.repeat.rows] == ["ok", "ok", "failed"]


def test_analysed_again_it_has_new_numbers_and_keeps_its_rows(tmp_path: Path) -> None:
    case = repeated(tmp_path, 2)
    before = case.repeat
    assert before.stages[BATCH]["cpu_time"].values == [9.0, 9.0]
    found = analyze(tmp_path, warmup_batches=0)
    again = read_repeat(tmp_path)
    assert again is not None
    assert again == found.repeat  # type: ignore[union-attr]
    assert (again.rows, again.created, again.asked) == (before.rows, read_repeat(tmp_path).created, before.asked)  # type: ignore[union-attr]
    assert update_repeat(tmp_path, []) == again  # without the launches it stays as it is


def test_analysed_again_the_findings_of_the_repeat_are_reported(tmp_path: Path) -> None:
    repeated(tmp_path, 2)
    for number in range(2):
        path = tmp_path / f"launch_{number}" / "manifest.json"
        content = json.loads(path.read_text())
        load = conditions(number, disturbed=number == 1).load
        assert load is not None
        path.write_text(json.dumps({**content, "companions": {"yardstick": load.model_dump(mode="json")}}))
    found = analyze(tmp_path)
    assert "machine-unsteady" in {finding.code for finding in found.findings}
    again = read_repeat(tmp_path)
    assert again is not None
    assert again.machine is not None
    assert again.machine.relative == 1.0


def test_figures_of_a_launch(tmp_path: Path) -> None:
    (summary,) = analyze(two_processes(tmp_path)).summaries  # type: ignore[union-attr]
    figures = stage_figures(summary.mean)
    assert set(figures) == {BATCH, f"{BATCH}/load", f"{BATCH}/infer"}
    assert figures[BATCH]["cpu_time"] == figures[BATCH]["cpu_time_p50"] == 9.0
    assert figures[BATCH]["cpu_time_p99"] is None
    assert loop_paths(summary.mean) == [BATCH]
    assert set(run_figures(summary.mean)) == {"items_per_second"}


@given(st.lists(st.text(min_size=1), min_size=1, max_size=4))
def test_a_path_is_read_back(keys: list[str]) -> None:
    assert path_of(path_text(tuple(keys))) == tuple(keys)
