"""Batches in few numbers: groups, stretches, histograms; and what they cost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfharness.analysis.stages.batch_series import batch_series, histogram, spans_of
from perfharness.analysis.suites.cost import Prices, cost
from perfharness.model.result import BatchLoop

MS = 1_000_000


def loop(values_ms: list[float], warmup: list[bool] | None = None) -> BatchLoop:
    start = np.arange(len(values_ms), dtype=np.int64) * 1000 * MS
    end = start + (np.asarray(values_ms) * MS).astype(np.int64)
    flags = np.asarray(warmup or [False] * len(values_ms), dtype=np.bool_)
    return BatchLoop(("toy", "batch"), start, end, np.ones(len(values_ms)), flags)


def test_few_batches_stay_themselves() -> None:
    found = batch_series(loop([3.0, 1.0, 2.0], [True, False, True]))
    assert (found.batches, found.batches_per_group, found.first) == (3, 1, [0, 1, 2])
    assert found.min_ms == found.median_ms == found.max_ms == [3.0, 1.0, 2.0]
    assert found.start_s == [0.0, 1.0, 2.0]
    assert (found.warmup, found.throttled, found.longest_measured_ms) == ([(0, 1), (2, 3)], None, 1.0)


def test_many_batches_are_groups_that_keep_the_extremes() -> None:
    found = batch_series(loop([1.0, 5.0, 2.0, 9.0, 4.0]), max_points=3)
    assert (found.batches_per_group, found.first) == (2, [0, 2, 4])
    assert found.min_ms == [1.0, 2.0, 4.0]
    assert found.median_ms == [3.0, 5.5, 4.0]
    assert found.max_ms == [5.0, 9.0, 4.0]


def test_no_batch_is_no_series() -> None:
    assert (batch_series(loop([])).first, batch_series(loop([])).longest_measured_ms) == ([], None)


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 10))
def test_spans_hold_every_true_and_are_few(flags: list[bool], most: int) -> None:
    spans = spans_of(np.asarray(flags, dtype=np.bool_), most)
    inside = {place for start, end in spans for place in range(start, end)}
    assert {place for place, flag in enumerate(flags) if flag} <= inside
    assert len(spans) <= most
    assert all(start < end for start, end in spans)
    if len(spans_of(np.asarray(flags, dtype=np.bool_), 100)) <= most:
        assert inside == {place for place, flag in enumerate(flags) if flag}


@given(st.lists(st.floats(0, 1e6) | st.just(float("nan")), max_size=300))
def test_a_histogram_counts_every_known_value_once(values: list[float]) -> None:
    known = [value for value in values if value == value]
    found = histogram(np.asarray(values, dtype=np.float64))
    if len(known) < 2:
        assert found is None
        return
    assert found is not None
    assert sum(found.counts) + found.beyond == found.values == len(known)
    assert found.max_ms == max(known)
    assert found.edges_ms == sorted(found.edges_ms)
    assert found.edges_ms[0] == min(known)


def test_one_far_value_does_not_widen_a_histogram() -> None:
    found = histogram(np.asarray([*np.linspace(1.0, 2.0, 50), 1000.0]))
    assert found is not None
    assert (found.beyond, found.max_ms) == (1, 1000.0)
    assert found.edges_ms[-1] <= 10.0


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
