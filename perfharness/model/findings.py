"""A finding about the numbers: message, severity and hint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from perfharness.model.conventions import printable
from perfharness.secrets import mask_text


class Severity(str, Enum):
    """Severity of a finding. Any `ERROR` makes the command exit with 3: measured, but a check failed."""

    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class Finding:
    """One finding, with secrets masked.

    Args:
        code: stable kebab-case identifier, e.g. `trace-missing-ranges`.
        severity: see `Severity`.
        message: one sentence with the thing, the cause and the figures.
        hint: next step to try, or empty.
        process: folder of the process (`proc_0_gpu_0`), or None for the whole run.
    """

    code: str
    severity: Severity
    message: str
    hint: str = ""
    process: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", mask_text(printable(self.message)))
        object.__setattr__(self, "hint", printable(self.hint))

    def to_json(self) -> dict[str, Any]:
        """The finding for JSON files."""
        return {**vars(self), "severity": self.severity.value}


CONSEQUENCES = frozenset(
    {"no-ranges", "no-batches", "warmup-leaves-nothing", "batch-without-items", "recorder-not-finalized"}
    | {"annotation-never-called"}
)
"""Findings that follow from a failed process, whose hints would mislead."""


def without_consequences(findings: Sequence[Finding], *, ended_well: bool) -> list[Finding]:
    """Drop findings that follow from the failure of the process, and the hint for ranges that it cut off."""
    if ended_well:
        return list(findings)
    return [
        replace(finding, hint="") if finding.code == "range-never-closed" else finding
        for finding in findings
        if finding.code not in CONSEQUENCES
    ]


def listed(names: Sequence[str], most: int, separator: str = ", ") -> str:
    """Join the first names, and add the number of others: `a, b and 3 more`."""
    more = len(names) - most
    return separator.join(names[:most]) + (f" and {more} more" if more > 0 else "")
