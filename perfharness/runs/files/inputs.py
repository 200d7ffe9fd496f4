"""What a user may name: a run, a process of one, several runs, or a trace, as sqlite or `.nsys-rep`."""

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
"""How deep a process's folder may be below its run's."""

EXPECTED_PATHS = (
    "give a run folder (what was passed to `perfharness launch -o`), the folder of one of its processes, the folder of "
    "a series of launches, or a trace (.sqlite or .nsys-rep)"
)


@dataclass(frozen=True)
class Located:
    """What a path names: run folders, or a trace.

    Args:
        runs: one run, or all launches of a series; empty for a trace.
        process: of a process's folder, its folder in the one run.
        trace: a trace that is in no run.
        name: what it is called in results.
    """

    path: Path
    runs: tuple[Path, ...] = ()
    process: str | None = None
    trace: Path | None = None
    name: str = ""

    @property
    def is_series(self) -> bool:
        """Whether it is a folder of runs."""
        return bool(self.runs) and self.runs != (self.path,) and self.process is None

    def names_process(self, folder: str) -> bool:
        """Whether a measured process of a run is meant; the folder of a launched one means all that it started too."""
        return is_part_of(self.process, folder)

    def name_in(self, run_dir: Path, process: ProcessRecord) -> str:
        """The name of a process in results; of several runs, it begins with that of the run."""
        return f"{run_dir.name}/{process.folder}" if self.is_series else process.folder


def locate(path: Path) -> Located:
    """What the path names; an `.nsys-rep` is exported by nsys next to it.

    Raises `ResultError` where that is no result or trace, `ToolNotFoundError` or `TraceFormatError` where an
    `.nsys-rep` cannot be exported.
    """
    if not path.exists():
        raise ResultError(f"There is nothing at {path}; {EXPECTED_PATHS}.")
    if not path.is_dir():
        trace = sqlite_of(path, lambda: find_nsys(None, os.environ)) if path.suffix == REPORT_SUFFIX else path
        return Located(path, trace=trace, name=path.stem)
    if (path / MANIFEST_NAME).is_file():
        return Located(path, runs=(path,), name=path.name)
    if (found := _run_around(path)) is not None:
        return Located(path, runs=(found[0],), process=found[1], name=path.name)
    if (path / TRACE_NAME).is_file():
        return Located(path, trace=path / TRACE_NAME, name=path.resolve().name)
    from perfharness.runs.series.model import runs_in  # here: most folders are one run

    if runs := runs_in(path):
        return Located(path, runs=runs, name=path.name)
    if unfinished := unfinished_runs(path):
        raise ResultError(
            f"{path} holds no run yet: a launch is writing there, or was killed; wait until it is done, or read what a "
            f"killed one left: perfharness analyze {unfinished[-1]}."
        )
    raise ResultError(f"{path} holds no {MANIFEST_NAME}, so it is not a run folder; {EXPECTED_PATHS}.")


def _run_around(folder: Path) -> tuple[Path, str] | None:
    """The run that a process's folder is in, and the process's folder in it."""
    folder = folder.resolve()
    for run in folder.parents[:LEVELS_OF_PROCESSES]:
        if (run / MANIFEST_NAME).is_file():
            name = folder.relative_to(run).as_posix()
            manifest = read_manifest(run)
            known = any(process.folder == name for process in [*manifest.processes, *manifest.measured_processes])
            return (run, name) if known else None
    return None
