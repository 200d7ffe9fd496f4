"""Results in a notebook."""

from __future__ import annotations

from collections.abc import Iterator

from perfharness.errors import PerfHarnessError
from perfharness.load.report import report_of
from perfharness.load.stress import StressResult
from perfharness.model.bench_suite import BenchSuiteResult
from perfharness.model.diagnosis import Diagnosis
from perfharness.render.blocks import Block, Figures, Paragraph
from perfharness.render.html import html_fragment
from perfharness.render.views.bench import cases_table, suite_summary
from perfharness.render.views.compare import compare_view
from perfharness.render.views.load import load_figures, load_view
from perfharness.render.views.result import result_view
from perfharness.runs.comparison.result import Comparison
from perfharness.runs.files.json_files import part_of
from perfharness.runs.run import Run


def result_html(result: object) -> str | None:
    """HTML of a run, load test, comparison or suite, or None for others and if it cannot be made."""
    try:
        if isinstance(result, Run):
            return html_fragment(list(_run(result)))
        if isinstance(result, Comparison):
            return html_fragment(compare_view(result, fold=True, charts=True))
        if isinstance(result, BenchSuiteResult):
            return html_fragment([*suite_summary(result), cases_table(result)])
        if isinstance(result, StressResult):
            load = report_of(result.load)
            return html_fragment([Figures(list(load_figures(load))), *load_view(load)])
    except PerfHarnessError:  # the notebook shows its repr
        return None
    return None


def _run(run: Run) -> Iterator[Block]:
    tree = run.benchmark
    if tree is None:
        yield Paragraph(f"{run.path}: {len(run.processes)} processes, not analyzed; run `perfharness analyze`.")
        return
    yield Paragraph(str(run.path), "note")
    trees = {process.name: process.benchmark or {} for process in run.processes}
    found = {name: part_of(each, "diagnosis", Diagnosis) for name, each in trees.items()}
    diagnoses = {name: diagnosis for name, diagnosis in found.items() if diagnosis is not None}
    yield from result_view(tree, {}, diagnoses=diagnoses)
