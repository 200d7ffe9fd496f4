"""Copy a run folder over a connection, for nodes that share no file system with node 0."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from perfharness.cluster.wire import Wire
from perfharness_launcher.staging import PREVIOUS_NAME

CHUNK_BYTES = 1 << 20


def send_files(wire: Wire, folder: Path) -> None:
    """Send all regular files of a run. Raises `OSError` if the connection or a file is lost."""
    for path in files_of(folder):
        with path.open("rb") as file:
            left = os.fstat(file.fileno()).st_size
            wire.send(file=path.relative_to(folder).as_posix(), bytes=left)
            while left:
                content = file.read(min(left, CHUNK_BYTES))
                if not content:
                    raise OSError(f"{path} became shorter")
                wire.send_bytes(content)
                left -= len(content)
    wire.send(file=None)


def files_of(folder: Path) -> Iterator[Path]:
    """Yield the regular files of a run."""
    for above, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != PREVIOUS_NAME and not name.startswith(".")]
        paths = [Path(above, name) for name in names]
        yield from (path for path in paths if path.is_file() and not path.is_symlink())


def receive_files(wire: Wire, folder: Path) -> None:
    """Write the files from `send_files` into a new folder. Raises `ValueError` if a name leads out of it."""
    folder.mkdir(parents=True)
    while (header := wire.receive())["file"] is not None:
        path, left = path_in(folder, header["file"]), int(header["bytes"])
        with path.open("wb") as file:
            while left > 0:
                left -= file.write(wire.receive_bytes())


def path_in(folder: Path, name: str) -> Path:
    """Make the parent folder of a file in a run; return its path. Raises `ValueError` if it leads out of the run."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{name} is not a file in the run")
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    return folder / path
