"""The folder of a suite or a sweep; results are written atomically.

OUT/bench.json, OUT/bench.parquet                          after every case; of a sweep sweep.json, sweep.parquet
OUT/cases/CASE_ID/result.json, iterations.parquet, *.log   moved there by one rename when the case has ended
OUT/cases/.CASE_ID.running/                                a running case; leftovers of a killed suite are removed
OUT/equality/CELL/outputs.npz, result.json                 outputs on the same inputs
OUT/accuracy/CELL/accuracy.json, result.json, outputs/     accuracy of each cell; outputs of the baseline only
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from perfharness.bench.process import read_arrays
from perfharness.bench.spec import ARRAYS_FOLDER, RESULT_NAME
from perfharness.bench.suite.table import as_suite, write_bench_table
from perfharness.errors import LaunchError, ResultError, UsageError
from perfharness.files import replacing, write_text
from perfharness.model.bench import CaseResult
from perfharness.model.bench_search import SWEEP_NAME, SWEEP_TABLE_NAME, SWEEP_VERSION, SweepFile
from perfharness.model.bench_suite import BENCH_NAME, BENCH_TABLE_NAME, BENCH_VERSION, BenchSuiteResult
from perfharness_launcher.interrupts import Interrupts, noting_interrupts
from perfharness_launcher.processes.orphans import adopting_orphans

CASES = "cases"
EQUALITY = "equality"
ACCURACY = "accuracy"
ITERATIONS_NAME = "iterations.parquet"

KINDS = {BENCH_NAME: "a suite", SWEEP_NAME: "a sweep"}
"""Files that identify the kind of folder."""


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """While open, no other process writes results to the folder, which is created.

    Raises `UsageError` where it cannot be created, `LaunchError` where another is writing to it.
    """
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is no folder; name another with -o")
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = os.open(out, os.O_RDONLY)
    except OSError as error:
        raise UsageError(f"{out} cannot be used for results: {error.strerror}; name another with -o") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise LaunchError(f"another perfharness is writing to {out}; wait for it, or name another with -o") from error
    finally:
        os.close(lock)


@contextmanager
def measuring(out: Path) -> Iterator[Interrupts]:
    """While open, the folder is locked, signals are counted, and orphaned descendants are adopted."""
    with locked(out), noting_interrupts() as interrupts, adopting_orphans():
        yield interrupts


def prepare(out: Path, *, resume: bool, name: str = BENCH_NAME) -> None:
    """Create the folders, inside `locked`. Raises `UsageError` where the folder has results that must not be resumed.

    Args:
        name: of the file with all results: that of a suite, or that of a sweep.
    """
    for other, what in KINDS.items():
        if other != name and (out / other).exists():
            raise UsageError(f"{out} holds results of {what}, not of {KINDS[name]}; name another folder with -o")
    if not resume and ((out / name).exists() or any((out / CASES).glob("[!.]*"))):
        raise UsageError(
            f"{out} holds results of {KINDS[name]} already; --resume goes on with them, -o names another folder"
        )
    try:
        (out / CASES).mkdir(parents=True, exist_ok=True)
        for left in [left for kind in (CASES, EQUALITY, ACCURACY) for left in (out / kind).glob(".*.running")]:
            shutil.rmtree(left)
    except OSError as error:
        raise UsageError(f"{out} cannot be used for results: {error.strerror}; name another with -o") from error


def running_folder(folder: Path) -> Path:
    """Path of a running case's folder, which does not exist yet."""
    running = folder.with_name(f".{folder.name}.running")
    shutil.rmtree(running, ignore_errors=True)
    return running


def put_in_place(running: Path, folder: Path, result: CaseResult) -> None:
    """Move a finished case to its final name, replacing an earlier attempt."""
    _write_iterations(running)
    write_text(running / RESULT_NAME, lambda file: _write(file, result.model_dump_json(indent=2)))
    if folder.exists():
        old = folder.with_name(f".{folder.name}.old.running")
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
        running.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
    else:
        running.rename(folder)


def update_result(folder: Path, result: CaseResult) -> None:
    """Replace the result of a finished case."""
    write_text(folder / RESULT_NAME, lambda file: _write(file, result.model_dump_json(indent=2)))


def results_on_disk(out: Path, kind: str = CASES) -> dict[str, CaseResult]:
    """Finished results by case id, without those that cannot be read."""
    found = (_readable(path) for path in sorted((out / kind).glob(f"[!.]*/{RESULT_NAME}")))
    return {result.case.case_id: result for result in found if result is not None}


def _readable(path: Path) -> CaseResult | None:
    try:
        return CaseResult.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValidationError):
        return None


def write_suite(out: Path, suite: BenchSuiteResult) -> None:
    """Write `bench.json` and `bench.parquet`, each atomically."""
    write_text(out / BENCH_NAME, lambda file: _write(file, suite.model_dump_json(indent=2)))
    write_bench_table(out / BENCH_TABLE_NAME, suite)


def write_sweep(out: Path, found: SweepFile) -> None:
    """Write `sweep.json` and `sweep.parquet`, each atomically."""
    write_text(out / SWEEP_NAME, lambda file: _write(file, found.model_dump_json(indent=2)))
    write_bench_table(out / SWEEP_TABLE_NAME, as_suite(found))


def read_suite_result(path: Path) -> BenchSuiteResult:
    """Read a suite's folder or its `bench.json`. Raises `ResultError`."""
    return _read(path, BENCH_NAME, BenchSuiteResult, BENCH_VERSION, "perfharness bench")


def read_sweep_result(path: Path) -> SweepFile:
    """Read a sweep's folder or its `sweep.json`. Raises `ResultError`."""
    return _read(path, SWEEP_NAME, SweepFile, SWEEP_VERSION, "perfharness bench sweep")


def is_sweep_folder(path: Path) -> bool:
    """Whether a folder, or a file, holds the results of a sweep."""
    return path.name == SWEEP_NAME or (path / SWEEP_NAME).exists()


Result = TypeVar("Result", BenchSuiteResult, SweepFile)


def _read(path: Path, name: str, kind: type[Result], version: int, command: str) -> Result:
    file = path / name if path.is_dir() else path
    try:
        found = kind.model_validate_json(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ResultError(f"there is no {file}; name the folder that {command} -o wrote") from error
    except OSError as error:
        raise ResultError(f"{file} cannot be read: {error.strerror}") from error
    except (ValidationError, UnicodeDecodeError) as error:
        raise ResultError(f"{file} is no result of {command}: {str(error).splitlines()[0]}") from error
    if found.schema_version > version:
        raise ResultError(f"{file} has version {found.schema_version}, this perfharness reads {version}; update it")
    return found


def read_outputs(folder: Path, name: str) -> dict[str, Any]:
    """Outputs that a case wrote. Raises `ResultError`."""
    try:
        with np.load(folder / name, allow_pickle=False) as archive:
            return {output: archive[output] for output in archive.files}
    except (OSError, ValueError) as error:
        raise ResultError(f"{folder / name} cannot be read: {error}") from error


def _write(file: Any, text: str) -> None:
    file.write(text + "\n")


def _write_iterations(folder: Path) -> None:
    """`iterations.parquet` of the arrays: one row an iteration, `pass` is `warm-up`, `timed` or `device`."""
    arrays = read_arrays(folder)
    shutil.rmtree(folder / ARRAYS_FOLDER, ignore_errors=True)
    parts = []
    for name, key in (("warm-up", "warmup_ns"), ("timed", "wall_ns"), ("device", "device_ms")):
        values = arrays.get(key)
        if values is None or not len(values):
            continue
        start = arrays.get("start_ns") if name == "timed" else None
        count = len(values)
        parts.append(
            pa.table(
                {
                    "pass": pa.array([name] * count, pa.string()),
                    "iteration": pa.array(np.arange(count), pa.int64()),
                    "wall_ns": pa.nulls(count, pa.int64()) if name == "device" else pa.array(values, pa.int64()),
                    "start_ns": pa.nulls(count, pa.int64())
                    if start is None or len(start) != count
                    else pa.array(start, pa.int64()),
                    "device_ms": pa.array(values, pa.float64()) if name == "device" else pa.nulls(count, pa.float64()),
                }
            )
        )
    if parts:
        with replacing(folder / ITERATIONS_NAME) as temporary:
            pq.write_table(pa.concat_tables(parts), temporary, compression="zstd")
