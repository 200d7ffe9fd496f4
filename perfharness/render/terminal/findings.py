"""Findings as sentences: where, what, and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from rich.console import Console

from perfharness.model.findings import Finding, Severity
from perfharness.render.terminal.console import say, styled

SEVERITY_STYLE = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "dim"}
LISTED_PROCESSES = 4


def print_findings(console: Console, findings: Iterable[Finding], *, least: Severity = Severity.WARNING) -> None:
    """Print findings, one per line, with the hint; equal ones of several processes are one line.

    Args:
        least: less severe ones are in the files only.
    """
    order = (Severity.NOTE, Severity.WARNING, Severity.ERROR)
    groups: dict[Finding, list[str]] = {}
    for finding in findings:
        if order.index(finding.severity) >= order.index(least):
            groups.setdefault(replace(finding, process=None), []).append(finding.process or "")
    for finding, processes in groups.items():
        severity = finding.severity
        say(console, styled(severity.value, SEVERITY_STYLE[severity]), f" {finding_sentence(finding, processes)}")


def finding_sentence(finding: Finding, processes: Sequence[str] = ()) -> str:
    """Where, what, and what to do; a message that quotes a program's output ends in lines of its own."""
    where = listed_processes(processes)
    text = (f"{where}: " if where else "") + finding.message
    if not finding.hint:
        return text
    if "\n" in text:
        return f"{text}\n  {finding.hint}"
    end = "" if text.endswith(".") else "." if finding.hint[0].isupper() else ";"
    return f"{text}{end} {finding.hint}"


def listed_processes(processes: Iterable[str]) -> str:
    """`proc_0_gpu_0, proc_1_gpu_0`, each once; of many, the first ones and the number of others."""
    distinct = [name for name in dict.fromkeys(processes) if name]
    more = len(distinct) - LISTED_PROCESSES
    if more <= 1:
        return ", ".join(distinct)
    return f"{', '.join(distinct[:LISTED_PROCESSES])} and {more} more processes"
