"""How far another node's clock is from this one's, and by how much that may be off."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

ROUND_TRIPS = 64


@dataclass(frozen=True)
class ClockOffset:
    """The other node's UTC less this one's."""

    offset_ns: int
    error_ns: int


def measure_offset(ask: Callable[[], int], clock: Callable[[], int] = time.time_ns) -> ClockOffset:
    """Ask for the other clock's time, and take the fastest answer: it was read between this clock's two readings."""
    trips = []
    for _ in range(ROUND_TRIPS):
        before, other = clock(), ask()
        trips.append((clock() - before, before, other))
    length, before, other = min(trips)
    return ClockOffset(other - before - length // 2, abs(length) // 2 + 1)
