"""Offset between the clocks of two nodes, and its error."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

ROUND_TRIPS = 64


@dataclass(frozen=True)
class ClockOffset:
    """UTC of the other node minus UTC of this node."""

    offset_ns: int
    error_ns: int


def measure_offset(ask: Callable[[], int], clock: Callable[[], int] = time.time_ns) -> ClockOffset:
    """Compare the clocks by the fastest of several round trips."""
    trips = []
    for _ in range(ROUND_TRIPS):
        before, other = clock(), ask()
        trips.append((clock() - before, before, other))
    length, before, other = min(trips)
    return ClockOffset(other - before - length // 2, abs(length) // 2 + 1)
