"""Intervals over launches: by hand, by scipy, and how often they hold the truth."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from perfharness.analysis.comparison.launches import (
    ProcessBatches,
    SpreadLevels,
    alike_p_value,
    autocorrelation,
    drift_of_launches,
    first_launch_p_value,
    mean_of_launches,
    spread_levels,
)
from perfharness.model.result import Float64

TIMES = st.floats(1e-3, 1e6)


def kept(series: Sequence[Float64]) -> list[ProcessBatches]:
    return [ProcessBatches.of(values) for values in series]


def test_by_hand() -> None:
    found = mean_of_launches([9.0, 10.0, 11.0])  # t of 2 degrees is 4.3027; the deviation is 1
    assert (found.mean, found.std, found.reason) == (10.0, 1.0, None)
    assert found.low == pytest.approx(10 - 4.302653 / 3**0.5, rel=1e-6)
    assert found.high == pytest.approx(10 + 4.302653 / 3**0.5, rel=1e-6)


@given(st.lists(TIMES, min_size=2, max_size=30))
def test_a_second_way(values: list[float]) -> None:
    found = mean_of_launches(values)
    assert found.mean is not None
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.mean <= found.high
    error = stats.sem(values)
    if error > 1e-9 * found.mean:
        wanted = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=error)
        assert (found.low, found.high) == pytest.approx(wanted, rel=1e-6, abs=1e-6 * found.mean)


@pytest.mark.parametrize(("values", "mean"), [([], None), ([5.0], 5.0), ([5.0, None], None), ([None, None], None)])
def test_no_interval_has_a_reason(values: list[float | None], mean: float | None) -> None:
    found = mean_of_launches(values)
    assert (found.mean, found.low, found.high, found.std) == (mean, None, None, None)
    assert found.reason


def test_the_interval_misses_at_its_rate() -> None:
    random = np.random.default_rng(1)
    for count in (3, 5):
        means = [mean_of_launches(list(random.normal(100, 5, count))) for _ in range(2000)]
        missed = sum(not (one.low or 0) <= 100 <= (one.high or 0) for one in means)
        assert missed == pytest.approx(100, abs=40)  # of 2000; four standard errors


@given(st.lists(TIMES, min_size=5, max_size=12, unique=True))
def test_drift_a_second_way(values: list[float]) -> None:
    found = drift_of_launches(values)
    assert found is not None
    pairs = [(b - a, j - i) for i, a in enumerate(values) for j, b in enumerate(values) if j > i]
    score = sum(1 if rise > 0 else -1 for rise, _ in pairs)
    assert found.tau == pytest.approx(score / len(pairs))
    assert found.per_launch == pytest.approx(np.median([rise / run for rise, run in pairs]))


@given(st.lists(st.tuples(st.floats(0.5, 50), st.floats(0.5, 50), st.floats(0.5, 50)), min_size=2, max_size=6))
def test_launches_that_differ_more_than_their_readings_a_second_way(readings: list[tuple[float, ...]]) -> None:
    found = alike_p_value(readings)
    if np.log(readings).std(axis=1).max() > 1e-3:
        expected = stats.f_oneway(*np.log(readings)).pvalue
        assert found == pytest.approx(1.0 if np.isnan(expected) else expected, abs=1e-6)  # of equal means F may be < 0


def test_launches_that_cannot_be_told_from_their_readings() -> None:
    assert alike_p_value([(1.0, 1.1)]) is None
    assert alike_p_value([(1.0,), (2.0,)]) is None
    assert alike_p_value([(1.0, 1.0), (2.0, 2.0)]) == 0.0
    assert alike_p_value([(2.0, 2.0), (2.0, 2.0), ()]) == 1.0


def test_the_first_launch_against_the_others() -> None:
    others = [10.0, 11.0, 12.0, 13.0]
    found = first_launch_p_value([20.0, *others])
    spread = stats.tstd(others) * (1 + 1 / 4) ** 0.5
    assert found == pytest.approx(2 * stats.t.sf((20 - 11.5) / spread, 3))
    assert first_launch_p_value([20.0, *others[:3]]) is None
    assert first_launch_p_value([20.0, *[10.0] * 5]) is None
    random = np.random.default_rng(11)
    chance = [first_launch_p_value([float(one) for one in random.normal(100, 5, 6)]) for _ in range(4000)]
    assert sum(one is not None and one < 0.05 for one in chance) == pytest.approx(200, abs=60)


def test_drift_is_exact_and_needs_five_launches() -> None:
    assert drift_of_launches([1.0, 2.0, 3.0, 4.0]) is None
    rising = drift_of_launches([1.0, 2.0, 3.0, 4.0, 5.0])
    assert rising is not None
    assert rising.p_value == pytest.approx(2 / 120)
    assert rising.is_drift
    alike = drift_of_launches([1.0] * 6)
    assert alike is not None
    assert not alike.is_drift


def test_autocorrelation_has_its_rate_and_is_found_where_there_is_some() -> None:
    random = np.random.default_rng(7)
    chance = [autocorrelation(kept([np.exp(random.normal(size=30)) for _ in range(3)])) for _ in range(200)]
    assert sum(one is not None and one.p_value < 0.05 for one in chance) == pytest.approx(10, abs=12)
    series = [np.cumsum(random.normal(size=60)) for _ in range(3)]
    found = autocorrelation(kept(series))
    assert found is not None
    assert found.is_found
    assert found.worth < 0.2
    assert autocorrelation(kept([np.ones(50), random.normal(size=5)])) is None


def test_levels_by_hand() -> None:
    one = [np.asarray([1.0, 3.0]), np.asarray([5.0, 7.0])]  # means 2 and 6; of the launch 4
    other = [np.asarray([11.0, 13.0]), np.asarray([11.0, 13.0])]  # means 12 and 12; 12
    found = spread_levels([kept(one), kept(other)])
    assert found.batches == pytest.approx(2**0.5)
    assert found.processes == pytest.approx((8 / 2) ** 0.5)  # (2-4)² + (6-4)², one degree each
    assert found.launches == pytest.approx(32**0.5)
    assert found.expected == pytest.approx(2**0.5 / 2)  # four batches a launch
    assert spread_levels([kept([np.asarray([1.0])]), []]) == SpreadLevels(None, None, None, None)
