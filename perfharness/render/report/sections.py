"""The content of a report -> the document that all formats are written from."""

from __future__ import annotations

from collections.abc import Iterator

from perfharness.render.report.document import Block, Document, Section
from perfharness.render.report.run_sections import run_sections, run_summary
from perfharness.runs.report.model import Report


def document_of(report: Report) -> Document:
    """All of it; of several runs, each has a section of its own."""
    several = len(report.runs) + len(report.suites) > 1
    summary: list[Block] = []
    sections: list[Section] = []
    for number, run in enumerate(report.runs):
        if several:
            sections.append(Section(run.name, list(run_summary(run)), run_sections(run, number)))
        else:
            summary += run_summary(run)
            sections += run_sections(run, number)
    return Document(report.title, ", ".join(_subtitle(report)), summary, sections)


def _subtitle(report: Report) -> Iterator[str]:
    for run in report.runs[:1]:
        if run.measured.script is not None:
            yield run.measured.script.rpartition("/")[2]
        if run.measured.created is not None:
            yield run.measured.created
    yield f"report by {report.made_by}, {report.created}"
