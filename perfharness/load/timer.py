"""Waiting for a moment of the monotonic clock, to some ten microseconds."""

from __future__ import annotations

import asyncio
import sys
import threading
from time import perf_counter_ns, sleep

SPIN_NS = 150_000
"""The last part of a wait, in which a thread only gives way to others; what waking up takes."""

LOOP_SPIN_NS = 1_500_000
"""The same of an event loop, whose timers have a resolution of a millisecond."""

SLICE_NS = 50_000_000
"""How soon a wait ends when it is told to stop."""

NOT_STOPPED_NS = sys.maxsize


class Stop(threading.Event):
    """An event that knows when it was set."""

    def __init__(self) -> None:
        super().__init__()
        self.at_ns = NOT_STOPPED_NS

    def set(self) -> None:
        """Set it; the first time counts."""
        self.at_ns = min(self.at_ns, perf_counter_ns())
        super().set()


def wait_until(moment_ns: int, stop: threading.Event) -> bool:
    """Sleep until then; False where `stop` was set before."""
    while moment_ns - perf_counter_ns() > 2 * SLICE_NS:
        if stop.wait(SLICE_NS / 1e9):
            return False
    while (left_ns := moment_ns - perf_counter_ns()) > SPIN_NS:
        sleep((left_ns - SPIN_NS) / 1e9)
    while perf_counter_ns() < moment_ns:
        sleep(0)
    return not stop.is_set()


async def wait_until_async(moment_ns: int, stop: threading.Event) -> bool:
    """The same on an event loop, which goes on meanwhile."""
    while (left_ns := moment_ns - perf_counter_ns()) > LOOP_SPIN_NS:
        await asyncio.sleep(min(left_ns - LOOP_SPIN_NS, SLICE_NS) / 1e9)
        if stop.is_set():
            return False
    while perf_counter_ns() < moment_ns:
        await asyncio.sleep(0)
    return not stop.is_set()
