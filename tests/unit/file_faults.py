"""Faults of file operations below a folder, and a folder that another perfharness writes to."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

OPERATIONS = frozenset({"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.chmod"})


class _Faults:
    """Called by an audit hook, which cannot be removed, at each operation."""

    folder: str | None = None
    count = at = error = 0

    def meet(self, path: Path) -> None:
        if self.folder is not None and str(path.absolute()).startswith(self.folder):
            self.count += 1
            if self.count == self.at:
                raise OSError(self.error, os.strerror(self.error))


_faults = _Faults()
_fsync = os.fsync


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in OPERATIONS:
        return
    writes = event != "open" or (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if writes and isinstance(arguments[0], (str, bytes, os.PathLike)):
        _faults.meet(Path(os.fsdecode(arguments[0])))


def _faulty_fsync(fd: Any) -> None:
    _faults.meet(Path(f"/proc/self/fd/{fd}").readlink())
    _fsync(fd)


sys.addaudithook(_hook)


@contextmanager
def fault(folder: Path, at: int, error: int) -> Iterator[_Faults]:
    """While open, the operation with that number (from 1) fails."""
    _faults.folder, _faults.count, _faults.at, _faults.error = str(folder), 0, at, error
    os.fsync = _faulty_fsync
    try:
        yield _faults
    finally:
        _faults.folder = None
        os.fsync = _fsync


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """As another perfharness that writes there."""
    descriptor = os.open(folder, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield
    os.close(descriptor)
