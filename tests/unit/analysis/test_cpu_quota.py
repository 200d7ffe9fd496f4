"""What was kept of the CPUs from a process, by hand: when a quota held it up, what was stolen, how slow they were."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfharness.analysis.diagnosis.cpu_readings import CpuSupply, Steps, cpu_supply
from perfharness.model.telemetry import HOST, process_subject
from tests.support.sample_builder import SampleBuilder

MS = 1_000_000
SUBJECT = process_subject("proc_0_gpu_0")


def column(*values: int) -> np.typing.NDArray[np.int64]:
    return np.asarray(values, dtype=np.int64)


def limited(
    cpus: float, times_ms: Sequence[int], throttled_ms: Sequence[float], periods: Sequence[int],
    used_ms: Sequence[float] | None = None,
) -> CpuSupply:  # fmt: skip
    times = [time * MS for time in times_ms]
    builder = SampleBuilder()
    builder.readings(SUBJECT, "quota_cpus", times[:1], [cpus])
    builder.readings(SUBJECT, "quota_period_ns", times[:1], [100 * MS])
    builder.readings(SUBJECT, "quota_throttled_ns", times, [one * MS for one in throttled_ms])
    builder.readings(SUBJECT, "quota_throttled_periods", times, periods)
    if used_ms is not None:
        builder.readings(SUBJECT, "quota_cpu_time_ns", times, [one * MS for one in used_ms])
    return cpu_supply(builder.build(), SUBJECT)


def stood_still(supply: CpuSupply) -> list[tuple[int, int]]:
    assert supply.quota is not None
    return [(s // MS, e // MS) for s, e in zip(supply.quota.start_ns, supply.quota.end_ns, strict=True)]


def test_one_thread_stands_still_until_its_period_ends() -> None:
    """40 of each 100 ms, read every 20 ms: the thread runs from 100 to 140 and from 200 to 240."""
    times = list(range(0, 320, 20))
    lost = [60.0 * (time // 100) for time in times]
    supply = limited(0.4, times, lost, [time // 100 for time in times])
    assert stood_still(supply) == [(40, 100), (140, 200), (240, 300)]
    quota = supply.quota
    assert quota is not None
    assert quota.within(column(0, 250 * MS), column(100 * MS, 290 * MS)) == 100 * MS  # 60, and 40 of the last 60


def test_the_time_of_several_cpus_is_one_time() -> None:
    """Four threads use up 0.5 CPUs in 12.5 ms of each 100 ms; the kernel counts 87.5 ms of each CPU."""
    times = list(range(0, 220, 20))
    supply = limited(0.5, times, [350.0 * (time // 100) for time in times], [time // 100 for time in times])
    assert stood_still(supply) == [(12, 100), (112, 200)]


def test_cpus_that_were_seen_in_use_count_where_a_period_was_used_in_part() -> None:
    """Four threads begin 60 ms into a period, and stand still for its last 27.5 ms."""
    times = [0, 20, 40, 60, 70, 100]
    used = [0.0, 0, 0, 0, 40, 50]
    supply = limited(0.5, times, [0.0, 0, 0, 0, 0, 110], [0, 0, 0, 0, 0, 1], used)
    assert stood_still(supply) == [(72, 100)]


def test_no_more_than_its_periods() -> None:
    supply = limited(1.0, [0, 100], [0.0, 5_000.0], [0, 1])
    (interval,) = stood_still(supply)
    assert interval == (1, 100)  # 5000 of 5100 ms that about fifty CPUs wanted


def test_a_quota_that_is_never_used_up_holds_nothing_up() -> None:
    supply = limited(2.0, [0, 100, 200], [0.0, 0.0, 0.0], [0, 0, 0])
    assert stood_still(supply) == []
    assert supply.quota is not None
    assert supply.quota.cpus == 2.0


@pytest.mark.parametrize("metrics", [("quota_throttled_ns",), ("quota_cpus", "quota_period_ns", "quota_throttled_ns")])
def test_without_a_quota_nothing_is_known_of_one(metrics: Sequence[str]) -> None:
    builder = SampleBuilder().readings(SUBJECT, "quota_throttled_periods", [0, MS], [0, 0])
    for metric in metrics:
        builder.readings(SUBJECT, metric, [0, MS], [None, None] if metric == "quota_cpus" else [0, 0])
    found = cpu_supply(builder.build(), SUBJECT)
    assert found.quota is None
    assert not len(found.stolen.share)


def test_what_is_stolen_is_of_the_time_that_was_wanted() -> None:
    """One of four CPUs is wanted all the time, and had for three quarters of it."""
    times = [0, 200 * MS, 400 * MS, 600 * MS]
    builder = SampleBuilder()
    builder.readings(HOST, "cpu_percent", times, [None, 25.0, 25.0, 0.0])
    builder.readings(HOST, "steal_percent", times, [None, 6.25, 0.0, 0.0])
    stolen = cpu_supply(builder.build(), SUBJECT).stolen
    assert stolen.share.tolist() == [0.25, 0.0, 0.0]
    assert (stolen.start_ns.tolist(), stolen.end_ns.tolist()) == (times[:-1], times[1:])
    assert stolen.mean(column(100 * MS), column(300 * MS)) == pytest.approx(0.125)


def test_a_time_that_was_hardly_read_is_not_known() -> None:
    steps = Steps(column(0), column(10), np.asarray([0.5]))
    assert steps.mean(column(0), column(20)) == 0.5
    assert steps.mean(column(0), column(21)) is None
    assert steps.mean(column(30), column(40)) is None
    assert Steps().mean(column(0), column(10)) is None


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5), st.floats(0, 1)), min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(-5, 60), st.integers(1, 20)), min_size=1, max_size=5),
)
def test_a_mean_is_that_of_every_nanosecond(steps: list[tuple[int, int, float]], ranges: list[tuple[int, int]]) -> None:
    at, made, value = 0, [], {}
    for gap, length, share in steps:
        made.append((at + gap, at + gap + length, share))
        value.update(dict.fromkeys(range(at + gap, at + gap + length), share))
        at += gap + length
    inside = [value[moment] for start, length in ranges for moment in range(start, start + length) if moment in value]
    starts, ends, shares = zip(*made, strict=True)
    found = Steps(column(*starts), column(*ends), np.asarray(shares)).mean(
        column(*(start for start, _ in ranges)), column(*(start + length for start, length in ranges))
    )
    if not inside or 2 * len(inside) < sum(length for _, length in ranges):
        assert found is None
    else:
        assert found == pytest.approx(np.mean(inside), abs=1e-9)
