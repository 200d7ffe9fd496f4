"""Ctrl-C, SIGTERM and SIGHUP to the launcher: noted, so that the launch ends in good order instead of at any line."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass
class Interrupts:
    """How many came in so far."""

    count: int = 0
    _raising: bool = False

    def note(self) -> None:
        """One more."""
        self.count += 1
        if self._raising:
            raise KeyboardInterrupt

    @contextmanager
    def raising(self) -> Iterator[None]:
        """While open, one more interrupt raises `KeyboardInterrupt`, as it does in any Python program."""
        self._raising = True
        try:
            yield
        finally:
            self._raising = False

    def note_only(self) -> None:
        """From here on, interrupts are only counted again."""
        self._raising = False

    def __bool__(self) -> bool:
        return self.count > 0


@contextmanager
def noting_interrupts() -> Iterator[Interrupts]:
    """While open, these signals are only noted; SIGHUP is ignored where it was before.

    Only the main thread can change what a signal does: opened in another one, nothing is noted.
    """
    interrupts = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return

    def handle(_number: int, _frame: FrameType | None) -> None:
        interrupts.note()

    # Under nohup a closed terminal is to be ignored. (SIGINT is ignored in what a shell puts into the background, too,
    # but whoever sends it to this process then means it.)
    ignored = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set()
    before = {number: signal.signal(number, handle) for number in HANDLED if number not in ignored}
    try:
        yield interrupts
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
