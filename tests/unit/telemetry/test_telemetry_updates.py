"""How often a source is updated, which readings are new, and the columns with both."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfharness.model.columns import Float64, Int64
from perfharness.model.telemetry import ClockTieRecord, TelemetryMeta
from perfharness.telemetry.readings import (
    Readings,
    UpdatePeriod,
    Values,
    find_new,
    find_update_period,
    unread_metrics,
)

MS = 1_000_000
GRID = np.arange(2000, dtype=np.int64) * 50 * MS


def polled(
    update_ms: float, polling_ms: float, count: int = 400, *, repeats: float = 0.0, jitter_ms: float = 0.0,
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
    assert found.resolved
    assert found.period_ns == pytest.approx(update_ms * MS, rel=0.03 if not repeats else 0.25)


def test_failed_readings_do_not_count_as_changes() -> None:
    times, values, _ = polled(100, 50)
    whole = find_update_period(times, values)
    values[::7] = np.nan
    assert find_update_period(times, values).period_ns == pytest.approx(whole.period_ns, rel=0.2)


def test_no_period_where_there_is_none_to_be_seen() -> None:
    times, values, _ = polled(20, 50)
    faster = find_update_period(times, values)
    assert faster.period_ns == pytest.approx(50 * MS, rel=0.01)
    assert not faster.resolved
    assert find_update_period(GRID, np.full(len(GRID), 1980.0)) == UpdatePeriod(None, 0)
    crossings = np.cumsum([3, 40, 11, 170, 25, 390, 66, 19, 240, 120])  # a temperature crosses a degree
    irregular = np.searchsorted(crossings, np.arange(len(GRID))).astype(np.float64)
    assert find_update_period(GRID, irregular).period_ns is None


NAN = np.nan


@pytest.mark.parametrize(
    ("values", "period_ms", "is_new"),
    [
        ([5, 5, 6, 6, 6, 6, 6, NAN, 7], 100, [1, 0, 1, 0, 1, 0, 1, 0, 1]),  # said the same at 200 and 300 ms
        ([NAN, 5, 5, 5, 6, 6], None, [0, 1, 0, 0, 1, 0]),
        ([NAN, NAN, NAN], None, [0, 0, 0]),
    ],
)
def test_repeats_are_told_from_updates_that_say_the_same(
    values: list[float], period_ms: int | None, is_new: list[int]
) -> None:
    update = UpdatePeriod(None if period_ms is None else period_ms * MS, 9)
    assert find_new(GRID[: len(values)], np.asarray(values, dtype=float), update).tolist() == is_new


@given(
    update_ms=st.floats(60, 500), polling_ms=st.floats(5, 50), repeats=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 1000),
)  # fmt: skip
def test_new_readings_are_as_many_as_the_updates_seen(
    update_ms: float, polling_ms: float, repeats: float, seed: int
) -> None:
    times, values, update = polled(update_ms, polling_ms, 500, repeats=repeats, seed=seed)
    is_new = find_new(times, values, UpdatePeriod(round(update_ms * MS), 0))
    seen, found = len(np.unique(update)), int(is_new.sum())
    assert found <= seen + 1
    assert found >= seen - 1 if not repeats else found >= seen * (1 - polling_ms / update_ms) - 1
    assert is_new[np.flatnonzero(np.diff(values)) + 1].all()


def test_readings_become_columns_with_their_update_periods() -> None:
    readings = Readings()
    for tick in range(40):  # the sensor says something else at each second reading
        values: Values = {("gpu", "power_instant_mw"): 100.0 * (tick // 2), ("host", "cpu_percent"): 5.0}
        if tick == 3:
            values = dict.fromkeys(values, "lost")
        readings.add(values, tick * 50 * MS, tick * 50 * MS + 2)
    readings.add({("gpu", "power_sample_mw"): [(7, 1.0), (9, 2.0)], ("gpu", "pstate"): "none"}, 0, 4)
    log = readings.log(TelemetryMeta(period_ns=10, clock=ClockTieRecord(offset_ns=7, error_ns=0), ended="stopped"))
    power, share = log.series["gpu", "power_instant_mw"], log.series["host", "cpu_percent"]
    assert power.time_monotonic_ns.tolist() == [tick * 50 * MS + 1 for tick in range(40)]
    assert power.time_unix_ns.tolist() == [time + 7 for time in power.time_monotonic_ns]
    assert np.flatnonzero(np.isnan(power.value)).tolist() == [3]
    assert (int(power.is_new.sum()), int(share.is_new.sum())) == (20, 39)
    assert log.meta.update_period_ns("gpu", "power_instant_mw") == pytest.approx(100 * MS, rel=0.05)
    assert [one.metric for one in log.meta.update_periods] == ["power_instant_mw", "pstate"]
    samples = log.series["gpu", "power_sample_mw"]
    assert (samples.time_monotonic_ns.tolist(), samples.value.tolist()) == ([7, 9], [1.0, 2.0])
    assert [(one.metric, one.reason) for one in unread_metrics(log)] == [("pstate", "none")]
    assert {(one.metric, one.count) for one in log.meta.failures} == {
        ("power_instant_mw", 1), ("cpu_percent", 1), ("pstate", 1),
    }  # fmt: skip
