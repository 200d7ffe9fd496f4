"""What tracing costs, of launches that were made up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfharness.errors import UsageError
from perfharness.runs.figures import Figures
from perfharness.runs.series.overhead import Overhead, overhead_cases, overhead_options, summarize_overhead
from perfharness.runs.series.repeat import RepeatCase, repeat_request
from perfharness.runs.series.repeat_file import RepeatRow
from perfharness.runs.series.repeat_numbers import LaunchNumbers
from perfharness_launcher.options import LaunchOptions
from tests.schemas import valid
from tests.unit.run_records import manifest_of, process

BATCH = "toy/pipeline/batch"


def case(folder: Path, times: list[float], first: int, *, stage: str = "load", cpu_s: float = 2.0) -> RepeatCase:
    made = RepeatCase(LaunchOptions(script="x.py", output_dir=folder), [], ["perfharness"], repeat_request(len(times)))
    for number, time in enumerate(times):
        run = folder / f"launch_{number}"
        run.mkdir(parents=True)
        record = process(0, duration_s=time, user_s=cpu_s, system_s=1.0)
        (run / "manifest.json").write_text(manifest_of(record).model_dump_json())
        stages: dict[str, Figures] = {
            BATCH: {"cpu_time": time, "cpu_time_p50": 0.5 * time, "cpu_time_p95": 2 * time},
            f"{BATCH}/{stage}": {"cpu_time": time / 2},
        }
        numbers = LaunchNumbers(stages, {"items_per_second": 1000 / time}, [BATCH])
        made.add(RepeatRow(folder=run.name, place=2 * number + first, status="ok", run_id=f"{number}"), numbers)
    return made


def measured(folder: Path, untraced: list[float], traced: list[float]) -> Overhead:
    cases = [case(folder / "traced", traced, 1), case(folder / "untraced", untraced, 0)]
    return summarize_overhead(LaunchOptions(script="x.py", output_dir=folder), cases, ["perfharness"])


BASE = [10.0, 10.1, 9.9, 10.05]


@pytest.mark.parametrize(
    ("factors", "grade", "codes"),
    [
        ((1.0, 1.0, 1.0, 1.0), "fine", []),
        ((1.05, 1.05, 1.05, 1.05), "fine", []),
        ((1.15, 1.15, 1.15, 1.15), "warn", ["tracing-costs-some"]),
        ((1.3, 1.3, 1.3, 1.3), "distrust", ["tracing-costs-much"]),
        ((1.15, 1.3, 1.4, 1.25), "warn", ["tracing-costs-some"]),  # 27 %, and 11 % at least
        ((0.8, 1.0, 2.2, 1.6), "undecided", []),  # 29 %, of launches that differ too much to say so
        ((0.7, 1.0, 1.4, 1.1), "undecided", []),
        ((0.7, 0.7, 0.7, 0.7), "undecided", []),
    ],
)
def test_grades(tmp_path: Path, factors: tuple[float, ...], grade: str, codes: list[str]) -> None:
    found = measured(tmp_path, BASE, [base * factor for base, factor in zip(BASE, factors, strict=True)])
    assert found.grade == grade == found.stages[BATCH].grade
    assert [finding.code for finding in found.findings] == codes
    assert found.stages[f"{BATCH}/load"].overhead == found.stages[BATCH].overhead
    assert (found.stages[BATCH].reason is not None) == (grade == "undecided")
    if grade != "undecided":
        assert found.stages[BATCH].launches_needed is None


def test_an_undecided_stage_says_how_many_launches_would_decide_it(tmp_path: Path) -> None:
    traced = {"wide": [8.0, 10.1, 21.8, 16.1], "nearly fine": [10.3, 10.9, 9.8, 10.45]}
    found = {name: measured(tmp_path / name, BASE, times).stages[BATCH] for name, times in traced.items()}
    for row in found.values():
        assert row.grade == "undecided"
        assert row.launches_needed is not None
        assert row.launches_needed > len(BASE)
    assert found["nearly fine"].launches_needed < found["wide"].launches_needed  # type: ignore[operator]


def test_small_figures_keep_their_digits(tmp_path: Path) -> None:
    row = measured(tmp_path, BASE, [base * 1.0000123456 for base in BASE]).stages[BATCH]
    assert row.overhead == pytest.approx(1.23456e-5, rel=1e-5)


@settings(max_examples=25)  # each writes up to 16 launches
@given(st.lists(st.tuples(st.floats(1, 100), st.floats(1, 100)), min_size=3, max_size=8))
def test_the_interval_is_that_of_scipy(pairs: list[tuple[float, float]]) -> None:
    import tempfile

    untraced, traced = ([one[side] for one in pairs] for side in (0, 1))
    if len({*untraced}) < 2 or len({*traced}) < 2:
        return
    with tempfile.TemporaryDirectory() as folder:
        row = measured(Path(folder), untraced, traced).stages[BATCH]
    logs = [np.log(side) for side in (untraced, traced)]
    if min(float(side.std()) for side in logs) < 1e-6:
        return
    from scipy import stats  # takes long to import

    expected = stats.ttest_ind(logs[1], logs[0], equal_var=False).confidence_interval(0.95)
    assert row.overhead == pytest.approx(np.exp(logs[1].mean() - logs[0].mean()) - 1, abs=2e-6)
    if row.low is not None and row.high is not None:
        assert row.low == pytest.approx(np.exp(expected.low) - 1, rel=1e-3, abs=2e-6)
        assert row.high == pytest.approx(np.exp(expected.high) - 1, rel=1e-3, abs=2e-6)


def test_the_file(tmp_path: Path) -> None:
    found = measured(tmp_path, BASE, [12.0, 12.1, 11.9, 12.05])
    assert Overhead.model_validate(valid("overhead", tmp_path / "overhead.json")) == found
    assert found.loops == [BATCH]
    assert found.latency[BATCH]["cpu_time_p95"].mean == pytest.approx(2 * np.mean(BASE))
    assert set(found.medians) == {BATCH}
    assert found.medians[BATCH].overhead == found.stages[BATCH].overhead
    assert found.run["items_per_second"].overhead == pytest.approx(-1 / 6, abs=1e-3)
    assert found.run["items_per_second"].grade == "warn", "a rate that is lost by 17 % is a time that is 20 % longer"
    assert found.run["duration_s"].overhead == found.stages[BATCH].overhead
    assert found.run["cpu_s"].untraced is not None
    assert found.run["cpu_s"].untraced.mean == 3.0


def test_one_launch_of_each_is_undecided(tmp_path: Path) -> None:
    row = measured(tmp_path, [10.0], [20.0]).stages[BATCH]
    assert (row.grade, row.low, row.high) == ("undecided", None, None)
    assert row.overhead == 1.0
    assert row.reason is not None


def test_a_stage_of_one_kind_only(tmp_path: Path) -> None:
    cases = [case(tmp_path / "traced", BASE, 1, stage="read"), case(tmp_path / "untraced", BASE, 0)]
    found = summarize_overhead(LaunchOptions(script="x.py", output_dir=tmp_path), cases, ["perfharness"])
    alone = found.stages[f"{BATCH}/read"], found.stages[f"{BATCH}/load"]
    assert all(row.grade == "undecided" and row.overhead is None and row.reason for row in alone)
    assert found.grade == "fine", "that of the batches"


def test_what_is_launched() -> None:
    options = LaunchOptions(script="x.py", output_dir=Path("out"), nsys=Path("/nsys"), trace_os=True)
    traced, untraced = overhead_cases(options)
    assert (traced.tracer, traced.nsys, traced.output_dir) == ("auto", Path("/nsys"), Path("out/traced"))
    assert (untraced.tracer, untraced.nsys, untraced.trace_os) == ("ranges", None, False)
    assert [str(one.output_dir) for one in overhead_options(options, repeat_request(2))] == [
        "out/traced/launch_0", "out/traced/launch_1", "out/untraced/launch_0", "out/untraced/launch_1",
    ]  # fmt: skip


@pytest.mark.parametrize("change", [{"tracer": "none"}, {"tracer": "ranges"}, {"explain": True}])
def test_what_cannot_be_measured(change: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="--overhead"):
        overhead_cases(LaunchOptions(**{"script": "x.py", **change}))  # type: ignore[arg-type]
