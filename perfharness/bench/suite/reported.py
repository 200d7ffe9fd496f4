"""A suite, a sweep or merged suites of `bench`, for a report."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import ValidationError

from perfharness.bench.suite.store import SUITE, SWEEP
from perfharness.bench.suite.table import as_suite
from perfharness.errors import ResultError
from perfharness.files import read_regular, reason_of
from perfharness.model.bench_suite import BENCH_MERGED_NAME, BenchMergedResult
from perfharness.runs.report.model import MergedReport, SuiteReport


def suite_report(path: Path) -> SuiteReport | None:
    """Its results; None where the path holds none of `bench`. Raises `ResultError` where they cannot be read."""
    name = _name(path)
    if SUITE.is_in(path):
        return SuiteReport(name=name, suite=SUITE.read(path))
    if SWEEP.is_in(path):
        sweep = SWEEP.read(path)
        return SuiteReport(name=name, suite=as_suite(sweep), sweep=sweep)
    return None


def merged_report(path: Path) -> MergedReport | None:
    """Suites next to each other; None where the path holds none. Raises `ResultError` where they cannot be read."""
    file = path / BENCH_MERGED_NAME if path.is_dir() else path
    if file.name != BENCH_MERGED_NAME or not file.exists():
        return None
    try:
        return MergedReport(name=_name(path), merged=BenchMergedResult.model_validate_json(read_regular(file)))
    except OSError as error:
        raise ResultError(f"{file} cannot be read: {reason_of(error)}") from error
    except ValidationError as error:
        raise ResultError(f"{file} is no result of perfharness bench merge: {str(error).splitlines()[0]}") from error


def _name(path: Path) -> str:
    real = Path(os.path.realpath(path))  # `resolve` raises where links go round in a circle
    return real.name if path.is_dir() else real.parent.name
