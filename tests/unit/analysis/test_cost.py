"""Costs of a million items, by hand."""

from __future__ import annotations

import pytest

from perfharness.analysis.suites.cost import Prices, cost


def test_the_cost_of_a_million_items() -> None:
    """3.60 an hour at 1,000 items/s is 1,000 s: 1.00. 7.2 J an item is 2 kWh: 0.60 at 0.30, and 5 % of it 0.03."""
    found = cost(Prices(3.6, 0.3), 1000.0, 7.2, 0.05)
    assert [found.machine, found.energy, found.energy_error] == pytest.approx([1.0, 0.6, 0.03])
    assert found.machine_reason is None


@pytest.mark.parametrize(
    ("prices", "rate", "joules"),
    [(Prices(), 10.0, 1.0), (Prices(1.0, 1.0), None, None), (Prices(1.0, 1.0), 0.0, None)],
)
def test_an_unknown_cost_is_null_with_the_reason(prices: Prices, rate: float | None, joules: float | None) -> None:
    found = cost(prices, rate, joules, None)
    assert (found.machine, found.energy, found.energy_error) == (None, None, None)
    assert found.machine_reason
    assert found.energy_reason


def test_a_free_machine_costs_nothing() -> None:
    assert cost(Prices(0.0, None), 10.0, None, None).machine == 0.0
