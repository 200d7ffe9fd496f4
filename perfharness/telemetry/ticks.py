"""The sampler's clocks: when each tick is due on the monotonic clock, and the offset of UTC from it."""

from __future__ import annotations

import time
from collections.abc import Callable

from perfharness.model.telemetry import ClockTieRecord, TickRecord

READINGS = 25
"""Pairs of readings of both clocks; the shortest bracket is the best."""


class Ticker:
    """Ticks on a grid: the n-th is due at start + n periods, however long the others took.

    Late ticks are counted, and those that could not be begun in their own period are left out; so is how many of them
    are due to readings that took long.

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
        self.overrun = 0
        self.longest_ns = 0
        self._begun_ns, self._lateness_ns = 0, 0

    def next(self) -> bool:
        """Wait for the next tick; False where it is time to end. The first is due immediately."""
        now = self._clock_ns()
        if self._start_ns is None:
            self._start_ns = self._begun_ns = now
        took_ns = now - self._begun_ns
        self.longest_ns = max(self.longest_ns, took_ns)
        due = self._start_ns + self._next * self.period_ns
        behind = (now - due) // self.period_ns
        if behind > 0:
            self.missed += behind
            self.overrun += behind if took_ns > self._lateness_ns else 0
            self._next += behind
            due += behind * self.period_ns
        if self._wait(max(0, due - now) / 1e9):
            return False
        self._next += 1
        self.ticks += 1
        self.overrun += now - due > self.period_ns // 2 and took_ns > self._lateness_ns
        self._begun_ns = self._clock_ns()
        self._lateness_ns = self._begun_ns - due
        self.latest_ns = max(self.latest_ns, self._lateness_ns)
        self.late += self._lateness_ns > self.period_ns // 2
        return True

    def record(self) -> TickRecord:
        """Late and missed ticks."""
        return TickRecord(
            source=self.source, period_ns=self.period_ns, ticks=self.ticks, late=self.late, missed=self.missed,
            latest_ns=self.latest_ns, overrun=self.overrun, longest_ns=self.longest_ns,
        )  # fmt: skip


class ClockTie:
    """The offset between the clocks as they stood when this was made, and how far UTC has moved since.

    Both clocks are slewed by NTP (CLOCK_MONOTONIC too, clock_gettime(2)), so the offset changes only where UTC is set
    or stepped.
    """

    def __init__(
        self, monotonic_ns: Callable[[], int] = time.monotonic_ns, unix_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._monotonic_ns = monotonic_ns
        self._unix_ns = unix_ns
        self.offset_ns, self.error_ns = self._measure()
        self._moved_ns = 0

    def read_again(self) -> None:
        """Note how far UTC has moved."""
        offset, error = self._measure()
        moved = offset - self.offset_ns
        if abs(moved) > max(abs(self._moved_ns), self.error_ns + error):
            self._moved_ns = moved

    def record(self) -> ClockTieRecord:
        """As in the file."""
        return ClockTieRecord(offset_ns=self.offset_ns, error_ns=self.error_ns, moved_ns=self._moved_ns)

    def _measure(self) -> tuple[int, int]:
        """UTC less monotonic, and half the time between the two monotonic readings around it."""
        best_width, best_offset = None, 0
        for _ in range(READINGS):
            before = self._monotonic_ns()
            unix = self._unix_ns()
            after = self._monotonic_ns()
            if best_width is None or after - before < best_width:
                best_width, best_offset = after - before, unix - (before + after) // 2
        return best_offset, max(1, ((best_width or 0) + 1) // 2)
