"""Runs, comparisons and suites in a notebook: their tables, from what is in the files."""

from __future__ import annotations

from collections.abc import Iterator

from perfharness.errors import PerfHarnessError
from perfharness.load.reported import report_of
from perfharness.load.stress import StressResult
from perfharness.model.bench_suite import BenchSuiteResult
from perfharness.model.result import Tree
from perfharness.render.blocks import Block, Cell, Column, Figure, Figures, Paragraph, Table
from perfharness.render.html import html_fragment
from perfharness.render.numbers import significant
from perfharness.render.terminal.results import row_names, stage_rows
from perfharness.render.views.bench import cases_table, suite_summary
from perfharness.render.views.compare import compare_view
from perfharness.render.views.load import load_figures, load_view
from perfharness.runs.comparison.result import Comparison
from perfharness.runs.report.model import SuiteReport
from perfharness.runs.run import Run


def result_html(result: object) -> str | None:
    """HTML of a run, a load test, a comparison or a suite; None of anything else, or where it cannot be made."""
    try:
        if isinstance(result, Run):
            return html_fragment(list(_run(result)))
        if isinstance(result, Comparison):
            return html_fragment(compare_view(result, fold=True, charts=True))
        if isinstance(result, BenchSuiteResult):
            found = SuiteReport(name=result.name, suite=result)
            return html_fragment([*suite_summary(found), cases_table(result)])
        if isinstance(result, StressResult):
            load = report_of(result.load, [], None)
            return html_fragment([Figures(list(load_figures(load))), *load_view(load)])
    except PerfHarnessError:  # its text is shown instead
        return None
    return None


def _run(run: Run) -> Iterator[Block]:
    tree = run.benchmark
    if tree is None:
        yield Paragraph(f"{run.path}: {len(run.processes)} processes, not analysed; run `perfharness analyze`.")
        return
    throughput = tree.get("throughput", {}).get("items_per_second")
    figures = [Figure("processes", str(len(run.processes)))]
    if throughput is not None:
        figures.append(Figure("throughput", f"{significant(throughput)} items/s"))
    yield Paragraph(str(run.path), "note")
    yield Figures(figures)
    rows = [row for row in stage_rows(tree["stats_minus_warmup"]) if row.statistics["cpu_time"]["count"]]
    limits = _limits(tree)
    columns = [
        Column("stage"), Column("batches", "count"), Column("CPU mean", "ms"), Column("p50", "ms"), Column("p99", "ms"),
        Column("GPU mean", "ms"), Column("busy mean", "ms"), Column("CPU/item", "ms"), Column("limited by"),
    ]  # fmt: skip
    cells: list[list[Cell]] = []
    for name, row in zip(row_names([row.path for row in rows]), rows, strict=True):
        cpu, keys = row.statistics["cpu_time"], ("gpu_time", "gpu_busy_time", "cpu_time_per_item")
        means = [row.statistics[key]["mean"] for key in keys]
        cells.append([name, cpu["count"], cpu["mean"], cpu["p50"], cpu["p99"], *means, limits.get(row.path)])
    yield Table("stages", columns, cells, "ms a batch, without warm-up.")


def _limits(tree: Tree) -> dict[tuple[str, ...], str]:
    """Verdicts of the stages on which the processes agree."""
    found = {}
    for stage in tree.get("diagnosis", {}).get("stages", []):
        codes = list(stage.get("verdicts") or [stage["causes"][0]["code"]])
        if len(codes) == 1:
            found[tuple(stage["path"])] = str(codes[0])
    return found
