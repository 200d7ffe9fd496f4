"""Standard streams that may fail without ending a measurement: a closed terminal or reader, a full disk."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

GONE = frozenset({errno.EPIPE, errno.EIO, errno.EBADF, errno.ENXIO})
"""The reader has closed the stream; that is no error."""


class LastingStream:
    """A text stream that swallows what cannot be written; from the first failure on, everything.

    Args:
        stream: with a file descriptor, which then leads nowhere, so that Python finds nothing to fail at its end.
        notice: where a failure is reported that is not a closed reader.
    """

    def __init__(self, stream: TextIO, notice: TextIO | None = None) -> None:
        self._stream = stream
        self._notice = notice

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write; discard the text where that fails."""
        try:
            return self._stream.write(text)
        except OSError as error:
            self._give_up(error)
        return len(text)

    def flush(self) -> None:
        """Flush; ignore a failure."""
        try:
            self._stream.flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
        if self._notice is not None and error.errno not in GONE:
            self._notice.write(
                f"perfharness: {self._stream.name} cannot be written to ({error.strerror}); the measurement goes on\n"
            )


@contextlib.contextmanager
def lasting_streams() -> Iterator[None]:
    """While open, and for what still goes out after it, `sys.stdout` and `sys.stderr` do not fail."""
    before = sys.stdout, sys.stderr
    if sys.stdout is None or sys.stderr is None:  # closed before Python began
        yield
        return
    err = LastingStream(sys.stderr)
    sys.stdout, sys.stderr = LastingStream(sys.stdout, err), err  # type: ignore[arg-type]
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = before
