"""What several launches come to, by hand; the file, and the folders that it lists."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from perfharness.cli.main import run
from perfharness.errors import ResultError
from perfharness.model.conditions import GpuWait, LoopTime, MachineLoad
from perfharness.model.result import path_of, path_text
from perfharness.render.charts.drawing import Picture
from perfharness.render.charts.scaling import scaling_picture
from perfharness.render.markdown import blocks_as_markdown
from perfharness.render.views.series import series_view
from perfharness.runs.analyze import AnalyzedRuns, analyze
from perfharness.runs.series.launching import SeriesRun, series_in_turns, series_of
from perfharness.runs.series.machine import LaunchConditions
from perfharness.runs.series.model import Series, SeriesRow, read_series, runs_in
from perfharness.runs.series.summary import LaunchFacts, new_series
from perfharness_launcher.options import LaunchOptions
from tests.schemas import valid
from tests.unit.export_runs import series_of_runs, two_processes

BATCH = "toy/pipeline/batch"
OPTIONS = LaunchOptions(script="x.py", output_dir=Path("out"))


def facts_of(folder: str, loop_ms: float = 1.0) -> LaunchFacts:
    loop = LoopTime(wall_ms=loop_ms, cpu_ms=1.0)
    return LaunchFacts(LaunchConditions(folder, MachineLoad(cpus=2, loop_before=loop, loop_after=loop), None), [BATCH])


def rows_of(times: Sequence[float | None], label: str = "launch", **more: Any) -> list[SeriesRow]:
    """Launches whose batches took that long."""
    prefix = "" if label == "launch" else f"{label}/"
    return [
        SeriesRow(
            label=label,
            folder=f"{prefix}launch_{number}",
            place=2 * number + (label == "traced"),
            figures={
                "": {"items_per_second": None if time is None else 1000 / time},
                BATCH: {"cpu_time": time, "gpu_time": 0.0},
                f"{BATCH}/load": {"cpu_time": 1.0, **({} if number else {"cpu_time_p99": 1.0})},
            },
            **more,
        )
        for number, time in enumerate(times)
    ]


def repeat_of(times: Sequence[float | None], *, disturbed: Sequence[int] = ()) -> Series:
    rows = rows_of(times)
    facts = {row.folder: facts_of(row.folder, 2.0 if row.place // 2 in disturbed else 1.0) for row in rows}
    return new_series("repeat", rows, ["perfharness"], "x.py", facts=facts)


def test_means_medians_and_intervals_by_hand() -> None:
    series = repeat_of((9.0, 10.0, 11.0))
    found = series.summary["launch"]
    batch = found[BATCH]["cpu_time"]
    assert (batch.count, batch.mean, batch.std, batch.median, batch.min, batch.max) == (3, 10.0, 1.0, 10.0, 9.0, 11.0)
    assert batch.low == pytest.approx(10 - 4.302653 / 3**0.5, rel=1e-6)
    assert set(found[BATCH]) == {"cpu_time"}, "the GPU did nothing"
    assert found[f"{BATCH}/load"]["cpu_time_p99"].mean is None, "two launches do not have it"
    assert found[""]["items_per_second"].mean == pytest.approx((1000 / 9 + 100 + 1000 / 11) / 3)
    assert series.loops == [BATCH]
    assert Series.model_validate(valid("series", series)) == series


@pytest.mark.parametrize(("times", "mean", "median"), [((9.0,), 9.0, 9.0), ((9.0, None, 10.0), None, 9.5)])
def test_what_has_no_interval_has_a_reason(times: tuple[float | None, ...], mean: float | None, median: float) -> None:
    found = repeat_of(times).summary["launch"][BATCH]["cpu_time"]
    assert (found.mean, found.low, found.high, found.median) == (mean, None, None, median)
    assert found.reason


OTHERS = (10.0, 10.2, 9.9, 10.1, 10.05)


@pytest.mark.parametrize(
    ("times", "disturbed", "codes"),
    [
        ((10.0, 11.0, 12.0, 13.0, 14.0), (), {"launches-drift"}),
        ((10.0, 14.0, 12.0, 11.0, 13.0), (), set()),
        ((14.0, *OTHERS), (), {"first-launch-differs"}),
        ((10.3, *OTHERS), (), set()),
        ((None, *OTHERS), (), set()),
        ((10.0, 10.1, 9.9, 10.0), (), set()),
        ((10.0, 10.1, 9.9, 10.0), (2,), {"machine-unsteady"}),
        ((5.0, 10.0, 15.0), (2,), set()),  # the interval of ±124 % is wider
    ],
)
def test_findings(times: tuple[float | None, ...], disturbed: tuple[int, ...], codes: set[str]) -> None:
    series = repeat_of(times, disturbed=disturbed)
    assert {finding.code for finding in series.findings} == codes
    if disturbed:
        assert (series.machine[0].worst, series.machine[0].relative) == ("launch_2", 1.0)


def test_launches_that_began_warm_are_a_finding() -> None:
    first, second = rows_of((10.0, 10.0))
    wait = GpuWait(gpu_uuid="GPU-1", target_c=40.0, begin_c=60, end_c=50, waited_s=300.0, reached=False)
    rows = [first, second.model_copy(update={"waits": [wait]})]
    (finding,) = new_series("repeat", rows, [], "x.py").findings
    assert finding.code == "launches-began-warm"
    assert "launch_1 at 50" in finding.message


# ---- numbers of processes ----


def sweep_of(rates: dict[int, float | None], **figures: float) -> Series:
    rows = [
        SeriesRow(
            label=f"{number} processes",
            folder=f"np_{number}",
            place=place,
            num_processes=number,
            status="failed" if rate is None else "ok",
            figures={} if rate is None else {"": {"items_per_second": rate, **figures}},
        )
        for place, (number, rate) in enumerate(rates.items())
    ]
    return new_series("processes", rows, [], "x.py")


@pytest.mark.parametrize(
    ("rates", "figures", "knee", "word"),
    [
        # speedup, efficiency, slowdown: each of four gets 50 items/s where one alone got 100
        ({1: 100, 2: 180, 4: 200}, [(1, 1, 1), (1.8, 0.9, 1 / 0.9), (2, 0.5, 2)], 2, "-np 2"),
        ({4: 300, 1: None, 2: 200}, [(1.5, 0.75, 1 / 0.75), (None, None, None), (1, 1, 1)], None, "good"),
        ({1: 100, 2: 190, 4: 300, 8: 340}, None, 4, "-np 4"),  # steps: 0.9, 0.55, 0.1 of a process each
        ({8: 340, 1: 100, 4: 300, 2: 190}, None, 4, "-np 4"),  # in whatever order they ran
        ({1: 100, 2: 90}, None, 1, "slower"),
        ({1: 100, 2: 200, 4: 400, 8: 800}, None, None, "good"),
        ({1: 100, 2: 150, 3: 200}, None, None, "good"),  # half is enough
        ({1: 100, 2: None, 4: 110, 8: None}, None, 1, "-np 1"),  # a launch that failed is stepped over
        ({1: 100, 2: None}, None, None, "not known"),
    ],
)
def test_scaling(
    rates: dict[int, float | None], figures: list[tuple[float | None, ...]] | None, knee: int | None, word: str
) -> None:
    series = sweep_of(rates)
    assert series.knee == knee
    assert word in str(series.conclusion)
    if figures is not None:
        names = ("speedup", "efficiency", "slowdown")
        found = [tuple(row.figures.get("", {}).get(name) for name in names) for row in series.rows]
        assert found == [tuple(None if one is None else pytest.approx(one) for one in each) for each in figures]


@given(st.lists(st.integers(1, 64), min_size=2, max_size=6, unique=True), st.floats(0.51, 1.5))
def test_a_straight_line_above_the_threshold_has_no_knee(numbers: list[int], slope: float) -> None:
    first = min(numbers)
    assert sweep_of({number: first + slope * (number - first) for number in numbers}).knee is None


def lines_of(picture: Picture) -> list[dict[str, list[float | None]]]:
    """Values by line, of each panel."""
    found: dict[str, dict[str, list[float | None]]] = {}
    for label, rows in picture.rows.items():
        for row in rows:
            if "line" in row:
                found.setdefault(label, {}).setdefault(row["line"], []).append(row["value"])
    return list(found.values())


def test_the_picture_has_a_panel_for_each_quantity_that_was_measured() -> None:
    figures = {"latency_p50_ms": 1.0, "gpu_busy_share": 0.75, "gpu_power_w": 500.0}
    picture = scaling_picture(sweep_of({4: None, 1: 100.0, 2: 140.0}, **figures))
    assert lines_of(picture) == [
        {"measured": [100.0, 140.0, None], "ideal": [100.0, 200.0, 400.0]},
        {"p50": [1.0, 1.0, None]},
        {"": [1.0, pytest.approx(0.7), None]},
        {"": [0.75, 0.75, None]},
        {"": [500.0, 500.0, None]},
    ]
    assert [(row["processes"], row["text"]) for row in picture.rows["scaling_marks"]] == [(4, "failed"), (1, "knee")]
    assert lines_of(scaling_picture(sweep_of({1: None, 2: None}))) == []


# ---- what tracing costs ----

BASE = [10.0, 10.1, 9.9, 10.05]


def overhead_of(untraced: Sequence[float], traced: Sequence[float]) -> Series:
    rows = [*rows_of(untraced, "untraced"), *rows_of(traced, "traced")]
    facts = {row.folder: facts_of(row.folder) for row in rows}
    return new_series("overhead", sorted(rows, key=lambda row: row.place), ["perfharness"], "x.py", facts=facts)


@pytest.mark.parametrize(
    ("factors", "is_decided", "severities"),
    [
        ((1.0, 1.0, 1.0, 1.0), True, []),
        ((1.05, 1.05, 1.05, 1.05), True, []),
        ((1.15, 1.15, 1.15, 1.15), True, ["warning"]),
        ((1.3, 1.3, 1.3, 1.3), True, ["error"]),
        ((1.15, 1.3, 1.4, 1.25), True, ["warning"]),  # 27 %, and 11 % at least
        ((0.8, 1.0, 2.2, 1.6), False, []),  # 29 %, of launches that differ too much to say so
        ((0.7, 1.0, 1.4, 1.1), False, []),
        ((0.7, 0.7, 0.7, 0.7), False, []),
    ],
)
def test_what_tracing_costs(factors: tuple[float, ...], is_decided: bool, severities: list[str]) -> None:
    series = overhead_of(BASE, [base * factor for base, factor in zip(BASE, factors, strict=True)])
    batch = series.overhead[BATCH]["cpu_time"]
    assert ("Undecided" not in str(series.conclusion)) == is_decided
    assert f"{100 * (batch.overhead or 0):+.1f} %" in str(series.conclusion)
    costs = [finding.severity.value for finding in series.findings if finding.code == "tracing-costs-much"]
    assert costs == severities
    assert batch.launches_needed is None or not is_decided


def test_an_undecided_overhead_says_how_many_launches_would_decide_it() -> None:
    wide, near = (
        overhead_of(BASE, traced).overhead[BATCH]["cpu_time"].launches_needed or 0
        for traced in ([8.0, 10.1, 21.8, 16.1], [10.3, 10.9, 9.8, 10.45])
    )
    assert wide > near > len(BASE)


def test_rates_small_figures_and_one_launch_of_each() -> None:
    series = overhead_of(BASE, [base * 1.2 for base in BASE])
    assert series.overhead[""]["items_per_second"].overhead == pytest.approx(-1 / 6, abs=1e-3)
    assert series.summary["untraced"][BATCH]["cpu_time"].mean == pytest.approx(np.mean(BASE))
    small = overhead_of(BASE, [base * 1.0000123456 for base in BASE]).overhead[BATCH]["cpu_time"]
    assert small.overhead == pytest.approx(1.23456e-5, rel=1e-5)
    one = overhead_of([10.0], [20.0]).overhead[BATCH]["cpu_time"]
    assert (one.overhead, one.low, one.high) == (1.0, None, None)
    assert one.reason
    none = new_series("overhead", rows_of(BASE, "traced"), [], "x.py")
    assert none.overhead[BATCH]["cpu_time"].reason
    assert none.overhead[BATCH]["cpu_time"].overhead is None


@settings(max_examples=25)
@given(st.lists(st.tuples(st.floats(1, 100), st.floats(1, 100)), min_size=3, max_size=8))
def test_the_interval_is_that_of_scipy(pairs: list[tuple[float, float]]) -> None:
    untraced, traced = ([one[side] for one in pairs] for side in (0, 1))
    logs = [np.log(side) for side in (untraced, traced)]
    if min(float(side.std()) for side in logs) < 1e-6:
        return
    found = overhead_of(untraced, traced).overhead[BATCH]["cpu_time"]
    expected = stats.ttest_ind(logs[1], logs[0], equal_var=False).confidence_interval(0.95)
    assert found.overhead == pytest.approx(np.exp(logs[1].mean() - logs[0].mean()) - 1, abs=2e-6)
    if found.low is not None and found.high is not None:
        assert found.low == pytest.approx(np.exp(expected.low) - 1, rel=1e-3, abs=2e-6)
        assert found.high == pytest.approx(np.exp(expected.high) - 1, rel=1e-3, abs=2e-6)


# ---- how it is shown ----


def failed(series: Series) -> Series:
    """The same with one more launch, which failed."""
    row = SeriesRow(label="launch", folder="launch_9", place=9, status="failed", reason="it broke")
    return new_series(series.kind, [*series.rows, row], [], "x.py")


COLD = [
    SeriesRow(label=label, folder=f"{label}_{place}", place=place, figures={"": {"model_load_ms": time}})
    for place, (label, time) in enumerate(
        (("cold", 300.0), ("warm", 3.0), ("warm", 1.0), ("warm", 8.0), ("warm", None))
    )
]


@pytest.mark.parametrize(
    ("series", "lines"),
    [
        (failed(repeat_of((9.0, 10.0, 11.0))), ["| pipeline/batch | 10.000 ±2.484 |", "- launch_9: it broke"]),
        (repeat_of((9.0, None)), ["| pipeline/batch | - |", "Throughput not measured"]),
        (sweep_of({1: 10.0, 2: 7.4}), ["falls by 26 %", "| 2 | 7.4 | 0.74 | 37.0 % |"]),
        (failed(sweep_of({1: None})), ["Scaling not known", "- launch_9: it broke"]),
        (overhead_of(BASE, [12.0, 12.1, 11.9, 12.05]), ["by +20.0 % (95 %:", "| pipeline/batch | 10.012 ±0.136 |"]),
        (failed(new_series("overhead", [], [], "x.py")), ["not known: no batch", "- launch_9: it broke"]),
        (new_series("cold", COLD, [], "x.py"), ["| 300.0 (300.0 to 300.0) | 3.0 (1.0 to 8.0) |"]),
    ],
)
def test_what_a_reader_sees(series: Series, lines: list[str]) -> None:
    text = blocks_as_markdown(series_view(series))
    assert [line for line in lines if line not in text] == [], text


# ---- what is launched ----


def launched(series_run: SeriesRun) -> list[str]:
    out = series_run.options.output_dir
    return [str(one.options.output_dir.relative_to(out)) for one in series_run.launches]


def test_folders_of_launches() -> None:
    assert launched(series_of(OPTIONS, 2)) == ["launch_0", "launch_1"]
    assert launched(series_of(OPTIONS, 2, cold=True)) == ["first", "cold_0", "warm_0", "cold_1", "warm_1"]
    sweep = series_of(OPTIONS, np_sweep=(1, 2))
    assert launched(sweep) == ["np_1", "np_2"]
    assert [one.options.num_processes for one in sweep.launches] == [1, 2]
    traced = OPTIONS.model_copy(update={"nsys": Path("/nsys"), "trace_os": True})
    overhead = series_of(traced, 1, overhead=True)
    options = {one.label: one.options for one in overhead.launches}
    assert (options["traced"].tracer, options["traced"].nsys) == ("auto", Path("/nsys"))
    assert (options["untraced"].tracer, options["untraced"].nsys, options["untraced"].trace_os) == (
        "ranges", None, False,
    )  # fmt: skip


@given(st.integers(2, 5), st.integers(1, 12), st.integers(0, 2**32))
def test_every_round_has_each_case_once_and_the_seed_decides(cases: int, count: int, seed: int) -> None:
    made = series_in_turns([OPTIONS] * cases, Path("turns"), count, seed)
    labels = [one.label for one in made.launches]
    assert labels == [one.label for one in series_in_turns([OPTIONS] * cases, Path("turns"), count, seed).launches]
    assert all(len({*labels[begin : begin + cases]}) == cases for begin in range(0, len(labels), cases))
    assert len({*launched(made)}) == cases * count


@pytest.mark.parametrize(
    "options",
    [
        *(["--repeat", count] for count in ("0", "-1", str(10**20), "two")),
        *(["--np-sweep", numbers] for numbers in ("", "1,", "0,1", "1,1", "a", "-1", "1;2")),
        ["--np-sweep", "1,2", "-np", "2"],
        ["--np-sweep", "1,2", "--repeat", "2"],
        ["--np-sweep", "1,2", "--cold"],
        ["--np-sweep", "1,2", "--overhead"],
        ["--cold", "--overhead"],
        ["--repeat", "0", "--cold"],
        ["--cold", "-np", "2"],
        ["--cold", "-ng", "2"],
        ["--cold", "--gpus", "0,1"],
        ["--overhead", "--tracer", "none"],
        ["--overhead", "--tracer", "ranges"],
        *([option, *more, "--explain"] for option, *more in (("--overhead",), ("--repeat", "2"), ("--cold",))),
    ],
    ids=" ".join,
)
def test_what_cannot_be_asked_for(options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.py").touch()
    assert run(["launch", *options, "--dry-run", "-o", str(tmp_path / "out"), str(tmp_path / "x.py")]) == 2
    assert options[0] in capsys.readouterr().err


# ---- the file and its folders ----


LAUNCHES = [("launch", "launch_0"), ("launch", "launch_1")]
KINDS = [(label, f"{label}/launch_{number}") for number in range(2) for label in ("traced", "untraced")]


def names(folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in runs_in(folder)]


def test_the_launches_of_a_folder(tmp_path: Path) -> None:
    two_processes(tmp_path / "rep" / "launch_10")  # of an earlier, longer repeat
    assert names(series_of_runs(tmp_path / "rep", "repeat", *LAUNCHES)) == ["launch_0", "launch_1"]
    assert names(series_of_runs(tmp_path / "cost", "overhead", *KINDS)) == ["traced/launch_0", "traced/launch_1"]
    assert names(tmp_path / "cost" / "untraced") == ["launch_0", "launch_1"]
    part = read_series(tmp_path / "cost" / "untraced")
    assert part is not None
    assert (part.kind, [row.folder for row in part.rows]) == ("repeat", ["launch_0", "launch_1"])
    turns = series_of_runs(tmp_path / "turns", "repeat", ("base", "base/launch_0"), ("new", "new/launch_0"))
    assert names(turns / "new") == ["launch_0"]
    with pytest.raises(ResultError, match="base, new"):
        runs_in(turns)
    assert runs_in(tmp_path) == ()


@pytest.mark.parametrize(
    "change",
    [
        {"rows": [{"label": "launch", "folder": "launch_0/../../launch_1", "place": 0}]},
        {"rows": [{"label": "launch", "folder": "launch_0", "place": 0, "run_id": "another"}]},
        {"summary": 3},
    ],
)
def test_a_damaged_file_and_launches_of_another_series_are_refused(change: dict[str, Any], tmp_path: Path) -> None:
    series_of_runs(tmp_path, "repeat", *LAUNCHES, **change)
    with pytest.raises(ResultError):
        runs_in(tmp_path)
    assert run(["analyze", str(tmp_path)]) == 1


def test_analysed_again_it_has_new_figures_and_keeps_its_rows(tmp_path: Path) -> None:
    series_of_runs(tmp_path, "repeat", *LAUNCHES)
    for number, ms in enumerate((1.0, 2.0)):
        path = tmp_path / f"launch_{number}" / "manifest.json"
        load = facts_of("", ms).conditions.load
        assert load is not None
        content = json.loads(path.read_text()) | {"companions": {"yardstick": load.model_dump(mode="json")}}
        path.write_text(json.dumps(content))
    before = read_series(tmp_path)
    found = analyze(tmp_path)
    again = read_series(tmp_path)
    assert isinstance(found, AnalyzedRuns)
    assert again == found.series
    assert before is not None
    assert again is not None
    assert (again.created, [row.run_id for row in again.rows]) == (before.created, ["r1", "r1"])
    batch = again.summary["launch"][BATCH]
    assert (batch["cpu_time"].mean, batch["cpu_time_p50"].mean, "cpu_time_p99" in batch) == (9.0, 9.0, False)
    assert (again.loops, again.machine[0].relative) == ([BATCH], 1.0)
    assert "machine-unsteady" in {finding.code for finding in found.findings}


@given(st.lists(st.text(min_size=1), min_size=1, max_size=4))
def test_a_path_is_read_back(keys: list[str]) -> None:
    assert path_of(path_text(tuple(keys))) == tuple(keys)
