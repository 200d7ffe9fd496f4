"""Numbers over launches: means with intervals, and whether launches differ, by hand and by scipy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from perfharness.analysis.comparison.launches import alike_p_value, first_launch_p_value, mean_of_launches


@pytest.mark.parametrize(
    ("values", "mean", "half"),
    [
        ([9.0, 10.0, 11.0], 10.0, 4.302653 / 3**0.5),  # t of 2 degrees; the deviation is 1
        ([], None, None),
        ([5.0], 5.0, None),
        ([5.0, None], None, None),
    ],
)
def test_a_mean_has_an_interval_or_a_reason(values: list[float | None], mean: float | None, half: float | None) -> None:
    found = mean_of_launches(values)
    assert found.mean == mean
    assert bool(found.reason) == (half is None) == (found.low is None) == (found.std is None)
    if half is not None:
        assert (found.low, found.high) == pytest.approx((10 - half, 10 + half))


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        ([(1.0, 1.1), (1.3, 1.2), (1.1, 1.15)], stats.f_oneway(*np.log([(1.0, 1.1), (1.3, 1.2), (1.1, 1.15)])).pvalue),
        ([(1.0, 1.1)], None),
        ([(1.0,), (2.0,)], None),
        ([(1.0, 1.0), (2.0, 2.0)], 0.0),
        ([(2.0, 2.0), (2.0, 2.0), ()], 1.0),
    ],
)
def test_launches_that_differ_more_than_their_readings(
    readings: list[tuple[float, ...]], expected: float | None
) -> None:
    assert alike_p_value(readings) == (expected if expected is None else pytest.approx(expected))


def test_the_first_launch_against_the_others() -> None:
    others = [10.0, 11.0, 12.0, 13.0]
    spread = stats.tstd(others) * (1 + 1 / 4) ** 0.5
    assert first_launch_p_value([20.0, *others]) == pytest.approx(2 * stats.t.sf((20 - 11.5) / spread, 3))
    assert first_launch_p_value([20.0, *others[:3]]) is None
    assert first_launch_p_value([20.0, *[10.0] * 5]) is None
