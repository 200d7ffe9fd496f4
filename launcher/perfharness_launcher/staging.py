"""Write a run next to the old one and swap it in at the end, as a whole: two runs are never mixed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from perfharness.errors import LaunchError
from perfharness.files import is_plain, is_plain_folder, locked, reason_of, sync
from perfharness.model.manifest import EXPLAIN_NAME, MANIFEST_NAME, RunManifest
from perfharness.run_swap import (
    STAGING_PREFIX,
    belongs_to_a_run,
    holds_numbers,
    is_explaining_pass,
    replace_names,
    settle_locked,
)

ASIDE_PREFIX = "run-"
"""A run that did not replace the one in the output folder, for that has numbers and this one has none."""


class Staging:
    """The folder that a run is written in, inside the output folder and so on the same file system."""

    def __init__(self, output_dir: Path, run_id: str) -> None:
        self.output_dir = output_dir
        self.path = output_dir / f"{STAGING_PREFIX}{run_id}"
        self._aside = output_dir / f"{ASIDE_PREFIX}{run_id}"

    def write_manifest(self, manifest: RunManifest) -> None:
        """Write it, as a whole. Raises `OSError`."""
        new = self.path / f".{MANIFEST_NAME}.new"  # a rename, but not on the disk yet: processes are being measured
        new.write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")
        new.replace(self.path / MANIFEST_NAME)

    def finish(self, *, whole: bool) -> Path:
        """Put the run in place of the old one; or next to it, where that has numbers and this has none, or only some.

        Whatever no run makes is left alone.

        Args:
            whole: all that was measured was read and written.

        Returns:
            The folder of the run.

        Raises:
            LaunchError: it could not be moved; it stays where it was written, and the old one is unchanged.
        """
        try:
            if holds_numbers(self.output_dir) and not (whole and holds_numbers(self.path)):
                return self.path.rename(self._aside)
            return self._put_in_place()
        except OSError as error:
            raise LaunchError(
                f"the run could not be put in place ({reason_of(error)}); it lies in {self.path}, and what was in "
                f"{self.output_dir} is as it was"
            ) from error

    def _put_in_place(self) -> Path:
        old = {path.name for path in self.output_dir.iterdir()}
        new = {path.name for path in self.path.iterdir() if not path.name.startswith(".")}
        coming = [name for name in sorted(new) if belongs_to_a_run(name) or name not in old]
        coming.sort(key=lambda name: name == MANIFEST_NAME)
        for name in coming:
            if is_plain(self.path / name):
                sync(self.path / name)
        going = set(filter(belongs_to_a_run, old))
        if not is_explaining_pass(self.output_dir / EXPLAIN_NAME):
            going.discard(EXPLAIN_NAME)
        replace_names(self.output_dir, self.path, sorted(going), coming)
        return self.output_dir

    def discard(self) -> None:
        """Remove this run; the old one stays as it is."""
        shutil.rmtree(self.path, ignore_errors=True)


def unfinished_runs(output_dir: Path) -> list[Path]:
    """Folders of launches that were killed before they could put their results in place."""
    return sorted(filter(is_plain_folder, output_dir.glob(f"{STAGING_PREFIX}*")))


@contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """A folder for results, made where there is none, in which no other command writes meanwhile.

    Raises `LaunchError` where one does, or it cannot be made.
    """
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(folder))
        except BlockingIOError as error:
            raise LaunchError(f"another launch is writing to {folder}; wait for it or choose another -o") from error
        except OSError as error:
            raise LaunchError(f"-o {folder} cannot be used: {reason_of(error)}") from error
        yield


@contextmanager
def staging(output_dir: Path, run_id: str) -> Iterator[Staging]:
    """The output folder, locked against other commands that write there, and in it the folder of this run.

    What a killed command left half done in the output folder is finished first.

    Raises:
        LaunchError: the folder cannot be made or written to, or another command is writing to it.
    """
    made = Staging(output_dir, run_id)
    with ExitStack() as stack:
        stack.enter_context(writing_to(output_dir))
        try:
            settle_locked(output_dir)
            made.path.mkdir()
            stack.enter_context(locked(made.path))  # so that it is not read as a run that was cut off
        except OSError as error:
            raise LaunchError(f"-o {output_dir} cannot be written to: {reason_of(error)}") from error
        yield made
