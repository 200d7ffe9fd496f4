"""Read the table GPU_METRICS: readings of GPU counters, one row per metric.

TARGET_INFO_GPU_METRICS names the metrics; ids differ by version and chip, and names end in a unit. Values in
`[Throughput %]` are whole per cent. Other units (`[Avg]`) are encoded differently and not read. The clock in `[MHz]` is
written in Hz. The last eight bits of `typeId` are nsys's number of the GPU.

The time of a row is the start of its period: on an H200 with nsys 2025.3 (47,802 readings at 10 kHz), `SMs Active`
correlates with running kernels by 0.997 then, and by 0.989 if times are ends.
"""

from __future__ import annotations

import numpy as np

from perfharness.model.columns import Int64, Integers
from perfharness.model.trace import GpuDevice, GpuMetric, GpuMetrics
from perfharness.trace.columns import MISSING, narrow
from perfharness.trace.devices import read_machine_gpus
from perfharness.trace.sqlite import TraceFile

TABLE_METRICS = "GPU_METRICS"
TABLE_NAMES = "TARGET_INFO_GPU_METRICS"

UNIT = " [Throughput %]"
METRIC_OF_NAME = {
    "GR Active": GpuMetric.GR_ACTIVE,
    "GPU Active": GpuMetric.GR_ACTIVE,
    "SMs Active": GpuMetric.SM_ACTIVE,
    "SM Active": GpuMetric.SM_ACTIVE,
    "Compute Warps in Flight": GpuMetric.OCCUPANCY,
    "Tensor Active": GpuMetric.TENSOR,
    "DRAM Read Bandwidth": GpuMetric.DRAM_READ,
    "DRAM Write Bandwidth": GpuMetric.DRAM_WRITE,
}
"""nsys's names in all versions. `Tensor Active / FP16 Active` (Turing) combines two pipes and is not read."""

CLOCK_NAME = "GPC Clock Frequency [MHz]"
CLOCK = len(GpuMetric)
"""Number of the clock, after those of `GpuMetric`."""

GPU_OF_TYPE = 0xFF
HIGHEST_PERCENT = 120
"""Shares of a peak are sometimes slightly over 100; larger values are invalid."""

HIGHEST_MHZ = 100_000
"""Larger values are in Hz."""

MAX_PERIODS = 1.5
"""Distance to the next reading, in periods, above which readings were lost."""


def read_gpu_metrics(file: TraceFile) -> GpuMetrics | None:
    """Read all shares; None if the trace has none."""
    metric_of_id = _metrics(file)
    columns = ["timestamp", "typeId", "metricId", "value"]
    if not metric_of_id or not file.has(TABLE_METRICS, *columns):
        return None
    parts = [_wanted(rows, metric_of_id) for rows in file.batches(TABLE_METRICS, columns)]
    if not any(len(time_ns) for time_ns, *_ in parts):
        return None
    time_ns, gpu, metric, value = (np.concatenate(column) for column in zip(*parts, strict=True))
    return _by_reading(time_ns, gpu, metric, value, read_machine_gpus(file))


def _metrics(file: TraceFile) -> dict[tuple[int, int], int]:
    """Position in `GpuMetric` by type and id, for metrics to read."""
    if not file.has(TABLE_NAMES, "typeId", "metricId", "metricName"):
        return {}
    position_of = {metric: position for position, metric in enumerate(GpuMetric)}
    positions = {name: position_of[metric] for name, metric in METRIC_OF_NAME.items()} | {CLOCK_NAME: CLOCK}
    ids = file.integers(TABLE_NAMES, ["typeId", "metricId"])
    names = [name.removesuffix(UNIT) for (name,) in file.texts(TABLE_NAMES, "metricName")]
    rows = zip(ids["typeId"].tolist(), ids["metricId"].tolist(), names, strict=True)
    return {(kind, number): positions[name] for kind, number, name in rows if name in positions}


def _wanted(
    rows: dict[str, Int64], metric_of_id: dict[tuple[int, int], int]
) -> tuple[Int64, Integers, Integers, Integers]:
    """Time, GPU, metric and value (per cent, or MHz) of the rows to read."""
    metric = np.full(len(rows["typeId"]), -1, dtype=np.int8)
    for (kind, number), position in metric_of_id.items():
        metric[(rows["typeId"] == kind) & (rows["metricId"] == number)] = position
    value = rows["value"]
    value = np.where((metric == CLOCK) & (value > HIGHEST_MHZ), value // 1_000_000, value)
    highest = np.where(metric == CLOCK, np.iinfo(np.int16).max, HIGHEST_PERCENT)
    keep = (metric >= 0) & (rows["timestamp"] != MISSING) & (value >= 0) & (value <= highest)
    gpu = (rows["typeId"][keep] & GPU_OF_TYPE).astype(np.int16)
    return rows["timestamp"][keep], gpu, metric[keep], value[keep].astype(np.int16)


def _by_reading(
    time_ns: Int64, gpu: Integers, metric: Integers, value: Integers, described: dict[int, GpuDevice]
) -> GpuMetrics:
    """Convert rows per metric to rows per reading."""
    order = np.lexsort((time_ns, gpu))
    time_ns, gpu = time_ns[order], gpu[order]
    is_first = np.r_[True, (time_ns[1:] != time_ns[:-1]) | (gpu[1:] != gpu[:-1])]
    row = np.empty(len(order), dtype=np.int64)
    row[order] = np.cumsum(is_first) - 1
    start_ns, numbers = time_ns[is_first], gpu[is_first]
    columns: dict[int, Integers] = {}
    for position in np.unique(metric).tolist():
        at = metric == position
        columns[position] = np.full(len(start_ns), -1, dtype=np.int16)
        columns[position][row[at]] = value[at]
    percent = {which: columns[position] for position, which in enumerate(GpuMetric) if position in columns}
    found, code = np.unique(numbers, return_inverse=True)
    end_ns = start_ns.copy()
    for which in range(len(found)):
        mine = code == which
        end_ns[mine] = _ends(start_ns[mine])
    gpus = [described.get(number, GpuDevice(None, number)) for number in found.tolist()]
    return GpuMetrics(start_ns, end_ns, narrow(code, np.int8, np.int16), gpus, percent, columns.get(CLOCK))


def _ends(start_ns: Int64) -> Int64:
    """End of each period: the next start, or the usual length before a gap and for the last one."""
    if len(start_ns) < 2:
        return start_ns  # unknown length: an empty period
    length: Int64 = np.diff(start_ns)
    usual = int(np.median(length))
    covered: Int64 = np.r_[np.where(length > MAX_PERIODS * usual, usual, length), usual]
    return start_ns + covered
