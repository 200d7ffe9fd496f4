"""A source of telemetry: metrics that are read together, at the same ticks."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from perfharness.model.telemetry import SubjectRecord
from perfharness.telemetry.nvml import Device, Nvml
from perfharness.telemetry.process_tree import ProcessTree
from perfharness.telemetry.protocol import FollowedProcess

NAN = float("nan")


@dataclass(frozen=True)
class Metric:
    """What a metric means.

    A reading holds from then on, until the next, but for `model.telemetry.SINCE_LAST_READING`.

    Args:
        name: with its unit.
        meaning: for the documentation, without the unit.
        of: kind of its subject; cores and MIG instances count as host and GPU.
        counter: the value only grows, and a difference of two readings is what counts.
        computed: the value is made at the reading, or delivered once; else the source updates it now and then, and
            readings repeat.
    """

    name: str
    meaning: str
    of: Literal["gpu", "process", "host"]
    counter: bool = False
    computed: bool = False


class Reading(NamedTuple):
    """A number for the (subject, metric), the middle of the reading, the value (NaN: it failed), how long it took."""

    key: int
    time_monotonic_ns: int
    value: float
    read_ns: int


class Keys:
    """Numbers for (subject, metric), shared by all sources; assigned once, they never change."""

    def __init__(self) -> None:
        self.names: list[tuple[str, str]] = []
        self._number: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()

    def number(self, subject: str, metric: str) -> int:
        """The number of a subject's metric."""
        with self._lock:
            number = self._number.setdefault((subject, metric), len(self.names))
            if number == len(self.names):
                self.names.append((subject, metric))
            return number


class Tape:
    """Where one source writes its readings; only for the thread that reads it.

    Args:
        clock_ns: the monotonic clock.
    """

    def __init__(self, keys: Keys, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.failures: Counter[tuple[str, str, str]] = Counter()
        self.read_at_ns = 0
        """Middle of the latest reading."""

        self._clock_ns = clock_ns
        self._keys = keys
        self._readings: list[Reading] = []
        self._took_ns = 0

    def now_ns(self) -> int:
        """Of the clock that readings are stamped with."""
        return self._clock_ns()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Around the call that reads: gives the time of what is written next."""
        began_ns = self._clock_ns()
        try:
            yield
        finally:
            self._took_ns = self._clock_ns() - began_ns
            self.read_at_ns = began_ns + self._took_ns // 2

    def write(self, subject: str, metric: str, value: float, *, at_ns: int | None = None) -> None:
        """A reading of the latest `reading`, or at the time that the source reports."""
        at_ns = self.read_at_ns if at_ns is None else at_ns
        self._readings.append(Reading(self._keys.number(subject, metric), at_ns, value, self._took_ns))

    def fail(self, subject: str, metric: str, reason: str) -> None:
        """The latest reading failed."""
        self.failures[subject, metric, reason] += 1
        self.write(subject, metric, NAN)

    def take(self) -> list[Reading]:
        """What was written since the last time."""
        taken, self._readings = self._readings, []
        return taken


@dataclass(frozen=True)
class SamplerContext:
    """What sources are made of.

    Args:
        period_ns: asked for.
        devices: the chosen GPUs and MIG instances, the parents of these before them; of `nvml`.
        unix_offset_ns: UTC less monotonic.
    """

    period_ns: int
    nvml: Nvml | None = None
    devices: Sequence[Device] = ()
    unix_offset_ns: int = 0


class Source(ABC):
    """Some metrics that are read together. Each source has a thread of its own, so that none delays another.

    A source opens what it needs when it is made. Readings that fail are written as failed; only what makes the whole
    source useless may raise.
    """

    name: ClassVar[str]
    metrics: ClassVar[tuple[Metric, ...]]
    period_limits_ns: ClassVar[tuple[int, int]] = (0, 1 << 62)
    """It is not read more often nor more rarely, whatever was asked for."""

    def __init__(self, context: SamplerContext) -> None:
        least, most = self.period_limits_ns
        self.period_ns = min(max(context.period_ns, least), most)

    @classmethod
    def applies(cls, _: SamplerContext) -> bool:
        """Whether there is anything to read."""
        return True

    def subjects(self) -> Sequence[SubjectRecord]:
        """Subjects that no other source reports."""
        return []

    @abstractmethod
    def read(self, tape: Tape) -> None:
        """Take one reading of each metric."""

    def follow(self, process: FollowedProcess) -> None:  # noqa: B027 - most sources do not care
        """A measured process has begun. Called from another thread than `read`."""


class FollowingSource(Source):
    """A source that reads the followed processes, each with its descendants."""

    def __init__(self, context: SamplerContext) -> None:
        super().__init__(context)
        self.followed: tuple[tuple[FollowedProcess, ProcessTree], ...] = ()

    def follow(self, process: FollowedProcess) -> None:
        """Read this process too from now on."""
        # Another thread may be reading: the tuple is replaced, never changed.
        self.followed = (*self.followed, (process, ProcessTree(process.pid)))
