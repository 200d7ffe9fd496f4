"""Live models side by side, with their report."""

from __future__ import annotations

from pathlib import Path

from perfharness.bench.live import LiveSuite
from perfharness.errors import UsageError
from perfharness.render.report.files import write_report
from perfharness.runs.report.gather import gather
from perfharness.runs.report.model import SuiteReport


class BenchmarkSuite(LiveSuite):
    """Models of one task side by side: `run_all_benchmarks(loader)`, then `generate_comparison_report(file)`."""

    def generate_comparison_report(self, output: str | Path = "report.html") -> Path:
        """Write what was measured as HTML, Markdown or PDF, by the file's ending. Raises `UsageError`."""
        if self.result is None:
            raise UsageError("nothing was measured yet; call run_all_benchmarks(loader) first")
        write_report(gather([], suites=[SuiteReport(name="live models", suite=self.result)]), Path(output))
        return Path(output)
