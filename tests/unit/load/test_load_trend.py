"""Leaks, drift and decay: planted in simulated readings, and readings that only look like it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from perfharness.analysis.load.latency import Latencies
from perfharness.analysis.load.trend import (
    TOLERANCE_MB_PER_S,
    drift_of,
    grows,
    latency_drift,
    memory_trend,
    rate_drift,
)
from perfharness.model.columns import Float64
from perfharness.model.load import LoadFigure

SECONDS = 600
TIME = np.arange(SECONDS, dtype=np.float64)
Made = Callable[[np.random.Generator], Float64]


def noise(drawn: np.random.Generator) -> Float64:
    return drawn.normal(0, 0.3, SECONDS)


def leak(mb_per_s: float) -> Made:
    return lambda drawn: 100 + mb_per_s * TIME + noise(drawn)


def step(drawn: np.random.Generator) -> Float64:
    return 100 + 80 * (drawn.integers(SECONDS) < TIME) + noise(drawn)


def warm_up(drawn: np.random.Generator) -> Float64:
    return 100 + 60 * (1 - np.exp(-TIME / 120)) + noise(drawn)


def pool(drawn: np.random.Generator) -> Float64:
    """Freed every 37 s."""
    return 100 + 50 * ((TIME + drawn.integers(37)) % 37) / 37 + noise(drawn)


def wandering(drawn: np.random.Generator) -> Float64:
    return np.asarray(500 + np.cumsum(drawn.normal(0, 1, SECONDS)))


def leaking_pool(drawn: np.random.Generator) -> Float64:
    return pool(drawn) + TIME


@pytest.mark.parametrize(
    ("made", "least", "most"),
    [
        (leak(0.1), 20, 20),
        (leak(1.0), 20, 20),
        (leaking_pool, 15, 20),
        *((one, 0, 1) for one in (step, warm_up, pool, wandering)),  # random walks may well rise for ten minutes
    ],
)
def test_leaks_are_told_from_what_only_looks_like_one(made: Made, least: int, most: int) -> None:
    drawn = np.random.default_rng(1)
    found = [memory_trend("process", TIME, 1e6 * made(drawn)).verdict for _ in range(20)]
    assert least <= found.count("leaks") <= most


@pytest.mark.parametrize("mb_per_s", [0.1, 1.0])
def test_the_rate_of_a_leak_is_in_its_interval(mb_per_s: float) -> None:
    drawn = np.random.default_rng(1)
    held = 0
    for _ in range(20):
        found = memory_trend("process", TIME, 1e6 * leak(mb_per_s)(drawn), answers_per_s=50.0)
        slope = found.slope_mb_per_s
        assert slope.low is not None
        assert slope.high is not None
        held += slope.low <= mb_per_s <= slope.high
        assert found.per_request_bytes == pytest.approx(mb_per_s * 1e6 / 50, rel=0.05)
    assert held >= 18


def test_memory_that_stays_does_not_leak() -> None:
    found = memory_trend("process", TIME, np.full(SECONDS, 3e8))
    assert found.verdict == "does-not-leak"
    assert found.slope_mb_per_s.value == 0.0
    assert found.tolerance_mb_per_s == TOLERANCE_MB_PER_S


def test_a_slope_within_the_tolerance_does_not_leak() -> None:
    assert memory_trend("gpu", TIME, 1e8 + TIME * 1e3, tolerance_mb_per_s=0.01).verdict == "does-not-leak"
    assert memory_trend("gpu", TIME, 1e8 + TIME * 1e5, tolerance_mb_per_s=0.01).verdict == "leaks"


def test_too_few_readings_tell_nothing() -> None:
    found = memory_trend("process", TIME[:20], 1e6 * TIME[:20])
    assert (found.verdict, found.slope_mb_per_s.value) == ("cannot-tell", None)
    assert found.reason is not None
    unread = np.full(SECONDS, np.nan)
    assert memory_trend("process", TIME, unread).verdict == "cannot-tell"


def slower(factor: float) -> Latencies:
    drawn = np.random.default_rng(2)
    at = np.arange(60_000, dtype=np.int64) * 10_000_000
    taken = drawn.exponential(10e6, len(at)) * np.linspace(1, factor, len(at))
    return Latencies.of(at, taken.astype(np.int64))


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "steady"), (1.3, "rises"), (0.7, "falls")])
def test_latency_of_the_last_third_against_the_first(factor: float, verdict: str) -> None:
    found = latency_drift(slower(factor), 50.0)
    assert found.verdict == verdict
    expected = (1 + (factor - 1) * 5 / 6) / (1 + (factor - 1) / 6)
    assert found.ratio.low is not None
    assert found.ratio.high is not None
    assert found.ratio.low <= expected <= found.ratio.high


def test_a_drift_that_the_interval_leaves_open() -> None:
    found = drift_of("latency.p50", "ms", LoadFigure(value=10, low=9, high=11), LoadFigure(value=11, low=10, high=12))
    assert found.verdict == "cannot-tell"
    assert found.ratio.value == pytest.approx(1.1)
    assert found.reason is not None
    unknown = drift_of("latency.p99", "ms", LoadFigure(reason="too few"), LoadFigure(value=11, low=10, high=12))
    assert (unknown.verdict, unknown.ratio.value, unknown.reason) == ("cannot-tell", None, "too few")


def test_throughput_that_decays() -> None:
    drawn = np.random.default_rng(4)
    asked = np.full(300, 50.0)
    served = drawn.binomial(50, np.linspace(1.0, 0.7, 300)).astype(np.float64)
    assert rate_drift("throughput", "of the arrivals", served, asked).verdict == "falls"
    assert rate_drift("throughput", "of the arrivals", asked, asked).verdict == "steady"
    assert rate_drift("errors.timeout", "of the answers", np.zeros(300), asked).ratio.value is None


def test_a_queue_that_grows_and_one_that_only_varies() -> None:
    drawn = np.random.default_rng(5)
    assert grows(np.cumsum(drawn.normal(3, 2, 60)))
    wrong = 0
    for _ in range(100):
        level, levels = 0.0, []
        for change in drawn.normal(-0.2, 1, 60):
            level = max(level + change, 0)
            levels.append(level)
        wrong += grows(np.asarray(levels)) is True
    assert wrong <= 3
    assert grows(np.ones(5)) is None
