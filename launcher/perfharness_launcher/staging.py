"""The output folder (-o): a run is written into a hidden folder in it, then renamed into place, its manifest last.

An earlier run there moves to `previous`. Files that no run makes are never touched.
"""

from __future__ import annotations

import errno
import mmap
import os
import re
import secrets
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import orjson

from perfharness.errors import LaunchError, UsageError
from perfharness.files import is_plain, is_plain_folder, locked, read_regular, reason_of, sync
from perfharness.model.checks import PROCESS_FOLDER
from perfharness.model.manifest import BENCHMARK_MEAN_NAME, BENCHMARK_NAME, EXPLAIN_NAME, MANIFEST_NAME, RunManifest

STAGING_PREFIX = ".perfharness-run-"
"""A run that is being written, or whose launcher was killed."""

ASIDE_PREFIX = "run-"
"""A run without numbers, next to one that has some."""

PREVIOUS_NAME = "previous"
"""The run that was in the output folder before."""

SERIES_FILES = ("repeat.json", "scaling.json", "cold_start.json", "overhead.json")
MARKERS = (MANIFEST_NAME, *SERIES_FILES)
"""Each marks a whole run, or series of launches; moved last."""

LOAD_FILES = ("load.json", "mlperf.json")
_FILE = re.compile(r"(telemetry_(gpu_\d+|host)|scaling)\.png|(telemetry|scaling)\.html")
LAUNCH_FOLDER = re.compile(rf"(launch|np|cold|warm)_\d{{1,9}}|first|traced|untraced|{EXPLAIN_NAME}", re.ASCII)
"""Folders of launches inside a series, and of the explaining pass of a run."""

_TABLE = re.compile(rb'\n  "(?:data|mean_data|mean_all_batches)": \{\s*"|\n    "data_file": "')
NUMBERS = {
    BENCHMARK_NAME: _TABLE, BENCHMARK_MEAN_NAME: _TABLE, "cold_start.json": re.compile(rb'"startup": \{'),
}  # fmt: skip
"""What a result file with numbers has, by its layout: parsing takes ten times its size, which may be huge."""


def new_run_id() -> str:
    """Unique; sorts by time."""
    return f"{datetime.now(timezone.utc):%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"


def has_name_of_a_run(name: str) -> bool:
    """Whether a run, or a series, writes such a file or folder of a process."""
    files = {*MARKERS, *LOAD_FILES, BENCHMARK_MEAN_NAME, "ranges.parquet", "telemetry.parquet"}
    return name in files or bool(_FILE.fullmatch(name) or PROCESS_FOLDER.fullmatch(name))


def is_run(folder: Path) -> bool:
    """Whether a launch, or a series of launches, has written its results there."""
    return any(_is_ours(folder / name) for name in MARKERS)


def _is_ours(marker: Path) -> bool:
    try:
        content = orjson.loads(read_regular(marker))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and {"schema_version", "created", "command"} <= content.keys()


def unfinished_runs(folder: Path) -> list[Path]:
    """Folders of launches that were killed before they could put their results in place."""
    return sorted(filter(is_plain_folder, folder.glob(f"{STAGING_PREFIX}*")))


def entries_of(folder: Path) -> list[str]:
    """What belongs to the run there, or to a series, also to one that was cut off; markers last."""
    whole = is_run(folder)
    names = (
        path.name
        for path in (folder.iterdir() if folder.is_dir() else ())
        if (whole and has_name_of_a_run(path.name)) or (LAUNCH_FOLDER.fullmatch(path.name) and _is_launch(path))
    )
    return _markers_last(names)


def _is_launch(folder: Path) -> bool:
    return is_plain_folder(folder) and (is_run(folder) or bool(unfinished_runs(folder)))


def _is_in_use(folder: Path) -> bool:
    """Whether something else is there than launches, or an empty folder."""
    if _is_launch(folder) or not os.path.lexists(folder):
        return False
    return not is_plain_folder(folder) or any(folder.iterdir())


def _markers_last(names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda name: (name in MARKERS, name))


def has_numbers(folder: Path) -> bool:
    """Whether anything was measured in the run, or the series, there."""
    files = (
        path
        for name in entries_of(folder)
        for path in ((folder / name).rglob("*.json") if (folder / name).is_dir() else [folder / name])
    )
    return any(path.name in LOAD_FILES or (path.name in NUMBERS and _holds_numbers(path)) for path in files)


def _holds_numbers(path: Path) -> bool:
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return NUMBERS[path.name].search(content) is not None
    except (OSError, ValueError):
        return False


def _keep_previous(folder: Path, say: Callable[[str], None]) -> bool:
    """Move the run there to `previous`, and remove the one before it; False where there is none. Raises `OSError`."""
    names, previous = entries_of(folder), folder / PREVIOUS_NAME
    if not names:
        return False
    if is_plain_folder(previous):
        for name in entries_of(previous):
            _remove(previous / name)
    _move(names, folder, previous)
    say(f"Moved the previous results to {previous}.")
    return True


def _remove(path: Path) -> None:
    if is_plain_folder(path):
        shutil.rmtree(path)
    else:
        path.unlink()


def _move(names: Sequence[str], source: Path, target: Path) -> None:
    """Rename entries into another folder, in this order. Raises `OSError`; before the first where one is there."""
    target.mkdir(exist_ok=True)
    there = next((target / name for name in names if os.path.lexists(target / name)), None)
    if there is not None:
        raise FileExistsError(errno.EEXIST, f"{there} is in the way")
    for name in names:
        (source / name).rename(target / name)
    sync(target)


class Staging:
    """The folder that a run is written in, inside the output folder and so on the same file system.

    Args:
        say: called with a line where an earlier run is moved.
    """

    def __init__(self, output_dir: Path, run_id: str, say: Callable[[str], None] = lambda line: None) -> None:
        self.output_dir = output_dir
        self.path = output_dir / f"{STAGING_PREFIX}{run_id}"
        self._aside = output_dir / f"{ASIDE_PREFIX}{run_id}"
        self._say = say

    def write_manifest(self, manifest: RunManifest) -> None:
        """Write it, as a whole. Raises `OSError`."""
        new = self.path / f".{MANIFEST_NAME}.new"  # a rename, but not on the disk yet: processes are being measured
        new.write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")
        new.replace(self.path / MANIFEST_NAME)

    def finish(self) -> Path:
        """Rename the run into the output folder; or next to the run there, where only that has numbers.

        Returns:
            The folder of the run.

        Raises:
            LaunchError: it could not be moved; it stays where it was written.
        """
        try:
            if has_numbers(self.output_dir) and not has_numbers(self.path):
                return self.path.rename(self._aside)
            _keep_previous(self.output_dir, self._say)
            names = _markers_last(filter(self._is_moved, [path.name for path in self.path.iterdir()]))
            for name in names:
                if is_plain(self.path / name):
                    sync(self.path / name)
            _move(names, self.path, self.output_dir)
        except OSError as error:
            raise LaunchError(
                f"the run could not be put in place ({reason_of(error)}); it is in {self.path}"
            ) from error
        self.discard()
        return self.output_dir

    def _is_moved(self, name: str) -> bool:
        is_new = not name.startswith(".") and not os.path.lexists(self.output_dir / name)
        return is_new or has_name_of_a_run(name) or name == EXPLAIN_NAME

    def discard(self) -> None:
        """Remove this run; the old one stays as it is."""
        shutil.rmtree(self.path, ignore_errors=True)


@contextmanager
def writing_to(folder: Path, launches: Collection[str] = ()) -> Iterator[None]:
    """A folder for results, made where there is none, in which no other command writes meanwhile.

    Args:
        launches: folders in it that are to be written to.

    Raises:
        LaunchError: one does, or it cannot be made.
        UsageError: a file or folder there, which no run wrote, has the name of one that is to be written.
    """
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(folder))
            strangers = [] if is_run(folder) else [path for path in folder.iterdir() if has_name_of_a_run(path.name)]
            strangers += [path for path in map(folder.joinpath, launches) if _is_in_use(path)]
        except BlockingIOError as error:
            raise LaunchError(f"another launch is writing to {folder}; wait for it or choose another -o") from error
        except OSError as error:
            raise LaunchError(f"-o {folder} cannot be used: {reason_of(error)}") from error
        if strangers:
            raise UsageError(
                f"{min(strangers)} is not of a whole run, and a run would be written over it; move it away, or name "
                "another -o"
            )
        yield


@contextmanager
def staging(output_dir: Path, run_id: str, say: Callable[[str], None] = lambda line: None) -> Iterator[Staging]:
    """The output folder, locked against other commands that write there, and in it the folder of this run.

    Raises:
        LaunchError: the folder cannot be made or written to, or another command is writing to it.
        UsageError: as of `writing_to`.
    """
    made = Staging(output_dir, run_id, say)
    with ExitStack() as stack:
        stack.enter_context(writing_to(output_dir))
        with _telling(output_dir):
            made.path.mkdir()
            stack.enter_context(locked(made.path))  # so that it is not read as a run that was cut off
        yield made


@dataclass
class SeriesFolder:
    """Where a series of launches is."""

    path: Path


@contextmanager
def series_folder(
    output_dir: Path, launches: Collection[str], say: Callable[[str], None] = lambda line: None
) -> Iterator[SeriesFolder]:
    """The output folder of a series, whose launches and file are written right into it: each launch is whole by itself.

    An earlier run moves to `previous` before the first launch. It comes back where only that has numbers, and the
    series is then next to it. Raises as `staging`.

    Args:
        launches: names of their folders.
        say: called with a line where an earlier run is moved.
    """
    series, previous = SeriesFolder(output_dir), output_dir / PREVIOUS_NAME
    with writing_to(output_dir, launches):
        with _telling(output_dir):
            moved = _keep_previous(output_dir, say)
        try:
            yield series
        finally:
            if moved and has_numbers(previous) and not has_numbers(output_dir):
                series.path = output_dir / f"{ASIDE_PREFIX}{new_run_id()}"
                with _telling(output_dir):
                    _move(entries_of(output_dir), output_dir, series.path)
                    _move(entries_of(previous), previous, output_dir)
                with suppress(OSError):  # a user has put something there
                    previous.rmdir()
                say(f"Kept the previous results in {output_dir}; this incomplete series is in {series.path}.")


@contextmanager
def _telling(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LaunchError(f"-o {folder} cannot be written to: {reason_of(error)}") from error
