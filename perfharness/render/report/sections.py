"""Report -> document."""

from __future__ import annotations

from collections.abc import Iterator

from perfharness.render.blocks import Block, Document, Paragraph, Section
from perfharness.render.report.run_sections import run_sections, run_summary
from perfharness.render.views.bench import merged_sections, suite_sections, suite_summary
from perfharness.render.views.compare import compare_view
from perfharness.render.views.series import series_section
from perfharness.runs.report.model import Report


def document_of(report: Report) -> Document:
    """Make the document of a report. Several runs begin with their comparison and have a section each."""
    several = len(report.runs) + len(report.suites) > 1
    summary: list[Block] = []
    sections: list[Section] = []
    if report.comparison is not None:
        summary += compare_view(report.comparison, fold=True, charts=True)
    elif report.comparison_reason is not None:
        summary.append(Paragraph(f"The runs could not be compared: {report.comparison_reason}", "note"))
    for series in report.series:
        found = series_section(series.series, series.shown)
        if len(report.series) == 1:
            summary += found.blocks
        else:
            sections.append(Section(series.name, [], [found]))
    for number, run in enumerate(report.runs):
        if several:
            sections.append(Section(run.name, list(run_summary(run)), run_sections(run, number)))
        else:
            summary += run_summary(run)
            sections += run_sections(run, number)
    for suite in report.suites:
        if several:
            sections.append(Section(suite.name, suite_summary(suite.suite), suite_sections(suite.suite)))
        else:
            summary += suite_summary(suite.suite)
            sections += suite_sections(suite.suite)
    for merged in report.merged:
        sections += merged_sections(merged)
    return Document(report.title, ", ".join(_subtitle(report)), summary, sections)


def _subtitle(report: Report) -> Iterator[str]:
    for run in report.runs[:1]:
        if run.load is not None:
            yield run.load.result.target.name
        elif run.measured.script is not None:
            yield run.measured.script.rpartition("/")[2]
        if run.measured.created is not None:
            yield run.measured.created
    for suite in report.suites[:1]:
        if suite.suite.created:
            yield suite.suite.created
    yield f"report by {report.made_by}, {report.created}"
