"""Which run folders belong to a series: a repeat, a sweep over the number of processes, cold starts."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from perfharness.errors import ResultError
from perfharness.files import is_plain_folder
from perfharness.model.manifest import MANIFEST_NAME
from perfharness.runs.files.run_folder import read_manifest
from perfharness.runs.series.cold_start_file import COLD_START_NAME, ColdStart
from perfharness.runs.series.file import read_series
from perfharness.runs.series.repeat_file import LAUNCH_OF_REPEAT, REPEAT_NAME, RepeatRow, read_repeat
from perfharness.runs.series.scaling import SCALING_NAME, Scaling

RUN_OF_SERIES = re.compile(r"(np|cold|warm)_(\d{1,9})|first", re.ASCII)
"""Folders of the runs that `launch --np-sweep` and `--cold-start` make."""


def runs_in(folder: Path) -> tuple[Path, ...]:
    """The runs of a repeat, a sweep or cold starts, in the order in which they were made. Those that an earlier sweep
    left next to them are left out.
    """
    if launches := repeated_launches(folder):
        return launches
    listed = _listed(folder)
    runs = [
        (int(match[2] or -1), match[1] or "", child)
        for child in folder.iterdir()
        if (match := RUN_OF_SERIES.fullmatch(child.name))
        and (child / MANIFEST_NAME).is_file()
        and (not listed or child.name in listed)
    ]
    return tuple(child for _, _, child in sorted(runs))


def _listed(folder: Path) -> set[str]:
    """Folders of the runs that a sweep or cold starts are made of, by their files; empty where none can be read."""
    listed: set[str] = set()
    with contextlib.suppress(ResultError):
        if (scaling := read_series(folder / SCALING_NAME, Scaling)) is not None:
            listed |= {point.row.folder for point in scaling.points}
        if (cold_start := read_series(folder / COLD_START_NAME, ColdStart)) is not None:
            listed |= {row.folder for row in cold_start.rows}
    return listed


def cases_in(folder: Path) -> list[Path]:
    """Folders in this one that hold a repeat each."""
    return [child for child in sorted(folder.iterdir()) if is_plain_folder(child) and repeated_launches(child)]


def repeated_launches(folder: Path) -> tuple[Path, ...]:
    """The run folders of a repeat, in the order in which they were made: those that the numbers are made of, or where
    no launch went well, all there are.

    Launches of an earlier repeat, which may lie next to them, are left out.

    Raises:
        ResultError: `repeat.json`, or the manifest of a launch, is damaged.
    """
    repeat = read_repeat(folder)
    if repeat is None:
        numbers = [
            (int(match[1]), child)
            for child in folder.iterdir()
            if (match := LAUNCH_OF_REPEAT.fullmatch(child.name)) and _is_run(folder, child.name)
        ]
        return tuple(child for _, child in sorted(numbers))
    made = [row for row in sorted(repeat.rows, key=lambda row: row.place) if _is_that_run(folder, row)]
    return tuple(folder / row.folder for row in made if row.status == "ok" or not repeat.measured)


def _is_run(folder: Path, name: str) -> bool:
    return (folder / name / MANIFEST_NAME).is_file()


def _is_that_run(folder: Path, row: RepeatRow) -> bool:
    if row.run_id is None or not _is_run(folder, row.folder):
        return False
    path = folder / row.folder
    if read_manifest(path).run_id != row.run_id:
        raise ResultError(
            f"{path} is not the launch that {folder / REPEAT_NAME} lists: it was measured again since; name "
            "the launches one by one, or repeat them all"
        )
    return True
