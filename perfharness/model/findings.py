"""A finding: something a reader of the numbers has to know, with its cause and its cure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any


class Severity(str, Enum):
    """How far a finding reaches. Any `ERROR` makes the command exit with 3: measured, but a check failed."""

    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class Finding:
    """One finding.

    Args:
        code: stable kebab-case identifier, e.g. `trace-missing-ranges`.
        severity: see `Severity`.
        message: one sentence that names the thing and the cause, with the figures.
        cure: the next step to try; empty where there is none.
        process: folder name of the process (`proc_0_gpu_0`), or None for the whole run.
    """

    code: str
    severity: Severity
    message: str
    cure: str = ""
    process: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The finding as it stands in JSON files."""
        return {**asdict(self), "severity": self.severity.value}
