"""`--capture-batches`: the recorder's ranges are recorded while the batches asked for run, and not before or after.

Each loop joins at the start of its own first wanted batch and leaves at the end of its last one; where it joins, the
ranges around it are opened once more for the tracer, and where it leaves, closed. So no batch is recorded in part. The
tracer records from the first that joins until none is left. Ranges that are ended on another thread (`start_range`) are
recorded if they start meanwhile.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

from perfharness.model import conventions, environment
from perfharness.recorder.channels import Channel


class Capture:
    """The wanted batches of each loop of a process: from `first` on, before `last`.

    Args:
        start: has the tracer begin, and returns what ends that.
    """

    def __init__(self, first: int, last: int, start: Callable[[], Callable[[], object]]) -> None:
        self.first, self.last = first, last
        self._start = start
        self._end: Callable[[], object] | None = None
        self._is_over = False
        self._joined = 0
        self._unlock()
        os.register_at_fork(after_in_child=self._unlock)

    def _unlock(self) -> None:
        """Also in a forked child, where no other thread has the lock."""
        self._lock = threading.RLock()

    def join(self) -> bool:
        """Have one loop more be recorded; False: the tracer has stopped already."""
        with self._lock:
            if self._is_over:
                return False
            if self._end is None:
                self._end = self._start()
            self._joined += 1
            return True

    def join_others(self) -> bool:
        """Have what is no loop be recorded, while a loop is; False: none is. The tracer goes on until it leaves."""
        with self._lock:
            if not self._joined:
                return False
            self._joined += 1
            return True

    def leave(self) -> None:
        """One less; the last one ends the tracer's recording."""
        with self._lock:
            self._joined -= 1
            if self._joined or self._end is None:
                return
            self._is_over = True
            self._end()


@cache
def active() -> Capture | None:
    """Of this process; None: everything is recorded."""
    wanted = os.environ.get(environment.CAPTURE_BATCHES)
    if not wanted:
        return None
    first, _, last = wanted.partition(":")
    start = _start_nsys if os.environ.get(environment.TRACER) == "nsys" else _start_nothing
    return Capture(int(first), int(last), start)


def _start_nothing() -> Callable[[], object]:
    """The embedded tracer records what it is given."""
    return lambda: None


def _start_nsys() -> Callable[[], object]:
    """A range of this name, while which is open nsys records; both calls return when it has begun and ended."""
    import nvtx

    name = conventions.CAPTURE_RANGE
    opened = nvtx.start_range(name, domain=name)
    return lambda: nvtx.end_range(opened)


class Gate:
    """What one stack of ranges lets through to the tracer.

    Attributes:
        ranges: recorded, those that were opened once more included.
        batches: recorded.
    """

    def __init__(self, capture: Capture, announce: Callable[[Channel], object]) -> None:
        self.ranges = self.batches = 0
        self._capture = capture
        self._announce = announce
        self._announced: set[int] = set()
        self._open: list[tuple[Channel, Any, int | None]] = []
        self._batches_open = 0
        self._batches_seen = 0
        self._is_joined = False

    def channel(self, real: Channel) -> Channel:
        """The channel by way of this gate."""

        def push(attributes: Any) -> None:
            self._open.append((real, attributes, None))
            if self._is_joined:
                self._record(*self._open[-1])

        def push_batch(attributes: Any, value: int) -> None:
            if not self._batches_open:
                wanted = self._capture.first <= self._batches_seen < self._capture.last
                self._batches_seen += 1
                if wanted and not self._is_joined:
                    self._join()
            self._batches_open += 1
            self._open.append((real, attributes, value))
            if self._is_joined:
                self.batches += 1
                self._record(*self._open[-1])

        def pop() -> None:
            if not self._open:
                return  # opened before a fork
            _, _, value = self._open.pop()
            if self._is_joined:
                real.pop()
            if value is None:
                return
            self._batches_open -= 1
            if self._is_joined and not self._batches_open and self._batches_seen >= self._capture.last:
                self._leave()

        def mark(attributes: Any) -> None:
            if self._is_joined:
                real.mark(attributes)

        def mark_value(attributes: Any, value: int) -> None:
            if self._is_joined:
                real.mark_value(attributes, value)

        return dataclasses.replace(real, push=push, push_value=push_batch, pop=pop, mark=mark, mark_value=mark_value)

    def _record(self, real: Channel, attributes: Any, value: int | None) -> None:
        if id(real) not in self._announced:
            self._announced.add(id(real))
            self._announce(real)
        self.ranges += 1
        if value is None:
            real.push(attributes)
        else:
            real.push_value(attributes, value)

    def _join(self) -> None:
        self._is_joined = self._capture.join()
        if self._is_joined:
            for around in self._open:
                self._record(*around)

    def _leave(self) -> None:
        for real, _, _ in reversed(self._open):
            real.pop()
        self._is_joined = False
        self._capture.leave()
