"""Note Ctrl-C, SIGTERM and SIGHUP, so that a launch ends in order instead of at any line."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass
class Interrupts:
    """Number of interrupts; if `raises`, the next one raises `KeyboardInterrupt`."""

    count: int = 0
    raises: bool = False

    def note(self) -> None:
        """Count an interrupt."""
        self.count += 1
        if self.raises:
            raise KeyboardInterrupt

    def __bool__(self) -> bool:
        return self.count > 0


@contextmanager
def noting_interrupts() -> Iterator[Interrupts]:
    """Only note the signals while open; does nothing outside of the main thread."""
    interrupts = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    # keep SIGHUP ignored under nohup, but not SIGINT, which a shell ignores for background jobs
    ignored = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set()
    before = {number: signal.signal(number, lambda *_: interrupts.note()) for number in {*HANDLED} - ignored}
    try:
        yield interrupts
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
