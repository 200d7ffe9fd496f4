"""The recommendation under constraints, speed-ups and accuracy losses, by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfharness.analysis.suites.bench_figures import accuracy_loss, baseline_of, is_named, overlap, speedup
from perfharness.analysis.suites.recommend import recommend
from perfharness.model.bench import AccuracyRecord, CaseResult
from perfharness.model.bench_suite import Constraints, MissedConstraint, Recommendation
from tests.unit.bench_results import estimate, made_up, whole_suite

BASE = "torch/plain/fp32"


def only(cases: list[CaseResult], **constraints: object) -> Recommendation:
    (found,) = recommend(cases, Constraints.model_validate(constraints), BASE)
    return found


def reasons(found: Recommendation) -> dict[str, str]:
    return {one.case_id.split("-")[1]: one.reason for one in found.excluded}


def test_fastest_without_constraints() -> None:
    found = only([made_up("slow", rate=50), made_up("torch", rate=100), made_up("fast", rate=200)], accuracy_metric="x")
    assert found.best == "net-fast-plain-fp32-b1"
    assert not found.ties
    assert not found.excluded


LIMITS = {"max_latency_ms": 5, "memory_limit_bytes": 2 * 10**9, "max_accuracy_loss": 0.1, "max_energy_per_item_j": 2}


def measured(name: str, rate: float = 100, **more: Any) -> CaseResult:
    return made_up(
        name, rate=rate, **({"latency_ms": 1.0, "memory_bytes": 10**9, "energy_j": 1.0, "cosine": 1.0} | more)
    )


def test_each_constraint_excludes_and_says_so() -> None:
    found = only(
        [
            measured("torch"), measured("late", 200, latency_ms=10.0), measured("big", 300, memory_bytes=5 * 10**9),
            measured("wrong", 400, cosine=0.5), measured("hungry", 500, energy_j=7.0),
            measured("close", 600, memory_bytes=2_000_000_001),
        ],
        **LIMITS,
    )  # fmt: skip
    assert found.best == "net-torch-plain-fp32-b1"
    assert set(reasons(found)) == {"late", "big", "wrong", "hungry", "close"}
    assert "2.000000001 GB" in reasons(found)["close"]  # what is missed by little is seen to be missed
    missed = {one.case_id.split("-")[1]: one.missed for one in found.excluded}
    assert missed["big"] == [MissedConstraint(what="memory", value=5.0, limit=2.0, unit="GB")]


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
    assert (found.best, found.nearest) == (None, "net-near-plain-fp32-b1")
    assert "gone" in reasons(found)
    nothing = only([made_up("torch", status="failed", reason="it crashed")])
    assert (nothing.best, nothing.nearest) == (None, None)


def test_what_was_not_measured_meets_no_constraint() -> None:
    found = only([made_up("torch", reasons={"energy_per_item_j": "no GPU"})], max_energy_per_item_j=1)
    assert found.best is None
    assert "no GPU" in reasons(found)["torch"]


def test_wrong_answers_are_never_recommended() -> None:
    found = only([made_up("torch", rate=100, cosine=1.0), made_up("int", rate=900, cosine=0.9, equal=False)])
    assert found.best == "net-torch-plain-fp32-b1"
    assert "int" in reasons(found)


def test_ties_are_ties() -> None:
    cases = [made_up("torch", rate=100, spread=0.05), made_up("same", rate=103, spread=0.05), made_up("far", rate=50)]
    found = only(cases)
    assert (found.best, found.ties) == ("net-same-plain-fp32-b1", ["net-torch-plain-fp32-b1"])


def test_interval_that_reaches_beyond_the_limit_is_told() -> None:
    found = only([made_up("torch", latency_ms=4.5, spread=0.05)], max_latency_ms=5)  # p95 4.95 ms, up to 5.2 ms
    assert found.best is not None
    assert any("5.2 ms" in why for why in found.why)


def test_one_recommendation_for_each_model() -> None:
    found = recommend([made_up("a", model="x"), made_up("a", model="y", rate=5)], Constraints(), None)
    assert [(one.model, one.best) for one in found] == [("x", "x-a-plain-fp32-b1"), ("y", "y-a-plain-fp32-b1")]
    suite = whole_suite()
    (whole,) = recommend(suite.cases, suite.constraints, suite.baseline)
    assert whole.best == "net-tensorrt-engine-fp16-b64"


def test_speedup_by_hand() -> None:
    base, case = made_up("torch", rate=100, spread=0.1), made_up("fast", rate=300, spread=0.1)
    found = speedup(case, base)
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((3.0, 270 / 110, 330 / 90))
    assert speedup(case, None) is None


def test_baseline_has_the_same_model_and_batch_size() -> None:
    cases = [made_up("torch", 1), made_up("torch", 8), made_up("torch", 8, model="other"), made_up("x", 8)]
    assert baseline_of(cases[3], cases, BASE) is cases[1]
    assert baseline_of(made_up("x", 16), cases, BASE) is None
    assert all(is_named(cases[0].case, name) for name in ("torch", "torch/plain", "torch/fp32", BASE))
    assert not is_named(cases[0].case, "torch/fp16")


def labelled(**metrics: float | None) -> CaseResult:
    named = {name.replace("__", "."): value for name, value in metrics.items()}
    return made_up("x", accuracy=AccuracyRecord(against="labels", samples=9, metrics=named))


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
    case, baseline = (labelled(**{metric: number}) for number in (value, base))
    assert accuracy_loss(case, baseline, metric) == pytest.approx(loss)


@pytest.mark.parametrize(
    ("case", "base", "loss"),
    [
        (made_up("x", cosine=0.999), None, 0.001),
        (made_up("x", cosine=0.999), made_up("torch", cosine=0.99), 0.001),
        (made_up("x"), None, None),
        (labelled(a__cosine=1.0, b__cosine=None), None, None),  # an output that has none is not the others
        (labelled(a__cosine=0.999, b__cosine=0.9, b__mse=1.0), None, 0.1),  # the worst output stands in
    ],
)
def test_loss_of_the_cosine(case: CaseResult, base: CaseResult | None, loss: float | None) -> None:
    assert accuracy_loss(case, base, None) == pytest.approx(loss)


@pytest.mark.parametrize("metric", ["wer", "word_error", "lossless"])
def test_which_way_an_own_metric_is_worse_is_declared(metric: str) -> None:
    """A word error rate of 0.035, the baseline's is 0: by its name the metric might be either."""
    case, base = (labelled(**{metric: number}) for number in (0.035, 0.0))
    assert accuracy_loss(case, base, metric) is None
    assert accuracy_loss(case, base, metric, "lower") == pytest.approx(0.035)
    assert accuracy_loss(case, base, metric, "higher") == pytest.approx(-0.035)
    assert accuracy_loss(case, None, metric, "lower") == pytest.approx(0.035)
    assert accuracy_loss(labelled(**{metric: 40.0}), None, metric, "higher") is None, "nobody says what is perfect"
    limits = Constraints(max_accuracy_loss=0.01, accuracy_metric=metric, accuracy_direction="lower")
    (found,) = recommend([case], limits, None)
    assert (found.best, found.nearest) == (None, case.case.case_id)


@given(st.floats(0, 10), st.floats(0, 10), st.floats(0, 1), st.floats(0, 1))
def test_overlap_is_symmetric_and_of_itself(a: float, b: float, s: float, t: float) -> None:
    one, other = estimate(a, s), estimate(b, t)
    assert overlap(one, other) == overlap(other, one)
    assert overlap(one, one)
