from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfharness.model.telemetry import Float64
from perfharness.model.trace import Int64
from perfharness.telemetry.updates import UpdatePeriod, find_new, find_update_period

MS = 1_000_000


def polled(
    update_ms: float,
    polling_ms: float,
    count: int = 400,
    *,
    repeats: float = 0.0,
    jitter_ms: float = 0.0,
    seed: int = 1,
) -> tuple[Int64, Float64, Int64]:  # fmt: skip
    """Readings of a source that is updated every `update_ms`; the update each of them saw comes last.

    `repeats`: share of the updates that say the same as the one before.
    """
    random = np.random.default_rng(seed)
    times = (np.arange(count) * polling_ms + random.uniform(0, jitter_ms, count)) * MS
    update = (times // (update_ms * MS)).astype(np.int64)
    steps = random.uniform(size=update[-1] + 1) >= repeats
    return times.astype(np.int64), np.cumsum(steps).astype(np.float64)[update], update


@pytest.mark.parametrize("polling_ms", [10, 20, 35, 50, 70])
@pytest.mark.parametrize("update_ms", [100, 103.7])
@pytest.mark.parametrize("repeats", [0.0, 0.2])
def test_the_update_period_is_found_at_any_polling(polling_ms: float, update_ms: float, repeats: float) -> None:
    times, values, _ = polled(update_ms, polling_ms, 600, repeats=repeats, jitter_ms=2)
    found = find_update_period(times, values)
    assert found.period_ns is not None
    assert found.resolved
    assert found.period_ns == pytest.approx(update_ms * MS, rel=0.03 if not repeats else 0.25)


def test_a_source_faster_than_the_polling_is_not_resolved() -> None:
    times, values, _ = polled(20, 50)
    found = find_update_period(times, values)
    assert found.period_ns == pytest.approx(50 * MS, rel=0.01)
    assert not found.resolved


def test_a_constant_tells_no_period() -> None:
    times = np.arange(100, dtype=np.int64) * 50 * MS
    assert find_update_period(times, np.full(100, 1980.0)) == UpdatePeriod(None, 0)


def test_changes_without_a_rhythm_tell_no_period() -> None:
    times = np.arange(2000, dtype=np.int64) * 50 * MS
    at = np.cumsum([3, 40, 11, 170, 25, 390, 66, 19, 240, 120])  # a temperature crosses a degree
    values = np.searchsorted(at, np.arange(2000)).astype(np.float64)
    assert find_update_period(times, values).period_ns is None


def test_failed_readings_do_not_count_as_changes() -> None:
    times, values, _ = polled(100, 50)
    whole = find_update_period(times, values)
    values[::7] = np.nan
    found = find_update_period(times, values)
    assert found.period_ns == pytest.approx(whole.period_ns, rel=0.2)


#   time (ms)   0   50  100 150 200 250 300 350 400
#   value       5   5   6   6   6   6   6   -   7      updated every 100 ms
#   new         x       x       x       x       x      said the same at 200 and 300
def test_repeats_are_told_from_updates_that_say_the_same() -> None:
    times = np.arange(9, dtype=np.int64) * 50 * MS
    values = np.array([5, 5, 6, 6, 6, 6, 6, np.nan, 7.0])
    found = find_new(times, values, UpdatePeriod(100 * MS, 9))
    assert found.tolist() == [True, False, True, False, True, False, True, False, True]


def test_without_a_period_only_changes_are_new() -> None:
    times = np.arange(6, dtype=np.int64) * 50 * MS
    values = np.array([np.nan, 5, 5, 5, 6, 6.0])
    assert find_new(times, values, UpdatePeriod(None, 1)).tolist() == [False, True, False, False, True, False]


def test_no_good_reading_is_no_news() -> None:
    times = np.arange(3, dtype=np.int64)
    assert not find_new(times, np.full(3, np.nan), UpdatePeriod(None, 0)).any()


@given(
    update_ms=st.floats(60, 500),
    polling_ms=st.floats(5, 50),
    repeats=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 1000),
)
def test_new_readings_are_as_many_as_the_updates_seen(
    update_ms: float, polling_ms: float, repeats: float, seed: int
) -> None:
    times, values, update = polled(update_ms, polling_ms, 500, repeats=repeats, seed=seed)
    is_new = find_new(times, values, UpdatePeriod(round(update_ms * MS), 0))
    seen = len(np.unique(update))
    found = int(is_new.sum())
    assert found <= seen + 1
    assert found >= seen - 1 if not repeats else found >= seen * (1 - polling_ms / update_ms) - 1
    changed = np.flatnonzero(np.diff(values)) + 1
    assert is_new[changed].all()
