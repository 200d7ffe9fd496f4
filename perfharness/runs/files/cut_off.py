"""Complete a run whose launcher was killed or had a full disk: make traces of the tracers' files."""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from pathlib import Path

from perfharness.files import write_model
from perfharness.model.environment import LOGGING_TRACERS
from perfharness.model.manifest import MANIFEST_NAME, ProcessRecord, RunManifest
from perfharness.runs.explain import explaining_folder
from perfharness.runs.files.run_folder import load_manifest
from perfharness_launcher.children import with_measured
from perfharness_launcher.collect import collect, trace_in
from perfharness_launcher.interrupts import Interrupts
from perfharness_launcher.nsys import REPORT_STEM, REPORT_SUFFIX, find_nsys

REPORT_ENDS = (REPORT_SUFFIX, ".qdstrm")
NO_TRACE = "trace-missing"


def complete_run(run_dir: Path) -> None:
    """Make missing traces of an incomplete run, and list them in the manifest.

    The analysis reports processes that remain without a trace.
    """
    manifest = load_manifest(run_dir)
    if (profiling := explaining_folder(run_dir, manifest)) is not None:
        complete_run(profiling)
    folders = {run_dir / one.folder: one.pid for one in manifest.processes if (run_dir / one.folder).is_dir()}
    has_imported = manifest.tracer.kind in LOGGING_TRACERS and _import_logs(folders)
    if manifest.complete and not has_imported:
        return
    if manifest.tracer.kind == "nsys":
        _export_reports(folders)
    records = [_with_traces(run_dir, record, manifest) for record in manifest.processes]
    traced = {record.folder for record in records if record.left_traces}
    findings = [one for one in manifest.findings if not (one.process in traced and one.code == NO_TRACE)]
    write_model(run_dir / MANIFEST_NAME, manifest.model_copy(update={"processes": records, "findings": findings}))


def _import_logs(folders: dict[Path, int | None]) -> bool:
    """Make traces of the range logs of ended processes; return whether any logs exist."""
    from perfharness.tracer.output import complete_traces, log_paths  # rarely needed

    logged = [folder for folder in folders if log_paths(folder)]
    for folder in logged:
        with suppress(OSError, sqlite3.Error):
            complete_traces(folder, folders[folder], of_running=False)
    return bool(logged)


def _export_reports(folders: dict[Path, int | None]) -> None:
    reports = {
        folder: pid
        for folder, pid in folders.items()
        if any((folder / f"{REPORT_STEM}{end}").is_file() for end in REPORT_ENDS)
    }
    usable = [found for found in find_nsys(None, os.environ) if found.usable] if reports else []
    if usable:
        collect(usable[0], reports, Interrupts())


def _with_traces(run_dir: Path, record: ProcessRecord, manifest: RunManifest) -> ProcessRecord:
    """Update the record of a launched process with the traces of its processes."""
    folder = run_dir / record.folder
    record = record.model_copy(update={"trace": trace_in(folder)})
    if record.pid is None or not folder.is_dir():
        return record
    return with_measured(run_dir, record, share_trace=manifest.tracer.kind == "nsys")
