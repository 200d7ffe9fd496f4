"""Benchmark suite of live models, with its report."""

from __future__ import annotations

from pathlib import Path

from perfharness.bench.live import LiveSuite
from perfharness.errors import UsageError
from perfharness.render.report.files import write_report
from perfharness.runs.report.gather import gather
from perfharness.runs.report.model import SuiteReport


class BenchmarkSuite(LiveSuite):
    """Compare models of one task: `run_all_benchmarks(loader)`, then `generate_comparison_report(file)`."""

    def generate_comparison_report(self, output: str | Path = "report.html") -> Path:
        """Write a report as .html, .md or .pdf. Raises `UsageError`."""
        if self.result is None:
            raise UsageError("nothing measured yet; call run_all_benchmarks(loader) first")
        write_report(gather([], suites=[SuiteReport(name="live models", suite=self.result)]), Path(output))
        return Path(output)
