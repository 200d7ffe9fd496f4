"""The start barrier: no process of a launch enters its first measured batch before all have reached theirs.

The launch holds two FIFOs in the folder that `PERFHARNESS_START_BARRIER` names. A process about to enter its first
batch after the warm-up writes its index and rank to `arrivals`, and sleeps until `gate` is readable, `arrivals` has no
reader (the launch has ended), or the limit has passed. What the launch writes to `gate` stays there, so a late process
finds the barrier open.
"""

from __future__ import annotations

import os
import select
import threading
import time
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

from perfharness.boot import ranks
from perfharness.model import environment


class StartBarrier:
    """The measured process's side of the barrier.

    Args:
        process_index: the launch's index of this process; its children report the same index.
        warmup_batches: how many batches of a loop precede the first measured one.
        limit_s: longest wait; None: as long as the launch runs.

    Attributes:
        is_open: whether this process need not wait any more.
        waits: each wait of a thread of this process, for `recorder.json`.
    """

    def __init__(self, folder: Path, process_index: int, warmup_batches: int, limit_s: float | None = None) -> None:
        self._folder, self._process_index = folder, process_index
        self._warmup_batches, self._limit_s = warmup_batches, limit_s
        self._begun: dict[str, int] = {}
        self._lock = threading.Lock()
        self.is_open = False
        self.waits: list[dict[str, Any]] = []

    def is_first_measured(self, loop: str) -> bool:
        """Count a batch that is about to begin, on whichever thread; return whether the warm-up is over."""
        with self._lock:
            begun = self._begun[loop] = self._begun.get(loop, 0) + 1
        return begun > self._warmup_batches

    def begin_in_child(self) -> None:
        """Leave the waits of the parent to its own file, in a forked child."""
        self._lock, self.waits = threading.Lock(), []

    def wait(self, loop: str) -> int:
        """Report the arrival and sleep until the barrier opens; return the nanoseconds waited, 0 without a barrier."""
        begin_unix_ns, begin_ns = time.time_ns(), time.perf_counter_ns()
        facts = ranks.rank_facts(os.environ)  # a library does not know how many there are on this host
        rank, size = (-1, -1) if facts is None else (facts["rank"], ranks.ranks_here(facts))
        try:
            with ExitStack() as opened:
                arrivals = _open(self._folder / environment.BARRIER_ARRIVALS, os.O_WRONLY, opened)
                gate = _open(self._folder / environment.BARRIER_GATE, os.O_RDONLY, opened)
                arrival = self._process_index, os.getpid(), begin_unix_ns, rank, -1 if size is None else size
                os.write(arrivals, b"%d %d %d %d %d\n" % arrival)
                poll = select.poll()
                poll.register(gate, select.POLLIN)
                poll.register(arrivals, 0)  # an error (no reader) is always reported
                poll.poll(None if self._limit_s is None else 1000 * self._limit_s)
        except OSError:  # the launch has ended, or had no barrier
            self.is_open = True
            return 0
        waited_ns, self.is_open = time.perf_counter_ns() - begin_ns, True
        thread = threading.get_native_id()
        self.waits.append({"loop": loop, "thread": thread, "begin_unix_ns": begin_unix_ns, "waited_ns": waited_ns})
        return waited_ns


def active() -> StartBarrier | None:
    """Return the barrier of this process's launch, or None."""
    folder = os.environ.get(environment.START_BARRIER)
    return _barrier_in(folder) if folder else None


@cache
def _barrier_in(folder: str) -> StartBarrier:
    variables = environment.PROCESS_INDEX, environment.WARMUP_BATCHES, environment.START_BARRIER_LIMIT
    index, warmup, limit = (int(os.environ.get(name) or 0) for name in variables)
    return StartBarrier(Path(folder), index, warmup, limit or None)


def _open(path: Path, flags: int, opened: ExitStack) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    opened.callback(os.close, descriptor)
    return descriptor
