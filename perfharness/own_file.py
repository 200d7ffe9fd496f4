"""Files of perfharness that stay open while a script runs, which may close every descriptor that it finds.

A program that becomes a daemon closes all; the system then gives their numbers to files that the script opens. What is
written by number would end up in these.
"""

from __future__ import annotations

import os

PART_BYTES = 1 << 20


class OwnFile:
    """A file that is written by its descriptor, as long as that is still this file's; else it is opened again.

    Args:
        path: absolute.
        flags: as of `os.open`.

    Raises `OSError`.
    """

    __slots__ = ("_descriptor", "_flags", "_identity", "path")

    def __init__(self, path: str, flags: int) -> None:
        self.path = path
        self._flags = flags | os.O_CLOEXEC
        self._descriptor = os.open(path, self._flags, 0o666)
        self._identity = identity_of(self._descriptor)

    def fileno(self) -> int:
        """The descriptor. Raises `OSError` where the file is closed and gone."""
        if identity_of(self._descriptor) != self._identity:
            found = os.open(self.path, self._flags & ~(os.O_CREAT | os.O_EXCL | os.O_TRUNC))
            if identity_of(found) != self._identity:
                os.close(found)
                raise OSError(f"the script closed {self.path}, and there is another file of that name")
            self._descriptor = found
        return self._descriptor

    def restore(self) -> None:
        """Have the file at its path again where the script has removed it, as with the folder of its results, which
        is ours too; what is written to a mapping of it later is not there. Raises `OSError`.
        """
        if os.path.exists(self.path):  # noqa: PTH110 - start-up time
            return
        source = self.fileno()
        os.makedirs(os.path.dirname(self.path), exist_ok=True)  # noqa: PTH103, PTH120
        copy = OwnFile(self.path, self._flags | os.O_CREAT | os.O_EXCL)
        at = 0
        while data := os.pread(source, PART_BYTES, at):
            at += os.write(copy.fileno(), data)
        self.close()
        self._descriptor, self._identity = copy._descriptor, copy._identity

    def close(self) -> None:
        """Close it; a number that is another file's by now is left alone."""
        if identity_of(self._descriptor) == self._identity:
            os.close(self._descriptor)


def identity_of(descriptor: int) -> tuple[int, int] | None:
    """Which file a descriptor is of; None where it is closed."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino
