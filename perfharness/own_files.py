"""Files of ours that stay open in the measured process, whose program may close all descriptors, as daemons do.

The number of a closed one is soon that of a file of the program, which must be neither written nor closed.
"""

from __future__ import annotations

import errno
import os

Identity = tuple[int, int]


def identity_of(descriptor: int) -> Identity | None:
    """Which file, pipe or socket a descriptor is of; None where it is closed."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino


class OwnFile:
    """A file that is opened again where its descriptor was closed.

    Raises OSError where it cannot be opened.
    """

    def __init__(self, path: str, flags: int) -> None:
        self._path = path
        self._flags = flags & ~(os.O_CREAT | os.O_EXCL | os.O_TRUNC) | os.O_CLOEXEC
        self._descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
        self._identity = identity_of(self._descriptor)

    def descriptor(self) -> int:
        """Of the file. Raises OSError where it was closed and cannot be opened again."""
        if identity_of(self._descriptor) != self._identity:
            opened = os.open(self._path, self._flags)
            if identity_of(opened) != self._identity:
                os.close(opened)
                raise FileNotFoundError(errno.ENOENT, "it was replaced by another file", self._path)
            self._descriptor = opened
        return self._descriptor

    def close(self) -> None:
        """Close the descriptor, where it is still ours."""
        if identity_of(self._descriptor) == self._identity:
            os.close(self._descriptor)
