"""telemetry.parquet: what was written comes back, and what is none of ours is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from perfharness.errors import ResultError
from perfharness.model.telemetry import (
    TELEMETRY_NAME,
    FailureRecord,
    SampleLog,
    core_subject,
    process_subject,
)
from perfharness.telemetry.store import read_sample_log, write_sample_log
from tests.support.sample_builder import MS, SampleBuilder

GPU = "GPU-1111"
START = 1_700_000_000_000_000_000


def sample_log(**meta: int) -> SampleLog:
    failure = FailureRecord(subject=GPU, metric="power_instant_mw", reason="NVML_ERROR_UNKNOWN", count=1)
    return (
        SampleBuilder(offset_ns=17, failures=[failure], **meta)
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


@pytest.mark.parametrize("log", [sample_log(), SampleBuilder().subject(GPU).build()], ids=["whole", "no readings"])
def test_a_log_comes_back_as_it_was_whatever_the_order_of_the_rows(tmp_path: Path, log: SampleLog) -> None:
    write_sample_log(tmp_path / TELEMETRY_NAME, log)
    table = pq.read_table(tmp_path / TELEMETRY_NAME)
    assert table.column("value").null_count == sum(failure.count for failure in log.meta.failures)
    shuffled = table.take(np.random.default_rng(5).permutation(len(table)))
    pq.write_table(shuffled, tmp_path / "shuffled.parquet", row_group_size=2)
    for name in (TELEMETRY_NAME, "shuffled.parquet"):
        back = read_sample_log(tmp_path / name)
        assert back.meta == log.meta
        assert set(back.series) == set(log.series)
        for key, series in log.series.items():
            for column in ("time_unix_ns", "time_monotonic_ns", "value", "is_new", "read_ns"):
                np.testing.assert_array_equal(getattr(back.series[key], column), getattr(series, column))


def test_a_log_is_asked_for_series_updates_and_windows() -> None:
    log = sample_log()
    clocks, power = log.series[GPU, "sm_clock_mhz"], log.series[GPU, "power_instant_mw"]
    assert power.time_monotonic_ns[0] == START - 17
    assert power.is_read.tolist() == [True, False, True]
    assert power.updates().value.tolist() == [70_000.0, 71_000.5]
    assert clocks.updates().value.tolist() == [1980]
    assert power.between(START + 50 * MS, START + 100 * MS).value[1] == 71_000.5
    assert len(power.between(START + 1, START + 2)) == 0
    assert log.get("host", "cpu_percent") is None
    assert [metric for owner, metric in log.series if owner == GPU] == ["power_instant_mw", "sm_clock_mhz"]
    assert [record.subject for record in log.subjects("gpu")] == [GPU]


def _of_somebody_else(path: Path) -> None:
    write_sample_log(path, sample_log())
    pq.write_table(pq.read_table(path).replace_schema_metadata(None), path)


@pytest.mark.parametrize(
    "make",
    [
        lambda path: None,
        lambda path: path.write_bytes(b"PAR1 and no more"),
        _of_somebody_else,
        lambda path: write_sample_log(path, sample_log(schema_version=99)),
    ],
)
def test_a_file_that_cannot_be_read(tmp_path: Path, make: Any) -> None:
    make(tmp_path / TELEMETRY_NAME)
    with pytest.raises(ResultError, match=TELEMETRY_NAME):
        read_sample_log(tmp_path / TELEMETRY_NAME)
