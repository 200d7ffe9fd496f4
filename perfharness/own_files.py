"""Files of ours that stay open in the measured process, whose program may close all descriptors, as daemons do.

The number of a closed one is soon that of a file of the program, which must be neither written nor closed.
"""

from __future__ import annotations

import errno
import os

Identity = tuple[int, int]
PART_BYTES = 1 << 20


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

    def restore(self) -> None:
        """Have the file at its path again where the program has removed it, as with the folder of its results, which is
        ours too; what is written to a mapping of it later is not there. Raises OSError.
        """
        if os.path.exists(self._path):  # noqa: PTH110 - start-up time
            return
        source = self.descriptor()
        os.makedirs(os.path.dirname(self._path), exist_ok=True)  # noqa: PTH103, PTH120
        copy = OwnFile(self._path, self._flags | os.O_CREAT | os.O_EXCL)
        at = 0
        while data := os.pread(source, PART_BYTES, at):
            at += os.write(copy._descriptor, data)
        self.close()
        self._descriptor, self._identity = copy._descriptor, copy._identity

    def close(self) -> None:
        """Close the descriptor, where it is still ours."""
        if identity_of(self._descriptor) == self._identity:
            os.close(self._descriptor)
