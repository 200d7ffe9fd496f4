"""Find the profiling pass of a run (a run folder `explain` inside it), and report what is missing."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from perfharness.model.findings import Finding, Severity
from perfharness.model.manifest import EXPLAIN_NAME, MANIFEST_NAME, ProcessRecord, RunManifest

FAILED = "explaining-pass-failed"


def explaining_folder(run_dir: Path, manifest: RunManifest) -> Path | None:
    """Folder of the run's profiling pass, or None."""
    folder = run_dir / EXPLAIN_NAME
    is_there = (folder / MANIFEST_NAME).is_file() and not folder.is_symlink()
    return folder if is_there and not manifest.explaining else None


def explaining_pass_missing(run_dir: Path, manifest: RunManifest) -> list[Finding]:
    """Report a profiling pass whose folder is gone."""
    if not manifest.explained or explaining_folder(run_dir, manifest) is not None:
        return []
    message = f"The folder {EXPLAIN_NAME} of the profiling pass is gone; verdicts and causes lack its data."
    hint = "Restore the folder and analyze again, or launch again with --explain."
    return [Finding("profiling-pass-missing", Severity.WARNING, message, hint)]


def usable_processes(measured: RunManifest, explaining: RunManifest) -> set[str]:
    """Folders of measured processes that ended well and left a trace in the profiling pass."""
    known = {process.folder for process in measured.measured_processes}
    return known & {one.folder for one in explaining.measured_processes if one.ended == "ok" and one.trace}


def explaining_findings(measured: RunManifest, explaining: RunManifest, explained: Collection[str]) -> list[Finding]:
    """Report processes that are not in `explained`, and findings of the launcher in this pass only."""
    ends = {process.folder: process for process in explaining.measured_processes}
    traced = [one.folder for one in measured.measured_processes if one.trace]
    missing = [f"{folder} {_reason(ends.get(folder))}" for folder in traced if folder not in explained]
    failed = [explaining_pass_failed("; ".join(missing))] if missing else []
    known = {finding.code for finding in measured.findings}
    only_here = [
        replace(finding, message=f"In the profiling pass: {finding.message}")
        for finding in explaining.findings
        if finding.severity is not Severity.ERROR and finding.code not in known
    ]
    return [*failed, *only_here]


def explaining_pass_failed(reason: str) -> Finding:
    """Report a profiling pass that cannot be used completely."""
    message = f"The profiling pass is incomplete: {reason}. Times and verdicts lack its data."
    return Finding(FAILED, Severity.ERROR, message, "Launch again with --explain.")


def _reason(process: ProcessRecord | None) -> str:
    if process is None:
        return "is missing"
    if process.ended == "ok":
        return "has no readable trace" if process.trace else "left no trace"
    how = process.signal or (f"exit code {process.exit_code}" if process.exit_code is not None else "")
    return f"{process.ended.replace('_', ' ')}{f' ({how})' if how else ''}"
