"""Intervals cover the truth as often as they say: for independent, correlated and skewed values, and with outliers."""

from __future__ import annotations

from collections.abc import Callable
from math import comb, log
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfharness.analysis.bench_figures import apart_percent
from perfharness.analysis.latency_statistics import (
    autocorrelation,
    drift_percent,
    is_settled,
    latency_stats,
    mean_estimate,
    quantile_estimate,
    rate_estimate,
    relative_half_width_percent,
)
from perfharness.model.bench import Estimate
from perfharness.model.result import Float64

RUNS = 300
Make = Callable[[np.random.Generator, int], Float64]


def exponential(random: np.random.Generator, count: int) -> Float64:
    return 10 + random.exponential(1.0, count)


def with_outliers(random: np.random.Generator, count: int) -> Float64:
    """One in a hundred takes 50 more."""
    return np.asarray(10 + random.normal(0, 0.1, count) + 50 * (random.random(count) < 0.01))


def correlated(rho: float) -> Make:
    """Neighbours are alike by `rho`; each value by itself is normal around 10 with deviation 1."""

    def make(random: np.random.Generator, count: int) -> Float64:
        noise = random.normal(0, np.sqrt(1 - rho**2), count)
        values = np.empty(count)
        values[0] = random.normal()
        for index in range(1, count):
            values[index] = rho * values[index - 1] + noise[index]
        return 10 + values

    return make


def coverage(make: Make, truth: float, estimate: Callable[[Float64], Estimate | None], count: int = 1000) -> float:
    """Share of seeded runs whose interval has the truth inside; one without an interval does not count as inside."""
    found = [estimate(make(np.random.default_rng(seed), count)) for seed in range(RUNS)]
    inside = [e is not None and e.low is not None and e.high is not None and e.low <= truth <= e.high for e in found]
    return sum(inside) / RUNS


# 300 runs of a 95 % interval: 92 % is 2.4 standard errors below.


def test_mean_of_independent_values() -> None:
    assert coverage(exponential, 11.0, mean_estimate) >= 0.92


def test_mean_with_outliers() -> None:
    assert coverage(with_outliers, 10.5, mean_estimate) >= 0.90


@pytest.mark.parametrize(("rho", "least"), [(0.5, 0.92), (0.9, 0.90), (0.95, 0.88)])
def test_mean_of_correlated_values(rho: float, least: float) -> None:
    assert coverage(correlated(rho), 10.0, mean_estimate) >= least


def test_correlated_values_taken_for_independent_would_not_be_covered() -> None:
    def naive(values: Float64) -> Estimate:
        half = 1.96 * values.std(ddof=1) / np.sqrt(len(values))
        return Estimate(value=values.mean(), low=values.mean() - half, high=values.mean() + half)

    assert coverage(correlated(0.9), 10.0, naive) < 0.5


@pytest.mark.parametrize("quantile", [0.5, 0.9, 0.95])
def test_quantiles_of_independent_values(quantile: float) -> None:
    assert coverage(exponential, 10 - log(1 - quantile), lambda v: quantile_estimate(v, quantile)) >= 0.92


def test_p99_of_independent_values() -> None:
    """Of 2,000, for of 1,000 the rank above does not always exist."""
    assert coverage(exponential, 10 - log(0.01), lambda v: quantile_estimate(v, 0.99), 2000) >= 0.92


def test_median_with_outliers() -> None:
    """One in a hundred lies above, so the median is that of the rest at 0.5 / 0.99."""
    truth = 10 + 0.1 * NormalDist().inv_cdf(0.5 / 0.99)
    assert coverage(with_outliers, truth, lambda v: quantile_estimate(v, 0.5)) >= 0.92


@pytest.mark.parametrize("rho", [0.5, 0.9])
def test_median_of_correlated_values(rho: float) -> None:
    assert coverage(correlated(rho), 10.0, lambda v: quantile_estimate(v, 0.5)) >= 0.91


def test_a_tail_of_strongly_correlated_values_has_no_interval() -> None:
    """Where some 50 of 1,000 say as much as all, no interval of p99 is more than luck."""
    for seed in range(50):
        found = quantile_estimate(correlated(0.9)(np.random.default_rng(seed), 1000), 0.99)
        assert found is not None
        assert (found.low, found.high) == (None, None)


def test_worked_example_of_the_medians_ranks() -> None:
    """Of 10 values the 2nd and the 9th enclose the median in 97.9 % of all cases, the 3rd and the 8th in 89 %."""
    values = np.asarray([5.0, 1, 10, 3, 8, 2, 9, 4, 7, 6])
    outside = 2 * sum(comb(10, k) for k in range(2)) / 2**10
    assert outside == pytest.approx(0.0215, abs=1e-4)
    found = quantile_estimate(values, 0.5)
    assert found is not None
    assert (found.value, found.low, found.high) == (5.5, 2.0, 9.0)


def test_worked_example_of_the_means_interval() -> None:
    """Six values, no blocks: 3.5 ± t(5) 2.571 * deviation 1.8708 / sqrt 6."""
    found = mean_estimate(np.asarray([1.0, 5, 3, 6, 2, 4]))
    assert found.value == 3.5
    assert found.low is not None
    assert found.low == pytest.approx(3.5 - 2.571 * 1.870829 / 6**0.5, rel=1e-5)


def test_figures_by_hand_and_null_where_there_are_too_few() -> None:
    stats = latency_stats(np.asarray([3.0, 1, 2, 4]), 7)
    assert stats is not None
    assert (stats.iterations, stats.warmup_iterations) == (4, 7)
    assert (stats.mean.value, stats.p50, stats.min, stats.max) == (2.5, 2.5, 1, 4)
    assert stats.std == pytest.approx(1.290994, abs=1e-6)
    assert (stats.p90, stats.p95, stats.p99) == (None, None, None)
    assert (stats.mean.low, stats.median.low) == (None, None)
    assert latency_stats(np.zeros(0), 0) is None
    hundred = latency_stats(np.arange(100.0), 0)
    assert hundred is not None
    assert hundred.p99 is not None
    assert hundred.p99.value == pytest.approx(98.01)
    assert hundred.p99.high is None, "no 95 % interval of p99 has its upper rank in 100 values"
    assert hundred.p90 == pytest.approx(89.1)
    single = latency_stats(np.asarray([2.0]), 0)
    assert single is not None
    assert (single.mean.value, single.std, single.p50) == (2.0, None, 2.0)


@given(st.lists(st.floats(0.001, 1e6), min_size=6, max_size=300), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_intervals_enclose_their_value(values: list[float], quantile: float) -> None:
    array = np.asarray(values)
    for found in (mean_estimate(array), quantile_estimate(array, quantile)):
        if found is not None and found.low is not None and found.high is not None:
            assert found.low <= found.value + 1e-9
            assert found.value <= found.high + 1e-9


def test_drift_is_told_from_noise() -> None:
    random = np.random.default_rng(1)
    steady = 10 + random.normal(0, 0.2, 900)
    assert drift_percent(steady) is None
    warming = steady * np.linspace(1, 1.1, 900)
    assert drift_percent(warming) == pytest.approx(6.5, abs=1.0)
    assert drift_percent(warming[::-1]) == pytest.approx(-6.2, abs=1.0)
    assert drift_percent(steady[:12]) is None
    false = sum(drift_percent(exponential(np.random.default_rng(seed), 900)) is not None for seed in range(RUNS))
    assert false <= 3
    stats, pooled = latency_stats(warming, 0), latency_stats(warming, 0, pooled=True)
    assert stats is not None
    assert pooled is not None
    assert (stats.drift_percent, pooled.drift_percent) == (drift_percent(warming), None)


def test_a_second_pass_is_apart_only_beyond_the_interval_and_ten_percent() -> None:
    narrow, wide = Estimate(value=100, low=98, high=102), Estimate(value=100, low=50, high=200)
    assert [apart_percent(narrow, again) for again in (101, 91, 110, 59, 137)] == [None, None, None, -41, 37]
    assert [apart_percent(wide, again) for again in (59, 137, 40)] == [None, None, -60]
    assert apart_percent(Estimate(value=100), 80) == -20
    assert apart_percent(Estimate(value=0), 80) is None


def test_settled_is_a_narrow_interval_without_drift() -> None:
    random = np.random.default_rng(2)
    assert is_settled(10 + random.normal(0, 0.1, 1000), 1.0)
    assert not is_settled(10 + random.normal(0, 5, 100), 1.0)
    assert not is_settled(np.linspace(10, 12, 1000), 50.0)
    assert not is_settled(np.zeros(0), 50.0)
    assert relative_half_width_percent(np.full(100, 7.0)) == 0


def test_autocorrelation() -> None:
    assert autocorrelation(np.asarray([1.0, -1] * 50)) == pytest.approx(-0.99)
    assert autocorrelation(np.full(10, 3.0)) is None
    assert autocorrelation(np.asarray([1.0, 2, 3])) is None
    found = autocorrelation(correlated(0.9)(np.random.default_rng(0), 5000))
    assert found == pytest.approx(0.9, abs=0.03)


def test_rate_turns_the_interval_round() -> None:
    rate = rate_estimate(Estimate(value=4, low=2, high=8), 16)
    assert (rate.value, rate.low, rate.high) == (4000, 2000, 8000)
    assert rate_estimate(Estimate(value=4), 16) == Estimate(value=4000)
