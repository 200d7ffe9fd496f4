"""The profiling pass of a run (`explain` in its folder): what of it can be used, and what is reported of it.

It is a run folder of its own, analysed as any other; its results explain those of the run around it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from perfharness.files import is_plain, is_plain_folder
from perfharness.model.findings import Finding, Severity
from perfharness.model.manifest import EXPLAIN_NAME, MANIFEST_NAME, ProcessRecord, RunManifest

if TYPE_CHECKING:
    from perfharness.analysis.diagnosis.passes import Pass
    from perfharness.model.diagnosis import Diagnosis
    from perfharness.model.result import ProcessResult

FAILED = "explaining-pass-failed"
SHARED_CPUS = 0.5
"""Of a loop's host time, ready without a CPU: what was measured is less than half of what the program does."""
OWN_DOING = frozenset({"cpu-contention", "cpu-quota", "cpu-steal"})
"""Causes of waiting for a CPU that are not other processes of this machine."""


def explaining_folder(run_dir: Path, manifest: RunManifest) -> Path | None:
    """The folder of the run's profiling pass, or None where it has none."""
    folder = run_dir / EXPLAIN_NAME
    is_there = is_plain_folder(folder) and is_plain(folder / MANIFEST_NAME)  # a user may have a folder of that name
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
    return [Finding("explaining-pass-missing", Severity.WARNING, message, hint)]


def longest_s(manifest: RunManifest) -> float | None:
    """How long the longest of the run's processes took, or None where that is not known."""
    return max((process.duration_s for process in manifest.processes if process.duration_s), default=None)


def usable_processes(measured: RunManifest, explaining: RunManifest) -> dict[str, ProcessRecord]:
    """Processes of the profiling pass that did all that their counterparts in the measured pass did, by folder."""
    known = {process.folder for process in measured.measured_processes}
    return {
        one.folder: one
        for one in explaining.measured_processes
        if one.ended == "ok" and one.trace and one.folder in known
    }


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
        replace(finding.to_finding(), message=f"In the profiling pass: {finding.message}")
        for finding in explaining.findings
        if finding.severity is not Severity.ERROR and finding.code not in known
    ]
    return [*failed, *only_here]


def explaining_pass_failed(reason: str) -> Finding:
    """The finding that times and verdicts rest on the measured pass alone."""
    message = f"The profiling pass is not whole: {reason}. Times and verdicts are those of the measured pass alone."
    return Finding(FAILED, Severity.ERROR, message, "Launch again with --explain")


def pass_of(result: ProcessResult) -> Pass | None:
    """What laying passes onto each other takes of a result; None where it was not diagnosed."""
    from perfharness.analysis.diagnosis.passes import COMPARED, Pass

    if result.diagnosis is None:
        return None
    values = {
        path: {key: column for key, column in columns.items() if key in COMPARED}
        for path, columns in result.values_minus_warmup.items()
    }
    return Pass(result.diagnosis, values)


def with_explained(folder: str, result: ProcessResult, explaining: Pass) -> tuple[ProcessResult, list[Finding]]:
    """The result of a process's measured pass with what the profiling pass adds; and findings of the comparison."""
    from perfharness.analysis.diagnosis.passes import lay_onto

    measured = pass_of(result)
    if measured is None:
        return result, []
    diagnosis = lay_onto(measured, explaining)
    return replace(result, diagnosis=diagnosis), [*changed_stages(folder, diagnosis), *shared_cpus(folder, diagnosis)]


def changed_stages(folder: str, diagnosis: Diagnosis) -> list[Finding]:
    """Which stages of a process the profiling pass does not explain, for they were others in it."""
    from perfharness.model.result import path_text

    doubted = [
        (stage, stage.explained.reason) for stage in diagnosis.stages if stage.explained and not stage.explained.trusted
    ]
    if not doubted:
        return []
    first, reason = doubted[0]
    more = f", and {len(doubted) - 1} more" if len(doubted) > 1 else ""
    message = (
        f"The profiling pass is not used for {path_text(first.path)} ({reason}){more}: shares there are those of "
        "the measured pass, or bounds."
    )
    hint = "Have the script do the same work in every run, leave it free CPUs, and launch again with --explain"
    return [Finding("explaining-pass-differs", Severity.WARNING, message, hint, folder)]


def shared_cpus(folder: str, diagnosis: Diagnosis) -> list[Finding]:
    """Whether other processes had the CPUs for much of a loop of the profiling pass: a finding about the worst."""
    from perfharness.model.result import path_text

    loops = {loop.loop for loop in diagnosis.warmup}
    worst, share = None, SHARED_CPUS
    for stage in diagnosis.stages:
        waited = None if stage.profile is None else stage.profile.state_ms.get("runnable")
        is_own = OWN_DOING & {cause.code for cause in stage.causes}
        if stage.path in loops and stage.cpu_ms and waited is not None and not is_own and waited / stage.cpu_ms > share:
            worst, share = stage.path, waited / stage.cpu_ms
    if worst is None:
        return []
    message = (
        f"In the profiling pass other processes had the CPUs for {share:.0%} of the host time of {path_text(worst)}: "
        "times and savings are those of a busy machine."
    )
    hint = (
        "Measure while nothing else runs on the machine; where that cannot be, fewer threads (OMP_NUM_THREADS) wait "
        "less for one another"
    )
    return [Finding("cpu-shared", Severity.WARNING, message, hint, folder)]


def _reason(process: ProcessRecord | None) -> str:
    if process is None:
        return "is not in it"
    if process.ended == "ok":
        return "has no trace that can be read" if process.trace else "left no trace"
    how = process.signal or (f"exit code {process.exit_code}" if process.exit_code is not None else "")
    return f"{process.ended.replace('_', ' ')}{f' ({how})' if how else ''}"
