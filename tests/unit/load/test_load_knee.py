"""The search for the knee, against servers whose knee is known from queueing theory."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal, localcontext

import numpy as np
import pytest

from perfharness.analysis.load.knee import (
    PRECISION,
    KneeObjective,
    KneeSearch,
    StepRequests,
    judge_step,
)
from perfharness.analysis.load.proportions import NEVER_NS
from perfharness.errors import UsageError
from perfharness.load.knee import objective_of
from perfharness.load.profile import checked_profile
from perfharness.model.load import Objective
from perfharness.model.load_judgement import Knee

SERVICE_S = 0.001


def served(drawn: np.random.Generator, rate: float, duration_s: float, failing: float = 0.0) -> StepRequests:
    """M/D/1 from an empty queue; a share of the answers are errors."""
    count = int(drawn.poisson(rate * duration_s))
    at = np.sort(drawn.uniform(0, duration_s, count))
    walk = np.concatenate([[0.0], np.cumsum(SERVICE_S - np.diff(at))])
    waiting = walk - np.minimum.accumulate(walk)
    intended = np.round(at * 1e9).astype(np.int64)
    done = intended + np.round((waiting + SERVICE_S) * 1e9).astype(np.int64)
    return StepRequests(rate, duration_s, intended, done, drawn.random(count) < failing)


def waits_at_most(load: float, services: float) -> float:
    """Erlang's distribution of the waiting time in M/D/1."""
    with localcontext() as context:
        context.prec = 60
        total, factorial = Decimal(0), Decimal(1)
        for number in range(int(services) + 1):
            factorial *= max(number, 1)
            left = Decimal(load) * (Decimal(services) - number)
            total += (-left) ** number / factorial * left.exp()
        return float((1 - Decimal(load)) * total)


def true_knee(limit_s: float, share: float) -> float:
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if waits_at_most(middle, limit_s / SERVICE_S - 1) >= share else (low, middle)
    return low / SERVICE_S


def parse_objective(text: str) -> KneeObjective:
    """As the command line has it."""
    objective = checked_profile({"phases": [{"duration": 1}], "objective": text}).objective
    assert isinstance(objective, Objective)
    return objective_of(objective)


def searched(
    objective: str, seed: int, failing: float = 0.0, start: float = 200.0, lowest: float = 10, highest: float = 4000,
    precision: float = PRECISION, budget_s: float = 0.0,
) -> Knee:  # fmt: skip
    drawn = np.random.default_rng(seed)
    search = KneeSearch(
        parse_objective(objective), start, lowest, highest, duration_s=20, precision=precision, budget_s=budget_s
    )
    while (step := search.next_step()) is not None:
        search.add(served(drawn, *step, failing=failing))
    return search.result()


@pytest.mark.parametrize(("objective", "limit_s", "share"), [("p99<=5ms", 0.005, 0.99), ("p90<=3ms", 0.003, 0.9)])
def test_the_knee_of_a_queue_lies_between_what_meets_and_what_misses(
    objective: str, limit_s: float, share: float
) -> None:
    truth, near = true_knee(limit_s, share), 0
    for seed in range(5):
        knee = searched(objective, seed)
        assert knee.rate is not None
        assert knee.misses_at is not None
        assert knee.rate <= truth <= knee.misses_at
        near += knee.misses_at < 1.5 * knee.rate
        assert knee.proven == (knee.ended_by == "found")
        assert knee.proven == (knee.misses_at <= 1.1 * knee.rate * (1 + 1e-9))
    assert near == 5


def test_errors_miss_an_objective_that_the_latency_meets() -> None:
    knee = searched("p99<=5ms,errors<=1%", 0, failing=0.03)
    assert knee.rate is None
    assert knee.ended_by == "lowest-misses"
    assert searched("p90<=3ms,errors<=10%", 0, failing=0.03).rate is not None


def test_a_queue_that_grows_misses_though_all_answers_are_still_in_time() -> None:
    step = judge_step(served(np.random.default_rng(1), 1200, 20), KneeObjective(10**11, 99.0, 0.01))
    assert step.is_growing
    assert step.verdict == "misses"
    assert step.achieved_rate == pytest.approx(1000, rel=0.01)


def test_a_late_generator_decides_nothing_against_the_target() -> None:
    made = served(np.random.default_rng(1), 300, 20)
    objective = KneeObjective(5_000_000, 99.0, 0.01)
    assert judge_step(made, objective).verdict == "meets"
    late = np.full(len(made.done_ns), 10_000_000)
    done = made.done_ns + late
    assert judge_step(replace(made, done_ns=done), objective).verdict == "misses"
    assert judge_step(replace(made, done_ns=done, late_ns=late), objective).verdict == "undecided"
    slow = replace(made, done_ns=done + late, late_ns=late)  # and the target misses it by itself
    assert judge_step(slow, objective).verdict == "misses"


def test_requests_without_an_answer_are_not_in_time() -> None:
    made = served(np.random.default_rng(1), 300, 60)
    lost = np.arange(len(made.done_ns)) % 20 == 0
    done = np.where(lost, NEVER_NS, made.done_ns)
    step = judge_step(
        StepRequests(made.rate, made.duration_s, made.intended_ns, done, lost), KneeObjective(5_000_000, 99.0, 0.1)
    )
    assert step.verdict == "misses"
    assert step.within.value == pytest.approx(0.95, abs=0.01)
    assert step.failed == int(lost.sum())


@pytest.mark.parametrize(
    ("text", "limit_ns", "percentile", "errors"),
    [
        ("p99<=20ms", 20_000_000, 99.0, 0.01),
        ("p99.9 < 1s, errors<=0.5%", 1_000_000_000, 99.9, 0.005),
        ("p50=10ms,errors=0", 10_000_000, 50.0, 0.0),
    ],
)
def test_objectives(text: str, limit_ns: int, percentile: float, errors: float) -> None:
    found = parse_objective(text)
    assert (found.limit_ns, found.percentile) == (limit_ns, percentile)
    assert found.max_error_rate == pytest.approx(errors)


@pytest.mark.parametrize(
    "text", ["", "p99", "p100<=1ms", "p0<=1ms", "p99<=1ms,p50<=1ms", "errors<=1%", "p9<=0ms", "1ms,errors<=100%"]
)
def test_objectives_that_are_none(text: str) -> None:
    with pytest.raises(UsageError):
        parse_objective(text)
