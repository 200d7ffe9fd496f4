"""When a CPU quota held a process up, by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from perfharness.analysis.diagnosis.cpu_supply import cpu_quota
from perfharness.model.telemetry import process_subject
from tests.support.sample_builder import SampleBuilder

MS = 1_000_000
SUBJECT = process_subject("proc_0_gpu_0")
EACH_20 = list(range(0, 320, 20))

Row = tuple[float, Sequence[int], Sequence[float], Sequence[int], Sequence[float] | None, list[tuple[int, int]]]
ROWS: dict[str, Row] = {
    # name: (CPUs, times of readings, ms throttled, periods throttled, ms used, when it stands still), in ms
    # 40 of each 100 ms, read every 20 ms: the thread runs from 100 to 140 and from 200 to 240.
    "one thread stands still until its period ends": (
        0.4, EACH_20, [60.0 * (at // 100) for at in EACH_20], [at // 100 for at in EACH_20], None,
        [(40, 100), (140, 200), (240, 300)],
    ),
    # Four threads use up 0.5 CPUs in 12.5 ms of each 100 ms; the kernel counts 87.5 ms of each CPU.
    "the time of several CPUs is one time": (
        0.5, EACH_20[:11], [350.0 * (at // 100) for at in EACH_20[:11]], [at // 100 for at in EACH_20[:11]], None,
        [(12, 100), (112, 200)],
    ),
    # Four threads begin 60 ms into a period, and stand still for its last 27.5 ms.
    "CPUs that were seen in use count": (
        0.5, [0, 20, 40, 60, 70, 100], [0, 0, 0, 0, 0, 110], [0, 0, 0, 0, 0, 1], [0, 0, 0, 0, 40, 50], [(72, 100)],
    ),
    # 5000 of 5100 ms that about fifty CPUs wanted
    "no more than its periods": (1.0, [0, 100], [0.0, 5_000.0], [0, 1], None, [(1, 100)]),
    "never used up": (2.0, [0, 100, 200], [0.0] * 3, [0] * 3, None, []),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_when_it_stands_still(name: str) -> None:
    cpus, times_ms, throttled_ms, periods, used_ms, expected = ROWS[name]
    times = [time * MS for time in times_ms]
    builder = SampleBuilder()
    builder.readings(SUBJECT, "quota_cpus", times[:1], [cpus])
    builder.readings(SUBJECT, "quota_period_ns", times[:1], [100 * MS])
    builder.readings(SUBJECT, "quota_throttled_ns", times, [one * MS for one in throttled_ms])
    builder.readings(SUBJECT, "quota_throttled_periods", times, periods)
    if used_ms is not None:
        builder.readings(SUBJECT, "quota_cpu_time_ns", times, [one * MS for one in used_ms])
    quota = cpu_quota(builder.build(), SUBJECT)
    assert quota is not None
    assert quota.cpus == cpus
    assert [(s // MS, e // MS) for s, e in zip(quota.start_ns, quota.end_ns, strict=True)] == expected
    if "one thread" in name:
        start, end = np.asarray([0, 250]) * MS, np.asarray([100, 290]) * MS
        assert quota.within(start, end) == 100 * MS  # 60, and 40 of the last 60


@pytest.mark.parametrize(
    "known",
    [
        {"quota_throttled_ns": 0},
        {"quota_cpus": None, "quota_period_ns": 0, "quota_throttled_ns": 0},
        {"quota_cpus": 2.0, "quota_period_ns": 100 * MS},
        {"quota_period_ns": 100 * MS, "quota_throttled_ns": 0},
    ],
)
def test_without_a_quota_nothing_is_known_of_one(known: dict[str, float | None]) -> None:
    builder = SampleBuilder().readings(SUBJECT, "quota_throttled_periods", [0, MS], [0, 0])
    for metric, value in known.items():
        builder.readings(SUBJECT, metric, [0, MS], [value, value])
    assert cpu_quota(builder.build(), SUBJECT) is None
