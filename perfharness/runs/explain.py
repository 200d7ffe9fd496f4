"""The profiling pass of a run (`explain` in its folder): what of it can be used, and what is reported of it.

It is a run folder of its own, analysed as any other; its results explain those of the run around it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from perfharness.model.findings import Finding, Severity
from perfharness.model.manifest import EXPLAIN_NAME, MANIFEST_NAME, ProcessRecord, RunManifest

FAILED = "explaining-pass-failed"


def explaining_folder(run_dir: Path, manifest: RunManifest) -> Path | None:
    """The folder of the run's profiling pass, or None where it has none."""
    folder = run_dir / EXPLAIN_NAME
    is_there = (folder / MANIFEST_NAME).is_file() and not folder.is_symlink()  # a user may have something of that name
    return folder if is_there and not manifest.explaining else None


def explaining_pass_missing(run_dir: Path, manifest: RunManifest) -> list[Finding]:
    """The finding that the run had a profiling pass, of which nothing is left; none where that is not so."""
    if not manifest.explained or explaining_folder(run_dir, manifest) is not None:
        return []
    message = (
        f"The profiling pass of the run, its folder {EXPLAIN_NAME}, is gone: verdicts and causes are those of the "
        "measured pass alone."
    )
    hint = "Bring the folder back and analyze again, or launch again with --explain"
    return [Finding("profiling-pass-missing", Severity.WARNING, message, hint)]


def usable_processes(measured: RunManifest, explaining: RunManifest) -> set[str]:
    """Folders of processes of the profiling pass that did all that their counterparts in the measured pass did."""
    known = {process.folder for process in measured.measured_processes}
    return known & {one.folder for one in explaining.measured_processes if one.ended == "ok" and one.trace}


def explaining_findings(measured: RunManifest, explaining: RunManifest, explained: Collection[str]) -> list[Finding]:
    """Which processes have nothing to explain their times with, and why; what the launcher found in this pass only.

    Args:
        explained: folders of those that have something.
    """
    ends = {process.folder: process for process in explaining.measured_processes}
    lost = {
        process.folder: _reason(ends.get(process.folder)) for process in measured.measured_processes if process.trace
    }
    missing = [f"{folder} {reason}" for folder, reason in lost.items() if folder not in explained]
    failed = [explaining_pass_failed("; ".join(missing))] if missing else []
    known = {finding.code for finding in measured.findings}
    only_here = [
        replace(finding, message=f"In the profiling pass: {finding.message}")
        for finding in explaining.findings
        if finding.severity is not Severity.ERROR and finding.code not in known
    ]
    return [*failed, *only_here]


def explaining_pass_failed(reason: str) -> Finding:
    """The finding that times and verdicts rest on the measured pass alone."""
    message = f"The profiling pass is not whole: {reason}. Times and verdicts are those of the measured pass alone."
    return Finding(FAILED, Severity.ERROR, message, "Launch again with --explain")


def _reason(process: ProcessRecord | None) -> str:
    if process is None:
        return "is not in it"
    if process.ended == "ok":
        return "has no trace that can be read" if process.trace else "left no trace"
    how = process.signal or (f"exit code {process.exit_code}" if process.exit_code is not None else "")
    return f"{process.ended.replace('_', ' ')}{f' ({how})' if how else ''}"
