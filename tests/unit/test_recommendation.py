"""The recommendation: constraints by hand, the Pareto front against another way to find it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfharness.analysis.bench_figures import accuracy_loss, baseline_of, is_named, overlap, speedup
from perfharness.analysis.recommendation import OBJECTIVES, Candidate, dominates, pareto_front, recommend
from perfharness.model.bench import AccuracyRecord, CaseResult, Estimate
from perfharness.model.bench_suite import Constraints, MissedConstraint, Recommendation
from tests.unit.bench_results import estimate, made_up, suite_of, whole_suite

BASE = "torch/plain/fp32"


def only(cases: list[CaseResult], **constraints: object) -> Recommendation:
    (found,) = recommend(cases, Constraints.model_validate(constraints), BASE)
    return found


def reasons(found: Recommendation) -> dict[str, str]:
    return {one.case_id.split("-")[1]: one.reason for one in found.excluded}


def test_fastest_without_constraints() -> None:
    found = only([made_up("slow", rate=50), made_up("torch", rate=100), made_up("fast", rate=200)])
    assert found.best == "net-fast-plain-fp32-b1"
    assert found.why == ["most items per second of the 3 cases that were measured: 200 items/s"]
    assert found.front == ["net-fast-plain-fp32-b1"]  # faster also means a shorter latency here
    assert not found.ties
    assert not found.excluded


def test_each_constraint_excludes_and_says_so() -> None:
    cases = [
        made_up("torch", rate=100, memory_bytes=10**9, energy_j=1.0, cosine=1.0),
        made_up("late", rate=200, latency_ms=10.0, memory_bytes=10**9, energy_j=1.0, cosine=1.0),
        made_up("big", rate=300, latency_ms=1.0, memory_bytes=5 * 10**9, energy_j=1.0, cosine=1.0),
        made_up("wrong", rate=400, latency_ms=1.0, memory_bytes=10**9, energy_j=1.0, cosine=0.5),
        made_up("hungry", rate=500, latency_ms=1.0, memory_bytes=10**9, energy_j=7.0, cosine=1.0),
    ]
    cases[0] = made_up("torch", rate=100, latency_ms=1.0, memory_bytes=10**9, energy_j=1.0, cosine=1.0)
    limits = {
        "max_latency_ms": 5,
        "memory_limit_bytes": 2 * 10**9,
        "max_accuracy_loss": 0.1,
        "max_energy_per_item_j": 2,
    }
    found = only(cases, **limits)
    assert found.best == "net-torch-plain-fp32-b1"
    assert reasons(found) == {
        "late": "p95 latency 11 ms > 5 ms",
        "big": "memory 5 GB > 2 GB",
        "wrong": "loss of cosine 0.5 > 0.1",
        "hungry": "energy per item 7 J > 2 J",
    }
    missed = {one.case_id.split("-")[1]: one.missed for one in found.excluded}
    assert missed["big"] == [MissedConstraint(what="memory", value=5.0, limit=2.0, unit="GB")]


def test_a_constraint_that_is_missed_by_little_is_seen_to_be_missed() -> None:
    found = only([made_up("torch", memory_bytes=2_000_000_001)], memory_limit_bytes=2 * 10**9)
    assert reasons(found) == {"torch": "memory 2.000000001 GB > 2 GB"}


def test_the_metric_of_no_constraint_is_none() -> None:
    assert only([made_up("torch", top1=0.7)], accuracy_metric="top1").why == [
        "most items per second of the 1 cases that were measured: 100 items/s"
    ]


def test_latency_at_the_percentile_that_was_asked_for() -> None:
    case = made_up("torch", rate=100, latency_ms=4.0)  # p95 4.4 ms, p99 5.2 ms
    assert only([case], max_latency_ms=5).best is not None
    assert only([case], max_latency_ms=5, latency_percentile="p99").best is None


def test_none_meets_them_and_the_nearest_by_factor() -> None:
    cases = [
        made_up("torch", rate=100, latency_ms=10.0),  # p95 11 ms: 2.2 times the limit
        made_up("near", rate=90, latency_ms=5.0),  # 5.5 ms: 1.1 times
        made_up("gone", status="unavailable", reason="it is not installed"),
    ]
    found = only(cases, max_latency_ms=5)
    assert found.best is None
    assert found.nearest == "net-near-plain-fp32-b1"
    assert found.why == ["the nearest misses them by the smallest factor: p95 latency 5.5 ms > 5 ms"]
    assert reasons(found)["gone"] == "unavailable: it is not installed"


def test_what_was_not_measured_meets_no_constraint() -> None:
    found = only([made_up("torch", reasons={"energy_per_item_j": "no GPU"})], max_energy_per_item_j=1)
    assert found.best is None
    assert reasons(found) == {"torch": "energy per item was not measured (no GPU)"}


def test_wrong_answers_are_never_recommended() -> None:
    found = only([made_up("torch", rate=100, cosine=1.0), made_up("int", rate=900, cosine=0.9, equal=False)])
    assert found.best == "net-torch-plain-fp32-b1"
    assert "wrong answer" in reasons(found)["int"]


def test_nothing_was_measured() -> None:
    found = only([made_up("torch", status="failed", reason="it crashed")])
    assert (found.best, found.nearest, found.why) == (None, None, ["no case was measured"])


def test_ties_are_ties() -> None:
    cases = [made_up("torch", rate=100, spread=0.05), made_up("same", rate=103, spread=0.05), made_up("far", rate=50)]
    found = only(cases)
    assert found.best == "net-same-plain-fp32-b1"
    assert found.ties == ["net-torch-plain-fp32-b1"]
    assert set(found.front) == {"net-same-plain-fp32-b1", "net-torch-plain-fp32-b1"}


def test_interval_that_reaches_beyond_the_limit_is_told() -> None:
    found = only([made_up("torch", latency_ms=4.5, spread=0.05)], max_latency_ms=5)  # p95 4.95 ms, up to 5.2 ms
    assert found.best is not None
    assert any("interval reaches 5.2 ms" in why for why in found.why)


def test_what_only_some_have_does_not_decide_the_front() -> None:
    found = only([made_up("torch", rate=100, energy_j=1.0), made_up("other", rate=90)])
    assert found.front == ["net-torch-plain-fp32-b1"]
    assert "not known of all, so not part of the front: energy per item" in found.why


def test_one_recommendation_for_each_model() -> None:
    found = recommend([made_up("a", model="x"), made_up("a", model="y", rate=5)], Constraints(), None)
    assert [(one.model, one.best) for one in found] == [("x", "x-a-plain-fp32-b1"), ("y", "y-a-plain-fp32-b1")]


def test_the_made_up_suite() -> None:
    suite = whole_suite()
    (found,) = recommend(suite.cases, suite.constraints, suite.baseline)
    assert found.best == "net-tensorrt-engine-fp16-b64"


# ---- speed-up, accuracy ----


def test_speedup_by_hand() -> None:
    base, case = made_up("torch", rate=100, spread=0.1), made_up("fast", rate=300, spread=0.1)
    found = speedup(case, base)
    assert found is not None
    assert found.value == pytest.approx(3.0)
    assert found.low == pytest.approx(270 / 110)
    assert found.high == pytest.approx(330 / 90)
    assert speedup(case, None) is None


def test_baseline_has_the_same_model_and_batch_size() -> None:
    cases = [made_up("torch", 1), made_up("torch", 8), made_up("torch", 8, model="other"), made_up("x", 8)]
    assert baseline_of(cases[3], cases, BASE) is cases[1]
    assert baseline_of(made_up("x", 16), cases, BASE) is None
    assert all(is_named(cases[0].case, name) for name in ("torch", "torch/plain", "torch/fp32", BASE))
    assert not is_named(cases[0].case, "torch/fp16")


def test_accuracy_loss_by_hand() -> None:
    base, case = made_up("torch", top1=0.75), made_up("fast", top1=0.73)
    assert accuracy_loss(case, base, "top1") == pytest.approx(0.02)
    assert accuracy_loss(case, None, "top1") == pytest.approx(0.27)
    assert accuracy_loss(made_up("x", cosine=0.999), None, None) == pytest.approx(0.001)
    assert accuracy_loss(made_up("x", cosine=0.999), made_up("torch", cosine=0.99), None) == pytest.approx(0.001)
    assert accuracy_loss(made_up("x"), None, None) is None
    assert suite_of(case).cases[0] is case


@pytest.mark.parametrize(
    ("metric", "base", "value", "loss"),
    [
        ("top1", 0.75, 0.73, 0.02),
        ("mean_class_accuracy", 0.75, 0.73, 0.02),
        ("depth.delta1", 0.9, 0.8, 0.1),
        ("depth.abs_rel", 0.1, 0.15, 0.05),
        ("y.rmse", 0.1, 0.15, 0.05),
        ("y.cosine", None, 0.99, 0.01),
        ("y.mse", None, 0.02, 0.02),
        ("y.nan_count", None, 3.0, 3.0),
        ("top1_difference", None, -0.02, 0.02),
        ("top1_difference", 0.5, -0.02, 0.02),
    ],
)
def test_which_way_a_metric_is_worse(metric: str, base: float | None, value: float, loss: float) -> None:
    def case(number: float | None) -> CaseResult:
        return made_up("x", accuracy=AccuracyRecord(against="labels", samples=9, metrics={metric: number}))

    assert accuracy_loss(case(value), case(base), metric) == pytest.approx(loss)


@pytest.mark.parametrize(("metric", "loss"), [("wer", 0.035), ("word_error", 0.035), ("lossless", 0.035)])
def test_which_way_an_own_metric_is_worse_is_declared(metric: str, loss: float) -> None:
    """A word error rate of 0.035, the baseline's is 0: by its name the metric might be either."""

    def case(number: float) -> CaseResult:
        return made_up("x", accuracy=AccuracyRecord(against="labels", samples=9, metrics={metric: number}))

    assert accuracy_loss(case(0.035), case(0.0), metric) is None
    assert accuracy_loss(case(0.035), case(0.0), metric, "lower") == pytest.approx(loss)
    assert accuracy_loss(case(0.035), case(0.0), metric, "higher") == pytest.approx(-loss)
    assert accuracy_loss(case(0.035), None, metric, "lower") == pytest.approx(loss)
    assert accuracy_loss(case(40.0), None, metric, "higher") is None, "nobody says what is perfect"
    limits = Constraints(max_accuracy_loss=0.01, accuracy_metric=metric, accuracy_direction="lower")
    (found,) = recommend([case(0.035)], limits, None)
    assert (found.best, found.nearest) == (None, case(0.035).case.case_id)


def test_cosine_of_an_output_that_has_none_is_not_the_others() -> None:
    record = AccuracyRecord(against="torch", samples=9, metrics={"a.cosine": 1.0, "b.cosine": None})
    assert accuracy_loss(made_up("x", accuracy=record), None, None) is None


def test_cosine_of_the_worst_output_stands_in() -> None:
    record = AccuracyRecord(against="torch", samples=9, metrics={"a.cosine": 0.999, "b.cosine": 0.9, "b.mse": 1.0})
    assert accuracy_loss(made_up("x", accuracy=record), None, None) == pytest.approx(0.1)


# ---- the front ----

numbers = st.integers(0, 6).map(float)


@st.composite
def candidates(draw: st.DrawFn, *, points: bool = False) -> list[Candidate]:
    """Few different values, so that many are equal; intervals around them, or none."""
    count = draw(st.integers(1, 12))
    known = draw(st.lists(st.booleans(), min_size=len(OBJECTIVES), max_size=len(OBJECTIVES)))

    def one() -> Estimate:
        value, spread = draw(numbers), 0.0 if points else draw(st.integers(0, 2)) * 0.75
        return Estimate(value=value, low=value - spread, high=value + spread)

    return [Candidate(str(number), tuple(one() if is_known else None for is_known in known)) for number in range(count)]


@given(candidates())
def test_nobody_dominates_a_member_and_somebody_everyone_else(found: list[Candidate]) -> None:
    front = pareto_front(found)
    shared = [index for index in range(len(OBJECTIVES)) if found[0].objectives[index] is not None]
    assert front
    for one in found:
        beaten = any(dominates(other, one, shared) for other in found)
        assert beaten == (one.case_id not in front)
        assert not dominates(one, one, shared)


@given(candidates(points=True))
def test_without_intervals_it_is_the_classical_front(found: list[Candidate]) -> None:
    """By counting in NumPy: of the points that are at least as good everywhere, all are equal to the point itself."""
    shared = [index for index in range(len(OBJECTIVES)) if found[0].objectives[index] is not None]
    table = np.array([[value.value for index in shared if (value := one.objectives[index])] for one in found])
    table = table.reshape(len(found), len(shared))
    expected = []
    for position, row in enumerate(table):
        as_good = table[(table <= row).all(axis=1)]
        if (as_good == row).all():
            expected.append(found[position].case_id)
    assert pareto_front(found) == expected


@given(candidates(), st.data())
def test_dominance_has_no_cycles(found: list[Candidate], data: st.DataObject) -> None:
    """Following who beats whom comes to an end."""
    shared = [index for index in range(len(OBJECTIVES)) if found[0].objectives[index] is not None]
    at = data.draw(st.sampled_from(found))
    for _ in found:
        better = [other for other in found if dominates(other, at, shared)]
        if not better:
            assert at.case_id in pareto_front(found)
            return
        at = better[0]
    pytest.fail("a cycle")


@given(st.floats(0, 10), st.floats(0, 10), st.floats(0, 1), st.floats(0, 1))
def test_overlap_is_symmetric_and_of_itself(a: float, b: float, s: float, t: float) -> None:
    one, other = estimate(a, s), estimate(b, t)
    assert overlap(one, other) == overlap(other, one)
    assert overlap(one, one)
