"""The folder of a suite or a sweep; results are written atomically.

OUT/bench.json, OUT/bench.parquet                          after every case; of a sweep sweep.json, sweep.parquet
OUT/cases/CASE_ID/result.json, iterations.parquet, *.log   moved there by one rename when the case has ended
OUT/cases/.CASE_ID.running/                                a running case; leftovers of a killed suite are removed
OUT/equality/CELL/outputs.npz, result.json                 outputs on the same inputs
OUT/accuracy/CELL/accuracy.json, result.json, outputs/     accuracy of each cell; outputs of the baseline only
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from perfharness.bench.process import read_arrays
from perfharness.bench.spec import ARRAYS_FOLDER, RESULT_NAME
from perfharness.bench.suite.table import as_suite, write_bench_table
from perfharness.errors import LaunchError, ResultError, UsageError
from perfharness.files import locked, replacing, write_model
from perfharness.model.bench import CaseResult
from perfharness.model.bench_suite import (
    BENCH_TABLE_NAME,
    BENCH_VERSION,
    SWEEP_NAME,
    SWEEP_TABLE_NAME,
    SWEEP_VERSION,
    BenchSuiteResult,
    SweepFile,
)
from perfharness.model.manifest import BENCH_NAME
from perfharness_launcher.interrupts import Interrupts, noting_interrupts

CASES = "cases"
EQUALITY = "equality"
ACCURACY = "accuracy"
ITERATIONS_NAME = "iterations.parquet"
ITERATIONS = pa.schema(
    {
        "pass": pa.string(),
        "iteration": pa.int64(),
        "wall_ns": pa.int64(),
        "start_ns": pa.int64(),
        "device_ms": pa.float64(),
    }
)

Result = TypeVar("Result", BenchSuiteResult, SweepFile)


@contextmanager
def measuring(out: Path) -> Iterator[Interrupts]:
    """While open, the folder, which is created, is locked, signals are counted, and orphaned descendants are adopted.

    Raises `UsageError` where it cannot be created, `LaunchError` where another process is writing to it.
    """
    with ExitStack() as stack:
        try:
            out.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(out))
        except BlockingIOError as error:
            message = f"another perfharness is writing to {out}; wait for it, or name another with -o"
            raise LaunchError(message) from error
        except OSError as error:
            raise _unusable(out, error) from error
        interrupts = stack.enter_context(noting_interrupts())
        yield interrupts


def _unusable(out: Path, error: OSError) -> UsageError:
    return UsageError(f"{out} cannot be used for results: {error.strerror}; name another with -o")


@dataclass(frozen=True)
class Kind(Generic[Result]):
    """The results of suites, or of sweeps."""

    what: str
    command: str
    name: str
    table: str
    model: type[Result]
    version: int

    def prepare(self, out: Path, *, resume: bool) -> None:
        """Create the folders, inside `measuring`. Raises `UsageError` where it has results that must not be resumed."""
        for other in (SUITE, SWEEP):
            if other.name != self.name and (out / other.name).exists():
                raise UsageError(
                    f"{out} holds results of {other.what}, not of {self.what}; name another folder with -o"
                )
        if not resume and ((out / self.name).exists() or any((out / CASES).glob("[!.]*"))):
            raise UsageError(
                f"{out} holds results of {self.what} already; --resume goes on with them, -o names another folder"
            )
        try:
            (out / CASES).mkdir(parents=True, exist_ok=True)
            for left in [left for kind in (CASES, EQUALITY, ACCURACY) for left in (out / kind).glob(".*.running")]:
                shutil.rmtree(left)
        except OSError as error:
            raise _unusable(out, error) from error

    def write(self, out: Path, result: Result) -> None:
        """Write the results and their table, each atomically."""
        write_model(out / self.name, result)
        write_bench_table(out / self.table, as_suite(result) if isinstance(result, SweepFile) else result)

    def is_in(self, path: Path) -> bool:
        """Whether a folder, or a file, holds such results."""
        return path.name == self.name or (path / self.name).exists()

    def read(self, path: Path) -> Result:
        """Read the results of a folder, or of the file in it. Raises `ResultError`."""
        file = path / self.name if path.is_dir() else path
        try:
            found = self.model.model_validate_json(file.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise ResultError(f"there is no {file}; name the folder that {self.command} -o wrote") from error
        except OSError as error:
            raise ResultError(f"{file} cannot be read: {error.strerror}") from error
        except (ValidationError, UnicodeDecodeError) as error:
            raise ResultError(f"{file} is no result of {self.command}: {str(error).splitlines()[0]}") from error
        if found.schema_version > self.version:
            version = found.schema_version
            raise ResultError(f"{file} has version {version}, this perfharness reads {self.version}; update it")
        return found


SUITE = Kind("a suite", "perfharness bench", BENCH_NAME, BENCH_TABLE_NAME, BenchSuiteResult, BENCH_VERSION)
SWEEP = Kind("a sweep", "perfharness bench --find-batch", SWEEP_NAME, SWEEP_TABLE_NAME, SweepFile, SWEEP_VERSION)


def running_folder(folder: Path) -> Path:
    """Path of a running case's folder, which does not exist yet."""
    running = folder.with_name(f".{folder.name}.running")
    shutil.rmtree(running, ignore_errors=True)
    return running


def put_in_place(running: Path, folder: Path, result: CaseResult) -> None:
    """Move a finished case to its final name, replacing an earlier attempt."""
    _write_iterations(running)
    write_model(running / RESULT_NAME, result)
    old = folder.with_name(f".{folder.name}.old.running")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    running.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def results_on_disk(out: Path, kind: str = CASES) -> dict[str, CaseResult]:
    """Finished results by case id, without those that cannot be read."""
    found = {}
    for path in sorted((out / kind).glob(f"[!.]*/{RESULT_NAME}")):
        with suppress(OSError, ValidationError):
            result = CaseResult.model_validate_json(path.read_text(encoding="utf-8"))
            found[result.case.case_id] = result
    return found


def read_outputs(folder: Path, name: str) -> dict[str, Any]:
    """Outputs that a case wrote. Raises `ResultError`."""
    try:
        with np.load(folder / name, allow_pickle=False) as archive:
            return {output: archive[output] for output in archive.files}
    except (OSError, ValueError) as error:
        raise ResultError(f"{folder / name} cannot be read: {error}") from error


def _write_iterations(folder: Path) -> None:
    """`iterations.parquet` of the arrays: one row an iteration, `pass` is `warm-up`, `timed` or `device`."""
    arrays = read_arrays(folder)
    shutil.rmtree(folder / ARRAYS_FOLDER, ignore_errors=True)
    parts = []
    for name, key in (("warm-up", "warmup_ns"), ("timed", "wall_ns"), ("device", "device_ms")):
        if not (count := len(arrays.get(key, ()))):
            continue
        columns = {column: pa.nulls(count, ITERATIONS.field(column).type) for column in ITERATIONS.names[2:]}
        columns[key.replace("warmup", "wall")] = arrays[key]
        if name == "timed" and len(arrays.get("start_ns", ())) == count:
            columns["start_ns"] = arrays["start_ns"]
        parts.append(pa.table({"pass": [name] * count, "iteration": np.arange(count), **columns}, schema=ITERATIONS))
    if parts:
        with replacing(folder / ITERATIONS_NAME) as temporary, temporary.open("wb") as file:
            pq.write_table(pa.concat_tables(parts), file, compression="zstd")  # Arrow takes no path that is no UTF-8
