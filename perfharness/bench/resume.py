"""What of an earlier run is kept, and what is run again, and why: the same for suites and sweeps."""

from __future__ import annotations

from perfharness.bench.matrix import PlannedCase
from perfharness.model.bench import CaseResult

RESUME_HINT = "--resume goes on with what is left"
PASSING = ("timeout", "not-run", "unavailable")
"""Why a case may fail today and not tomorrow: something may have been installed, freed or repaired since."""


def why_again(case: PlannedCase, result: CaseResult, *, retry_failed: bool = False) -> str | None:
    """Why a case with a result is run again; None: the result is kept."""
    if result.spec_sha256 != case.sha256:
        return "the suite, a file of the model or of its inputs, or the GPU has changed since"
    if is_passing(result) or (retry_failed and result.status != "ok"):
        return f"it was {result.status}: {result.reason}"
    return None


def is_passing(result: CaseResult) -> bool:
    """Whether the same case may end otherwise when it is tried again.

    Its process was killed, or ended without a word (where the disk is full), or the time ran out.
    """
    if result.status in PASSING:
        return True
    process = result.process
    return result.status == "failed" and process is not None and (process.signal is not None or not process.reported)
