"""Statistics of a comparison: against scipy, by hand, and by how often they are wrong."""

from __future__ import annotations

from math import log1p

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from perfharness.analysis.comparison.verdicts import (
    Judgement,
    Pair,
    Reason,
    Rule,
    are_rounds,
    compare,
    geometric_mean,
    holm,
    holm_adjusted,
    order_share,
    relative_spread,
    width_for_drift,
)
from perfharness.model.result import Float64

TIMES = st.lists(st.floats(0.5, 2.0), min_size=2, max_size=8).map(np.asarray)


def judge(base: list[float], new: list[float], rule: Rule | None = None) -> Judgement:
    (found,) = compare([Pair(np.asarray(base), np.asarray(new))], rule or Rule())
    return found


def test_one_pair_is_welchs_test_of_the_logarithms() -> None:
    base, new = np.asarray([10.0, 10.4, 9.9, 10.1]), np.asarray([11.0, 11.9, 11.2])
    (found,) = compare([Pair(base, new)], Rule(min_effect=0.0))
    scipy = stats.ttest_ind(np.log(new), np.log(base), equal_var=False)
    wanted = scipy.confidence_interval(0.95)
    assert found.p_different == pytest.approx(scipy.pvalue)
    assert found.interval is not None
    assert (found.interval.low, found.interval.high) == pytest.approx((np.exp(wanted.low), np.exp(wanted.high)))
    assert found.judged_by == found.interval
    assert found.direction == "up"
    assert found.ratio == pytest.approx(stats.gmean(new) / stats.gmean(base))


def test_a_trend_is_taken_out_where_one_side_followed_the_other() -> None:
    # By hand: both sides lie on one line, 1 % a launch, so nothing is left for the side.
    times = np.exp(0.01 * np.arange(8))
    places = np.arange(8)
    drifting = Pair(times[:4], times[4:], base_at=places[:4], new_at=places[4:])
    (with_trend,) = compare([drifting], Rule(min_effect=0.0))
    (without,) = compare([Pair(times[:4], times[4:])], Rule(min_effect=0.0))
    assert (with_trend.allows_drift, with_trend.direction) == (True, "undecided")
    assert with_trend.ratio == without.ratio == pytest.approx(np.exp(0.04))
    assert with_trend.interval is not None
    assert (with_trend.interval.low, with_trend.interval.high) == pytest.approx((1.0, np.exp(0.04)))
    assert (without.allows_drift, without.direction) == (False, "up")
    in_turns = Pair(times[::2], times[1::2], base_at=places[::2], new_at=places[1::2])
    assert not compare([in_turns])[0].allows_drift
    assert order_share(places[:4], places[4:]) == pytest.approx(16 / 21)


def test_the_trend_is_that_of_least_squares() -> None:
    random = np.random.default_rng(3)
    values = random.normal(0, 0.02, 10)
    places = np.arange(10)
    (found,) = compare(
        [Pair(np.exp(values[:5]), np.exp(values[5:]), base_at=places[:5], new_at=places[5:])], Rule(min_effect=0)
    )
    # Another way to it: what is left of the values and of the side after the line through each (Frisch, Waugh, Lovell).
    side = (places >= 5).astype(float)
    left = [one - np.polyval(np.polyfit(places, one, 1), places) for one in (values, side)]
    slope = float(left[0] @ left[1] / (left[1] @ left[1]))
    error = np.sqrt(float(((left[0] - slope * left[1]) ** 2).sum()) / 7 / float(left[1] @ left[1]))
    half = stats.t.ppf(0.975, 7) * error
    ratio = values[5:].mean() - values[:5].mean()
    assert found.ratio == pytest.approx(np.exp(ratio))
    assert found.interval is not None
    expected = np.exp([min(slope - half, ratio), max(slope + half, ratio)])
    assert (found.interval.low, found.interval.high) == pytest.approx(tuple(expected))


@given(TIMES, TIMES, st.booleans(), st.floats(-0.1, 0.1))
def test_the_change_is_that_of_the_means_and_lies_in_its_interval(
    base: Float64, new: Float64, in_turns: bool, drift: float
) -> None:
    places = np.arange(len(base) + len(new))
    base_at = places[: len(base)] if not in_turns else places[::2][: len(base)]
    new_at = np.setdiff1d(places, base_at)[: len(new)]
    if len(base_at) < len(base):
        return
    base, new = base * np.exp(drift * base_at), new * np.exp(drift * new_at)
    (found,) = compare([Pair(base, new, base_at=base_at, new_at=new_at)])
    if found.reason is Reason.TOO_FEW_FOR_DRIFT:
        return
    assert found.ratio == pytest.approx((geometric_mean(new) or 0) / (geometric_mean(base) or 1))
    for interval in (found.interval, found.judged_by):
        assert interval is not None
        assert interval.low <= (found.ratio or 0) * (1 + 1e-12)
        assert interval.high >= (found.ratio or 0) * (1 - 1e-12)


def in_rounds(base: Float64, new: Float64, base_first: list[bool]) -> Pair:
    """Launches in rounds of one of each side."""
    base_at = np.asarray([2 * number + (not first) for number, first in enumerate(base_first)])
    return Pair(base, new, base_at=base_at, new_at=4 * np.arange(len(base_first)) + 1 - base_at)


SHUFFLED = [True, False, False, True, True, False, True]


def test_launches_of_a_round_are_compared_with_each_other() -> None:
    random = np.random.default_rng(5)
    slow = np.repeat([0.0, 0.5, 0.1], [3, 2, 2])  # of the machine, in both launches of a round
    base, new = (np.exp(slow + random.normal(0, 0.01, 7)) for _ in range(2))
    pair = in_rounds(base, new * 1.05, SHUFFLED)
    (found,) = compare([pair], Rule(min_effect=0.0))
    scipy = stats.ttest_rel(np.log(new * 1.05), np.log(base))
    wanted = scipy.confidence_interval(0.95)
    assert found.by_rounds
    assert found.p_different == pytest.approx(scipy.pvalue)
    assert found.interval is not None
    assert (found.interval.low, found.interval.high) == pytest.approx((np.exp(wanted.low), np.exp(wanted.high)))
    assert found.direction == "up"
    assert judge([*base], [*(new * 1.05)], Rule(min_effect=0.0)).direction == "undecided"
    # Whatever order the launches are named in, those of one round belong together.
    shuffled = random.permutation(7)
    assert pair.base_at is not None
    named = Pair(base[shuffled], pair.new, base_at=pair.base_at[shuffled], new_at=pair.new_at)
    assert compare([named], Rule(min_effect=0.0))[0].p_different == pytest.approx(scipy.pvalue)


@pytest.mark.parametrize(
    "pair",
    [
        pytest.param(in_rounds(np.ones(6), np.ones(6), SHUFFLED[:6]), id="too few"),
        pytest.param(in_rounds(np.ones(7), np.ones(7), [True] * 7), id="the base is always first"),
        pytest.param(in_rounds(np.ones(7), np.ones(7), [True] + [False] * 6), id="the base is first once"),
        pytest.param(Pair(np.ones(7), np.ones(7), base_at=np.arange(7), new_at=np.arange(7, 14)), id="no turns"),
        pytest.param(
            Pair(np.ones(8), np.ones(7), base_at=np.r_[np.arange(0, 14, 2), 14], new_at=np.arange(1, 14, 2)),
            id="one more of the base",
        ),
    ],
)
def test_what_are_no_rounds(pair: Pair) -> None:
    assert pair.base_at is not None
    assert pair.new_at is not None
    assert not are_rounds(pair.base_at, pair.new_at)
    assert not compare([pair])[0].by_rounds


@pytest.mark.parametrize("kept", ["rounds", "spread"])
def test_more_launches_are_counted_as_the_test_has_them(kept: str) -> None:
    random = np.random.default_rng(1)
    base, new = np.exp(random.normal(0, 0.05, 7)), np.exp(random.normal(0.04, 0.05, 7))
    (found,) = compare([in_rounds(base, new, SHUFFLED)], Rule(spread=0.5 if kept == "spread" else None))
    assert found.by_rounds == (kept == "rounds")
    assert found.direction == "undecided"
    differences = np.log(new) - np.log(base)
    error = differences.std(ddof=1) if kept == "rounds" else log1p(0.5) * np.sqrt(2)
    beyond = abs(abs(differences.mean()) - log1p(0.02))

    def decides(number: int) -> bool:
        freedom = number - 1 if kept == "rounds" else 2 * number - 2
        tail = 0.975 if abs(differences.mean()) > log1p(0.02) else 0.95
        width = stats.t.ppf(tail, freedom) + stats.t.ppf(0.8, freedom)
        return bool(width * error / np.sqrt(number) < beyond)

    needed = next((number for number in range(8, 1001) if decides(number)), None)
    assert found.launches_needed == needed


def test_how_much_wider_an_interval_is_that_allows_for_a_drift() -> None:
    places = np.arange(6)
    students = stats.t.ppf(0.975, 3) / stats.t.ppf(0.975, 4)
    assert width_for_drift(places[:3], places[3:]) == pytest.approx(students / np.sqrt(1 - 13.5 / 17.5))


@pytest.mark.parametrize(
    ("new", "direction"),
    [
        ([10.0, 10.01, 9.99], "same"),
        ([11.0, 11.01, 10.99], "up"),
        ([9.0, 9.01, 8.99], "down"),
        ([10.2, 10.21, 10.19], "undecided"),
        ([9.0, 11.0, 10.0], "undecided"),
    ],
)
def test_verdicts(new: list[float], direction: str) -> None:
    assert judge([10.0, 10.01, 9.99], new).direction == direction


def test_the_threshold_has_to_be_exceeded() -> None:
    base, new = [10.0, 10.001, 9.999], [10.5, 10.501, 10.499]
    assert judge(base, new, Rule(min_effect=0.02)).direction == "up"
    assert judge(base, new, Rule(min_effect=0.10)).direction == "same"


def test_one_launch_says_nothing_about_the_next() -> None:
    alone = judge([10.0], [20.0])
    assert (alone.direction, alone.reason) == ("undecided", Reason.ONE_LAUNCH)
    assert alone.ratio == pytest.approx(2.0)
    assert alone.interval is None
    stated = judge([10.0], [20.0], Rule(spread=0.03))
    assert stated.direction == "up"
    half = stats.norm.ppf(0.975) * log1p(0.03) * np.sqrt(2)
    assert stated.interval is not None
    assert stated.interval.high == pytest.approx(2 * np.exp(half))
    assert judge([10.0, 10.0], [10.5, 10.5], Rule(spread=0.2)).direction == "undecided"


@pytest.mark.parametrize(
    ("base", "new", "reason"),
    [
        ([], [1.0], Reason.MISSING),
        ([1.0, float("nan")], [1.0, 1.0], Reason.MISSING),
        ([1.0, -1.0], [1.0, 1.0], Reason.MISSING),
        ([0.0, 0.0], [1.0, 1.0], Reason.ZERO),
    ],
)
def test_what_has_no_ratio(base: list[float], new: list[float], reason: Reason) -> None:
    found = judge(base, new)
    assert (found.direction, found.reason, found.ratio) == ("not-comparable", reason, None)


def test_an_undecided_row_names_a_number_that_probably_decides_it() -> None:
    random = np.random.default_rng(0)
    # Logarithms with the mean and the deviation that the simulation has.
    first = np.exp(stats.zscore(random.normal(size=5), ddof=1) * 0.03)
    found = judge(list(first), list(first * 1.06))
    assert (found.direction, found.reason) == ("undecided", Reason.TOO_WIDE)
    needed = found.launches_needed
    assert needed is not None
    decided = {count: _share_decided(count, random) for count in (needed // 2, needed)}
    assert decided[needed // 2] < 0.75 < decided[needed] < 0.95
    exactly_there = judge(list(first), list(first * 1.02))
    assert exactly_there.launches_needed is None


def _share_decided(count: int, random: np.random.Generator) -> float:
    tries = 300
    made = np.exp(random.normal(0, 0.03, (tries, 2, count)))
    return sum(judge(list(base), list(1.06 * new)).direction == "up" for base, new in made) / tries


@given(st.lists(st.floats(0, 1), max_size=8), st.floats(0.01, 0.2))
def test_holm_by_its_definition(p_values: list[float], alpha: float) -> None:
    rejected, level = holm(p_values, alpha)
    left = list(range(len(p_values)))
    while left and min(p_values[place] for place in left) <= alpha / len(left):
        left.remove(min(left, key=lambda place: p_values[place]))
    assert [not one for one in rejected] == [place in left for place in range(len(p_values))]
    assert all((p_values[place] <= level) == rejected[place] for place in range(len(p_values)))
    adjusted = holm_adjusted(p_values)
    assert all(one >= p for one, p in zip(adjusted, p_values, strict=True))


@given(st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=5))
def test_an_interval_and_its_verdict_agree(sides: list[tuple[Float64, Float64]]) -> None:
    for one in compare([Pair(base, new) for base, new in sides]):
        assert one.judged_by is not None
        assert one.threshold is not None
        low, high = 1 / (1 + one.threshold), 1 + one.threshold
        expected = {
            "up": one.judged_by.low >= high * (1 - 1e-9),
            "down": one.judged_by.high <= low * (1 + 1e-9),
            "same": one.judged_by.low >= low * (1 - 1e-9) and one.judged_by.high <= high * (1 + 1e-9),
            "undecided": one.judged_by.low <= high * (1 + 1e-9) and one.judged_by.high >= low * (1 - 1e-9),
        }
        assert expected[one.direction]


@given(TIMES, TIMES, st.floats(0.001, 1000))
def test_swapped_sides_and_other_units(base: Float64, new: Float64, unit: float) -> None:
    opposite = {"up": "down", "down": "up", "same": "same", "undecided": "undecided"}
    (there,), (back,) = compare([Pair(base, new)]), compare([Pair(new, base)])
    (scaled,) = compare([Pair(base * unit, new * unit)])
    assert back.direction == opposite[there.direction]
    assert there.ratio == pytest.approx(1 / (back.ratio or np.nan))
    assert scaled.ratio == pytest.approx(there.ratio)


@pytest.mark.parametrize("launches", [3, 5])
def test_equal_sides_are_seldom_called_different(launches: int) -> None:
    random = np.random.default_rng(launches)
    comparisons, stages = 300, 6
    alarms = 0
    for _ in range(comparisons):
        common = random.normal(0, 0.02, (2 * launches, 1))
        times = np.exp(common + random.normal(0, 0.02, (2 * launches, stages)))
        judged = compare([Pair(one[:launches], one[launches:]) for one in times.T], Rule(min_effect=0.0))
        alarms += any(one.direction != "undecided" for one in judged)
    assert stats.binomtest(alarms, comparisons, 0.05, alternative="greater").pvalue > 0.001


@pytest.mark.parametrize("order", ["unknown", "after"])
@pytest.mark.parametrize("spread", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_sides_of_unequal_numbers_keep_the_rate(order: str, spread: float) -> None:
    """Three launches that are alike by chance: by Welch's test 12 % of comparisons of equal sides had a false alarm."""
    drawn = np.random.default_rng(5)
    at = (np.arange(10), np.arange(10, 13)) if order == "after" else (None, None)
    alarms = 0
    for _ in range(200):
        base, new = (np.exp(0.02 * scale * drawn.standard_normal((12, n))) for n, scale in ((10, 1), (3, spread)))
        pairs = [Pair(one, other, base_at=at[0], new_at=at[1]) for one, other in zip(base, new, strict=True)]
        alarms += any(one.direction in ("up", "down") for one in compare(pairs, Rule(min_effect=0.0)))
    assert alarms <= 10


def test_means_and_spread() -> None:
    assert geometric_mean(np.asarray([1.0, 4.0])) == pytest.approx(2.0)
    assert geometric_mean(np.asarray([0.0, 4.0])) == 2.0
    assert geometric_mean(np.asarray([])) is None
    assert relative_spread(np.asarray([1.0, np.e])) == pytest.approx(np.exp(1 / np.sqrt(2)) - 1)
    assert relative_spread(np.asarray([1.0])) is None
