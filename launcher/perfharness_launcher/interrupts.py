"""Ctrl-C, SIGTERM and SIGHUP to the launcher: noted, so that the launch ends in good order instead of at any line."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass
class Interrupts:
    """How many came in so far."""

    count: int = 0
    raises: bool = False
    """Whether the next one raises `KeyboardInterrupt`, as in any Python program."""

    def note(self) -> None:
        """One more."""
        self.count += 1
        if self.raises:
            raise KeyboardInterrupt

    def __bool__(self) -> bool:
        return self.count > 0


@contextmanager
def noting_interrupts() -> Iterator[Interrupts]:
    """While open, these signals are only noted; outside of the main thread, which alone may handle them, nothing is."""
    interrupts = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    # Under nohup a closed terminal is to be ignored. A shell ignores SIGINT for what it puts into the background, too,
    # but whoever sends it to this process means it.
    ignored = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set()
    before = {number: signal.signal(number, lambda *_: interrupts.note()) for number in {*HANDLED} - ignored}
    try:
        yield interrupts
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
