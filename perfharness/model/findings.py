"""A finding: what a reader of the numbers must know, its cause and a hint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from perfharness.model.conventions import printable
from perfharness.secrets import mask_text


class Severity(str, Enum):
    """How far a finding reaches. Any `ERROR` makes the command exit with 3: measured, but a check failed."""

    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class Finding:
    """One finding, in which secrets are masked.

    Args:
        code: stable kebab-case identifier, e.g. `trace-missing-ranges`.
        severity: see `Severity`.
        message: one sentence that names the thing and the cause, with the figures.
        hint: the next step to try; empty where there is none.
        process: folder name of the process (`proc_0_gpu_0`), or None for the whole run.
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
        """The finding as it stands in JSON files."""
        return {**vars(self), "severity": self.severity.value}


CONSEQUENCES = frozenset(
    {"no-ranges", "no-batches", "warmup-leaves-nothing", "batch-without-items", "recorder-not-finalized"}
    | {"annotation-never-called"}
)
"""What a process that did not end well leaves behind; it is no fault of its own, and its hint would mislead."""


def without_consequences(findings: Sequence[Finding], *, ended_well: bool) -> list[Finding]:
    """The findings that are no consequence of the failure of the process; a range cut off by its end needs no hint."""
    if ended_well:
        return list(findings)
    return [
        replace(finding, hint="") if finding.code == "range-never-closed" else finding
        for finding in findings
        if finding.code not in CONSEQUENCES
    ]
