"""Order of requests in an open and a closed loop."""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field

import numpy as np

from perfharness.load.arrivals import Arrivals, draw_kinds
from perfharness.load.profile import MixEntry, Phase
from perfharness.load.request import LoadRequest
from perfharness.model.columns import Int64

DRAWN = 1024


@dataclass
class Schedule:
    """The requests of a phase that this process sends."""

    phase: Phase
    start_ns: int
    mix: tuple[MixEntry, ...]
    due_ns: Int64 = field(default_factory=lambda: np.empty(0, np.int64), init=False)
    """Due times, if they are known in advance."""

    @property
    def end_ns(self) -> int:
        """End of the phase."""
        return self.start_ns + round(self.phase.duration_s * 1e9)

    def take(self, worker: int, free_ns: int) -> LoadRequest | None:
        """The next request of a worker that has been free since `free_ns`; None: no more."""
        raise NotImplementedError

    def give_back(self) -> None:
        """Return the last taken request, which was not sent."""

    def left(self, now_ns: int) -> list[LoadRequest]:
        """Requests that are due and not taken."""
        del now_ns
        return []

    def _request(self, number: int, kind: int, due_ns: int) -> LoadRequest:
        items, name = (self.mix[kind].items, self.mix[kind].name) if self.mix else (1, None)
        return LoadRequest(number, items, name, self.phase.name, due_ns)


@dataclass
class OpenSchedule(Schedule):
    """Requests at fixed times. One worker at a time takes the next request and waits for it; workers with a request do
    not wait, so a due request is never delayed by one that is not due.
    """

    arrivals: Arrivals
    _next: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.due_ns = self.start_ns + self.arrivals.offsets_ns

    def take(self, worker: int, free_ns: int) -> LoadRequest | None:
        """The next request, whatever the worker."""
        del worker, free_ns
        if self._next >= len(self.due_ns):
            return None
        self._next += 1
        return self._of(self._next - 1)

    def give_back(self) -> None:
        """Return the last taken request, which was not sent."""
        self._next -= 1

    def left(self, now_ns: int) -> list[LoadRequest]:
        """Requests that are due and not taken."""
        return [self._of(index) for index in range(self._next, int(np.searchsorted(self.due_ns, now_ns)))]

    def _of(self, index: int) -> LoadRequest:
        kind = int(self.arrivals.kinds[index]) if self.mix else 0
        return self._request(int(self.arrivals.ids[index]), kind, int(self.due_ns[index]))


@dataclass
class ClosedSchedule(Schedule):
    """Users with one request at a time: due when the previous one is answered.

    Args:
        ids: ids of this process's requests, in order.
        random: for the mix.
    """

    users: int
    ids: itertools.count[int]
    random: np.random.Generator
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _kinds: list[int] = field(default_factory=list, init=False)
    _begun: set[int] = field(default_factory=set, init=False)

    def take(self, worker: int, free_ns: int) -> LoadRequest | None:
        """The next request of a user; None: it would be due after the end, or there is no such user."""
        with self._lock:
            due_ns = free_ns if worker in self._begun else self.start_ns
            if worker >= self.users or due_ns >= self.end_ns:
                return None
            self._begun.add(worker)
            if self.mix and not self._kinds:
                self._kinds = draw_kinds(self.mix, DRAWN, self.random).tolist()
            return self._request(next(self.ids), self._kinds.pop() if self.mix else 0, due_ns)
