"""Statistics by hand; 95 % intervals hold the truth in 93 % of the series that get one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import exp, log
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.signal import lfilter

from perfharness.analysis.statistics import (
    Interval,
    growth,
    mean_interval,
    min_count,
    percentile_interval,
    ranks_around,
    student_interval,
    summarise,
    trend,
    weighted_quantile,
)
from perfharness.model.columns import Float64

SHARES = (0.5, 0.9, 0.95)
NORMAL = {share: NormalDist().inv_cdf(share) for share in SHARES}
Make = Callable[[np.random.Generator, int], Float64]
Family = tuple[Make, float, dict[float, float]]
"""What makes a series, its mean, its percentiles."""


def around(deviation: float = 1.0) -> dict[float, float]:
    return {share: 10 + deviation * value for share, value in NORMAL.items()}


def autocorrelated(rho: float) -> Make:
    """Normal around 10 with deviation 1; neighbours are correlated by `rho`."""

    def make(random: np.random.Generator, count: int) -> Float64:
        noise = random.normal(0, (1 - rho**2) ** 0.5, count + 400)
        return np.asarray(10 + lfilter([1], [1, -rho], noise)[400:])

    return make


def drifting(deviations: float) -> Make:
    return lambda random, count: 10 + deviations * np.linspace(-0.5, 0.5, count) + random.normal(size=count)


def lognormal(sigma: float) -> Family:
    percentiles = {share: exp(sigma * value) for share, value in NORMAL.items()}
    return lambda random, count: np.exp(random.normal(0, sigma, count)), exp(sigma**2 / 2), percentiles


FAMILIES: dict[str, Family] = {
    "independent": (autocorrelated(0.0), 10.0, around()),
    "exponential": (lambda random, n: random.exponential(size=n), 1.0, {share: -log(1 - share) for share in SHARES}),
    "autocorrelated 0.5": (autocorrelated(0.5), 10.0, around()),
    "autocorrelated 0.9": (autocorrelated(0.9), 10.0, around()),
    "0.9 below noise": (
        lambda random, n: random.normal(size=n) + 10 + 0.5 * (autocorrelated(0.9)(random, n) - 10),
        10.0,
        around(1.25**0.5),
    ),
    "drift of 0.5 deviations": (drifting(0.5), 10.0, {0.5: 10.0}),
    "drift of 4 deviations": (drifting(4.0), 10.0, {0.5: 10.0}),
    "Student's t, 3 degrees": (
        lambda random, n: 10 + random.standard_t(3, n),
        10.0,
        {share: 10 + float(stats.t.ppf(share, 3)) for share in SHARES},
    ),
    "Pareto 2.5": (
        lambda random, n: 1 + random.pareto(2.5, n),
        1 + 1 / 1.5,
        {share: (1 - share) ** -0.4 for share in SHARES},
    ),
    "lognormal 0.5": lognormal(0.5),
    "lognormal 1.5": lognormal(1.5),
    "1 of 20 takes 5 times": (lambda random, n: random.normal(1, 0.03, n) + 4.0 * (random.random(n) < 0.05), 1.2, {}),
}


def given_and_held(
    make: Make, truth: float, interval: Callable[[Float64], Interval | str], count: int, series: int
) -> tuple[float, float]:
    """Shares of the seeded series that have an interval, and of the intervals that hold the truth."""
    found = [interval(make(np.random.default_rng([seed, count]), count)) for seed in range(series)]
    ends = [one for one in found if not isinstance(one, str)]
    return len(ends) / series, sum(low <= truth <= high for low, high in ends) / max(len(ends), 1)


def cells(family: str, count: int, series: int) -> dict[str, tuple[float, float]]:
    """Given and held of the mean and the percentiles."""
    make, mean, percentiles = FAMILIES[family]
    found = {"mean": given_and_held(make, mean, mean_interval, count, series)}
    for share, truth in percentiles.items():
        of_share = partial(percentile_interval, share=share)
        found[f"p{100 * share:g}"] = given_and_held(make, truth, of_share, count, series)
    return found


RARE = 0.05
"""Where fewer series have an interval, those are the ones that look better than they are."""


@pytest.mark.slow
@pytest.mark.parametrize("count", [30, 100, 200, 300, 500, 1000])
@pytest.mark.parametrize("family", FAMILIES)
def test_intervals_hold_the_truth(family: str, count: int) -> None:
    """93 % less two standard errors of 1,000 series; the table of docs/internals/statistics.md."""
    found = cells(family, count, 1000)
    print(family, count, " ".join(f"{name} {held:.1%} of {share:.0%}" for name, (share, held) in found.items()))
    assert {name: held for name, (share, held) in found.items() if share > RARE and held < 0.93 - 0.016} == {}
    assert count >= 200 or not any(share for share, _ in found.values())


@pytest.mark.parametrize(
    ("family", "means", "p95s"),
    [("independent", 1, 0.9), ("autocorrelated 0.5", 0.9, 0), ("autocorrelated 0.9", 0, 0), ("Pareto 2.5", 1, 0.9)],
)
def test_a_few_series_of_each_kind(family: str, means: float, p95s: float) -> None:
    found = cells(family, 300, 60)
    assert found["mean"][0] >= means
    assert found["p95"][0] >= p95s
    assert all(held >= 0.88 for share, held in found.values() if share > RARE)


def test_intervals_of_independent_values_are_no_more_than_half_wider_than_need_be() -> None:
    """Mean: ±1.96 of its deviations; median of a normal law: sqrt(pi / 2) times that."""
    found = []
    for seed in range(50):
        values = np.random.default_rng(seed).normal(10, 1, 1000)
        ends = [one for one in (mean_interval(values), percentile_interval(values, 0.5)) if not isinstance(one, str)]
        found.append([high - low for low, high in ends])
    mean, median = np.median(found, axis=0) / (2 * 1.96 / 1000**0.5)
    assert 1 <= mean <= 1.5
    assert 1.25 <= median <= 1.5 * 1.25


@settings(max_examples=25)
@given(st.lists(st.floats(0.001, 1e6), min_size=200, max_size=300), st.sampled_from(SHARES))
def test_intervals_enclose_the_mean_and_the_percentile(values: list[float], share: float) -> None:
    array = np.asarray(values)
    for value, found in (
        (float(array.mean()), mean_interval(array)),
        (float(np.quantile(array, share, method="inverted_cdf")), percentile_interval(array, share)),
    ):
        assert isinstance(found, str) or (found[0] <= value * (1 + 1e-9) and value <= found[1] * (1 + 1e-9))


def test_independent_launches_have_the_interval_of_student() -> None:
    values = np.asarray([10.0, 12.0, 11.0])
    expected = stats.t.interval(0.95, 2, 11.0, stats.sem(values))
    assert student_interval(values) == pytest.approx(expected)


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("count", [100, 1000, 100_000])
def test_ranks_enclose_a_percentile_in_95_of_100_cases(count: int, share: float) -> None:
    found = ranks_around(count, share)
    if count * (1 - share) < 5:
        assert isinstance(found, str)
        return
    assert not isinstance(found, str)
    low, high = found
    for less in (low, count - 1 - high):
        assert less > 0
    assert stats.binom.cdf(low, count, share) <= 0.025 < stats.binom.cdf(low + 1, count, share)
    assert stats.binom.sf(high, count, share) <= 0.025


@pytest.mark.parametrize(
    ("values", "certain", "value"),
    [([1, 2, 3, 4, 5], True, 1), ([5, 4, 3, 2, 1], True, -1), ([1, 2, 3, 5, 4], False, 1), ([3] * 5, False, 0)],
)
def test_trend(values: list[float], certain: bool, value: float) -> None:
    found = trend(values)
    assert found is not None
    assert found.is_certain == certain
    assert found.value == pytest.approx(value)
    assert trend(values[:4]) is None


@pytest.mark.parametrize(
    ("make", "least", "most"),
    [
        (lambda random: np.arange(20.0) + random.normal(0, 0.3, 20), 0.95, 1),
        (lambda random: np.cumsum(random.normal(size=20)), 0, 0.1),
        (lambda random: 80.0 * (np.arange(20) > random.integers(20)) + random.normal(0, 0.3, 20), 0, 0),
    ],
    ids=["grows", "wanders", "a step"],
)
def test_growth_is_told_from_wandering_and_from_one_step(
    make: Callable[[np.random.Generator], Float64], least: float, most: float
) -> None:
    found = [growth(make(np.random.default_rng(seed))).low > 0 for seed in range(100)]
    assert least <= np.mean(found) <= most


def test_figures_by_hand() -> None:
    assert [weighted_quantile(np.asarray([5.0, 1.0]), np.asarray([1.0, 9.0]), q) for q in (0.5, 0.95)] == [1, 5]
    assert [min_count(percentile) for percentile in (50, 90, 95, 99)] == [1, 10, 20, 100]
    found = summarise(np.arange(100.0))
    assert (found.mean, found.p50, found.p90, found.p99, found.max) == (49.5, 49.5, 89.1, 98.01, 99)
    assert summarise(np.asarray([1.0, np.nan])).mean is None
    few = summarise(np.asarray([1.0]), mean=0.5)
    assert (few.mean, few.std, few.p50, few.p90) == (0.5, None, 1, None)
