"""Wait for a time of the monotonic clock, to some ten microseconds."""

from __future__ import annotations

import asyncio
import sys
import threading
from time import perf_counter_ns, sleep

SPIN_NS = 150_000
"""The last part of a wait, in which a thread only yields to others; about the time of a wake-up."""

LOOP_SPIN_NS = 1_500_000
"""The same for an event loop, whose timers have a resolution of one millisecond."""

SLICE_NS = 50_000_000
"""Maximum delay of a wait after it is told to stop."""

NOT_STOPPED_NS = sys.maxsize


class Stop(threading.Event):
    """An event with the time when it was set."""

    def __init__(self) -> None:
        super().__init__()
        self.at_ns = NOT_STOPPED_NS

    def set(self) -> None:
        """Set the event; only the first time counts."""
        self.at_ns = min(self.at_ns, perf_counter_ns())
        super().set()


def wait_until(moment_ns: int, stop: threading.Event) -> bool:
    """Sleep until a time; False if `stop` was set earlier."""
    while moment_ns - perf_counter_ns() > 2 * SLICE_NS:
        if stop.wait(SLICE_NS / 1e9):
            return False
    while (left_ns := moment_ns - perf_counter_ns()) > SPIN_NS:
        sleep((left_ns - SPIN_NS) / 1e9)
    while perf_counter_ns() < moment_ns:
        sleep(0)
    return not stop.is_set()


async def wait_until_async(moment_ns: int, stop: threading.Event) -> bool:
    """Wait on an event loop without blocking it."""
    while (left_ns := moment_ns - perf_counter_ns()) > LOOP_SPIN_NS:
        await asyncio.sleep(min(left_ns - LOOP_SPIN_NS, SLICE_NS) / 1e9)
        if stop.is_set():
            return False
    while perf_counter_ns() < moment_ns:
        await asyncio.sleep(0)
    return not stop.is_set()
