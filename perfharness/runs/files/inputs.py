"""Locate the run, process, series or trace (sqlite or `.nsys-rep`) that a path names."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from perfharness.errors import ResultError
from perfharness.model.manifest import MANIFEST_NAME, ProcessRecord, is_part_of
from perfharness.model.nsys_schema import TRACE_NAME
from perfharness.runs.files.run_folder import read_manifest
from perfharness_launcher.collect import sqlite_of
from perfharness_launcher.nsys import REPORT_SUFFIX, find_nsys
from perfharness_launcher.staging import unfinished_runs

LEVELS_OF_PROCESSES = 3
"""Largest depth of a process folder below its run."""

EXPECTED_PATHS = (
    "name the -o folder of a launch or a series, the folder of a process in it, or a trace (.sqlite or .nsys-rep)"
)


@dataclass(frozen=True)
class Located:
    """Run folders, or a trace.

    Args:
        runs: one run, or all launches of a series; empty for a trace.
        process: folder in the run, if the path is that of a process.
        name: name in results.
    """

    path: Path
    runs: tuple[Path, ...] = ()
    process: str | None = None
    trace: Path | None = None
    name: str = ""

    @property
    def is_series(self) -> bool:
        """Whether the path is a folder of runs."""
        return bool(self.runs) and self.runs != (self.path,) and self.process is None

    def names_process(self, folder: str) -> bool:
        """Whether the path includes a measured process; a launched process includes its children."""
        return is_part_of(self.process, folder)

    def name_in(self, run_dir: Path, process: ProcessRecord) -> str:
        """Name of a process in results; in a series, it begins with the name of the run."""
        return f"{run_dir.name}/{process.folder}" if self.is_series else process.folder


def locate(path: Path) -> Located:
    """Locate runs or a trace; nsys exports an `.nsys-rep` next to it.

    Raises `ResultError`, or `ToolNotFoundError` or `TraceFormatError` if an `.nsys-rep` cannot be exported.
    """
    if not path.exists():
        raise ResultError(f"{path} does not exist; {EXPECTED_PATHS}.")
    if not path.is_dir():
        trace = sqlite_of(path, lambda: find_nsys(None, os.environ)) if path.suffix == REPORT_SUFFIX else path
        return Located(path, trace=trace, name=path.stem)
    if (path / MANIFEST_NAME).is_file():
        return Located(path, runs=(path,), name=path.name)
    if (found := _run_around(path)) is not None:
        return Located(path, runs=(found[0],), process=found[1], name=path.name)
    if (path / TRACE_NAME).is_file():
        return Located(path, trace=path / TRACE_NAME, name=path.resolve().name)
    from perfharness.runs.series.model import runs_in  # rarely needed

    if runs := runs_in(path):
        return Located(path, runs=runs, name=path.name)
    if unfinished := unfinished_runs(path):
        raise ResultError(
            f"{path} has no complete run: its launch is running or was killed. Wait for its end, or read "
            f"what a killed one left: perfharness analyze {unfinished[-1]}."
        )
    raise ResultError(f"{path} is not a run folder (no {MANIFEST_NAME}); {EXPECTED_PATHS}.")


def _run_around(folder: Path) -> tuple[Path, str] | None:
    """Run that contains the folder of a process, and the relative path of that folder."""
    folder = folder.resolve()
    for run in folder.parents[:LEVELS_OF_PROCESSES]:
        if (run / MANIFEST_NAME).is_file():
            name = folder.relative_to(run).as_posix()
            manifest = read_manifest(run)
            known = any(process.folder == name for process in [*manifest.processes, *manifest.measured_processes])
            return (run, name) if known else None
    return None
