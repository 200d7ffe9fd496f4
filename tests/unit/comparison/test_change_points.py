"""Steps in a series: found where planted; where there are none, at the stated rate; by hand where one can count."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfharness.analysis.comparison.change_points import change_points, is_autocorrelated, largest_step, least_rate


def places(values: Sequence[float], **options: float) -> list[int]:
    return [change.place for change in change_points(values, **options)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "place", "p_value"),
    [
        ([1, 2, 3, 11, 12, 13], 3, 2 / math.comb(6, 3)),  # one place only: both orders of the two halves
        ([5, 5, 5, 5, 5, 5], 3, 1.0),
    ],
)
def test_the_rate_of_few_points_is_counted(values: list[float], place: int, p_value: float) -> None:
    assert largest_step(np.asarray(values, dtype=np.float64)) == ((place,), p_value)


def size(ranks: Sequence[float], least: int = 3) -> float:
    """The statistic, as its definition says."""
    count = len(ranks)
    sizes = []
    for cut in range(least, count - least + 1):
        before, after = ranks[:cut], ranks[cut:]
        difference = sum(before) / len(before) - sum(after) / len(after)
        sizes.append(abs(difference) * math.sqrt(len(before) * len(after) / count))
    return max(sizes)


def test_the_rate_is_that_over_all_orders() -> None:
    values = [3.0, 1.0, 2.0, 9.0, 7.0, 8.0, 6.0]
    ranks = [sorted(values).index(value) + 1.0 for value in values]
    sizes = [size(order) for order in itertools.permutations(ranks)]
    expected = sum(one >= size(ranks) - 1e-9 for one in sizes) / len(sizes)
    assert largest_step(np.asarray(values))[1] == pytest.approx(expected)


def noisy(levels: Sequence[tuple[int, float]], seed: int = 1, spread: float = 0.01) -> list[float]:
    drawn = np.random.default_rng(seed)
    return [level * float(np.exp(drawn.normal(0, spread))) for count, level in levels for _ in range(count)]


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        ([(20, 10.0)], []),
        ([(10, 10.0), (10, 11.0)], [10]),
        ([(15, 10.0), (15, 11.0), (15, 9.0)], [15, 30]),
        ([(15, 10.0), (15, 11.0), (15, 10.0)], [15, 30]),
        ([(10, 10.0), (10, 12.0), (10, 10.0)], [10, 20]),
        ([(20, 10.0), (10, 12.0), (5, 10.0)], [20, 30]),
        ([(20, 10.0), (10, 12.0), (10, 10.0), (10, 9.0)], [20, 30, 40]),
        ([(5, 10.0)], []),
        ([], []),
    ],
)
def test_planted_steps(levels: list[tuple[int, float]], expected: list[int]) -> None:
    found = places(noisy(levels))
    assert len(found) == len(expected)
    assert all(abs(place - there) <= 1 for place, there in zip(found, expected, strict=True))


def test_levels_are_medians_on_both_sides() -> None:
    (step,) = change_points([10.0] * 5 + [50.0] + [10.0] * 5 + [12.0] * 10)
    assert (step.place, step.before, step.after, step.ratio) == (11, 10.0, 12.0, 1.2)


def test_a_step_from_zero_has_no_ratio() -> None:
    (step,) = change_points([0.0] * 8 + [1.0] * 8)
    assert (step.place, step.ratio) == (8, None)


def test_steps_below_the_smallest_that_counts_are_left_out() -> None:
    values = [10.0] * 10 + [10.1] * 10 + [12.0] * 10
    assert places(values, min_effect=0.0) == [10, 20]
    (step,) = change_points(values, min_effect=0.02)
    assert (step.place, step.before) == (20, 10.05)


@settings(max_examples=10)
@given(st.lists(st.floats(1, 100), min_size=9, max_size=20), st.floats(0.1, 50))
def test_only_the_order_of_the_numbers_counts(values: list[float], factor: float) -> None:
    scaled = [value * factor for value in values]
    if [sorted(values).index(one) for one in values] == [sorted(scaled).index(one) for one in scaled]:
        assert places(values, alpha=0.3) == places(scaled, alpha=0.3)


def test_false_alarms_are_no_more_than_stated() -> None:
    """Of 400 series without a step, at 5 %: more than 33 would be chance once in a thousand times."""
    drawn = np.random.default_rng(7)
    assert sum(bool(places(drawn.exponential(1, 15).tolist(), alpha=0.05)) for _ in range(400)) <= 33


@pytest.mark.parametrize(("count", "rate"), [(5, 1.0), (6, 2 / math.comb(6, 3)), (8, 2 / math.comb(8, 4))])
def test_the_clearest_step_there_can_be(count: int, rate: float) -> None:
    assert least_rate(count) == rate


def test_autocorrelation() -> None:
    drawn = np.random.default_rng(3)
    white = drawn.normal(0, 1, 60)
    assert not is_autocorrelated(white)
    assert is_autocorrelated(np.convolve(white, [1, 0.9, 0.8], "valid"))
    stepped = np.concatenate([white[:30], white[30:] + 20])
    assert is_autocorrelated(stepped)
    assert not is_autocorrelated(stepped, [30])
    assert not is_autocorrelated([1.0, 2.0])
    assert not is_autocorrelated([1.0] * 20)
