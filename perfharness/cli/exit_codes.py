"""Exit codes of every verb, and the one rule that turns findings into one."""

from __future__ import annotations

from collections.abc import Iterable

import typer

from perfharness.model.findings import Finding, Severity

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_CHECK_FAILED = 3


def exit_with(findings: Iterable[Finding]) -> None:
    """Leave the verb: 3 where a finding is an error, else 0."""
    if any(finding.severity is Severity.ERROR for finding in findings):
        raise typer.Exit(EXIT_CHECK_FAILED)
