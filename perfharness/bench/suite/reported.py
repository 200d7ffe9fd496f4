"""Suites and sweeps of `bench`, for a report."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from perfharness.bench.suite.merge import merge_suites
from perfharness.bench.suite.store import SUITE, SWEEP
from perfharness.bench.suite.table import as_suite
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


def side_by_side(suites: Mapping[Path, SuiteReport]) -> list[MergedReport]:
    """The same cases of all suites in one row; none of fewer than two suites."""
    whole = [(str(path), found.suite) for path, found in suites.items() if found.sweep is None]
    return [MergedReport(merged=merge_suites(whole))] if len(whole) > 1 else []


def _name(path: Path) -> str:
    real = Path(os.path.realpath(path))  # `resolve` raises where links go round in a circle
    return real.name if path.is_dir() else real.parent.name
