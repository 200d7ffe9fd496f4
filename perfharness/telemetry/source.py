"""A source of telemetry: metrics that are read together, at the same ticks."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from perfharness.model.telemetry import SubjectRecord

NAN = float("nan")


@dataclass
class Columns:
    """Readings as columns: a number and three times each, no Python object per entry."""

    key: array[int] = field(default_factory=lambda: array("i"))
    time_monotonic_ns: array[int] = field(default_factory=lambda: array("q"))
    value: array[float] = field(default_factory=lambda: array("d"))
    read_ns: array[int] = field(default_factory=lambda: array("q"))

    def __len__(self) -> int:
        return len(self.key)

    def extend(self, more: Columns) -> None:
        """Append other readings."""
        self.key.extend(more.key)
        self.time_monotonic_ns.extend(more.time_monotonic_ns)
        self.value.extend(more.value)
        self.read_ns.extend(more.read_ns)


class Keys:
    """Numbers for (subject, metric), shared by all sources; assigned once, they never change."""

    def __init__(self) -> None:
        self.names: list[tuple[str, str]] = []
        self._number: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()

    def number(self, subject: str, metric: str) -> int:
        """The number of a subject's metric."""
        key = (subject, metric)
        found = self._number.get(key)
        if found is not None:
            return found
        with self._lock:
            if key not in self._number:
                self.names.append(key)
                self._number[key] = len(self.names) - 1
            return self._number[key]


class Tape:
    """Where one source writes its readings; only for the thread that reads it.

    Args:
        clock_ns: the monotonic clock.
    """

    def __init__(self, keys: Keys, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.clock_ns = clock_ns
        self.failures: Counter[tuple[str, str, str]] = Counter()
        self._keys = keys
        self._columns = Columns()
        self._began_ns = 0
        self._middle_ns = 0
        self._took_ns = 0

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Around the call that reads: gives the time of what is written next."""
        self._began_ns = self.clock_ns()
        try:
            yield
        finally:
            ended_ns = self.clock_ns()
            self._took_ns = ended_ns - self._began_ns
            self._middle_ns = self._began_ns + self._took_ns // 2

    @property
    def read_at_ns(self) -> int:
        """Middle of the latest reading."""
        return self._middle_ns

    def write(self, subject: str, metric: str, value: float, *, at_ns: int | None = None) -> None:
        """A reading of the latest `reading`, or at the time that the source reports."""
        columns = self._columns
        columns.time_monotonic_ns.append(self._middle_ns if at_ns is None else at_ns)
        columns.value.append(value)
        columns.read_ns.append(self._took_ns)
        columns.key.append(self._keys.number(subject, metric))

    def fail(self, subject: str, metric: str, reason: str) -> None:
        """The latest reading failed."""
        self.failures[subject, metric, reason] += 1
        self.write(subject, metric, NAN)

    def take(self) -> Columns:
        """What was written since the last time."""
        taken, self._columns = self._columns, Columns()
        return taken


@dataclass(frozen=True)
class TrackedProcess:
    """A measured process that has begun. `pid` is in the namespace of the launcher, which is the sampler's too."""

    subject: str
    pid: int
    gpu_uuid: str | None = None


class Source(ABC):
    """Some metrics that are read together. Each source has a thread of its own, so that none delays another.

    A source opens what it needs when it is made, and says by `subjects` what it reads. Readings that fail are written
    as failed; only what makes the whole source useless may raise.
    """

    name: str
    period_ns: int

    @abstractmethod
    def subjects(self) -> Sequence[SubjectRecord]:
        """What it reads of."""

    @abstractmethod
    def read(self, tape: Tape) -> None:
        """Take one reading of each metric."""

    def follow(self, process: TrackedProcess) -> None:  # noqa: B027 - most sources do not care
        """A measured process has begun. Called from another thread than `read`."""

    def close(self) -> None:  # noqa: B027
        """Release resources; called after the last `read`."""
