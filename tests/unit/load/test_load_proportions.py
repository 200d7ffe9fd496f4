"""Percentiles of load tests: by hand, against a second way, and against queues whose answer is known."""

from __future__ import annotations

from math import ceil, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfharness.analysis.load.proportions import NEVER_NS, Latencies, WindowedCounts

MS = 1_000_000


def independent(count: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    drawn = np.random.default_rng(seed)
    at = np.arange(count, dtype=np.int64) * 10 * MS
    return at, np.round(drawn.exponential(10 * MS, count)).astype(np.int64)


def queue(count: int, load: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """M/M/1 in its steady state, service 10 ms on average."""
    drawn = np.random.default_rng(seed)
    total = count + 5000
    between, service = drawn.exponential(10 * MS / load, total), drawn.exponential(10 * MS, total)
    walk = np.concatenate([[0.0], np.cumsum(service[:-1] - between[1:])])
    taken = walk - np.minimum.accumulate(walk) + service
    return np.cumsum(between)[5000:].astype(np.int64), taken[5000:].astype(np.int64)


@given(
    values=st.lists(st.integers(0, 10**9), min_size=20, max_size=200),
    percent=st.sampled_from([50.0, 90.0, 95.0, 99.0, 99.9]),
)
def test_a_percentile_is_the_smallest_value_that_as_many_requests_do_not_exceed(
    values: list[int], percent: float
) -> None:
    at = np.arange(len(values), dtype=np.int64)
    found = Latencies(WindowedCounts.of_values(at, np.asarray(values, np.int64))).percentile(percent)
    if len(values) * (100 - percent) / 100 < 10 - 1e-9:
        assert found.value is None
        assert found.reason is not None
        return
    by_hand = next(one for one in sorted(values) if sum(v <= one for v in values) >= percent / 100 * len(values) - 1e-9)
    assert found.value == by_hand / 1e6
    if found.low is not None and found.high is not None:
        assert found.low <= found.value <= found.high


@pytest.mark.parametrize(("count", "supported"), [(999, False), (1000, True)])
def test_p99_needs_ten_values_beyond(count: int, supported: bool) -> None:
    assert (Latencies(WindowedCounts.of_values(*independent(count))).percentile(99.0).value is not None) == supported


def test_p99_has_an_interval_where_only_the_level_of_usual_requests_wanders() -> None:
    """Half a minute at 1.0 ms, half a minute at 1.1 ms, in turn; one request in fifty takes longer, of itself."""
    drawn = np.random.default_rng(3)
    at = np.arange(60_000, dtype=np.int64) * 10 * MS
    usual = 1 + 0.1 * (at // (30_000 * MS) % 2) + drawn.uniform(0, 0.01, len(at))
    taken = np.round((usual + (drawn.random(len(at)) < 0.02) * (1 + drawn.exponential(1, len(at)))) * MS)
    found = Latencies(WindowedCounts.of_values(at, taken.astype(np.int64))).percentile(99.0)
    assert found.low is not None
    assert found.high is not None
    truth = 2.05 + log(2)  # half of the slow ones take longer, but for the two levels
    assert found.low <= truth <= found.high
    assert found.high - found.low < 0.3


def test_buckets_and_single_values_agree_within_the_buckets() -> None:
    at, taken = independent(20_000)
    exact = Latencies(WindowedCounts.of_values(at, taken, 50))
    width = 100_000
    window = np.minimum(at * 50 // np.ptp(at), 49)
    keys, count = np.unique(np.stack([window, taken // width]), axis=1, return_counts=True)
    low = keys[1] * width
    bucketed = Latencies(WindowedCounts.of_buckets(50, keys[0], low, low + width - 1, count))
    for percent in (50.0, 99.0, 99.9):
        one, other = exact.percentile(percent), bucketed.percentile(percent)
        assert one.value is not None
        assert other.value is not None
        assert abs(one.value - other.value) <= width / 1e6
        assert (one.low is None) == (other.low is None)


def test_requests_without_an_answer_are_slower_than_all_others() -> None:
    at, taken = independent(10_000)
    taken[::50] = NEVER_NS  # 2 %
    latencies = Latencies(WindowedCounts.of_values(at, taken))
    assert latencies.percentile(99.0).value is None
    assert latencies.mean().value is None
    answered = np.sort(taken)
    assert latencies.percentile(95.0).value == answered[ceil(0.95 * len(taken)) - 1] / MS


def test_neighbours_that_are_alike_widen_the_interval() -> None:
    at, taken = independent(20_000)
    one = Latencies(WindowedCounts.of_values(at, taken)).percentile(90.0)
    other = Latencies(WindowedCounts.of_values(at, np.sort(taken.reshape(200, 100), axis=0).ravel())).percentile(90.0)
    assert one.value == other.value
    assert one.low is not None
    assert one.high is not None
    assert other.low is None or other.high is None or other.high - other.low > 3 * (one.high - one.low)


def test_too_few_windows_have_no_interval_but_the_value() -> None:
    at, taken = independent(2000)
    found = Latencies(WindowedCounts.of_values(at, taken, 5)).percentile(50.0)
    assert found.value is not None
    assert found.low is None
    assert found.reason is not None


def test_nothing_measured_is_null() -> None:
    none = np.empty(0, np.int64)
    latencies = Latencies(WindowedCounts.of_values(none, none))
    assert latencies.mean().value is None
    assert latencies.percentile(50.0).value is None


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_the_intervals_hold_the_truth_of_a_queue(load: float) -> None:
    """At least 90 of 100 intervals of p50 and p90 where 95 should; `scripts/load_calibration` has the whole table."""
    held = {50.0: 0, 90.0: 0}
    for seed in range(100):
        latencies = Latencies(WindowedCounts.of_values(*queue(20_000, load, seed)))
        for percent in held:
            truth = -log(1 - percent / 100) * 10 / (1 - load)
            found = latencies.percentile(percent)
            assert found.low is not None
            assert found.high is not None
            held[percent] += found.low <= truth <= found.high
            assert found.high - found.low < 2 * truth  # and they say something
    assert min(held.values()) >= 90


def test_equal_latencies_are_not_taken_for_a_change_over_time() -> None:
    at, _ = independent(20_000)
    drawn = np.random.default_rng(3)
    taken = np.where(drawn.random(len(at)) < 0.02, 30 * MS, 10 * MS).astype(np.int64)
    latencies = Latencies(WindowedCounts.of_values(at, taken))
    assert latencies.percentile(50.0).high == 10.0
