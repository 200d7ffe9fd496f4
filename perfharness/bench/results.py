"""The folder of a suite; every result is written atomically.

OUT/bench.json, OUT/bench.parquet                          after every case
OUT/cases/CASE_ID/result.json, iterations.parquet, *.log   moved there by one rename when the case has ended
OUT/cases/.CASE_ID.running/                                a running case; removed later if the suite was killed
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from perfharness.analysis.suites.bench_figures import accuracy_loss, baseline_of, memory_of, speedup
from perfharness.backends.arrays import read_arrays
from perfharness.bench.spec import ITERATIONS_NAME, RESULT_NAME
from perfharness.errors import LaunchError, ResultError, UsageError
from perfharness.files import locked, replacing, write_model
from perfharness.model.bench import NO_CASE, CaseResult, Cell, Estimate, LatencyStats
from perfharness.model.bench_suite import BENCH_TABLE_NAME, BenchSuiteResult
from perfharness.model.manifest import BENCH_NAME
from perfharness_launcher.interrupts import Interrupts, noting_interrupts

CASES = "cases"
ITERATIONS_TABLE = "iterations.parquet"
ITERATIONS = pa.schema(
    {
        "pass": pa.string(),
        "iteration": pa.int64(),
        "wall_ns": pa.int64(),
        "start_ns": pa.int64(),
        "device_ms": pa.float64(),
    }
)
TEXTS = ("case_id", "hostname", *Cell.model_fields, "status", "baseline", "startup_file_cache")
COUNTS = ("batch_size", "gpu_index", "attempts", "started_unix_ns")

Row = dict[str, Any]


@contextmanager
def measuring(out: Path) -> Iterator[Interrupts]:
    """Create and lock the folder, count signals, and adopt orphaned descendants while the block runs.

    Raises `UsageError` if it cannot be created, `LaunchError` if another process is writing to it.
    """
    with ExitStack() as stack:
        try:
            out.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(out))
        except BlockingIOError as error:
            message = f"another perfharness is writing to {out}; wait until it ends, or use another folder with -o"
            raise LaunchError(message) from error
        except OSError as error:
            message = f"{out} cannot be used for results: {error.strerror}; use another folder with -o"
            raise UsageError(message) from error
        yield stack.enter_context(noting_interrupts())


def prepare(out: Path, *, resume: bool) -> None:
    """Create the folders, inside `measuring`. Raises `UsageError` for existing results unless resuming."""
    if not resume and ((out / BENCH_NAME).exists() or any((out / CASES).glob("[!.]*"))):
        raise UsageError(f"{out} already has results; continue with --resume, or use another folder with -o")
    try:
        (out / CASES).mkdir(parents=True, exist_ok=True)
        for left in (out / CASES).glob(".*.running"):
            shutil.rmtree(left)
    except OSError as error:
        raise UsageError(f"{out} cannot be used for results: {error.strerror}; use another folder with -o") from error


def write_suite(out: Path, suite: BenchSuiteResult) -> None:
    """Write the results and their table, each atomically."""
    write_model(out / BENCH_NAME, suite)
    with replacing(out / BENCH_TABLE_NAME) as temporary, temporary.open("wb") as file:
        pq.write_table(bench_table(suite), file, compression="zstd")  # Arrow rejects paths with invalid UTF-8


# ---- cases ----


def running_folder(out: Path, case_id: str) -> Path:
    """Path for a running case's folder, which does not exist."""
    running = out / CASES / f".{case_id}.running"
    shutil.rmtree(running, ignore_errors=True)
    return running


def put_in_place(out: Path, result: CaseResult) -> None:
    """Move the folder of a finished case to its final name, replacing an earlier attempt."""
    folder = out / CASES / result.case.case_id
    running, old = (folder.with_name(f".{folder.name}{end}.running") for end in ("", ".old"))
    write_iterations(running)
    write_model(running / RESULT_NAME, result)
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    running.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def cases_on_disk(out: Path) -> dict[str, CaseResult]:
    """Readable finished cases by id."""
    found = {}
    for path in sorted((out / CASES).glob(f"[!.]*/{RESULT_NAME}")):
        with suppress(OSError, ValidationError):
            result = CaseResult.model_validate_json(path.read_text(encoding="utf-8"))
            found[result.case.case_id] = result
    return found


def write_iterations(folder: Path) -> None:
    """Write `iterations.parquet` of a case: a row per iteration; `pass` is `warm-up`, `timed` or `device`."""
    if not (folder / ITERATIONS_NAME).exists():
        return
    arrays, parts = read_arrays(folder / ITERATIONS_NAME, ResultError), []
    for name, columns in (
        ("warm-up", {"wall_ns": "warmup_ns"}),
        ("timed", {"wall_ns": "wall_ns", "start_ns": "start_ns"}),
        ("device", {"device_ms": "device_ms"}),
    ):
        given = {column: arrays[key] for column, key in columns.items() if key in arrays}
        count = max(map(len, given.values()), default=0)
        empty = {column: pa.nulls(count, ITERATIONS.field(column).type) for column in ITERATIONS.names[2:]}
        rows = {"pass": [name] * count, "iteration": np.arange(count), **empty, **given}
        parts.append(pa.table(rows, schema=ITERATIONS))
    with replacing(folder / ITERATIONS_TABLE) as temporary, temporary.open("wb") as file:
        pq.write_table(pa.concat_tables(parts), file, compression="zstd")
    (folder / ITERATIONS_NAME).unlink()


# ---- table: one row per case, with the unit in the column names ----


def bench_table(suite: BenchSuiteResult) -> pa.Table:
    """The table in suite order, with nulls for missing values."""
    names = _row(CaseResult(case=NO_CASE, status="not-run"), suite)
    schema = pa.schema({name: _type_of(name) for name in names})
    return pa.Table.from_pylist([_row(result, suite) for result in suite.cases], schema=schema)


def _type_of(column: str) -> pa.DataType:
    if column.startswith("accuracy_"):  # metrics may have any name
        return pa.float64()
    if column in COUNTS or column.endswith(("_bytes", "_iterations")):
        return pa.int64()
    if column in TEXTS or column.endswith("reason"):
        return pa.string()
    return pa.bool_() if column == "outputs_equal" else pa.float64()


def _row(result: CaseResult, suite: BenchSuiteResult) -> Row:
    case, base = result.case, baseline_of(result, suite.cases, suite.baseline)
    limits, equality = suite.constraints, result.equality
    accuracy = result.accuracy.metrics if result.accuracy else {}
    metrics = dict.fromkeys(name for one in suite.cases if one.accuracy for name in one.accuracy.metrics)
    memory, startup = result.memory.model_dump(), result.startup.model_dump()
    return {
        "case_id": case.case_id,
        "hostname": suite.machine.hostname,
        **{name: getattr(case, name) for name in Cell.model_fields},
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
        "cpu_percent": result.cpu_percent,
        "io_wait_percent": result.io_wait_percent,
        **_estimate("energy_per_item_j", result.energy_per_item_j),
        "power_mean_w": result.power_mean_w,
        "clock_drop_percent": result.clock_drop_percent,
        "memory_peak_bytes": memory_of(result),
        **{f"memory_{name}": size for name, size in memory.items() if name.endswith("_bytes")},
        **{f"startup_{name}": value for name, value in startup.items() if name.endswith("_ms")},
        "startup_file_cache": result.startup.file_cache,
        "outputs_equal": equality and equality.equal,
        "outputs_max_absolute": equality and equality.max_absolute,
        "outputs_max_relative": equality and equality.max_relative,
        "outputs_cosine": equality and equality.cosine,
        "accuracy_loss": accuracy_loss(result, base, limits.accuracy_metric, limits.accuracy_direction),
        **{f"accuracy_{name}": accuracy.get(name) for name in metrics},
        "attempts": result.process and result.process.attempts,
        "started_unix_ns": result.started_unix_ns,
        "duration_s": result.duration_s,
    }


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
