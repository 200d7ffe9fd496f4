"""GPU_METRICS as nsys writes it, of several versions and GPUs, into columns."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from perfharness.errors import TraceFormatError
from perfharness.model.gpu_metrics import GpuMetric, GpuMetrics
from perfharness.trace import open_trace, source
from tests.support.parquet_export import export_parquet
from tests.support.trace_builder import H200, TraceBuilder

GH100 = (
    "GPC Clock Frequency [MHz]",
    "GR Active [Throughput %]",
    "SMs Active [Throughput %]",
    "SM Issue [Throughput %]",
    "Tensor Active [Throughput %]",
    "Pixel Warps in Flight [Throughput %]",
    "Compute Warps in Flight [Throughput %]",
    "Compute Warps in Flight [Avg]",
    "Unallocated Warps in Active SMs [Throughput %]",
    "DRAM Read Bandwidth [Throughput %]",
    "DRAM Write Bandwidth [Throughput %]",
    "PCIe RX Throughput [Throughput %]",
)
"""As nsys 2025.3 names them on an H100; 2023.4 has `SM Active`."""

READING = (1_755_000_000, 99, 97, 31, 88, 0, 14, -1_077_936_128, 83, 22, 3, 0)
"""A matrix product: a clock in Hz, and 32 bits of something in the place of an average."""


def written(builder: TraceBuilder, folder: Path) -> Path:
    builder.row("META_DATA_EXPORT", name="EXPORT_PRODUCT_VERSION", value="2025.3.2.0")
    return builder.write(folder / "t.sqlite")


def read(builder: TraceBuilder, folder: Path, kind: str = "sqlite") -> GpuMetrics:
    path = written(builder, folder)
    found = open_trace(path if kind == "sqlite" else export_parquet(path, folder / "t_pqtdir")).gpu_metrics
    assert found is not None
    return found


@pytest.mark.parametrize("kind", ["sqlite", "parquet"])
def test_shares_by_name_and_periods_that_begin_at_the_readings(tmp_path: Path, kind: str) -> None:
    builder = TraceBuilder()
    type_id = builder.gpu_metric_names(GH100)
    for at in (300_000, 100_000, 200_000):  # the order of rows is not to be relied on
        builder.gpu_metric_reading(at, READING, type_id=type_id)
    found = read(builder, tmp_path, kind)
    assert found.start_ns.tolist() == [100_000, 200_000, 300_000]
    assert found.end_ns.tolist() == [200_000, 300_000, 400_000]
    assert {metric.value: values.tolist() for metric, values in found.percent.items()} == {
        "gr_active": [99] * 3, "sm_active": [97] * 3, "sm_issue": [31] * 3, "occupancy": [14] * 3,
        "tensor": [88] * 3, "dram_read": [22] * 3, "dram_write": [3] * 3,
    }  # fmt: skip
    assert found.clock_mhz is not None
    assert found.clock_mhz.tolist() == [1755] * 3


def test_names_of_an_older_version_and_a_card_without_tensor_pipes(tmp_path: Path) -> None:
    builder = TraceBuilder()
    type_id = builder.gpu_metric_names(["SM Active", "DRAM Read Bandwidth"])
    builder.gpu_metric_reading(100, (50, 20), type_id=type_id)
    builder.gpu_metric_reading(200, (60, 30), type_id=type_id)
    found = read(builder, tmp_path)
    assert {metric: values.tolist() for metric, values in found.percent.items()} == {
        GpuMetric.SM_ACTIVE: [50, 60],
        GpuMetric.DRAM_READ: [20, 30],
    }


def test_a_clock_that_is_written_in_its_unit_or_missing(tmp_path: Path) -> None:
    builder = TraceBuilder()
    type_id = builder.gpu_metric_names(["GPC Clock Frequency [MHz]", "SMs Active [Throughput %]"])
    for at, clock in ((100, 1_980), (200, None), (300, 345_000_000)):
        builder.gpu_metric_reading(at, (clock, 5), type_id=type_id)
    found = read(builder, tmp_path)
    assert found.clock_mhz is not None
    assert found.clock_mhz.tolist() == [1980, -1, 345]


def test_each_gpu_has_its_own_periods_and_description(tmp_path: Path) -> None:
    builder = TraceBuilder(gpu=False)
    for gpu in (0, 3):
        builder.row("TARGET_INFO_GPU", **({"id": gpu} | H200 | {"uuid": f"GPU-u-{gpu}"}))
        builder.row("TARGET_INFO_CUDA_DEVICE", gpuId=gpu, cudaId=1 if gpu == 0 else 0, pid=100)
    first, second = (builder.gpu_metric_names(["SMs Active [Throughput %]"], gpu=gpu) for gpu in (3, 0))
    for at in range(100, 500, 100):
        builder.gpu_metric_reading(at, (at // 100,), type_id=first)
        builder.gpu_metric_reading(at + 30, (at // 100 + 50,), type_id=second)
    found = read(builder, tmp_path)
    assert [device.uuid for device in found.gpus] == ["u-0", "u-3"]
    assert found.gpu.tolist() == [0] * 4 + [1] * 4
    assert found.percent[GpuMetric.SM_ACTIVE].tolist() == [51, 52, 53, 54, 1, 2, 3, 4]
    assert found.start_ns.tolist() == [130, 230, 330, 430, 100, 200, 300, 400]
    assert found.end_ns.tolist() == [230, 330, 430, 530, 200, 300, 400, 500]


def test_a_reading_before_lost_ones_covers_one_period(tmp_path: Path) -> None:
    builder = TraceBuilder()
    type_id = builder.gpu_metric_names(["SMs Active [Throughput %]"])
    for at in (100, 200, 300, 900, 1000):
        builder.gpu_metric_reading(at, (7,), type_id=type_id)
    found = read(builder, tmp_path)
    assert found.end_ns.tolist() == [200, 300, 400, 1000, 1100]


def test_a_metric_that_a_reading_lacks_or_that_is_no_share(tmp_path: Path) -> None:
    builder = TraceBuilder()
    type_id = builder.gpu_metric_names(["SMs Active [Throughput %]", "Tensor Active [Throughput %]"])
    builder.gpu_metric_reading(100, (101, None), type_id=type_id)
    builder.gpu_metric_reading(200, (50, 4_000_000), type_id=type_id)
    builder.gpu_metric_reading(300, (50, 12), type_id=type_id)
    found = read(builder, tmp_path)
    assert found.percent[GpuMetric.SM_ACTIVE].tolist() == [101, 50, 50]
    assert found.percent[GpuMetric.TENSOR].tolist() == [-1, -1, 12]


@pytest.mark.parametrize("names", [[], ["L2 Throughput [Throughput %]"]])
def test_no_metrics_that_are_read(tmp_path: Path, names: list[str]) -> None:
    builder = TraceBuilder()
    type_id = builder.gpu_metric_names(names)
    builder.gpu_metric_reading(100, [1] * len(names), type_id=type_id)
    assert open_trace(written(builder, tmp_path)).gpu_metrics is None


def test_a_long_table_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """600 readings of four metrics in windows that end within a reading; compared row by row."""
    monkeypatch.setattr(source, "WINDOW_ROWS", 1001)
    builder = TraceBuilder()
    names = ["SMs Active", "SM Issue", "Tensor Active", "DRAM Read Bandwidth"]
    type_id = builder.gpu_metric_names(names)
    values = np.random.default_rng(0).integers(0, 101, (600, 4))
    for number, row in enumerate(values.tolist()):
        builder.gpu_metric_reading(100 * number, row, type_id=type_id)
    found = read(builder, tmp_path)
    expected = [GpuMetric.SM_ACTIVE, GpuMetric.SM_ISSUE, GpuMetric.TENSOR, GpuMetric.DRAM_READ]
    assert np.array_equal(np.stack([found.percent[metric] for metric in expected], axis=1), values)


@pytest.mark.parametrize("value", ["NULL", "'text'", "-5", "9e18", "x'00ff'"])
@pytest.mark.parametrize(
    ("table", "column"),
    [
        *(("GPU_METRICS", column) for column in ("typeId", "metricId", "timestamp", "value")),
        *(("TARGET_INFO_GPU_METRICS", column) for column in ("typeId", "metricId", "metricName")),
    ],
)
def test_damaged_tables_end_in_one_error_or_fewer_readings(tmp_path: Path, table: str, column: str, value: str) -> None:
    builder = TraceBuilder()
    type_id = builder.gpu_metric_names(GH100)
    for at in range(100, 1000, 100):
        builder.gpu_metric_reading(at, READING, type_id=type_id)
    path = builder.write(tmp_path / "t.sqlite")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"UPDATE {table} SET {column} = {value} WHERE rowid % 5 = 0")
    try:
        found = open_trace(path).gpu_metrics
    except TraceFormatError:
        return
    assert found is not None
    assert all(((values >= -1) & (values <= 120)).all() for values in found.percent.values())
    assert (found.end_ns >= found.start_ns).all()
