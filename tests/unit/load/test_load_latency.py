"""Percentiles of load tests: by hand, against a second way, and against queues whose answer is known."""

from __future__ import annotations

from math import ceil, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfharness.analysis.load.latency import NEVER_NS, Latencies, load_times

MS = 1_000_000
Requests = tuple[np.ndarray, np.ndarray]


def independent(count: int) -> Requests:
    drawn = np.random.default_rng(1)
    return np.arange(count, dtype=np.int64) * 10 * MS, np.round(drawn.exponential(10 * MS, count)).astype(np.int64)


def queue(count: int, load: float, seed: int) -> Requests:
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
    found = Latencies.of(at, np.asarray(values, np.int64)).percentile(percent)
    if len(values) * (100 - percent) / 100 < 10 - 1e-9:
        assert found.low is None
        assert found.reason
        return
    by_hand = next(one for one in sorted(values) if sum(v <= one for v in values) >= percent / 100 * len(values) - 1e-9)
    assert found.value == by_hand / MS
    assert (found.low is None) == bool(found.reason)
    assert found.low is None or found.high is None or found.low <= found.value <= found.high


@pytest.mark.parametrize(
    ("requests", "windows", "percent", "has_value", "has_interval"),
    [
        (independent(999), 240, 99.0, False, False),
        (independent(1000), 240, 99.0, True, True),
        (independent(2000), 240, 50.0, True, True),
        (independent(2000), 5, 50.0, True, False),
        (independent(0), 240, 50.0, False, False),
    ],
    ids=["9 beyond", "10 beyond", "enough", "5 windows", "nothing"],
)
def test_what_is_not_known_is_null(
    requests: Requests, windows: int, percent: float, has_value: bool, has_interval: bool
) -> None:
    found = Latencies.of(*requests, windows).percentile(percent)
    assert (found.value is not None, found.low is not None and found.high is not None) == (has_value, has_interval)
    assert bool(found.reason) != has_interval


def test_requests_without_an_answer_are_slower_than_all_others() -> None:
    at, taken = independent(10_000)
    taken[::50] = NEVER_NS  # 2 %
    found = load_times(at, taken, "")
    assert (found.count, found.slower) == (9800, 200)
    assert (found.p99.value, found.mean.value, found.max.value) == (None, None, None)
    assert found.p95.value == np.sort(taken)[ceil(0.95 * len(taken)) - 1] / MS


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_the_intervals_hold_the_truth_of_a_queue(load: float) -> None:
    """docs/internals/statistics.md has longer runs too."""
    held = []
    for seed in range(30):
        latencies = Latencies.of(*queue(20_000, load, seed))
        for percent in (50.0, 90.0):
            truth = -log(1 - percent / 100) * 10 / (1 - load)
            found = latencies.percentile(percent)
            if found.low is not None and found.high is not None:
                held.append(found.low <= truth <= found.high)
    assert len(held) >= 55
    assert np.mean(held) >= 0.93


def test_equal_latencies_are_not_taken_for_a_change_over_time() -> None:
    at, _ = independent(20_000)
    slow = np.random.default_rng(3).random(len(at)) < 0.02
    taken = np.where(slow, 30 * MS, 10 * MS).astype(np.int64)
    assert Latencies.of(at, taken).percentile(50.0).high == 10.0
