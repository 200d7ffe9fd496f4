"""Replace a run, or its results, atomically: after a kill the next command finishes the replacement.

The new files are in a hidden folder inside the run folder, so on the same file system. A record of the names to remove
and to add is written first; each step is then a rename, and the two folders show whether it was done. A step that
fails is undone immediately; after a kill, `settle` continues where it stopped.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from perfharness.errors import ResultError
from perfharness.files import is_plain, is_plain_folder, locked, read_regular, reason_of, sync
from perfharness.model.checks import MEASURED_FOLDER, PROCESS_FOLDER
from perfharness.model.manifest import BENCHMARK_MEAN_NAME, BENCHMARK_NAME, EXPLAIN_NAME, MANIFEST_NAME

STAGING_PREFIX = ".perfharness-run-"
"""A run that is being written, or whose launcher was killed."""

RESULTS_PREFIX = ".perfharness-results-"
REPLACED_PREFIX = ".perfharness-replaced-"
SWAP_NAME = ".perfharness-swap.json"

PICTURE = re.compile(r"telemetry_(gpu_\d+|host)\.png|telemetry\.html")
RUN_FILES = frozenset(
    {
        BENCHMARK_MEAN_NAME, EXPLAIN_NAME, MANIFEST_NAME, "load.json", "mlperf.json", "ranges.parquet",
        "telemetry.parquet",
    }
)  # fmt: skip
SERIES_FILES = {
    "repeat.json": "a repeat", "scaling.json": "a sweep", "cold_start.json": "cold starts",
    "overhead.json": "a measurement of the overhead",
}  # fmt: skip
"""Files of a folder of launches."""

SETTLE_PATIENCE_S = 30.0
"""How long to wait for another command that is replacing a run, seconds: it does renames only."""

_HIDDEN = re.compile(rf"({'|'.join(map(re.escape, (STAGING_PREFIX, RESULTS_PREFIX, REPLACED_PREFIX)))})[\w.-]{{1,100}}")


def belongs_to_a_run(name: str) -> bool:
    """Whether a name in the output folder belongs to a run, so that the next run replaces it."""
    return name in RUN_FILES or any(pattern.fullmatch(name) for pattern in (PROCESS_FOLDER, PICTURE))


def series_in(folder: Path, *, but: str = "") -> str | None:
    """What series of launches a folder holds; None: none, or only one whose file has the name `but`."""
    return next((what for name, what in SERIES_FILES.items() if name != but and (folder / name).exists()), None)


def is_explaining_pass(folder: Path) -> bool:
    """Whether a folder of that name was written by a launch; a user may have one of his own in the output folder."""
    return is_plain_folder(folder) and is_plain(folder / MANIFEST_NAME)


def _may_go(name: str) -> str:
    path = PurePosixPath(name)
    of_process = path.name in (BENCHMARK_NAME, "ranges.parquet") and MEASURED_FOLDER.fullmatch(str(path.parent))
    if not of_process and not belongs_to_a_run(name):
        raise ValueError("is not of a run")
    return name


def _may_come(name: str) -> str:
    if "/" in name:
        return _may_go(name)
    if not name or name.startswith(".") or "\0" in name:
        raise ValueError("is not of a run")
    return name


def _is_hidden(name: str) -> str:
    if not _HIDDEN.fullmatch(name):
        raise ValueError("is not a folder of perfharness")
    return name


class _Swap(BaseModel):
    """A replacement in progress. Names are relative to the run folder, and validated: its source is not trusted."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    new: Annotated[str, AfterValidator(_is_hidden)]
    """Folder with the new files, under their final names."""

    old: Annotated[str, AfterValidator(_is_hidden)]
    """Folder for the replaced files."""

    going: list[Annotated[str, AfterValidator(_may_go)]]
    coming: list[Annotated[str, AfterValidator(_may_come)]]
    """In this order; the file that marks a complete run comes last."""


def replace_names(folder: Path, new: Path, going: Sequence[str], coming: Sequence[str]) -> None:
    """Replace names in a run folder, which is locked, by those in a hidden folder inside it, which is removed.

    Raises `OSError` where it fails; the run folder is then unchanged.
    """
    swap = _Swap(new=new.name, old=f"{REPLACED_PREFIX}{os.urandom(8).hex()}", going=[*going], coming=[*coming])
    record = new / SWAP_NAME
    try:
        record.write_text(swap.model_dump_json())
        sync(record)
        record.rename(folder / SWAP_NAME)
    except OSError:
        with contextlib.suppress(OSError):
            record.unlink(missing_ok=True)
        raise
    _finish_or_undo(folder, swap)


def settle(folder: Path) -> None:
    """Finish a replacement that was interrupted by a kill. Writes nothing where there is none.

    Raises `ResultError` where it cannot be finished.
    """
    if not is_plain(folder / SWAP_NAME):
        return
    try:
        with locked(folder, SETTLE_PATIENCE_S):
            settle_locked(folder)
    except BlockingIOError as error:
        raise ResultError(f"another perfharness is replacing the run in {folder}; try again") from error
    except OSError as error:
        raise ResultError(
            f"the run in {folder} was being replaced when perfharness was killed, and that cannot be finished "
            f"({reason_of(error)}); run the command again as a user who may write there"
        ) from error


def settle_locked(folder: Path) -> None:
    """The same in a locked folder; removes the hidden folders of killed commands too. Raises `OSError`."""
    with contextlib.suppress(FileNotFoundError):
        _finish_or_undo(folder, _read(folder / SWAP_NAME))
    for prefix in (RESULTS_PREFIX, REPLACED_PREFIX):
        for left in folder.glob(f"{prefix}*"):
            if is_plain_folder(left):
                shutil.rmtree(left, ignore_errors=True)


def _read(record: Path) -> _Swap:
    try:
        return _Swap.model_validate_json(read_regular(record, follow=False))
    except ValidationError as error:
        raise ResultError(f"{record} was not written by perfharness, or is damaged; remove it") from error


def _finish_or_undo(folder: Path, swap: _Swap) -> None:
    try:
        _finish(folder, swap)
    except OSError:
        _undo(folder, swap)
        raise
    shutil.rmtree(folder / swap.old, ignore_errors=True)


def _finish(folder: Path, swap: _Swap) -> None:
    new, old = folder / swap.new, folder / swap.old
    for name in swap.going:
        if not (name in swap.coming and not _is_there(new, name)) and _is_there(folder, name):
            _move(folder, old, name)
    for name in swap.coming:
        if _is_there(new, name):
            _move(new, folder, name)
    sync(folder)
    shutil.rmtree(new, ignore_errors=True)
    (folder / SWAP_NAME).unlink()


def _undo(folder: Path, swap: _Swap) -> None:
    """Restore the previous state as far as possible; the next command finishes the replacement otherwise."""
    new, old = folder / swap.new, folder / swap.old
    with contextlib.suppress(OSError):
        for name in reversed(swap.coming):
            if not _is_there(new, name) and _is_there(folder, name):
                _move(folder, new, name)
        for name in reversed(swap.going):
            if _is_there(old, name):
                _move(old, folder, name)
        (folder / SWAP_NAME).unlink()
        shutil.rmtree(old, ignore_errors=True)


def _is_there(folder: Path, name: str) -> bool:
    """Whether the name exists, reached through no symbolic link."""
    above = [folder / parent for parent in PurePosixPath(name).parents]
    return all(map(is_plain_folder, above)) and os.path.lexists(folder / name)


def _move(source: Path, target: Path, name: str) -> None:
    place = target / name
    if not is_plain_folder(place.parent):
        place.parent.mkdir(parents=True)
    (source / name).rename(place)


def holds_numbers(folder: Path) -> bool:
    """Whether a run has numbers: a result file in which a table of ranges is not empty."""
    processes = (path for below in ("", "*/") for path in folder.glob(f"proc_*/{below}{BENCHMARK_NAME}"))
    return any(has_numbers(path) for path in (folder / BENCHMARK_MEAN_NAME, *processes))


_TABLE = re.compile(rb'\n  "(?:data|mean_data|mean_all_batches)": \{\s*"|\n    "data_file": "')


def has_numbers(path: Path) -> bool:
    """Whether a result file has numbers; false where there is none.

    Found by its layout (`write_json`): parsing takes ten times its size, which may be hundreds of megabytes.
    """
    with mapped(path) as content:
        return _TABLE.search(content) is not None


@contextlib.contextmanager
def mapped(path: Path) -> Iterator[mmap.mmap | bytes]:
    """The content of a regular file, memory-mapped; empty where it cannot be read."""
    with contextlib.ExitStack() as stack:
        content: mmap.mmap | bytes = b""
        with contextlib.suppress(OSError, ValueError):
            if is_plain(path):
                file = stack.enter_context(path.open("rb"))
                content = stack.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        yield content
