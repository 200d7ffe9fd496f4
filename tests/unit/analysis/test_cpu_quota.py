"""When a CPU quota held a process up, by hand: the intervals, and the share of a stage."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from perfharness.analysis.diagnosis import Pass, diagnose, find_evidence
from perfharness.analysis.diagnosis.cpu_supply import CpuQuota, cpu_quota
from perfharness.model.diagnosis import Code
from perfharness.model.host_samples import HostState
from perfharness.model.telemetry import process_subject
from tests.support.made_batches import BATCH, US, Batch, made_analysis, near, stage_of
from tests.support.sample_builder import SampleBuilder

MS = 1_000_000
SUBJECT = process_subject("proc_0_gpu_0")


def column(*values: int) -> np.typing.NDArray[np.int64]:
    return np.asarray(values, dtype=np.int64)


def limited(
    cpus: float, times_ms: Sequence[int], throttled_ms: Sequence[float], periods: Sequence[int],
    used_ms: Sequence[float] | None = None,
) -> CpuQuota | None:  # fmt: skip
    times = [time * MS for time in times_ms]
    builder = SampleBuilder()
    builder.readings(SUBJECT, "quota_cpus", times[:1], [cpus])
    builder.readings(SUBJECT, "quota_period_ns", times[:1], [100 * MS])
    builder.readings(SUBJECT, "quota_throttled_ns", times, [one * MS for one in throttled_ms])
    builder.readings(SUBJECT, "quota_throttled_periods", times, periods)
    if used_ms is not None:
        builder.readings(SUBJECT, "quota_cpu_time_ns", times, [one * MS for one in used_ms])
    return cpu_quota(builder.build(), SUBJECT)


def stood_still(quota: CpuQuota | None) -> list[tuple[int, int]]:
    assert quota is not None
    return [(s // MS, e // MS) for s, e in zip(quota.start_ns, quota.end_ns, strict=True)]


def test_one_thread_stands_still_until_its_period_ends() -> None:
    """40 of each 100 ms, read every 20 ms: the thread runs from 100 to 140 and from 200 to 240."""
    times = list(range(0, 320, 20))
    lost = [60.0 * (time // 100) for time in times]
    quota = limited(0.4, times, lost, [time // 100 for time in times])
    assert stood_still(quota) == [(40, 100), (140, 200), (240, 300)]
    assert quota is not None
    assert quota.within(column(0, 250 * MS), column(100 * MS, 290 * MS)) == 100 * MS  # 60, and 40 of the last 60


def test_the_time_of_several_cpus_is_one_time() -> None:
    """Four threads use up 0.5 CPUs in 12.5 ms of each 100 ms; the kernel counts 87.5 ms of each CPU."""
    times = list(range(0, 220, 20))
    quota = limited(0.5, times, [350.0 * (time // 100) for time in times], [time // 100 for time in times])
    assert stood_still(quota) == [(12, 100), (112, 200)]


def test_cpus_that_were_seen_in_use_count_where_a_period_was_used_in_part() -> None:
    """Four threads begin 60 ms into a period, and stand still for its last 27.5 ms."""
    times = [0, 20, 40, 60, 70, 100]
    used = [0.0, 0, 0, 0, 40, 50]
    quota = limited(0.5, times, [0.0, 0, 0, 0, 0, 110], [0, 0, 0, 0, 0, 1], used)
    assert stood_still(quota) == [(72, 100)]


def test_no_more_than_its_periods() -> None:
    quota = limited(1.0, [0, 100], [0.0, 5_000.0], [0, 1])
    (interval,) = stood_still(quota)
    assert interval == (1, 100)  # 5000 of 5100 ms that about fifty CPUs wanted


def test_a_quota_that_is_never_used_up_holds_nothing_up() -> None:
    quota = limited(2.0, [0, 100, 200], [0.0, 0.0, 0.0], [0, 0, 0])
    assert stood_still(quota) == []
    assert quota is not None
    assert quota.cpus == 2.0


@pytest.mark.parametrize("metrics", [("quota_throttled_ns",), ("quota_cpus", "quota_period_ns", "quota_throttled_ns")])
def test_without_a_quota_nothing_is_known_of_one(metrics: Sequence[str]) -> None:
    builder = SampleBuilder().readings(SUBJECT, "quota_throttled_periods", [0, MS], [0, 0])
    for metric in metrics:
        builder.readings(SUBJECT, metric, [0, MS], [None, None] if metric == "quota_cpus" else [0, 0])
    assert cpu_quota(builder.build(), SUBJECT) is None


@pytest.mark.parametrize(("lost_us", "is_verdict"), [(300, True), (250, False)])
def test_a_stage_that_a_quota_stops(lost_us: int, is_verdict: bool, tmp_path: Path) -> None:
    """Ready without a CPU meanwhile; the rest computes, which takes 0.5 to be the verdict, and the quota 0.2."""

    def content(batch: Batch) -> None:
        batch.sampled(0, lost_us, "work@user.py:7", state=HostState.RUNNABLE)
        batch.sampled(lost_us, 1000, "work@user.py:7")

    begins = np.arange(1, 13) * BATCH
    quota = CpuQuota(2.0, begins, begins + lost_us * US)
    analysis = made_analysis(tmp_path, content)
    stage = stage_of(diagnose(find_evidence(Pass(analysis, quota=quota))))
    (cause,) = (one for one in stage.causes if one.code is Code.CPU_CONTENTION)
    assert (cause.detail, cause.share) == ("quota", near(lost_us / 1000))
    assert (stage.verdict is cause) is is_verdict
