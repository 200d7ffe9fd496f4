"""Faults at every file operation below a folder: an error, or the death of the process."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

OPERATIONS = frozenset({"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.chmod"})


class Killed(BaseException):
    """Stands for SIGKILL: from here on this process changes nothing any more."""


class _Faults:
    """Called by an audit hook, which cannot be removed, at each operation."""

    def __init__(self) -> None:
        self.folder: str | None = None
        self.count = 0
        self.at = 0
        self.error: int | None = None

    def meet(self, path: object) -> None:
        if self.folder is None or not isinstance(path, (str, bytes, os.PathLike)):
            return
        if not str(Path(os.fsdecode(path)).absolute()).startswith(self.folder):
            return
        self.count += 1
        if self.error is None and self.count >= self.at > 0:
            raise Killed
        if self.error is not None and self.count == self.at:
            raise OSError(self.error, os.strerror(self.error))


_faults = _Faults()
_fsync = os.fsync


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _faults.folder is None or event not in OPERATIONS or (event == "open" and not _writes(arguments)):
        return
    path, folder = arguments[0], arguments[-1]
    if event in ("os.remove", "os.rmdir") and isinstance(folder, int) and folder >= 0:
        path = Path(f"/proc/self/fd/{folder}").readlink() / path
    _faults.meet(path)


def _writes(arguments: tuple[Any, ...]) -> bool:
    flags = arguments[2] if len(arguments) > 2 and isinstance(arguments[2], int) else 0
    return bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


def _faulty_fsync(fd: Any) -> None:
    _faults.meet(Path(f"/proc/self/fd/{fd}").readlink())
    _fsync(fd)


sys.addaudithook(_hook)


@contextmanager
def fault(folder: Path, at: int, error: int | None) -> Iterator[_Faults]:
    """While open, the operation with that number (from 1) fails; without an error, none works from there on."""
    _faults.folder, _faults.count, _faults.at, _faults.error = str(folder), 0, at, error
    os.fsync = _faulty_fsync
    try:
        yield _faults
    finally:
        _faults.folder = None
        os.fsync = _fsync
