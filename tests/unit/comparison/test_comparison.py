"""Statistics of a comparison: against scipy, by hand, and by how often they are wrong."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from perfharness.analysis.comparison.compare import (
    Judgement,
    Pair,
    Reason,
    Rule,
    compare,
    holm,
)
from perfharness.analysis.comparison.launches import alike_p_value, first_launch_p_value
from perfharness.model.columns import Float64

TIMES = st.lists(st.floats(0.5, 2.0), min_size=2, max_size=8).map(np.asarray)
ANY_EFFECT = Rule(min_effect=0.0)


def judge(base: list[float], new: list[float], rule: Rule | None = None) -> Judgement:
    (found,) = compare([Pair(np.asarray(base), np.asarray(new))], rule or Rule())
    return found


def ends(found: Judgement) -> tuple[float, float]:
    assert found.interval is not None
    return found.interval.low, found.interval.high


def test_one_pair_is_welchs_test_of_the_logarithms() -> None:
    base, new = np.asarray([10.0, 10.4, 9.9, 10.1]), np.asarray([11.0, 11.9, 11.2])
    (found,) = compare([Pair(base, new)], ANY_EFFECT)
    scipy = stats.ttest_ind(np.log(new), np.log(base), equal_var=False)
    wanted = scipy.confidence_interval(0.95)
    assert found.p_different == pytest.approx(scipy.pvalue)
    assert ends(found) == pytest.approx((np.exp(wanted.low), np.exp(wanted.high)))
    assert found.judged_by == found.interval
    assert found.direction == "up"
    assert found.ratio == pytest.approx(stats.gmean(new) / stats.gmean(base))


def test_a_drift_is_allowed_for_where_one_side_followed_the_other() -> None:
    """Both sides lie on one line, 1 % per launch, so nothing is left for the side."""
    times, places = np.exp(0.01 * np.arange(8)), np.arange(8)
    (after,) = compare([Pair(times[:4], times[4:], base_at=places[:4], new_at=places[4:])], ANY_EFFECT)
    (unknown,) = compare([Pair(times[:4], times[4:])], ANY_EFFECT)
    (in_turns,) = compare([Pair(times[::2], times[1::2], base_at=places[::2], new_at=places[1::2])], ANY_EFFECT)
    assert after.ratio == unknown.ratio == pytest.approx(np.exp(0.04))
    assert ends(after) == pytest.approx((1.0, np.exp(0.04)))
    found = [(one.allows_drift, one.direction) for one in (after, unknown, in_turns)]
    assert found == [(True, "undecided"), (False, "up"), (False, "undecided")]


@pytest.mark.parametrize(
    ("base", "new", "rule", "direction", "reason"),
    [
        ([10.0, 10.01, 9.99], [10.0, 10.01, 9.99], Rule(), "same", None),
        ([10.0, 10.01, 9.99], [11.0, 11.01, 10.99], Rule(), "up", None),
        ([10.0, 10.01, 9.99], [9.0, 9.01, 8.99], Rule(), "down", None),
        ([10.0, 10.01, 9.99], [10.2, 10.21, 10.19], Rule(), "undecided", Reason.TOO_WIDE),
        ([10.0, 10.01, 9.99], [9.0, 11.0, 10.0], Rule(), "undecided", Reason.TOO_WIDE),
        ([10.0, 10.01, 9.99], [10.5, 10.51, 10.49], Rule(), "up", None),
        ([10.0, 10.01, 9.99], [10.5, 10.51, 10.49], Rule(min_effect=0.1), "same", None),
        ([10.0], [20.0], Rule(), "undecided", Reason.ONE_LAUNCH),
        ([10.0], [20.0], Rule(spread=0.03), "up", None),
        ([10.0, 10.0], [10.5, 10.5], Rule(spread=0.2), "undecided", Reason.TOO_WIDE),
        ([], [1.0], Rule(), "not-comparable", Reason.MISSING),
        ([1.0, float("nan")], [1.0, 1.0], Rule(), "not-comparable", Reason.MISSING),
        ([1.0, -1.0], [1.0, 1.0], Rule(), "not-comparable", Reason.MISSING),
        ([0.0, 0.0], [1.0, 1.0], Rule(), "not-comparable", Reason.ZERO),
    ],
)
def test_verdicts(base: list[float], new: list[float], rule: Rule, direction: str, reason: Reason | None) -> None:
    found = judge(base, new, rule)
    assert (found.direction, found.reason) == (direction, reason)
    assert (found.ratio is None) == (direction == "not-comparable")


def test_an_undecided_row_names_a_number_that_probably_decides_it() -> None:
    random = np.random.default_rng(0)
    # Logarithms with the mean and the deviation that the simulation has.
    first = np.exp(stats.zscore(random.normal(size=5), ddof=1) * 0.03)
    needed = judge(list(first), list(first * 1.06)).launches_needed
    assert needed is not None

    def share_decided(count: int) -> float:
        made = np.exp(random.normal(0, 0.03, (200, 2, count)))
        return sum(judge(list(base), list(1.06 * new)).direction == "up" for base, new in made) / 200

    assert share_decided(needed // 2) < 0.75 < share_decided(needed) < 0.95
    assert judge(list(first), list(first * 1.02)).launches_needed is None


@given(st.lists(st.floats(0, 1), max_size=8), st.floats(0.01, 0.2))
@settings(max_examples=50)
def test_holm_by_its_definition(p_values: list[float], alpha: float) -> None:
    left = list(range(len(p_values)))
    while left and min(p_values[place] for place in left) * len(left) <= alpha:
        left.remove(min(left, key=lambda place: p_values[place]))
    assert [one > alpha for one in holm(p_values)] == [place in left for place in range(len(p_values))]


@given(st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=5), st.floats(0.001, 1000))
@settings(max_examples=50)
def test_an_interval_agrees_with_its_verdict_and_with_that_of_swapped_sides(
    sides: list[tuple[Float64, Float64]], unit: float
) -> None:
    opposite = {"up": "down", "down": "up", "same": "same", "undecided": "undecided"}
    found = compare([Pair(base, new) for base, new in sides], Rule())
    swapped = compare([Pair(new * unit, base * unit) for base, new in sides], Rule())
    for one, back in zip(found, swapped, strict=True):
        assert one.judged_by is not None
        assert one.ratio is not None
        low, high, wide = one.judged_by.low, one.judged_by.high, 1.02
        expected = {
            "up": low >= wide * (1 - 1e-9),
            "down": high <= 1 / wide * (1 + 1e-9),
            "same": low >= 1 / wide * (1 - 1e-9) and high <= wide * (1 + 1e-9),
            "undecided": low <= wide * (1 + 1e-9) and high >= 1 / wide * (1 - 1e-9),
        }
        assert expected[one.direction]
        assert low <= one.ratio * (1 + 1e-12)
        assert high >= one.ratio * (1 - 1e-12)
        assert back.direction == opposite[one.direction]
        assert back.ratio == pytest.approx(1 / one.ratio)


@pytest.mark.parametrize(
    ("counts", "new_spread", "drift", "order"),
    [
        ((3, 3), 1, 0, "turns"),
        ((5, 5), 1, 0, "turns"),
        ((5, 5), 1, 0.05, "turns"),
        ((5, 5), 1, 0.05, "after"),
        ((10, 3), 3, 0, "turns"),
        ((10, 3), 3, 0, "after"),
    ],
)
def test_equal_sides_are_seldom_called_different(
    counts: tuple[int, int], new_spread: float, drift: float, order: str
) -> None:
    """The rate is 5 % of the comparisons of six figures; that of Welch's test alone was 12 to 87 %."""
    random, total, comparisons = np.random.default_rng(5), sum(counts), 150
    at = np.arange(total)
    new_at = at[counts[0] :] if order == "after" else at[1 :: total // counts[1]][: counts[1]]
    base_at = np.setdiff1d(at, new_at)
    alarms = 0
    for _ in range(comparisons):
        logs = random.normal(0, 0.02, (6, total))
        logs[:, new_at] *= new_spread
        times = np.exp(logs + drift * at / total)
        pairs = [Pair(one[base_at], one[new_at], base_at=base_at, new_at=new_at) for one in times]
        alarms += any(one.direction != "undecided" for one in compare(pairs, ANY_EFFECT))
    assert stats.binomtest(alarms, comparisons, 0.05, alternative="greater").pvalue > 0.001


# ---- numbers over launches ----


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
