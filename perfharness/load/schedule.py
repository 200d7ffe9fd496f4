"""Order of requests in an open and a closed loop."""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field

import numpy as np

from perfharness.load.arrivals import Arrivals, MixDraw
from perfharness.load.profile import MixEntry, Phase
from perfharness.load.request import LoadRequest

DRAWN = 1024


@dataclass
class OpenSchedule:
    """Requests at fixed times. One worker at a time waits for the next request (`turn`); workers with a request do not
    wait, so a due request is never delayed by one that is not due.
    """

    phase: Phase
    start_ns: int
    arrivals: Arrivals
    mix: tuple[MixEntry, ...]
    _next: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.end_ns = self.start_ns + round(self.phase.duration_s * 1e9)
        self.due_ns = self.start_ns + self.arrivals.offsets_ns

    def take(self, worker: int, free_ns: int) -> LoadRequest | None:
        """The next request; None: no more. Call only in turn."""
        del worker, free_ns
        if self._next >= len(self.due_ns):
            return None
        found = self._request(self._next)
        self._next += 1
        return found

    def give_back(self) -> None:
        """Return the last taken request, which was not sent."""
        self._next -= 1

    def left(self, now_ns: int) -> list[LoadRequest]:
        """Requests that are due and not taken."""
        due = range(self._next, int(np.searchsorted(self.due_ns, now_ns)))
        return [self._request(index) for index in due]

    def _request(self, index: int) -> LoadRequest:
        entry = self.mix[int(self.arrivals.kinds[index])] if self.mix else None
        return _request(int(self.arrivals.ids[index]), entry, self.phase, int(self.due_ns[index]))


@dataclass
class ClosedSchedule:
    """Users with one request at a time: due when the previous one is answered.

    Args:
        ids: ids of this process's requests, in order.
        random: for the mix.
    """

    phase: Phase
    start_ns: int
    users: int
    ids: itertools.count[int]
    mix: tuple[MixEntry, ...]
    random: np.random.Generator
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _kinds: list[int] = field(default_factory=list, init=False)
    _begun: set[int] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self.end_ns = self.start_ns + round(self.phase.duration_s * 1e9)
        self._draw = MixDraw(self.mix, self.random)

    def take(self, worker: int, free_ns: int) -> LoadRequest | None:
        """The next request of a user; None: it would be due after the end, or there is no such user."""
        if worker >= self.users:
            return None
        with self._lock:
            due_ns = free_ns if worker in self._begun else self.start_ns
            self._begun.add(worker)
            if due_ns >= self.end_ns:
                return None
            entry = self.mix[self._kind()] if self.mix else None
            return _request(next(self.ids), entry, self.phase, due_ns)

    def _kind(self) -> int:
        if not self._kinds:
            self._kinds = self._draw.draw(DRAWN).tolist()
        return self._kinds.pop()


def _request(number: int, entry: MixEntry | None, phase: Phase, due_ns: int) -> LoadRequest:
    items, name = (entry.items, entry.name) if entry else (1, None)
    return LoadRequest(number, items, name, phase.name, due_ns)


Schedule = OpenSchedule | ClosedSchedule
