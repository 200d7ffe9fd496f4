"""A suite as a flat table: one row per case, the unit in every column's name; `bench.parquet`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from perfharness.analysis.bench_figures import accuracy_loss, baseline_of, memory_of, speedup
from perfharness.files import replacing
from perfharness.model.bench import CaseResult, Estimate, InstancesRecord, LatencyStats, StreamsRecord
from perfharness.model.bench_search import SweepFile
from perfharness.model.bench_suite import BenchSuiteResult, Constraints

CELL = ("model", "backend", "mode", "precision", "device", "variant")
"""Fields that identify a cell."""

Columns = Mapping[str, tuple[pa.DataType, Any]]


def as_suite(found: SweepFile) -> BenchSuiteResult:
    """A sweep's cases as a suite, for functions that take one; a sweep has no baseline."""
    return BenchSuiteResult(
        created=found.created,
        command=found.command,
        machine=found.machine,
        settings=found.settings,
        constraints=Constraints(memory_limit_bytes=found.memory_limit_bytes),
        cases=found.cases,
        complete=found.complete,
        remarks=found.remarks,
    )


def write_bench_table(path: Path, suite: BenchSuiteResult) -> None:
    """Write the Parquet file atomically."""
    with replacing(path) as temporary:
        pq.write_table(bench_table(suite), temporary, compression="zstd")


def bench_table(suite: BenchSuiteResult) -> pa.Table:
    """The rows, in the suite's order. What was not measured is null."""
    rows = [_row(result, suite) for result in suite.cases]
    kinds = _row(None, suite)
    return pa.table({name: pa.array([row[name][1] for row in rows], kind) for name, (kind, _) in kinds.items()})


def _row(result: CaseResult | None, suite: BenchSuiteResult) -> Columns:
    """Name -> type and value; of no result: the types only."""
    if result is None:
        from perfharness.model.bench import BenchCase

        case = BenchCase(case_id="", model="", backend="", mode="", precision="fp32", device="cpu", batch_size=1)
        result = CaseResult(case=case, status="not-run")
    case, base = result.case, baseline_of(result, suite.cases, suite.baseline)
    text, number, whole, flag = pa.string(), pa.float64(), pa.int64(), pa.bool_()
    row: dict[str, tuple[pa.DataType, Any]] = {
        "case_id": (text, case.case_id),
        "hostname": (text, suite.machine.hostname),
        "model": (text, case.model),
        "backend": (text, case.backend),
        "mode": (text, case.mode),
        "precision": (text, case.precision),
        "device": (text, case.device),
        "variant": (text, case.variant),
        "batch_size": (whole, case.batch_size),
        "status": (text, result.status),
        "reason": (text, result.reason),
        **_latency("latency", result.latency),
        **_latency("execute_latency", result.execute_latency),
        **_estimate("items_per_second", result.items_per_second),
        **_estimate("tokens_per_second", result.tokens_per_second),
        **_estimate("speedup", speedup(result, base)),
        "baseline": (text, suite.baseline),
        "instances": (whole, result.instances.instances if result.instances else None),
        **_concurrent_columns("instances", result.instances),
        "streams": (whole, result.streams.streams if result.streams else None),
        **_concurrent_columns("streams", result.streams),
        "streams_memory_device_peak_bytes": (whole, result.streams and result.streams.memory.device_peak_bytes),
        "streams_memory_host_peak_bytes": (whole, result.streams and result.streams.memory.host_peak_bytes),
        "telemetry_items_per_second": (number, result.telemetry_items_per_second),
        "utilization_percent": (number, result.utilization_percent),
        **_estimate("energy_per_item_j", result.energy_per_item_j),
        "power_mean_w": (number, result.power_mean_w),
        "clock_drop_percent": (number, result.clock_drop_percent),
        "memory_peak_bytes": (whole, memory_of(result)),
        **{f"memory_{name}": (whole, value) for name, value in result.memory.model_dump().items()
           if name.endswith("_bytes")},
        **{f"startup_{name}": (number, value) for name, value in result.startup.model_dump().items()
           if name.endswith("_ms")},
        "startup_file_cache": (text, result.startup.file_cache),
        "outputs_equal": (flag, result.equality.equal if result.equality else None),
        "outputs_max_absolute": (number, result.equality.max_absolute if result.equality else None),
        "outputs_max_relative": (number, result.equality.max_relative if result.equality else None),
        "outputs_cosine": (number, result.equality.cosine if result.equality else None),
        "accuracy_loss": (number, _loss(result, base, suite)),
        **{f"accuracy_{name}": (number, result.accuracy.metrics.get(name) if result.accuracy else None)
           for name in metric_names(suite)},
        "attempts": (whole, result.process.attempts if result.process else None),
        "started_unix_ns": (whole, result.started_unix_ns),
        "duration_s": (number, result.duration_s),
    }  # fmt: skip
    return row


def _loss(result: CaseResult, baseline: CaseResult | None, suite: BenchSuiteResult) -> float | None:
    return accuracy_loss(result, baseline, suite.constraints.accuracy_metric, suite.constraints.accuracy_direction)


def metric_names(suite: BenchSuiteResult) -> list[str]:
    """Accuracy metrics of all cases, in order of first occurrence."""
    return list(dict.fromkeys(name for case in suite.cases if case.accuracy for name in case.accuracy.metrics))


def _estimate(name: str, estimate: Estimate | None) -> dict[str, tuple[pa.DataType, Any]]:
    parts = (None, None, None) if estimate is None else (estimate.value, estimate.low, estimate.high)
    return {key: (pa.float64(), part) for key, part in zip((name, f"{name}_low", f"{name}_high"), parts, strict=True)}


def _concurrent_columns(name: str, record: InstancesRecord | StreamsRecord | None) -> Columns:
    """Throughput of concurrent instances or streams; nulls where they were not measured."""
    return {
        f"{name}_items_per_second": (pa.float64(), record and record.items_per_second),
        f"{name}_mean_running": (pa.float64(), record and record.mean_running),
        f"{name}_reason": (pa.string(), record and record.reason),
        **_latency(f"{name}_latency", record.latency if record else None),
    }


def _latency(name: str, stats: LatencyStats | None) -> dict[str, tuple[pa.DataType, Any]]:
    row: dict[str, tuple[pa.DataType, Any]] = {
        f"{name}_iterations": (pa.int64(), stats.iterations if stats else None),
        f"{name}_std_ms": (pa.float64(), stats.std if stats else None),
        f"{name}_min_ms": (pa.float64(), stats.min if stats else None),
        f"{name}_max_ms": (pa.float64(), stats.max if stats else None),
    }
    for which in ("mean", "median", "p50", "p90", "p95", "p99"):
        value = getattr(stats, which) if stats else None
        estimate = value if value is None or isinstance(value, Estimate) else Estimate(value=value)
        parts = (None, None, None) if estimate is None else (estimate.value, estimate.low, estimate.high)
        for end, part in zip(("_ms", "_low_ms", "_high_ms"), parts, strict=True):
            row[f"{name}_{which}{end}"] = (pa.float64(), part)
    return row
