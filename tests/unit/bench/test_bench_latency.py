"""The timed loop on a fake clock: known times come out as they went in, and nothing else is in them."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from perfharness.analysis.suites.latency import latency_stats
from perfharness.backends import BackendOptions, ModelSource
from perfharness.bench.latency import (
    measure_device_time,
    measure_latency,
    quiet_collector,
    time_rounds,
    warm_up,
    work_for,
)
from perfharness.bench.spec import LatencySettings
from tests.support.fake_backend import FakeBackend, FakeClock, FakeScript, FakeSession
from tests.unit.bench_results import known


def ready(script: FakeScript, batch: int = 2) -> tuple[FakeSession, FakeClock]:
    """A session with buffers, and its clock."""
    clock = FakeClock()
    session = FakeBackend(script, clock).open(ModelSource("m", factory="no:one"), BackendOptions())
    session.allocate({"x": (batch, script.features)})
    session.write_inputs({"x": np.zeros((batch, script.features), np.float32)})
    session.calls.clear()
    return session, clock


def test_a_round_is_copy_execute_copy_and_wait() -> None:
    session, clock = ready(FakeScript(has_device=True, launch_ms=0.5, copy_in_ms=1, execute_ms=4, copy_out_ms=2))
    timed = measure_latency(session, LatencySettings(iterations=3), clock)
    assert session.calls == ["copy_in", "execute", "copy_out", "synchronize"] * 3
    assert timed.wall_ns.tolist() == [7_500_000] * 3, "one launch, then 1 + 4 + 2 on the device"
    assert np.diff(timed.start_ns).tolist() == [7_500_000] * 2, "nothing goes by between rounds"
    assert (timed.ended, timed.stable) == (None, None)


def test_the_devices_own_time_is_that_of_execute() -> None:
    session, clock = ready(FakeScript(has_device=True, launch_ms=0.5, copy_in_ms=1, execute_ms=4, copy_out_ms=2))
    device = measure_device_time(session, LatencySettings(device_iterations=5), clock)
    assert device.tolist() == [4.0] * 5
    assert len(measure_device_time(session, LatencySettings(iterations=7), clock)) == 7, "as many as timed ones"
    without, clock = ready(FakeScript())
    assert len(measure_device_time(without, LatencySettings(), clock)) == 0


def test_planted_outliers_are_in_the_figures_they_belong_to() -> None:
    """Two slow ones of 200: in the mean, p99 and max, not in the median or p95."""
    series = tuple(40.0 if index in (50, 150) else 0.0 for index in range(200))
    session, clock = ready(FakeScript(execute_ms=2, series_ms=series))
    timed = measure_latency(session, LatencySettings(iterations=200), clock)
    stats = known(latency_stats(timed.milliseconds, 0))
    assert (stats.median.value, known(stats.p95).value, stats.max) == (2.0, 2.0, 42.0)
    assert stats.mean.value == pytest.approx(2.4)
    assert known(stats.p99).value == pytest.approx(2.4), "between the 198th, 2, and the 199th, 42: rank 197.01"


def test_warm_up_is_kept_apart() -> None:
    session, clock = ready(FakeScript(execute_ms=1, first_extra_ms=99))
    settings = LatencySettings(warmup=3, iterations=4)
    warmed = warm_up(session, settings, clock)
    timed = measure_latency(session, settings, clock)
    assert warmed.wall_ns.tolist() == [100_000_000, 1_000_000, 1_000_000]
    assert timed.wall_ns.tolist() == [1_000_000] * 4
    assert len(warm_up(session, LatencySettings(warmup=0), clock).wall_ns) == 0


def test_time_is_limited_and_the_shortfall_told() -> None:
    session, clock = ready(FakeScript(execute_ms=100))
    timed = time_rounds(session, 1000, 1.0, clock)
    assert len(timed.wall_ns) == 10
    assert timed.ended == "only 10 of 1000 iterations were done in 1 s"
    assert len(time_rounds(session, 5, 0.001, clock).wall_ns) == 1, "one at least"


@pytest.mark.parametrize(
    ("more", "count", "ended"),
    [
        ({}, 20, None),
        ({"max_iterations": 8}, 8, None),
        ({"iterations": 50}, 50, None),
        ({"max_seconds": 0.03}, 3, "only 3 of 5 iterations were done in 0.03 s"),
    ],
)
def test_rounds_go_on_until_the_least_time_is_over(more: dict[str, float], count: int, ended: str | None) -> None:
    session, clock = ready(FakeScript(execute_ms=10))
    settings = LatencySettings(iterations=5, min_seconds=0.2).model_copy(update=more)
    timed = measure_latency(session, settings, clock)
    assert (len(timed.wall_ns), timed.ended) == (count, ended)


def test_until_stable_ends_when_the_median_has_settled() -> None:
    noise = np.random.default_rng(3).normal(0, 1.0, 20_000)
    session, clock = ready(FakeScript(execute_ms=20, series_ms=tuple(noise.tolist())))
    settings = LatencySettings(iterations=100, until_stable=True, stable_percent=0.5, max_iterations=20_000)
    timed = measure_latency(session, settings, clock)
    assert timed.stable is True
    assert timed.ended is None
    # The median's interval is about 2 * 1.96 * 1.25 / sqrt(n) wide: 0.1 on both sides takes some 600.
    assert 200 < len(timed.wall_ns) < 3000
    low, high = known(known(latency_stats(timed.milliseconds, 0)).median.interval)
    assert low <= 20.0 <= high


@pytest.mark.parametrize(
    ("more", "ended"),
    [({}, "after 2000 iterations"), ({"max_seconds": 0.5}, "after 0.5 s")],
)
def test_until_stable_has_an_end_where_latency_drifts(more: dict[str, float], ended: str) -> None:
    session, clock = ready(FakeScript(execute_ms=1, series_ms=tuple(np.linspace(0, 5, 5000).tolist())))
    settings = LatencySettings(iterations=100, until_stable=True, stable_percent=1.0, max_iterations=2000)
    timed = measure_latency(session, settings.model_copy(update=more), clock)
    assert (timed.stable, len(timed.wall_ns) == 2000) == (False, not more)
    assert timed.ended == f"the median was not stable within 1 % {ended}"


def test_the_collector_is_off_inside_and_as_before_outside() -> None:
    class Looks(FakeSession):
        def execute(self) -> None:
            seen.append(gc.isenabled())
            super().execute()

    seen: list[bool] = []
    session = Looks(FakeScript(), BackendOptions(), FakeClock())
    session.allocate({"x": (1, 4)})
    frozen = gc.get_freeze_count()
    measure_latency(session, LatencySettings(iterations=2), FakeClock())
    assert seen == [False, False]
    assert gc.isenabled()
    assert gc.get_freeze_count() == frozen
    gc.disable()
    try:
        with quiet_collector():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
    with pytest.raises(ZeroDivisionError), quiet_collector():
        raise ZeroDivisionError
    assert gc.isenabled()


def test_work_goes_on_until_the_time_is_over() -> None:
    session, clock = ready(FakeScript(execute_ms=10))
    assert len(work_for(session, 0.1, clock)) == 10
    assert len(work_for(session, 0.0, clock)) == 1
