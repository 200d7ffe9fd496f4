"""A suite or a sweep of `bench`, for a report."""

from __future__ import annotations

from pathlib import Path

from perfharness.bench.suite.store import SUITE, SWEEP
from perfharness.bench.suite.table import as_suite
from perfharness.runs.report.model import SuiteReport


def suite_report(path: Path) -> SuiteReport | None:
    """Its results; None where the path holds none of `bench`. Raises `ResultError` where they cannot be read."""
    name = path.resolve().name if path.is_dir() else path.resolve().parent.name
    if SUITE.is_in(path):
        return SuiteReport(name=name, suite=SUITE.read(path))
    if SWEEP.is_in(path):
        sweep = SWEEP.read(path)
        return SuiteReport(name=name, suite=as_suite(sweep), sweep=sweep)
    return None
