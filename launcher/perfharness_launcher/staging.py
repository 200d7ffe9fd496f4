"""The output folder (-o): write a run into a hidden folder in it, then rename it into place, manifest last.

An earlier run moves to `previous`. Other files are never touched.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import orjson

from perfharness.errors import LaunchError, UsageError
from perfharness.files import is_own_folder, locked, reason_of
from perfharness.model.checks import PROCESS_FOLDER
from perfharness.model.manifest import (
    BENCHMARK_MEAN_NAME,
    EXPLAIN_NAME,
    MANIFEST_NAME,
    SERIES_NAME,
    STAGING_PREFIX,
    RunManifest,
)

ASIDE_PREFIX = "run-"
"""A run without numbers, next to one with numbers."""

PREVIOUS_NAME = "previous"
MARKERS = (MANIFEST_NAME, SERIES_NAME)
"""Each marks a complete run or series; moved last."""

LOAD_FILES = ("load.json", "mlperf.json")
RUN_FILES = {*MARKERS, *LOAD_FILES, BENCHMARK_MEAN_NAME, "ranges.parquet", "telemetry.parquet"}
CHART = re.compile(r"(telemetry_(gpu_\d+(_node_\d+)?|host)|scaling)\.png|(telemetry|scaling)\.html")
LAUNCH_FOLDER = re.compile(rf"(launch|np|cold|warm)_\d{{1,9}}|first|{EXPLAIN_NAME}", re.ASCII)
"""Launches inside a series, and the profiling pass of a run."""

LAUNCHES_FOLDER = re.compile(r"traced|untraced|base|new(_\d{1,9})?", re.ASCII)
"""Parents of launches in a series of several kinds."""

Say = Callable[[str], None]
"""Called with a line when an earlier run is moved."""


def new_run_id() -> str:
    """Return a unique id that sorts by time."""
    return f"{datetime.now(timezone.utc):%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"


def has_name_of_a_run(name: str) -> bool:
    """Whether a run or series writes a file or process folder of this name."""
    return name in RUN_FILES or bool(CHART.fullmatch(name) or PROCESS_FOLDER.fullmatch(name))


def is_run(folder: Path) -> bool:
    """Whether the folder has results of a launch or series."""
    return any({"schema_version", "created", "command"} <= _content(folder / name).keys() for name in MARKERS)


def _content(path: Path) -> dict[str, Any]:
    """Read a JSON object; empty if missing or unreadable."""
    with suppress(OSError, ValueError):
        content = orjson.loads(path.read_bytes())
        return content if isinstance(content, dict) else {}
    return {}


def unfinished_runs(folder: Path) -> list[Path]:
    """Folders of launches that run, or were killed before their results were in place."""
    return sorted(filter(is_own_folder, folder.glob(f"{STAGING_PREFIX}*")))


def _entries_of(folder: Path) -> list[str]:
    """Names of files and folders of a run or series, even if it was cut off."""
    whole, names = is_run(folder), [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return [name for name in names if (whole and has_name_of_a_run(name)) or _is_launch(folder / name)]


def _is_launch(folder: Path) -> bool:
    if not is_own_folder(folder):
        return False
    if LAUNCHES_FOLDER.fullmatch(folder.name):
        return any(map(_is_launch, folder.iterdir()))
    return bool(LAUNCH_FOLDER.fullmatch(folder.name)) and (is_run(folder) or bool(unfinished_runs(folder)))


def has_numbers(folder: Path) -> bool:
    """Whether the run or series measured anything (a whole batch, if its processes were cut off)."""
    entries = _entries_of(folder)
    read = (BENCHMARK_MEAN_NAME, SERIES_NAME, MANIFEST_NAME)
    mean, series, manifest = (_content(folder / name) if name in entries else {} for name in read)
    is_whole = any(one.get("ended") == "ok" for one in manifest.get("processes", ()))
    return (
        any(name in LOAD_FILES for name in entries)
        or bool(mean.get("mean_data") or (is_whole and mean.get("mean_all_batches")))
        or any(row.get("figures") for row in series.get("rows", ()))
        or any(has_numbers(folder / name) for name in entries if _is_launch(folder / name))
    )


def _move(names: Iterable[str], source: Path, target: Path) -> None:
    """Rename entries into another folder, markers last. Raises `OSError`, before all if a name is taken."""
    target.mkdir(exist_ok=True)
    ordered = sorted(names, key=lambda name: (name in MARKERS, name))
    if there := next((name for name in ordered if os.path.lexists(target / name)), None):
        raise OSError(f"{target / there} is in the way")
    for name in ordered:
        (source / name).rename(target / name)


def _keep_previous(folder: Path, say: Say) -> bool:
    """Move an existing run to `previous`, and return whether one existed. Raises `OSError`."""
    names, previous = _entries_of(folder), folder / PREVIOUS_NAME
    if not names:
        return False
    for path in [previous / name for name in _entries_of(previous)] if is_own_folder(previous) else ():
        if is_own_folder(path):
            shutil.rmtree(path)
        else:
            path.unlink()
    _move(names, folder, previous)
    say(f"Moved the previous results to {previous}.")
    return True


def _place(run: Path, folder: Path) -> None:
    """Rename the entries of a run from its staging folder. Raises `OSError`."""

    def is_moved(name: str) -> bool:
        is_new = not name.startswith(".") and not os.path.lexists(folder / name)
        return is_new or has_name_of_a_run(name) or name == EXPLAIN_NAME

    _move([path.name for path in run.iterdir() if is_moved(path.name)], run, folder)
    shutil.rmtree(run, ignore_errors=True)


@dataclass
class Staging:
    """The staging folder of a run, on the file system of the output folder."""

    output_dir: Path
    run_id: str
    say: Say = lambda line: None

    @property
    def path(self) -> Path:
        """The folder."""
        return self.output_dir / f"{STAGING_PREFIX}{self.run_id}"

    def write_manifest(self, manifest: RunManifest) -> None:
        """Replace the manifest. Raises `OSError`."""
        new = self.path / f".{MANIFEST_NAME}.new"  # no fsync, because processes are being measured
        new.write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")
        new.replace(self.path / MANIFEST_NAME)

    def finish(self) -> Path:
        """Rename the run into the output folder, or next to an earlier run if only that has numbers; return its folder.

        Raises `LaunchError` if it cannot be moved; it stays in the staging folder.
        """
        try:
            if has_numbers(self.output_dir) and not has_numbers(self.path):
                return self.path.rename(self.output_dir / f"{ASIDE_PREFIX}{self.run_id}")
            _keep_previous(self.output_dir, self.say)
            _place(self.path, self.output_dir)
        except OSError as error:
            raise LaunchError(f"The run was not put in place ({reason_of(error)}). It is in {self.path}.") from error
        return self.output_dir

    def discard(self) -> None:
        """Remove this run, and leave an earlier one unchanged."""
        shutil.rmtree(self.path, ignore_errors=True)


@contextmanager
def writing_to(folder: Path, launches: Collection[str] = ()) -> Iterator[None]:
    """Create and lock a folder for results, where subfolders with the names `launches` will be written.

    First, put a run in place whose launcher was killed between two renames.

    Raises:
        LaunchError: another launch writes to the folder, or it cannot be created.
        UsageError: a file or folder of another origin has a name that a run writes.
    """
    with ExitStack() as stack:
        with _refusing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(folder))
            for run in unfinished_runs(folder):
                if not is_run(folder) and _content(run / MANIFEST_NAME).get("complete"):
                    _place(run, folder)
            foreign = [] if is_run(folder) else [path for path in folder.iterdir() if has_name_of_a_run(path.name)]
            foreign += [path for path in map(folder.joinpath, launches) if not _may_replace(path)]
        if foreign:
            message = f"{min(foreign)} is not of a run and would be overwritten."
            raise UsageError(f"{message} Move it, or choose another -o.")
        yield


def _may_replace(launch: Path) -> bool:
    """Whether the path is missing, an empty folder, or an earlier launch."""
    is_empty = is_own_folder(launch) and not any(launch.iterdir())
    return is_empty or _is_launch(launch) or not os.path.lexists(launch)


@contextmanager
def _refusing(folder: Path) -> Iterator[None]:
    try:
        yield
    except BlockingIOError as error:
        raise LaunchError(f"Another launch is writing to {folder}. Wait for it, or choose another -o.") from error
    except OSError as error:
        raise LaunchError(f"-o {folder} cannot be written to: {reason_of(error)}") from error


@contextmanager
def staging(output_dir: Path, run_id: str, say: Say = lambda line: None) -> Iterator[Staging]:
    """Create and lock the staging folder of a run. Raises as `writing_to`."""
    made = Staging(output_dir, run_id, say)
    with writing_to(output_dir), ExitStack() as stack:
        with _refusing(output_dir):
            made.path.mkdir()
            stack.enter_context(locked(made.path))  # or it looks like a killed run
        yield made


@dataclass
class SeriesFolder:
    """Current folder of a series of launches."""

    path: Path


@contextmanager
def series_folder(output_dir: Path, launches: Collection[str], say: Say = lambda line: None) -> Iterator[SeriesFolder]:
    """Create and lock the output folder of a series (subfolders `launches`), which is written without staging.

    An earlier run moves to `previous`. If only that has numbers, it comes back, and the series moves to a folder next
    to it. Raises as `writing_to`.
    """
    series, previous = SeriesFolder(output_dir), output_dir / PREVIOUS_NAME
    with writing_to(output_dir, launches):
        with _refusing(output_dir):
            moved = _keep_previous(output_dir, say)
        try:
            yield series
        finally:
            if moved and has_numbers(previous) and not has_numbers(output_dir):
                series.path = output_dir / f"{ASIDE_PREFIX}{new_run_id()}"
                with _refusing(output_dir):
                    _move(_entries_of(output_dir), output_dir, series.path)
                    _move(_entries_of(previous), previous, output_dir)
                with suppress(OSError):  # the user has files there
                    previous.rmdir()
                say(f"Kept the previous results in {output_dir}; this incomplete series is in {series.path}.")
