"""A suite as a flat table: one row per case, the unit in every column's name; `bench.parquet`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from perfharness.analysis.suites.bench_figures import accuracy_loss, baseline_of, memory_of, speedup
from perfharness.files import replacing
from perfharness.model.bench import NO_CASE, CaseResult, Cell, Estimate, LatencyStats
from perfharness.model.bench_suite import BenchSuiteResult, Constraints, SweepFile

CELL = tuple(Cell.model_fields)
"""Fields that identify a cell."""

TEXTS = ("case_id", "hostname", *CELL, "status", "baseline", "startup_file_cache")
COUNTS = ("batch_size", "attempts", "started_unix_ns")
Row = dict[str, Any]


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
    with replacing(path) as temporary, temporary.open("wb") as file:  # Arrow takes no path that is no UTF-8
        pq.write_table(bench_table(suite), file, compression="zstd")


def bench_table(suite: BenchSuiteResult) -> pa.Table:
    """The rows, in the suite's order. What was not measured is null."""
    names = _row(CaseResult(case=NO_CASE, status="not-run"), suite)
    schema = pa.schema({name: _type_of(name) for name in names})
    return pa.Table.from_pylist([_row(result, suite) for result in suite.cases], schema=schema)


def _type_of(column: str) -> pa.DataType:
    if column.startswith("accuracy_"):  # metrics of any name
        return pa.float64()
    if column in TEXTS or column.endswith("reason"):
        return pa.string()
    if column in COUNTS or column.endswith(("_bytes", "_iterations")):
        return pa.int64()
    return pa.bool_() if column == "outputs_equal" else pa.float64()


def _row(result: CaseResult, suite: BenchSuiteResult) -> Row:
    case, base = result.case, baseline_of(result, suite.cases, suite.baseline)
    limits, equality = suite.constraints, result.equality
    accuracy = result.accuracy.metrics if result.accuracy else {}
    return {
        "case_id": case.case_id,
        "hostname": suite.machine.hostname,
        **{name: getattr(case, name) for name in CELL},
        "batch_size": case.batch_size,
        "status": result.status,
        "reason": result.reason,
        **_latency("latency", result.latency),
        **_latency("execute_latency", result.execute_latency),
        **_estimate("items_per_second", result.items_per_second),
        **_estimate("tokens_per_second", result.tokens_per_second),
        **_estimate("speedup", speedup(result, base)),
        "baseline": suite.baseline,
        "telemetry_items_per_second": result.telemetry_items_per_second,
        "utilization_percent": result.utilization_percent,
        **_estimate("energy_per_item_j", result.energy_per_item_j),
        "power_mean_w": result.power_mean_w,
        "clock_drop_percent": result.clock_drop_percent,
        "memory_peak_bytes": memory_of(result),
        **{f"memory_{name}": size for name, size in result.memory.model_dump().items() if name.endswith("_bytes")},
        **{f"startup_{name}": value for name, value in result.startup.model_dump().items() if name.endswith("_ms")},
        "startup_file_cache": result.startup.file_cache,
        **{f"outputs_{name}": equality and getattr(equality, name)
           for name in ("equal", "max_absolute", "max_relative", "cosine")},
        "accuracy_loss": accuracy_loss(result, base, limits.accuracy_metric, limits.accuracy_direction),
        **{f"accuracy_{name}": accuracy.get(name) for name in metric_names(suite)},
        "attempts": result.process and result.process.attempts,
        "started_unix_ns": result.started_unix_ns,
        "duration_s": result.duration_s,
    }  # fmt: skip


def metric_names(suite: BenchSuiteResult) -> list[str]:
    """Accuracy metrics of all cases, in order of first occurrence."""
    return list(dict.fromkeys(name for case in suite.cases if case.accuracy for name in case.accuracy.metrics))


def _estimate(name: str, estimate: Estimate | None, unit: str = "") -> Row:
    ends = {"": "value", "_low": "low", "_high": "high"}
    return {f"{name}{end}{unit}": estimate and getattr(estimate, part) for end, part in ends.items()}


def _latency(name: str, stats: LatencyStats | None) -> Row:
    row: Row = {f"{name}_iterations": stats and stats.iterations}
    row |= {f"{name}_{which}_ms": stats and getattr(stats, which) for which in ("std", "min", "max")}
    for which in ("mean", "median", "p50", "p90", "p95", "p99"):
        value = getattr(stats, which) if stats else None
        row |= _estimate(f"{name}_{which}", Estimate(value=value) if isinstance(value, float) else value, "_ms")
    return row
