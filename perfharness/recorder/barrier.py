"""Start barrier: all processes of a launch begin their first measured batch together.

The launch holds two FIFOs in the folder `PERFHARNESS_START_BARRIER`. Before its first batch after
the warm-up, a process writes its index and rank to `arrivals`. It sleeps until `gate` is readable,
`arrivals` has no reader (the launch has ended) or the time limit passes. Nobody reads `gate`, so
late processes find the barrier open.
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
    """The barrier in a measured process.

    Args:
        process_index: index of this process in the launch; its children report the same index.
        warmup_batches: unmeasured batches at the start of a loop.

    Attributes:
        is_open: whether this process may go on without waiting.
        waits: waits of this process's threads, for `recorder.json`.
    """

    def __init__(self, folder: Path, process_index: int, warmup_batches: int, limit_s: float | None = None) -> None:
        self._folder, self._process_index = folder, process_index
        self._warmup_batches, self._limit_s = warmup_batches, limit_s
        self._begun: dict[str, int] = {}
        self._lock = threading.Lock()
        self.is_open = False
        self.waits: list[dict[str, Any]] = []

    def is_first_measured(self, loop: str) -> bool:
        """Count a batch before it begins; return whether the warm-up is over."""
        with self._lock:
            begun = self._begun[loop] = self._begun.get(loop, 0) + 1
        return begun > self._warmup_batches

    def begin_in_child(self) -> None:
        """Reset lock and waits in a forked child."""
        self._lock, self.waits = threading.Lock(), []

    def wait(self, loop: str) -> int:
        """Wait until the barrier opens; return the nanoseconds waited, 0 without a barrier."""
        begin_unix_ns, begin_ns = time.time_ns(), time.perf_counter_ns()
        facts = ranks.rank_facts(os.environ)  # libraries do not know how many ranks this host has
        rank, size = (-1, -1) if facts is None else (facts["rank"], ranks.ranks_here(facts))
        try:
            with ExitStack() as opened:
                arrivals = _open(self._folder / environment.BARRIER_ARRIVALS, os.O_WRONLY, opened)
                gate = _open(self._folder / environment.BARRIER_GATE, os.O_RDONLY, opened)
                arrival = self._process_index, os.getpid(), begin_unix_ns, rank, -1 if size is None else size
                os.write(arrivals, b"%d %d %d %d %d\n" % arrival)
                poll = select.poll()
                poll.register(gate, select.POLLIN)
                poll.register(arrivals, 0)  # reports only errors: no reader
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
