"""Which of several ways to serve a load is taken, on values that are known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from perfharness.analysis.load.choice import Contender, choose


def contenders(*values: Sequence[float]) -> list[Contender]:
    """Launches in turns; the later, the dearer."""
    width = len(values)
    return [
        Contender((number,), np.array(each, np.float64), np.arange(len(each)) * width + number)
        for number, each in enumerate(values)
    ]


def test_the_best_is_taken_where_the_others_are_worse() -> None:
    found = choose(contenders([50, 50.5, 49.8], [99, 100, 101], [150, 149, 151]), more_is_better=True)
    assert (found.leader, found.chosen, found.proven) == (2, 2, True)
    assert [one.standing for one in found.places] == ["worse", "worse", "best"]
    ratio, interval = found.places[0].ratio, found.places[0].interval
    assert ratio == pytest.approx((50 * 50.5 * 49.8 / (150 * 149 * 151)) ** (1 / 3))
    assert interval is not None
    assert ratio is not None
    assert interval.low < ratio < interval.high < 0.36


def test_the_cheapest_is_taken_of_those_that_are_as_good() -> None:
    """A third replica brings 1 %, which is not worth its memory."""
    found = choose(contenders([50, 50.1, 49.9], [100, 100.1, 99.9], [101, 101.1, 100.9]), more_is_better=True)
    assert (found.leader, found.chosen, found.proven) == (2, 1, True)
    assert [one.standing for one in found.places] == ["worse", "same", "best"]


def test_less_is_better_of_a_latency() -> None:
    found = choose(contenders([20, 20.1, 19.9], [10, 10.1, 9.9]), more_is_better=False)
    assert (found.chosen, found.proven) == (1, True)
    assert found.places[0].ratio == pytest.approx(2, rel=0.001)


def test_what_launches_cannot_tell_apart_is_not_proven() -> None:
    found = choose(contenders([90, 110, 100], [95, 120, 100]), more_is_better=True)
    assert (found.leader, found.proven) == (1, False)
    assert found.places[0].standing == "undecided"
    nearly = choose(contenders([97, 103, 100], [107, 113, 110]), more_is_better=True)
    assert (nearly.places[0].standing, nearly.proven) == ("undecided", False)
    assert 3 < (nearly.places[0].launches_needed or 0) < 30


def test_one_of_equals_is_rarely_called_better_than_all() -> None:
    """Of three that do not differ one leads by chance; the others are then called worse in at most 5 % of the cases."""
    drawn, wrong, runs = np.random.default_rng(3), 0, 300
    for _ in range(runs):
        found = choose(contenders(*np.exp(drawn.normal(0, 0.05, (3, 5)))), more_is_better=True)
        wrong += any(one.standing == "worse" for one in found.places)
    assert wrong <= 0.05 * runs
