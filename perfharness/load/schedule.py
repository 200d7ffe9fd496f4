"""Order of requests in an open and a closed loop: when they are due, and what they ask for.

Seeded: the same profile, the same load.
"""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from perfharness.errors import UsageError
from perfharness.load.profile import MixEntry, Phase, Profile
from perfharness.load.request import LoadRequest
from perfharness.model.columns import Float64, Int64

DRAWN = 1024
"""Entries of the mix that are drawn at a time in a closed loop."""

MOST_ARRIVALS = 5_000_000
"""Per phase: all rows are read at the end."""

GRID = 4096


@dataclass(frozen=True)
class Arrivals:
    """The requests of an open phase that one process sends.

    Args:
        offsets_ns: times since the begin of the phase, ascending.
        ids: ids of the requests.
        kinds: index of the entry of the mix; empty: no mix.
        next_id: the first id after this phase, over all processes.
    """

    offsets_ns: Int64
    ids: Int64
    kinds: Int64
    next_id: int


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
    """Requests at fixed times. One worker at a time takes the next request and waits until it is due."""

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


# ---- arrivals of an open loop ----


def arrivals_of(profile: Profile, index: int, first_id: int = 0, process: int = 0, processes: int = 1) -> Arrivals:
    """The arrivals of the `index`-th phase, an open one. Each of several processes takes every `processes`-th.

    Raises `UsageError` if a file of arrivals cannot be read, or there are too many arrivals.
    """
    phase = profile.phases[index]
    random = np.random.default_rng([profile.seed, index])
    offsets_ns = np.round(arrival_times_s(phase, random) * 1e9).astype(np.int64)
    kinds = draw_kinds(profile.mix, len(offsets_ns), random)
    mine, next_id = slice(process, None, processes), first_id + len(offsets_ns)
    return Arrivals(offsets_ns[mine], np.arange(first_id, next_id)[mine], kinds[mine], next_id)


def check_arrivals(profile: Profile) -> None:
    """Raises `UsageError` if a file of arrivals is unreadable, or a phase has none or too many."""
    for phase in profile.phases:
        if phase.times_file is not None:
            first_s = float(read_arrivals(phase.times_file)[0])
            if first_s >= phase.duration_s:
                raise UsageError(
                    f"{phase.times_file}: its first arrival is after {first_s:.10g} s, but {phase.name} lasts "
                    f"{phase.duration_s:g} s; times are seconds from the begin of the phase"
                )
        elif phase.loop == "open":
            _count(phase, _expected(phase)[1])


def _count(phase: Phase, expected: Float64) -> float:
    total = float(expected[-1])
    if total > MOST_ARRIVALS:
        raise UsageError(
            f"{phase.name} has {total:.3g} requests, more than {MOST_ARRIVALS:,}; use a shorter phase or a lower rate"
        )
    return total


def arrival_times_s(phase: Phase, random: np.random.Generator) -> Float64:
    """Seconds since the begin of the phase, ascending, below its duration."""
    if phase.times_file is not None:
        times = read_arrivals(phase.times_file)
        return times[times < phase.duration_s]
    times, expected = _expected(phase)
    total = _count(phase, expected)
    if phase.arrivals == "constant":
        counts: Float64 = np.arange(int(np.ceil(total - 1e-9)), dtype=np.float64)
    elif phase.arrivals == "poisson":
        counts = _poisson(total, random)
    else:
        counts = np.repeat(_poisson(total / phase.burst, random) * phase.burst, phase.burst)
    return np.interp(counts, expected, times)


def _expected(phase: Phase) -> tuple[Float64, Float64]:
    """Expected number of arrivals up to each time, as points of a piecewise linear function."""
    rate, duration = phase.rate or 0.0, phase.duration_s
    if phase.rate_to is None:
        return np.array([0.0, duration]), np.array([0.0, rate * duration])
    times = np.linspace(0, duration, GRID + 1)
    slope = (phase.rate_to - rate) / duration
    return times, rate * times + slope * times**2 / 2


def _poisson(expected: float, random: np.random.Generator) -> Float64:
    """The times of a Poisson process of rate 1, below `expected`."""
    drawn = np.cumsum(random.exponential(size=int(expected + 10 * expected**0.5 + 20)))
    return drawn[drawn < expected]


def draw_kinds(mix: tuple[MixEntry, ...], count: int, random: np.random.Generator) -> Int64:
    """Draw entries of a mix by their weights, as indices; empty if there is no mix."""
    if not mix:
        return np.empty(0, np.int64)
    weights = np.array([entry.weight for entry in mix], np.float64)
    return random.choice(len(mix), count, p=weights / weights.sum()).astype(np.int64)


def read_arrivals(path: Path) -> Float64:
    """The times in a file: seconds, one per line, ascending. Raises `UsageError`."""
    try:
        times = np.array([float(line) for line in path.read_text("utf-8-sig").split()], np.float64)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(f"{path}: cannot read arrival times ({reason}); one time in seconds per line") from error
    if not len(times) or not np.isfinite(times).all() or (times < 0).any():
        raise UsageError(f"{path}: needs one or more arrival times in seconds, each 0 or more")
    return np.sort(times)
