"""What a user named: a run, a process of one, a folder of several runs, or a trace; the same for every verb."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from perfharness.errors import ResultError
from perfharness.model.manifest import MANIFEST_NAME
from perfharness.run_swap import settle
from perfharness.runs.journals import TRACE_NAME
from perfharness.runs.run_folder import read_manifest, trace_name
from perfharness.trace.parquet_folder import is_parquet_trace

RUN_OF_SERIES = re.compile(r"(np|cold|warm)_(\d+)|first")
"""Folders of the runs that `launch --np-sweep` and `launch --cold-start` make."""

LEVELS_OF_PROCESSES = 3
"""How deep a process's folder may be below its run's."""

EXPECTED_PATHS = (
    "give a run folder (what was passed to `perfharness launch -o`), the folder of one of its processes, the folder of "
    "a sweep or of cold starts, or a trace: a file, or a folder that `nsys export --type parquetdir` wrote"
)


@dataclass(frozen=True)
class Located:
    """What a path names: run folders, or a trace.

    Args:
        path: as it was named.
        runs: one run; of a sweep or of cold starts, all of them, in order. Empty for a trace.
        process: of a process's folder, its folder in the one run.
        trace: the trace itself, where it is in no run.
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


def locate(path: Path) -> Located:
    """What the path names. Raises `ResultError` where that is no result or trace, or a manifest cannot be read."""
    if not path.exists():
        raise ResultError(f"There is nothing at {path}; {EXPECTED_PATHS}.")
    if not path.is_dir():
        return Located(path, trace=path, name=trace_name(path))
    settle(path)  # of a run that was being replaced when its launcher was killed, the manifest comes last
    if (path / MANIFEST_NAME).is_file():
        return Located(path, runs=(path,), name=path.name)
    if is_parquet_trace(path):
        return Located(path, trace=path, name=trace_name(path))
    if (found := _run_around(path)) is not None:
        return Located(path, runs=(found[0],), process=found[1], name=path.name)
    if (path / TRACE_NAME).is_file():
        return Located(path, trace=path / TRACE_NAME, name=path.resolve().name)
    if runs := _runs_in(path):
        return Located(path, runs=runs, name=path.name)
    raise ResultError(f"{path} holds no {MANIFEST_NAME}, so it is not a run folder; {EXPECTED_PATHS}.")


def _run_around(folder: Path) -> tuple[Path, str] | None:
    """The run that a process's folder is in, and the process's folder in it."""
    folder = folder.resolve()
    for run in folder.parents[:LEVELS_OF_PROCESSES]:
        if (run / MANIFEST_NAME).is_file():
            name = folder.relative_to(run).as_posix()
            known = any(process.folder == name for process in read_manifest(run).processes)
            return (run, name) if known else None
    return None


def _runs_in(folder: Path) -> tuple[Path, ...]:
    """The runs of a sweep or of cold starts, in the order in which they were made."""
    runs = [
        (int(match[2] or -1), match[1] or "", child)
        for child in folder.iterdir()
        if (match := RUN_OF_SERIES.fullmatch(child.name))
        and not child.is_symlink()
        and (child / MANIFEST_NAME).is_file()
    ]
    return tuple(child for _, _, child in sorted(runs))
