"""The start barrier: no process of a launch enters its first measured batch before all have reached theirs.

The launch holds two FIFOs in the folder that `PERFHARNESS_START_BARRIER` names. A process that is about to enter its
first batch after the warm-up writes its index to `arrivals` and sleeps until `gate` is readable, or until `arrivals`
has no reader any more: the launch has ended. It says too which rank it is, of how many on this host. What the launch
writes to `gate` stays there, so a late process finds it open. Signals are delivered meanwhile. The wait for a launch
that runs but does nothing has a limit.
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

from perfharness.model import environment, ranks


class StartBarrier:
    """The measured process's side of the barrier.

    Args:
        folder: where the FIFOs are.
        process_index: the launch's index of this process; its children report the same index.
        warmup_batches: how many batches of a loop precede the first measured one.
        limit_s: longest wait, seconds; None: as long as the launch runs.
    """

    def __init__(self, folder: Path, process_index: int, warmup_batches: int, limit_s: float | None = None) -> None:
        self._folder = folder
        self._process_index = process_index
        self._warmup_batches = warmup_batches
        self._limit_s = limit_s
        self._begun: dict[tuple[object, ...], itertools.count[int]] = {}
        self.is_open = False
        """Whether this process need not wait any more."""

        self.waits: list[dict[str, Any]] = []
        """Each wait of a thread of this process, for `recorder.json`."""

    def is_first_measured(self, *loop: object) -> bool:
        """Whether the batch about to begin is beyond the warm-up of its loop, whichever thread it runs on."""
        return next(self._begun.setdefault(loop, itertools.count())) >= self._warmup_batches

    def forget_waits(self) -> None:
        """In a forked child: the parent records its own waits."""
        self.waits = []

    def wait(self, loop: str) -> int:
        """Report the arrival and sleep until the barrier opens; returns the nanoseconds waited, 0 without a barrier."""
        begin_unix_ns, begin_ns = time.time_ns(), time.perf_counter_ns()
        try:
            with (
                _opened(self._folder / environment.BARRIER_ARRIVALS, os.O_WRONLY | os.O_NONBLOCK) as arrivals,
                _opened(self._folder / environment.BARRIER_GATE, os.O_RDONLY | os.O_NONBLOCK) as gate,
            ):
                os.write(arrivals, b"%d %d %d %d %d\n" % (self._process_index, os.getpid(), begin_unix_ns, *_rank()))
                self._sleep(gate, arrivals)
        except OSError:  # the launch has ended, or had no barrier
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
        poll.register(arrivals, 0)  # an error (no reader) is always reported
        poll.poll(None if self._limit_s is None else 1000 * self._limit_s)


def _rank() -> tuple[int, int]:
    """Which rank this process is, and how many there are on this host; -1 for what is not known."""
    facts = ranks.rank_facts()
    if facts is None:
        return -1, -1
    size = ranks.ranks_here(facts)
    return facts["rank"], -1 if size is None else size


def has_background_workers() -> bool:
    """Whether there are other Python threads or child processes, such as a data loader's."""
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
    """The barrier of this process's launch, or None."""
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
