"""Findings as sentences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from perfharness.model.findings import Finding, Severity
from perfharness.render.blocks import Block, Paragraph, Span, Style

STYLES: dict[Severity, Style] = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "dim"}
ORDER = (Severity.NOTE, Severity.WARNING, Severity.ERROR)
LISTED_PROCESSES = 4


def findings_view(findings: Iterable[Finding], *, least: Severity) -> list[Block]:
    """One line per finding with its hint; equal findings of several processes are joined.

    Args:
        least: omit less severe findings.
    """
    return [
        Paragraph((Span(one.severity.value, STYLES[one.severity]), f" {finding_sentence(one, processes)}"))
        for one, processes in grouped(findings)
        if ORDER.index(one.severity) >= ORDER.index(least)
    ]


def grouped(findings: Iterable[Finding]) -> Iterator[tuple[Finding, list[str]]]:
    """Distinct findings and the processes that have them."""
    groups: dict[Finding, list[str]] = {}
    for finding in findings:
        groups.setdefault(replace(finding, process=None), []).append(finding.process or "")
    yield from groups.items()


def finding_sentence(finding: Finding, processes: Sequence[str] = ()) -> str:
    """Processes, message and hint; the hint of a message with quoted output has its own line."""
    where = listed_processes(processes)
    text = (f"{where}: " if where else "") + finding.message
    if not finding.hint:
        return text
    if "\n" in text:
        return f"{text}\n  {finding.hint}"
    end = "" if text.endswith(".") else "." if finding.hint[0].isupper() else ";"
    return f"{text}{end} {finding.hint}"


def listed_processes(processes: Iterable[str]) -> str:
    """`proc_0_gpu_0, proc_1_gpu_0`, with `and N more processes` after the first ones."""
    distinct = [name for name in dict.fromkeys(processes) if name]
    more = len(distinct) - LISTED_PROCESSES
    if more <= 1:
        return ", ".join(distinct)
    return f"{', '.join(distinct[:LISTED_PROCESSES])} and {more} more processes"
