"""UTC against the monotonic clock: both read back to back, many times; the shortest bracket tells best."""

from __future__ import annotations

import time
from collections.abc import Callable

from perfharness.model.telemetry import ClockTieRecord

LOOKS = 25


class ClockTie:
    """The offset between the clocks as they stood when this was made, and how far UTC has moved since.

    Both clocks are slewed alike (CLOCK_MONOTONIC follows NTP's frequency too, clock_gettime(2)), so the offset changes
    only where UTC is set or stepped.
    """

    def __init__(
        self, monotonic_ns: Callable[[], int] = time.monotonic_ns, unix_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._monotonic_ns = monotonic_ns
        self._unix_ns = unix_ns
        self.offset_ns, self.error_ns = self._measure()
        self._moved_ns = 0

    def look_again(self) -> None:
        """Note how far UTC has moved."""
        offset, error = self._measure()
        moved = offset - self.offset_ns
        if abs(moved) > max(abs(self._moved_ns), self.error_ns + error):
            self._moved_ns = moved

    def record(self) -> ClockTieRecord:
        """As it stands in the file."""
        return ClockTieRecord(offset_ns=self.offset_ns, error_ns=self.error_ns, moved_ns=self._moved_ns)

    def _measure(self) -> tuple[int, int]:
        """UTC less monotonic, and half the time between the two monotonic readings around it."""
        best_width, best_offset = None, 0
        for _ in range(LOOKS):
            before = self._monotonic_ns()
            unix = self._unix_ns()
            after = self._monotonic_ns()
            if best_width is None or after - before < best_width:
                best_width, best_offset = after - before, unix - (before + after) // 2
        return best_offset, max(1, ((best_width or 0) + 1) // 2)
