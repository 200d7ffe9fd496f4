"""GPU_METRICS as nsys writes it, of several versions and GPUs, into columns."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from perfharness.errors import TraceFormatError
from perfharness.model.trace import GpuMetric, GpuMetrics
from perfharness.trace import open_trace
from tests.support.trace_builder import H200, TraceBuilder
from tests.unit.trace.conftest import Read

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


def built(names: Sequence[str], readings: dict[int, Sequence[int | None]]) -> TraceBuilder:
    """A trace with these metrics, and their readings by time."""
    builder = TraceBuilder()
    type_id = builder.gpu_metric_names(names)
    for at, values in readings.items():
        builder.gpu_metric_reading(at, values, type_id=type_id)
    return builder


def columns(found: GpuMetrics | None) -> dict[str, list[int]] | None:
    if found is None:
        return None
    clock = {} if found.clock_mhz is None else {"clock": found.clock_mhz.tolist()}
    return {metric.value: values.tolist() for metric, values in found.percent.items()} | clock


@pytest.mark.parametrize(
    ("names", "readings", "expected"),
    [
        pytest.param(
            GH100,
            dict.fromkeys((300_000, 100_000, 200_000), READING),  # the order of rows is not to be relied on
            {
                "gr_active": [99] * 3,
                "sm_active": [97] * 3,
                "occupancy": [14] * 3,
                "tensor": [88] * 3,
                "dram_read": [22] * 3,
                "dram_write": [3] * 3,
                "clock": [1755] * 3,
            },
            id="nsys 2025.3",
        ),
        pytest.param(
            ["SM Active", "DRAM Read Bandwidth"],
            {100: (50, 20), 200: (60, 30)},
            {"sm_active": [50, 60], "dram_read": [20, 30]},
            id="nsys 2023.4, without tensor pipes",
        ),
        pytest.param(
            ["GPC Clock Frequency [MHz]", "SMs Active [Throughput %]"],
            {100: (1_980, 5), 200: (None, 5), 300: (345_000_000, 5)},
            {"sm_active": [5] * 3, "clock": [1980, -1, 345]},
            id="a clock in its unit, or missing",
        ),
        pytest.param(
            ["SMs Active [Throughput %]", "Tensor Active [Throughput %]"],
            {100: (101, None), 200: (50, 4_000_000), 300: (50, 12)},
            {"sm_active": [101, 50, 50], "tensor": [-1, -1, 12]},
            id="a reading without a metric, and a value that is not a share",
        ),
        pytest.param(["L2 Throughput [Throughput %]"], {100: [1]}, None, id="none that is read"),
    ],
)
def test_shares_by_name(
    read: Read, names: Sequence[str], readings: dict[int, Sequence[int | None]], expected: dict[str, list[int]] | None
) -> None:
    assert columns(read(built(names, readings)).gpu_metrics) == expected


def test_a_period_begins_at_its_reading_and_is_no_longer_before_lost_ones(read: Read) -> None:
    found = read(built(["SMs Active"], dict.fromkeys((100, 200, 300, 900, 1000), (7,)))).gpu_metrics
    assert found is not None
    assert found.start_ns.tolist() == [100, 200, 300, 900, 1000]
    assert found.end_ns.tolist() == [200, 300, 400, 1000, 1100]


def test_each_gpu_has_its_own_periods_and_description(read: Read) -> None:
    builder = TraceBuilder(gpu=False)
    for gpu in (0, 3):
        builder.row("TARGET_INFO_GPU", **({"id": gpu} | H200 | {"uuid": f"GPU-u-{gpu}"}))
        builder.row("TARGET_INFO_CUDA_DEVICE", gpuId=gpu, cudaId=1 if gpu == 0 else 0, pid=100)
    first, second = (builder.gpu_metric_names(["SMs Active [Throughput %]"], gpu=gpu) for gpu in (3, 0))
    for at in range(100, 300, 100):
        builder.gpu_metric_reading(at, (at // 100,), type_id=first)
        builder.gpu_metric_reading(at + 30, (at // 100 + 50,), type_id=second)
    found = read(builder).gpu_metrics
    assert found is not None
    assert [device.uuid for device in found.gpus] == ["u-0", "u-3"]
    assert found.gpu.tolist() == [0, 0, 1, 1]
    assert found.percent[GpuMetric.SM_ACTIVE].tolist() == [51, 52, 1, 2]
    assert found.start_ns.tolist() == [130, 230, 100, 200]
    assert found.end_ns.tolist() == [230, 330, 200, 300]


@pytest.mark.parametrize("value", ["NULL", "'text'", "-5", "9e18", "x'00ff'"])
@pytest.mark.parametrize("column", ["typeId", "metricId", "timestamp", "value"])
def test_damaged_tables_end_in_one_error_or_fewer_readings(tmp_path: Path, column: str, value: str) -> None:
    path = built(GH100, dict.fromkeys(range(100, 1000, 100), READING)).write(tmp_path / "t.sqlite")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"UPDATE GPU_METRICS SET {column} = {value} WHERE rowid % 5 = 0")
    try:
        found = open_trace(path).gpu_metrics
    except TraceFormatError:
        return
    assert found is not None
    assert all(((values >= -1) & (values <= 120)).all() for values in found.percent.values())
    assert (found.end_ns >= found.start_ns).all()
