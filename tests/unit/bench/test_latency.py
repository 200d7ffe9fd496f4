"""Latency of repeated iterations: figures by hand, drift, when a loop is stable, ratios of rates."""

from __future__ import annotations

import numpy as np
import pytest

from perfharness.analysis.suites.bench_figures import deviation_percent, speedup
from perfharness.analysis.suites.latency import (
    is_stable,
    latency_stats,
    mean_estimate,
    rate_estimate,
)
from perfharness.model.bench import Estimate, LatencyStats
from perfharness.model.columns import Float64
from tests.unit.bench_results import made_up

RUNS = 50


def stats_of(values: Float64, warmup: int = 0) -> LatencyStats:
    found = latency_stats(values, warmup)
    assert found is not None
    return found


def test_figures_by_hand_and_null_where_there_are_too_few() -> None:
    stats = stats_of(np.asarray([3.0, 1, 2, 4]), 7)
    assert (stats.iterations, stats.warmup_iterations) == (4, 7)
    assert (stats.mean.value, stats.p50, stats.min, stats.max) == (2.5, 2.5, 1, 4)
    assert stats.std == pytest.approx(1.290994, abs=1e-6)
    assert (stats.p90, stats.p95, stats.p99, stats.mean.low, stats.median.low) == (None, None, None, None, None)
    assert stats.mean.reason
    assert latency_stats(np.zeros(0), 0) is None
    hundred = stats_of(np.arange(100.0))
    assert hundred.p99 is not None
    assert hundred.p90 is not None
    assert (hundred.p99.value, hundred.p90.value) == pytest.approx((98.01, 89.1))
    assert hundred.p99.high is None, "no 95 % interval of p99 has its upper rank in 100 values"
    single = stats_of(np.asarray([2.0]))
    assert (single.mean.value, single.std, single.p50) == (2.0, None, 2.0)


def test_drift_is_told_from_noise() -> None:
    random = np.random.default_rng(1)
    steady = 10 + random.normal(0, 0.2, 900)
    warming = steady * np.linspace(1, 1.1, 900)
    assert stats_of(steady).drift_percent is None
    assert stats_of(warming).drift_percent == pytest.approx(6.5, abs=1.0)
    assert stats_of(warming[::-1]).drift_percent == pytest.approx(-6.2, abs=1.0)
    assert stats_of(steady[:12]).drift_percent is None
    noise = (np.random.default_rng(seed).exponential(size=300) for seed in range(RUNS))
    assert sum(stats_of(values).drift_percent is not None for values in noise) <= 2


def test_a_second_pass_is_apart_only_beyond_the_interval_and_ten_percent() -> None:
    narrow, wide = Estimate(value=100, low=98, high=102), Estimate(value=100, low=50, high=200)
    assert [deviation_percent(narrow, again) for again in (101, 91, 110, 59, 137)] == [None, None, None, -41, 37]
    assert [deviation_percent(wide, again) for again in (59, 137, 40)] == [None, None, -60]
    assert [deviation_percent(Estimate(value=value), 80) for value in (100, 0)] == [-20, None]


def test_stable_is_a_narrow_interval_without_drift() -> None:
    random = np.random.default_rng(2)
    assert is_stable(10 + random.normal(0, 0.1, 1000), 1.0)
    assert not is_stable(10 + random.normal(0, 5, 100), 1.0)
    assert not is_stable(np.linspace(10, 12, 1000), 50.0)
    assert not is_stable(np.zeros(0), 50.0)
    assert is_stable(np.full(600, 7.0), 0.0)
    assert not is_stable(10 + random.normal(0, 0.001, 20), 1.0), "20 iterations cannot say"
    assert not is_stable(10 + random.normal(0, 0.001, 300), 1.0), "a drift could not have been seen"


def test_intervals_of_a_ratio_of_two_rates_hold_it() -> None:
    """The second is 1.25 times as fast."""
    found = []
    for seed in range(RUNS):
        random = np.random.default_rng(seed)
        values = (random.normal(10, 1, 400), random.normal(8, 1, 400))
        base, fast = (made_up("x").model_copy(update={"items_per_second": rate_estimate(mean_estimate(each), 1)})
                      for each in values)  # fmt: skip
        ratio = speedup(fast, base)
        found.append(None if ratio is None else ratio.interval)
    given = [interval for interval in found if interval is not None]
    assert len(given) >= 0.9 * RUNS
    assert sum(low <= 1.25 <= high for low, high in given) >= 0.95 * len(given)
    told = speedup(fast, base.model_copy(update={"items_per_second": Estimate(value=1.0, reason="few")}))
    assert told is not None
    assert (told.low, told.high, told.reason) == (None, None, "few")


def test_rate_turns_the_interval_round() -> None:
    assert rate_estimate(Estimate(value=4, low=2, high=8), 16) == Estimate(value=4000, low=2000, high=8000)
    assert rate_estimate(Estimate(value=4, reason="few"), 16) == Estimate(value=4000, reason="few")
