"""Write a run beside the old one and put it in place at the end, as a whole: two runs are never mixed."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from perfharness.errors import LaunchError
from perfharness.model.manifest import MANIFEST_NAME

STAGING_PREFIX = ".perfharness-run-"
REPLACED_PREFIX = ".perfharness-old-"
PROCESS_FOLDER = re.compile(r"proc_\d+_gpu_\d+")
PICTURE = re.compile(r"telemetry_(gpu_\d+|host)\.png")
RUN_FILES = frozenset({"benchmark_mean.json", MANIFEST_NAME, "telemetry.parquet"})


def belongs_to_a_run(name: str) -> bool:
    """Whether a name in the output folder is one that a run makes, so that the next run replaces it."""
    return name in RUN_FILES or any(pattern.fullmatch(name) for pattern in (PROCESS_FOLDER, PICTURE))


class Staging:
    """The folder that a run is written in, inside the output folder and so on the same file system."""

    def __init__(self, output_dir: Path, run_id: str) -> None:
        self.output_dir = output_dir
        self.path = output_dir / f"{STAGING_PREFIX}{run_id}"
        self._replaced = output_dir / f"{REPLACED_PREFIX}{run_id}"

    def put_in_place(self) -> None:
        """Replace the old run by this one, name by name; whatever no run makes is left alone.

        The old names all leave before the first new one comes, so that no moment shows a mixture.
        """
        self._replaced.mkdir()
        for old in sorted(self.output_dir.iterdir()):
            if belongs_to_a_run(old.name):
                old.rename(self._replaced / old.name)
        for new in sorted(self.path.iterdir()):
            new.rename(self.output_dir / new.name)
        self.path.rmdir()
        shutil.rmtree(self._replaced)

    def discard(self) -> None:
        """Forget this run; the old one stays as it is."""
        shutil.rmtree(self.path, ignore_errors=True)


def left_behind(output_dir: Path) -> list[Path]:
    """Folders of launches that were killed before they could put their results in place, or in the middle of it."""
    return sorted(
        path for prefix in (STAGING_PREFIX, REPLACED_PREFIX) for path in output_dir.glob(f"{prefix}*") if path.is_dir()
    )


@contextmanager
def staging(output_dir: Path, run_id: str) -> Iterator[Staging]:
    """The output folder, locked against other launches, and in it the folder of this run.

    Raises:
        LaunchError: the folder cannot be made or written to, or another launch is writing to it.
    """
    made = Staging(output_dir, run_id)
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        lock = os.open(output_dir, os.O_RDONLY)
    except OSError as error:
        raise LaunchError(f"-o {output_dir} cannot be used: {error.strerror}") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LaunchError(f"another launch is writing to {output_dir}; wait for it or choose another -o") from error
        try:
            made.path.mkdir()
        except OSError as error:
            raise LaunchError(f"-o {output_dir} cannot be written to: {error.strerror}") from error
        yield made
    finally:
        os.close(lock)
