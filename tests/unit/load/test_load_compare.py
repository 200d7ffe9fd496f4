"""Load tests in `compare` and `--fail-if`: which figures, and when they are not comparable."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfharness.errors import UsageError
from perfharness.model.load import LoadResult
from perfharness.runs.comparison.compare import compare_sides
from perfharness.runs.comparison.compared_figure import Figure
from perfharness.runs.comparison.compared_launch import LaunchFigures
from perfharness.runs.comparison.limits import judge_limit, parse_limit
from perfharness.runs.comparison.load_test import load_figures, load_text, stress_test
from perfharness.runs.comparison.matched_sides import CompareOptions, SideInput


def load(p99_ms: float | None = 20.0, errors: int = 2, rate: float = 50.0) -> LoadResult:
    times = {"count": 0}
    latency = {"count": 98, "p50": {"value": 10.0}, "p99": {"value": p99_ms, "reason": None if p99_ms else "too few"}}
    phase = {
        "name": "load", "loop": "open", "asked_rate": rate, "achieved_rate": rate, "concurrency": 1, "start_s": 0,
        "duration_s": 2, "arrivals": 100, "sent": 100, "completed": 100, "ok": 100 - errors, "items": 98,
        "latency": latency, "queueing": times, "service": times, "lateness": times,
        "errors": {"timeout": errors} if errors else {},
    }  # fmt: skip
    warm = {**phase, "name": "warm-up", "is_warmup": True, "duration_s": 60, "latency": {"p50": {"value": 99.0}}}
    return LoadResult.model_validate(
        {
            "target": {"kind": "callable", "name": "app:answer"}, "profile": {"phases": [{"rate": rate}]},
            "status": "ok", "created": "2026-01-01T00:00:00+00:00", "duration_s": 2, "phases": [warm, phase],
            "windows": [],
        }
    )  # fmt: skip


def launch(name: str, result: LoadResult) -> LaunchFigures:
    found = load_figures(result)
    figures = {figure: one.value for figure, one in found.items()}
    reasons = {figure: one.reason for figure, one in found.items() if one.reason}
    return LaunchFigures(Path(name), name, None, None, figures, reasons, {"load": load_text(result)})


def sides(base: LoadResult, new: LoadResult) -> tuple[SideInput, SideInput]:
    return (
        SideInput("base", [launch(f"a{n}", base) for n in range(3)]),
        SideInput("new", [launch(f"b{n}", new) for n in range(3)]),
    )


def test_a_slower_p99_is_slower() -> None:
    base, new = sides(load(20.0), load(30.0))
    (version,) = compare_sides(base, [new], CompareOptions()).versions
    rows = {row.metric: row for row in version.rows}
    assert (rows["load_p99"].verdict, rows["load_p50"].verdict) == ("slower", "same")
    assert rows["load_p99"].ratio == pytest.approx(1.5)
    assert rows["error_rate"].unit == "share"


def test_other_loads_are_not_compared_unless_that_is_meant() -> None:
    base, new = sides(load(rate=50), load(rate=60))
    comparison = compare_sides(base, [new], CompareOptions())
    assert {row.verdict for row in comparison.versions[0].rows} == {"not-comparable"}
    assert [one.name for one in comparison.versions[0].differences] == ["load"]
    allowed = compare_sides(base, [new], CompareOptions(allowed=frozenset({"load"})))
    assert {row.verdict for row in allowed.versions[0].rows} != {"not-comparable"}


@pytest.mark.parametrize(
    ("text", "failed"),
    [
        ("latency.p99 > 20ms", False), ("latency.p99 >= 0.019s", True), ("latency.p50 > 9ms", True),
        ("error_rate > 0.01", True), ("achieved_rate < 49 requests/s", False), ("latency.p99.9 > 1s", True),
        ("goodput < 1", True),
    ],
)  # fmt: skip
def test_limits_of_a_load_test(text: str, failed: bool) -> None:
    """What was not measured fails too: p99.9 and goodput here."""
    result = judge_limit(parse_limit(text), [], [launch("a", load())], "run")
    assert result.failed == failed
    assert (result.value is None) == (result.reason is not None)


def test_a_share_is_no_percentage_and_its_mean_is_that_of_the_launches() -> None:
    with pytest.raises(UsageError, match=r"0\.01"):
        parse_limit("error_rate > 1%")  # 10 % of errors on both sides would be a change of 0 %
    with pytest.raises(UsageError, match=r"0\.005"):
        parse_limit("phases.burst.error_rate > 0.5 %")
    found = [LaunchFigures(Path("a"), "a", None, None, {Figure((), "error_rate"): one}) for one in (1e-6, 1e-6, 0.6)]
    result = judge_limit(parse_limit("error_rate > 0.01"), [], found, "run")
    assert result.failed
    assert result.value == pytest.approx(0.2, rel=1e-4)


def in_phases(**p99_ms: float) -> LaunchFigures:
    """A load test with phases, the first one the longest."""
    parts = [load(ms).phases[1] for ms in p99_ms.values()]
    phases = [
        part.model_copy(update={"name": name.replace("_", "."), "duration_s": 10.0 - place})
        for place, (name, part) in enumerate(zip(p99_ms, parts, strict=True))
    ]
    test = stress_test(load().model_copy(update={"phases": phases}))
    found = {**test.figures, **test.figures_of_phases}
    return LaunchFigures(
        Path("a"), "a", None, None, {figure: one.value for figure, one in found.items()}, {}, {"load": "x"}
    )


@pytest.mark.parametrize(
    ("text", "failed", "value"),
    [
        ("latency.p99 > 25ms", False, 20.0),
        ("phases.burst.p99 > 25ms", True, 80.0),
        ("phases.burst.p99 > 100ms", False, 80.0),
        ("phases.'ramp.2'.p99 > 25ms", True, 30.0),
        ("phases.ramp.2.p99 > 25ms", True, 30.0),
        ("phases.burst.error_rate > 0.01", True, 0.02),
        ("phases.burst.p99.9 > 1ms", True, None),
    ],
)
def test_limits_of_one_phase(text: str, failed: bool, value: float | None) -> None:
    launch = in_phases(steady=20.0, burst=80.0, ramp_2=30.0)
    result = judge_limit(parse_limit(text), [], [launch], "run")
    assert result.failed == failed
    assert result.value == (None if value is None else pytest.approx(value))


def test_phases_are_compared_only_where_they_are_named() -> None:
    base = SideInput("base", [in_phases(steady=20.0, burst=40.0)] * 2)
    new = SideInput("new", [in_phases(steady=20.0, burst=80.0)] * 2)
    (all_rows,) = compare_sides(base, [new], CompareOptions()).versions
    assert not [row for row in all_rows.rows if row.stage.startswith("phases")]
    (named,) = compare_sides(base, [new], CompareOptions(stages=("phases/burst",))).versions
    (row,) = [row for row in named.rows if row.metric == "load_p99"]
    assert row.stage == "phases/burst"
    assert row.ratio == pytest.approx(2)


def test_a_phase_that_is_not_there_and_a_stage_that_is_called_so() -> None:
    with pytest.raises(UsageError, match="steady, burst"):
        judge_limit(parse_limit("phases.brust.p99 > 1ms"), [], [in_phases(steady=1.0, burst=2.0)], "run")
    stage = Figure(("phases", "decode"), "stage_p99")
    other = LaunchFigures(Path("a"), "a", None, None, {stage: 3.0})
    assert judge_limit(parse_limit("'phases/decode'.p99 > 1ms"), [], [other], "run").failed
    with pytest.raises(UsageError):
        judge_limit(parse_limit("phases.decode.goodput > 1"), [], [other], "run")
