"""The recommendation under constraints, speed-ups, accuracy losses, names of cases and costs, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from perfharness.analysis.suites.bench_figures import accuracy_loss, baseline_of, is_named, speedup
from perfharness.analysis.suites.bench_names import CaseNames
from perfharness.analysis.suites.cost import Prices, cost
from perfharness.analysis.suites.recommend import recommend
from perfharness.model.bench import AccuracyRecord, CaseResult
from perfharness.model.bench_suite import Constraints, MissedConstraint, Recommendation
from tests.unit.bench_results import made_up, whole_suite

BASE = "torch/plain/fp32"


def only(cases: list[CaseResult], **constraints: object) -> Recommendation:
    (found,) = recommend(cases, Constraints.model_validate(constraints), BASE)
    return found


GB = 10**9
LIMITS = {"max_latency_ms": 5, "memory_limit_bytes": 2 * GB, "max_accuracy_loss": 0.1, "max_energy_per_item_j": 2}


def measured(name: str, rate: float = 100, **more: Any) -> CaseResult:
    return made_up(name, rate=rate, **({"latency_ms": 1.0, "memory_bytes": GB, "energy_j": 1.0, "cosine": 1.0} | more))


ROWS: dict[str, tuple[list[CaseResult], dict[str, Any], str | None, str | None, dict[str, str]]] = {
    # name: (cases, constraints, the best, else the nearest, who is excluded and a word of the reason)
    "the fastest": (
        [made_up("slow", rate=50), made_up("torch", rate=100), made_up("fast", rate=200)],
        {"accuracy_metric": "x"}, "fast", None, {},
    ),
    # what is missed by little is seen to be missed
    "each constraint": (
        [
            measured("torch"), measured("late", 200, latency_ms=10.0), measured("big", 300, memory_bytes=5 * GB),
            measured("wrong", 400, cosine=0.5), measured("hungry", 500, energy_j=7.0),
            measured("close", 600, memory_bytes=2_000_000_001),
        ],
        LIMITS, "torch", None, {"late": "", "big": "5 GB", "wrong": "", "hungry": "", "close": "2.000000001 GB"},
    ),
    # p95 4.4 ms, p99 5.2 ms
    "p95": ([made_up("torch", latency_ms=4.0)], {"max_latency_ms": 5}, "torch", None, {}),
    "p99": (
        [made_up("torch", latency_ms=4.0)], {"max_latency_ms": 5, "latency_percentile": "p99"}, None, "torch",
        {"torch": "ms"},
    ),
    # p95 11 ms: 2.2 times the limit; 5.5 ms: 1.1 times
    "none, and the nearest by factor": (
        [
            made_up("torch", rate=100, latency_ms=10.0), made_up("near", rate=90, latency_ms=5.0),
            made_up("gone", status="unavailable", reason="it is not installed"),
        ],
        {"max_latency_ms": 5}, None, "near", {"torch": "", "near": "", "gone": "not installed"},
    ),
    "none that was measured": (
        [made_up("torch", status="failed", reason="it crashed")], {}, None, None, {"torch": "crashed"},
    ),
    "what was not measured meets no constraint": (
        [made_up("torch", reasons={"energy_per_item_j": "no GPU"})], {"max_energy_per_item_j": 1}, None, "torch",
        {"torch": "no GPU"},
    ),
    "wrong answers": (
        [made_up("torch", rate=100, cosine=1.0), made_up("int", rate=900, cosine=0.9, equal=False)], {}, "torch", None,
        {"int": ""},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_who_is_recommended(name: str) -> None:
    cases, constraints, best, nearest, excluded = ROWS[name]
    found = only(cases, **constraints)
    ids = [one and one.split("-")[1] for one in (found.best, found.nearest)]
    assert (ids, found.ties) == ([best, nearest], [])
    reasons = {one.case_id.split("-")[1]: one for one in found.excluded}
    assert reasons.keys() == excluded.keys()
    assert all(word in reasons[case].reason for case, word in excluded.items())
    if "big" in reasons:
        assert reasons["big"].missed == [MissedConstraint(what="memory", value=5.0, limit=2.0, unit="GB")]


def test_ties_are_ties() -> None:
    cases = [made_up("torch", rate=100, spread=0.05), made_up("same", rate=103, spread=0.05), made_up("far", rate=50)]
    found = only(cases)
    assert (found.best, found.ties) == ("net-same-plain-fp32-b1", ["net-torch-plain-fp32-b1"])


def test_interval_that_reaches_beyond_the_limit_is_told() -> None:
    found = only([made_up("torch", latency_ms=4.5, spread=0.05)], max_latency_ms=5)  # p95 4.95 ms, up to 5.2 ms
    assert found.best is not None
    assert any("5.2 ms" in why for why in found.why)


@pytest.mark.parametrize(
    ("limits", "memory", "headroom"),
    [
        ({"memory_limit_bytes": 12 << 30}, {}, "82 % of the 12 GiB limit"),
        ({"memory_limit_bytes": 12 << 30}, {"device_total_bytes": 80 << 30}, "82 % of the 12 GiB limit"),
        ({}, {"limit_bytes": 15 * GB}, "70 % of the 15 GB limit"),
        ({}, {"device_total_bytes": 80 << 30}, "12 % of the GPU's 80 GiB"),
        ({}, {}, None),
    ],
)
def test_how_much_of_the_memory_the_best_case_takes(
    limits: dict[str, int], memory: dict[str, int], headroom: str | None
) -> None:
    case = made_up("torch", memory_bytes=round(0.82 * (12 << 30)))
    case = case.model_copy(update={"memory": case.memory.model_copy(update=memory)})
    said = [why for why in only([case], **limits).why if "memory is" in why]
    assert len(said) == (headroom is not None)
    assert all(headroom in why for why in said if headroom)


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


# ---- names of cases ----


@pytest.mark.parametrize(
    ("cases", "cells"),
    [
        (
            [made_up("torch", 16), made_up("m:Own", 1, precision="fp16"), made_up("torch", 1)],
            ["torch/plain fp32, batch 1, 16", "Own/plain fp16, batch 1"],
        ),
        # only what tells them apart is named
        (
            [made_up("torch", model="a"), made_up("torch", model="b", device="cpu", mode="")],
            ["a torch/plain cuda fp32, batch 1", "b torch cpu fp32, batch 1"],
        ),
        (
            [made_up("a:Own", 1), made_up("b:Own", 2)],
            ["a:Own/plain fp32, batch 1", "b:Own/plain fp32, batch 2"],
        ),
    ],
)
def test_a_cell_and_its_batch_sizes(cases: list[CaseResult], cells: list[str]) -> None:
    names = CaseNames.of([one.case for one in cases])
    assert names.cells([one.case for one in cases]) == cells
    assert names.case(cases[1].case) == cells[1]
    assert names.cell(cases[1].case) == cells[1].partition(",")[0]


# ---- costs of a million items ----


@pytest.mark.parametrize(
    ("prices", "rate", "joules", "expected"),
    [
        # 3.60 an hour at 1,000 items/s is 1,000 s: 1.00. 7.2 J an item is 2 kWh: 0.60 at 0.30, and 5 % of it 0.03.
        (Prices(3.6, 0.3), 1000.0, 7.2, (1.0, 0.6, 0.03)),
        (Prices(0.0, None), 10.0, None, (0.0, None, None)),  # a free machine
        (Prices(), 10.0, 1.0, (None, None, None)),
        (Prices(1.0, 1.0), None, None, (None, None, None)),
        (Prices(1.0, 1.0), 0.0, None, (None, None, None)),
    ],
)
def test_the_cost_of_a_million_items(
    prices: Prices, rate: float | None, joules: float | None, expected: tuple[float | None, ...]
) -> None:
    found = cost(prices, rate, joules, 0.05)
    assert (found.machine, found.energy, found.energy_error) == pytest.approx(expected)
    assert bool(found.machine_reason) == (found.machine is None)
    assert bool(found.energy_reason) == (found.energy is None)
