"""Intervals cover the truth as often as they say: for independent, correlated and skewed values, and with outliers."""

from __future__ import annotations

from collections.abc import Callable
from math import comb, log
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfharness.analysis.suites.bench_figures import deviation_percent, speedup
from perfharness.analysis.suites.latency_statistics import (
    autocorrelation,
    drift_percent,
    information_of,
    is_settled,
    latency_stats,
    mean_estimate,
    quantile_estimate,
    rate_estimate,
    relative_half_width_percent,
)
from perfharness.model.bench import Estimate, LatencyStats
from perfharness.model.result import Float64
from tests.unit.bench_results import made_up

RUNS = 100
Make = Callable[[np.random.Generator, int], Float64]


def exponential(random: np.random.Generator, count: int) -> Float64:
    return 10 + random.exponential(1.0, count)


def with_outliers(random: np.random.Generator, count: int) -> Float64:
    """One in a hundred takes 50 more."""
    return np.asarray(10 + random.normal(0, 0.1, count) + 50 * (random.random(count) < 0.01))


def correlated(rho: float) -> Make:
    """Neighbours are correlated by `rho`; each value by itself is normal around 10 with deviation 1."""

    def make(random: np.random.Generator, count: int) -> Float64:
        noise = random.normal(0, np.sqrt(1 - rho**2), count)
        values = np.empty(count)
        values[0] = random.normal()
        for index in range(1, count):
            values[index] = rho * values[index - 1] + noise[index]
        return 10 + values

    return make


def switching(dwell: float) -> Make:
    """Between 1.0 and 1.3, for so many iterations on average."""

    def make(random: np.random.Generator, count: int) -> Float64:
        states = (np.cumsum(random.random(count) < 1 / dwell) + random.integers(2)) % 2
        return np.asarray(np.where(states == 1, 1.3, 1.0) + random.normal(0, 0.01, count))

    return make


def periodic(random: np.random.Generator, count: int) -> Float64:
    """One in ten takes twice as long."""
    begin = random.integers(10)
    return np.asarray(np.where((np.arange(count) + begin) % 10 == 0, 2.0, 1.0) + random.normal(0, 0.01, count))


def lognormal(random: np.random.Generator, count: int) -> Float64:
    return np.exp(random.normal(0, 1.5, count))


def slow_under_noise(random: np.random.Generator, count: int) -> Float64:
    return random.normal(10, 1, count) + 0.3 * (correlated(0.98)(random, count) - 10)


def median(values: Float64) -> Estimate | None:
    return quantile_estimate(values, 0.5)


def given_and_held(
    make: Make, truth: float, estimate: Callable[[Float64], Estimate | None], count: int = 1000
) -> tuple[float, float]:
    """Of how many seeded runs an interval was given, and how many of those hold the truth, shares of 1."""
    found = [estimate(make(np.random.default_rng(seed), count)) for seed in range(RUNS)]
    ends = [(one.low, one.high) for one in found if one is not None and one.low is not None]
    held = sum(low <= truth and high is not None and truth <= high for low, high in ends)
    return len(ends) / RUNS, held / len(ends) if ends else 1.0


NORMAL = NormalDist().inv_cdf
MEANS = [
    (exponential, 11.0, 300, 0.97), (exponential, 11.0, 1000, 0.97), (with_outliers, 10.5, 1000, 0.6),
    (correlated(0.5), 10.0, 300, 0.9), (correlated(0.9), 10.0, 1000, 0.6), (correlated(0.95), 10.0, 3000, 0.8),
    (switching(10), 1.15, 1000, 0.9), (periodic, 1.1, 300, 0.97), (periodic, 1.1, 1005, 0.97),
    (lognormal, np.exp(1.125), 1000, 0.7), (slow_under_noise, 10.0, 3000, 0.9),
]  # fmt: skip
QUANTILES = [
    *((exponential, q, 10 - log(1 - q), 0.8) for q in (0.5, 0.9, 0.95, 0.99)),
    # One in a hundred lies above, so the median is that of the rest at 0.5 / 0.99.
    (with_outliers, 0.5, 10 + 0.1 * NORMAL(0.5 / 0.99), 0.97),
    *((correlated(rho), q, 10 + NORMAL(q), 0.3) for rho in (0.5, 0.9) for q in (0.5, 0.95)),
]


@pytest.mark.parametrize(
    ("make", "estimate", "truth", "count", "least_given"),
    [
        *((make, mean_estimate, truth, count, least) for make, truth, count, least in MEANS),
        *((make, lambda values, q=q: quantile_estimate(values, q), truth, 1000, least)
          for make, q, truth, least in QUANTILES),
    ],
)  # fmt: skip
def test_intervals_hold_the_truth(
    make: Make, estimate: Callable[[Float64], Estimate | None], truth: float, count: int, least_given: float
) -> None:
    """100 runs of a 95 % interval: 89 % is 2.75 standard errors below."""
    given, held = given_and_held(make, truth, estimate, count)
    assert given >= least_given
    assert held >= 0.89


@pytest.mark.parametrize("make", [exponential, correlated(0.5), correlated(0.98), switching(100), with_outliers])
@pytest.mark.parametrize("count", [6, 20, 100])
def test_few_iterations_have_no_interval(make: Make, count: int) -> None:
    """The last ones of coverage that held 33 to 75 % were these."""
    values = make(np.random.default_rng(count), count)
    for found in (mean_estimate(values), quantile_estimate(values, 0.5), quantile_estimate(values, 0.9)):
        assert found is None or (found.low, found.high, bool(found.reason)) == (None, None, True)


@pytest.mark.parametrize(("make", "count"), [(correlated(0.98), 1000), (switching(100), 1000), (correlated(0.9), 300)])
def test_what_few_independent_iterations_say_has_no_interval(make: Make, count: int) -> None:
    assert given_and_held(make, 0.0, mean_estimate, count)[0] <= 0.05
    assert given_and_held(make, 0.0, median, count)[0] <= 0.05


def test_intervals_of_independent_iterations_are_hardly_wider_than_need_be() -> None:
    """Mean: ±1.96 deviations of it; median of a normal law: sqrt(pi / 2) times that."""
    widths = []
    for seed in range(100):
        values = np.random.default_rng(seed).normal(10, 1, 1000)
        ends = [one.interval or (0.0, 0.0) for one in (mean_estimate(values), median(values)) if one is not None]
        widths.append([high - low for low, high in ends])
    narrowest = 2 * 1.96 / np.sqrt(1000)
    assert np.mean(widths, axis=0) == pytest.approx([1.2 * narrowest, 1.2 * 1.2533 * narrowest], rel=0.12)


def test_worked_example_of_the_medians_ranks() -> None:
    """Values of period 2 are no less sure than independent ones; ranks by the binomial law of 200 / inflation."""
    values = np.tile([1.0, 2.0], 100) + np.arange(200) * 1e-6
    found = information_of((values <= np.median(values)).astype(np.float64))
    assert not isinstance(found, str)
    assert found.inflation == pytest.approx(1 + 7 / 200 + (2 * 7 / 200) ** 0.5)
    assert int(200 / found.inflation) == 153
    outside = 2 * sum(comb(153, k) for k in range(64)) / 2**153
    assert outside <= 0.05 < 2 * sum(comb(153, k) for k in range(65)) / 2**153
    middle, ordered = median(values), np.sort(values)
    assert middle is not None
    assert middle.interval == pytest.approx((ordered[63 * 200 // 153], ordered[-(63 * 200 // 153) - 1]))


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
    old = stats_of(np.arange(1.0, 301)).model_dump() | {"p90": 2.5}  # of a file from before p90 had an interval
    assert LatencyStats.model_validate(old).p90 == Estimate(value=2.5)


@given(st.lists(st.floats(0.001, 1e6), min_size=200, max_size=400), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_intervals_enclose_their_value(values: list[float], quantile: float) -> None:
    array = np.asarray(values)
    for found in (mean_estimate(array), quantile_estimate(array, quantile)):
        if found is not None and found.interval is not None:
            assert found.interval[0] - 1e-9 <= found.value <= found.interval[1] + 1e-9


def test_drift_is_told_from_noise() -> None:
    random = np.random.default_rng(1)
    steady = 10 + random.normal(0, 0.2, 900)
    assert drift_percent(steady) is None
    warming = steady * np.linspace(1, 1.1, 900)
    assert drift_percent(warming) == pytest.approx(6.5, abs=1.0)
    assert drift_percent(warming[::-1]) == pytest.approx(-6.2, abs=1.0)
    assert drift_percent(steady[:12]) is None
    false = sum(drift_percent(exponential(np.random.default_rng(seed), 900)) is not None for seed in range(RUNS))
    assert false <= 2
    assert stats_of(warming).drift_percent == drift_percent(warming)


def test_a_second_pass_is_apart_only_beyond_the_interval_and_ten_percent() -> None:
    narrow, wide = Estimate(value=100, low=98, high=102), Estimate(value=100, low=50, high=200)
    assert [deviation_percent(narrow, again) for again in (101, 91, 110, 59, 137)] == [None, None, None, -41, 37]
    assert [deviation_percent(wide, again) for again in (59, 137, 40)] == [None, None, -60]
    assert [deviation_percent(Estimate(value=value), 80) for value in (100, 0)] == [-20, None]


def test_settled_is_a_narrow_interval_without_drift() -> None:
    random = np.random.default_rng(2)
    assert is_settled(10 + random.normal(0, 0.1, 1000), 1.0)
    assert not is_settled(10 + random.normal(0, 5, 100), 1.0)
    assert not is_settled(np.linspace(10, 12, 1000), 50.0)
    assert not is_settled(np.zeros(0), 50.0)
    assert relative_half_width_percent(np.full(200, 7.0)) == 0
    assert not is_settled(10 + random.normal(0, 0.001, 20), 1.0), "20 iterations cannot say"
    assert not is_settled(10 + random.normal(0, 0.001, 300), 1.0), "a drift could not have been seen"


def test_intervals_of_a_ratio_of_two_rates_hold_it() -> None:
    """The second is 1.25 times as fast; one is autocorrelated."""

    found = []
    for seed in range(RUNS):
        random = np.random.default_rng(seed)
        values = (correlated(0.5)(random, 400), 0.8 * exponential(random, 400) * 10 / 11)
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


def test_autocorrelation() -> None:
    assert autocorrelation(np.asarray([1.0, -1] * 50)) == pytest.approx(-0.99)
    assert autocorrelation(np.full(10, 3.0)) is None
    assert autocorrelation(np.asarray([1.0, 2, 3])) is None
    found = autocorrelation(correlated(0.9)(np.random.default_rng(0), 5000))
    assert found == pytest.approx(0.9, abs=0.03)


def test_rate_turns_the_interval_round() -> None:
    assert rate_estimate(Estimate(value=4, low=2, high=8), 16) == Estimate(value=4000, low=2000, high=8000)
    assert rate_estimate(Estimate(value=4, reason="few"), 16) == Estimate(value=4000, reason="few")
