"""The charts of a run's telemetry, and the lines, rates and shares that they draw."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from perfharness.analysis.metrics.activity import ProcessActivity
from perfharness.analysis.metrics.telemetry_lines import (
    BINS,
    core_load,
    line_points,
    rate_of,
    stage_shares,
    throttle_spans,
    warmup_spans,
)
from perfharness.model.telemetry import FailureRecord, SampleLog
from perfharness.render.charts.drawing import Picture
from perfharness.render.charts.telemetry import telemetry_pictures
from perfharness.runs.run import SampledRun
from tests.support.sample_builder import MS, SampleBuilder
from tests.unit.charts import drawn, lines, marks

GPU, START, SECOND = "GPU-1111", 1_700_000_000_000_000_000, 1_000_000_000


def sample_log() -> SampleLog:
    failure = FailureRecord(
        subject="process:proc_0_gpu_3", metric="process_memory_bytes", reason="of another namespace", count=9
    )
    builder = SampleBuilder(failures=[failure])
    builder.subject(GPU, "gpu", name="Made Up", gpu_index=3).subject("host", "host").subject("core:0", "core")
    builder.subject("process:proc_0_gpu_3", "process", name="proc_0_gpu_3", gpu_uuid=GPU)
    end = START + 4 * SECOND
    builder.polled(GPU, "power_instant_mw", lambda t: 70e3 + t % 7e3, START, end, update_period_ns=100 * MS)
    builder.polled(GPU, "sm_clock_mhz", lambda t: 1980, START, end, update_period_ns=100 * MS)
    times = list(range(START, end, 50 * MS))
    builder.readings(GPU, "clock_event_reasons", times, [4 if at % 9 == 0 else 0 for at in range(len(times))])
    builder.readings(GPU, "memory_used_bytes", times, [None if 20 < at < 40 else 1 << 30 for at in range(len(times))])
    for metric, subject in (("cpu_percent", "host"), ("cpu_percent", "core:0"), ("rss_bytes", "process:proc_0_gpu_3")):
        builder.readings(subject, metric, times[::4], [50.0] * len(times[::4]))
    return builder.build()


def activity(batches: int) -> ProcessActivity:
    edges = np.linspace(START, START + 3 * SECOND, batches + 1).astype(np.int64)
    count = np.arange(batches) % 12
    return ProcessActivity(
        [f"stage {number}" for number in range(12)], count, edges[:-1], edges[1:] - 1000, edges[:-1], edges[1:],
        [(int(edges[0]), int(edges[1]))], [(int(edges[1]), int(edges[-1]))],
    )  # fmt: skip


def pictures(log: SampleLog, activities: dict[str, ProcessActivity] | None = None) -> dict[str, Picture]:
    found = telemetry_pictures(SampledRun("a $run_with^marks$", log, activities or {}))
    return {picture.name: picture for picture in found}


# ---- what is drawn ----


def test_a_picture_for_each_gpu_and_one_for_the_host() -> None:
    made = pictures(sample_log(), {"proc_0_gpu_3": activity(12)})
    assert list(made) == ["telemetry_gpu_3", "telemetry_host"]
    gpu = made["telemetry_gpu_3"]
    assert {value for _, value in lines(gpu, "memory (GiB)")["GPU"]} == {1.0, None}
    assert {value for _, value in lines(gpu, "SM clock (MHz)")["SM"]} == {1980.0}
    spans = gpu.rows["telemetry_gpu_3_throttling"]
    assert len(spans) == 9
    assert (spans[0]["seconds"], spans[0]["until"]) == (0.0, pytest.approx(0.05))
    assert any("of another namespace" in note for note in gpu.notes)
    assert all("mark" in drawn(picture) for picture in made.values())


def test_stages_stand_above_and_few_of_them_behind_the_lines() -> None:
    few = pictures(sample_log(), {"proc_0_gpu_3": activity(12)})["telemetry_gpu_3"]
    busy = [at for at, percent in lines(few, "stages (% of time)")["stage 0"] if percent and percent > 1]
    assert busy[0] == 0.0
    assert 0.2 < busy[-1] < 0.25
    (warmup,) = few.rows["telemetry_gpu_3_warmup"]
    assert (warmup["seconds"], warmup["until"]) == pytest.approx((0.0, 0.25))
    assert len(few.rows["telemetry_gpu_3_shaded"]) == 12
    many = pictures(sample_log(), {"proc_0_gpu_3": activity(5000)})["telemetry_gpu_3"]
    assert "telemetry_gpu_3_shaded" not in many.rows
    shares = lines(many, "stages (% of time)")
    assert len(shares) <= 9
    assert max(map(len, shares.values())) <= BINS


def test_rates_are_drawn_over_the_time_before_a_reading() -> None:
    """What was counted between two readings belongs to the time between them, not to the time after the second."""
    builder = SampleBuilder().subject("host", "host").subject("process:a", "process", name="a")
    for subject, metric in (("host", "read_bytes"), ("host", "write_bytes"), ("process:a", "context_switches")):
        builder.readings(subject, metric, [0, SECOND, 2 * SECOND], [0, 10, 50])
    builder.readings("process:a", "rss_bytes", [0, SECOND], [1, 2])
    host = pictures(builder.build())["telemetry_host"]
    steps = [one["mark"]["interpolate"] for one in marks(host.chart) if one["mark"]["type"] == "line"]
    assert steps == ["step-after", "step-before", "step-before"]
    assert [value for _, value in lines(host, "context switches (1/s)")["a"]] == [10.0, 10.0, 40.0]
    assert [value for _, value in lines(host, "read + written (MB/s)")["machine"]] == [20e-6, 20e-6, 80e-6]


# ---- the lines ----


def shown(line: tuple[Any, Any]) -> list[tuple[float, float | None]]:
    """Points, breaks as None."""
    times, values = line
    return [(time, None if np.isnan(value) else value) for time, value in zip(times, values, strict=True)]


def test_lines_break_where_readings_are_null_or_missing() -> None:
    times = [at * SECOND for at in (1, 2, 3, 4, 11, 12)]
    series = SampleBuilder().readings("host", "x", times, [5, 5, None, 5, 6, 6]).build().get("host", "x")
    assert series is not None
    assert shown(line_points(series, SECOND, 1e3)) == [
        (0, 5000), (1, 5000), (2, None), (3, 5000), (4, None), (10, 6000), (11, 6000),
    ]  # fmt: skip


def test_a_rate_is_the_counters_step_over_the_time_it_took() -> None:
    log = SampleBuilder().readings("host", "read_bytes", [0, SECOND, 3 * SECOND], [100, 150, 350]).build()
    counter = log.get("host", "read_bytes")
    assert counter is not None
    assert rate_of(counter).value.tolist() == [50, 50, 100]


def test_an_hour_at_100_ms_is_thinned_and_keeps_every_extreme_and_break() -> None:
    count = 36_000
    values = np.random.default_rng(0).normal(500.0, 10.0, count)
    values[[777, 20_001]] = 5000.0, -5000.0
    values[10_000:10_003] = np.nan
    times = np.arange(count) / 10
    moments = [round(at * SECOND) for at in times.tolist()]
    read = [None if np.isnan(value) else float(value) for value in values.tolist()]
    series = SampleBuilder().readings("host", "x", moments, read).build().get("host", "x")
    assert series is not None
    kept = np.searchsorted(times, line_points(series, 0)[0] - 0.01)
    assert len(kept) <= 5 * BINS
    assert {0, 777, 10_000, 10_002, 20_001, count - 1} <= set(kept.tolist())
    step = np.minimum((times / times[-1] * BINS).astype(int), BINS - 1)
    for one in range(BINS):
        whole, drawn = values[step == one], values[kept[step[kept] == one]]
        assert (np.nanmin(drawn), np.nanmax(drawn)) == (np.nanmin(whole), np.nanmax(whole))


def test_reasons_last_until_the_next_reading_and_idling_is_none() -> None:
    times = [number * SECOND for number in range(8)]
    log = SampleBuilder().readings(GPU, "clock_event_reasons", times, [1, 4, 4, 0, None, 0x24, 1, 4]).build()
    spans = throttle_spans(log.get(GPU, "clock_event_reasons"), SECOND)
    assert [(one.name, one.start_s, one.end_s, one.share) for one in spans] == [
        ("sw_power_cap", [0.0, 4.0, 6.0], [2.0, 5.0, 6.0], 0.5),
        ("sw_thermal_slowdown", [4.0], [5.0], 0.125),
    ]
    assert throttle_spans(None, 0) == []


def test_cores_have_one_mean_a_step_even_where_they_were_read_a_little_later() -> None:
    builder = SampleBuilder().subject("core:0", "core").subject("core:1", "core")
    for core in (0, 1):
        times = [number * SECOND + 1000 * core for number in range(1, 1001)]
        values = [float(number % 2 * 100) if core else None if number == 4 else 10.0 for number in range(1, 1001)]
        builder.readings(f"core:{core}", "cpu_percent", times, values)
    load = core_load(builder.build(), 0)
    assert load is not None
    assert load.percent.shape == (2, BINS)
    assert (load.edges_s[0], load.edges_s[-1]) == (0.0, 1000.0)
    assert (load.percent[0] == 10.0).all()
    assert load.percent[1][:4].tolist() == pytest.approx([200 / 3, 50.0, 100 / 3, 50.0])
    assert core_load(SampleBuilder().build(), 0) is None


def test_stages_beyond_the_most_used_are_one_and_warm_up_windows_are_merged() -> None:
    shares = stage_shares([activity(5000)], START, START + 3 * SECOND, START)
    assert len(shares.names) == 9
    assert shares.is_rest
    assert shares.percent.sum(axis=0) == pytest.approx(np.full(BINS, 100.0), abs=0.5)
    spans = warmup_spans([activity(12), activity(6)], START)
    assert spans.start_s == [0.0]
    assert spans.end_s == pytest.approx([0.5])
