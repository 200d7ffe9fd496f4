"""The start barrier: no process of a launch enters its first measured batch before all have come to theirs.

The launch holds two FIFOs in the folder that `PERFHARNESS_START_BARRIER` names. A process that is about to enter its
first batch after the warm-up writes its index to `arrivals` and sleeps until there is something to read in `gate`, or
until nobody reads `arrivals` any more: the launch is gone. What the launch writes to `gate` stays there, so whoever
comes later finds it open. Signals get through. A launch that is there and does nothing is not waited for longer than
it has promised.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from perfharness.model import environment


class StartBarrier:
    """The side of the measured process.

    Args:
        folder: where the FIFOs are.
        process_index: what the launch calls this process; children that it makes come under the same index.
        warmup_batches: how many batches of a loop go by before the first measured one.
        limit_s: how long to wait for the launch at most; None: as long as it is there.
    """

    def __init__(self, folder: Path, process_index: int, warmup_batches: int, limit_s: float | None = None) -> None:
        self._folder = folder
        self._process_index = process_index
        self._warmup_batches = warmup_batches
        self._limit_s = limit_s
        self._begun: dict[tuple[object, ...], itertools.count[int]] = {}
        self.is_open = False
        """Whether this process need not ask any more."""

        self.waits: list[dict[str, Any]] = []
        """Each time that a thread of this process waited, for `recorder.json`."""

    def is_first_measured(self, *loop: object) -> bool:
        """Whether the batch about to begin is beyond the warm-up of its loop, whichever thread it runs on."""
        return next(self._begun.setdefault(loop, itertools.count())) >= self._warmup_batches

    def forget_waits(self) -> None:
        """In a forked child: what the parent waited, the parent tells."""
        self.waits = []

    def wait(self, loop: str) -> int:
        """Come to the barrier, sleep until it opens; returns the nanoseconds waited, 0 where nobody holds it."""
        begin_unix_ns, begin_ns = time.time_ns(), time.perf_counter_ns()
        try:
            with (
                _opened(self._folder / environment.BARRIER_ARRIVALS, os.O_WRONLY | os.O_NONBLOCK) as arrivals,
                _opened(self._folder / environment.BARRIER_GATE, os.O_RDONLY | os.O_NONBLOCK) as gate,
            ):
                os.write(arrivals, b"%d %d %d\n" % (self._process_index, os.getpid(), begin_unix_ns))
                self._sleep(gate, arrivals)
        except OSError:  # the launch is over, or never held it
            self.is_open = True
            return 0
        waited_ns = time.perf_counter_ns() - begin_ns
        self.is_open = True
        self.waits.append(
            {
                "loop": loop,
                "thread": threading.get_native_id(),
                "begin_unix_ns": begin_unix_ns,
                "waited_ns": waited_ns,
            }
        )
        return waited_ns

    def _sleep(self, gate: int, arrivals: int) -> None:
        poll = select.poll()
        poll.register(gate, select.POLLIN)
        poll.register(arrivals, 0)  # an error (nobody reads it) is reported whatever is asked for
        poll.poll(None if self._limit_s is None else 1000 * self._limit_s)


def has_background_workers() -> bool:
    """Whether there are other threads of Python or child processes: a data loader's, for one."""
    multiprocessing = sys.modules.get("multiprocessing")
    return threading.active_count() > 1 or (multiprocessing is not None and bool(multiprocessing.active_children()))


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


_barrier: StartBarrier | None = None


def active() -> StartBarrier | None:
    """The barrier of the launch that this process is part of, or None where there is none."""
    global _barrier
    folder = os.environ.get(environment.START_BARRIER)
    if not folder:
        return None
    if _barrier is None:
        _barrier = StartBarrier(
            Path(folder),
            _number(environment.PROCESS_INDEX),
            _number(environment.WARMUP_BATCHES),
            _number(environment.START_BARRIER_LIMIT) or None,
        )
    return _barrier


def _number(variable: str) -> int:
    text = os.environ.get(variable, "")
    return int(text) if text.isdigit() else 0
