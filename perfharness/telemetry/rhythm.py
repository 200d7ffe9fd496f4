"""A steady beat on the monotonic clock: the n-th tick is due at start + n periods, however long the others took."""

from __future__ import annotations

import time
from collections.abc import Callable

from perfharness.model.telemetry import TickRecord


class Rhythm:
    """Ticks on a grid. Late ticks are counted, and those that could not be begun in their own period are left out.

    Args:
        clock_ns: the monotonic clock.
        wait: waits for so many seconds; returns True where it was woken to end.
    """

    def __init__(
        self,
        source: str,
        period_ns: int,
        wait: Callable[[float], bool],
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.source = source
        self.period_ns = period_ns
        self._wait = wait
        self._clock_ns = clock_ns
        self._start_ns: int | None = None
        self._next = 0
        self.ticks = 0
        self.late = 0
        self.missed = 0
        self.latest_ns = 0

    def next(self) -> bool:
        """Wait for the next tick; False where it is time to end. The first is due at once."""
        now = self._clock_ns()
        if self._start_ns is None:
            self._start_ns = now
        due = self._start_ns + self._next * self.period_ns
        behind = (now - due) // self.period_ns
        if behind > 0:
            self.missed += behind
            self._next += behind
            due += behind * self.period_ns
        if self._wait(max(0, due - now) / 1e9):
            return False
        self._next += 1
        self.ticks += 1
        lateness = self._clock_ns() - due
        self.latest_ns = max(self.latest_ns, lateness)
        self.late += lateness > self.period_ns // 2
        return True

    def record(self) -> TickRecord:
        """How well it was kept."""
        return TickRecord(
            source=self.source, period_ns=self.period_ns, ticks=self.ticks, late=self.late, missed=self.missed,
            latest_ns=self.latest_ns,
        )  # fmt: skip
