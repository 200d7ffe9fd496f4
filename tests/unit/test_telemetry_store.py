from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from perfharness.errors import ResultError
from perfharness.model.telemetry import (
    CLOCK_EVENT_REASONS,
    GPU_METRICS,
    HOST_METRICS,
    PROCESS_METRICS,
    TELEMETRY_NAME,
    FailureRecord,
    SampleLog,
    TickRecord,
    core_subject,
    process_subject,
)
from perfharness.telemetry.store import META_KEY, read_sample_log, write_sample_log
from perfharness.testing.sample_builder import MS, SampleBuilder

GPU = "GPU-1111"
START = 1_700_000_000_000_000_000


def sample_log() -> SampleLog:
    failure = FailureRecord(subject=GPU, metric="power_instant_mw", reason="NVML_ERROR_UNKNOWN", count=1)
    ticks = TickRecord(source="gpu", period_ns=50 * MS, ticks=3, late=1, missed=0)
    return (
        SampleBuilder(offset_ns=17, failures=[failure], ticks=[ticks])
        .subject(GPU, "gpu", name="Made Up", gpu_index=3)
        .subject(process_subject("proc_0_gpu_3"), "process", pid=12, gpu_uuid=GPU)
        .subject("host", "host")
        .subject(core_subject(3), "core")
        .readings(GPU, "power_instant_mw", [START, START + 50 * MS, START + 100 * MS], [70_000.0, None, 71_000.5])
        .readings(GPU, "sm_clock_mhz", [START, START + 50 * MS], [1980, 1980], is_new=[True, False])
        .readings(core_subject(3), "cpu_percent", [START], [100.0])
        .readings(process_subject("proc_0_gpu_3"), "rss_bytes", [START], [2.0**40])
        .build()
    )


def test_a_log_comes_back_as_it_was(tmp_path: Path) -> None:
    log = sample_log()
    write_sample_log(tmp_path / TELEMETRY_NAME, log)
    back = read_sample_log(tmp_path / TELEMETRY_NAME)
    assert back.meta == log.meta
    assert set(back.series) == set(log.series)
    for key, series in log.series.items():
        for column in ("time_unix_ns", "time_monotonic_ns", "value", "is_new", "read_ns"):
            np.testing.assert_array_equal(getattr(back.series[key], column), getattr(series, column))
    power = back.get(GPU, "power_instant_mw")
    assert power is not None
    assert power.value[0] == 70_000.0
    assert np.isnan(power.value[1])
    assert power.is_read.tolist() == [True, False, True]
    assert power.time_monotonic_ns[0] == START - 17


def test_a_failed_reading_is_null_in_the_file(tmp_path: Path) -> None:
    write_sample_log(tmp_path / TELEMETRY_NAME, sample_log())
    table = pq.read_table(tmp_path / TELEMETRY_NAME)
    rows = [row for row in table.to_pylist() if row["metric"] == "power_instant_mw"]
    assert [row["value"] for row in rows] == [70_000.0, None, 71_000.5]
    assert META_KEY in table.schema.metadata


def test_rows_in_any_order_make_the_same_series(tmp_path: Path) -> None:
    write_sample_log(tmp_path / TELEMETRY_NAME, sample_log())
    table = pq.read_table(tmp_path / TELEMETRY_NAME)
    shuffled = table.take(np.random.default_rng(5).permutation(len(table)))
    pq.write_table(shuffled, tmp_path / "shuffled.parquet", row_group_size=2)
    back, straight = read_sample_log(tmp_path / "shuffled.parquet"), read_sample_log(tmp_path / TELEMETRY_NAME)
    assert set(back.series) == set(straight.series)
    for key, series in straight.series.items():
        np.testing.assert_array_equal(back.series[key].value, series.value)
        np.testing.assert_array_equal(back.series[key].time_unix_ns, series.time_unix_ns)


def test_a_log_without_readings_comes_back(tmp_path: Path) -> None:
    write_sample_log(tmp_path / TELEMETRY_NAME, SampleBuilder().subject(GPU).build())
    back = read_sample_log(tmp_path / TELEMETRY_NAME)
    assert back.series == {}
    assert [record.subject for record in back.subjects("gpu")] == [GPU]


def test_updates_leave_repeats_and_failures_out() -> None:
    log = sample_log()
    clocks, power = log.get(GPU, "sm_clock_mhz"), log.get(GPU, "power_instant_mw")
    assert clocks is not None
    assert power is not None
    assert len(clocks.updates()) == 1
    assert power.updates().value.tolist() == [70_000.0, 71_000.5]
    assert power.between(START + 50 * MS, START + 100 * MS).value[1] == 71_000.5
    assert len(power.between(START + 1, START + 2)) == 0
    assert log.get("host", "cpu_percent") is None
    assert log.metrics(GPU) == ["power_instant_mw", "sm_clock_mhz"]


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "there is no"), (b"", "cannot be read"), (b"PAR1 and no more", "cannot be read")],
)
def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / TELEMETRY_NAME
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ResultError, match=message):
        read_sample_log(path)


def test_a_parquet_of_somebody_else_is_refused(tmp_path: Path) -> None:
    write_sample_log(tmp_path / TELEMETRY_NAME, sample_log())
    pq.write_table(pq.read_table(tmp_path / TELEMETRY_NAME).replace_schema_metadata(None), tmp_path / "x.parquet")
    with pytest.raises(ResultError, match="cannot be read"):
        read_sample_log(tmp_path / "x.parquet")


def test_a_later_version_is_refused(tmp_path: Path) -> None:
    log = sample_log()
    later = SampleLog(log.series, log.meta.model_copy(update={"schema_version": 99}))
    write_sample_log(tmp_path / TELEMETRY_NAME, later)
    with pytest.raises(ResultError, match="version 99"):
        read_sample_log(tmp_path / TELEMETRY_NAME)


def test_a_polled_source_repeats_between_its_updates() -> None:
    log = SampleBuilder().polled(GPU, "power_instant_mw", lambda t: t / MS, 0, 400 * MS, update_period_ns=100 * MS)
    series = log.build().get(GPU, "power_instant_mw")
    assert series is not None
    assert series.value.tolist() == [0, 0, 100, 100, 200, 200, 300, 300, 400]
    assert series.updates().value.tolist() == [0, 100, 200, 300, 400]


def test_every_metric_and_reason_is_in_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    for metric in (*GPU_METRICS, *PROCESS_METRICS, *HOST_METRICS):
        assert f"`{metric.name}`" in page, metric.name
    for reason in CLOCK_EVENT_REASONS:
        assert f"| {hex(reason.bit)} | `{reason.name}`" in page
