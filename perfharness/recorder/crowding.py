"""How long each thread has waited for a CPU while its own process had almost all that it may use."""

from __future__ import annotations

from os import sched_getaffinity  # names of our own: a script may have the modules' annotated
from time import process_time_ns

ALMOST_ALL = 0.8
"""Of the CPUs that the process may use. Threads that get so much, and are no more than CPUs, wait for a fifth of the
time at most, whoever else is there; with less, who had the CPUs meanwhile is not known."""


class Crowding:
    """Of one thread, by readings that follow each other."""

    def __init__(self) -> None:
        self.spent_ns = 0
        self.used_ns = 0
        """CPU time of the process, as it was last read."""
        self._read: tuple[int, int, int] | None = None

    def read(self, now_ns: int, queued_ns: int) -> int:
        """What was counted so far, ns.

        Args:
            now_ns: of a monotonic clock.
            queued_ns: how long the thread has waited for a CPU until now.
        """
        used_ns = self.used_ns = process_time_ns()
        if self._read is not None:
            then_ns, used_before_ns, queued_before_ns = self._read
            queued = queued_ns - queued_before_ns
            if queued > 0 and used_ns - used_before_ns >= ALMOST_ALL * _cpus() * (now_ns - then_ns):
                self.spent_ns += queued
        self._read = now_ns, used_ns, queued_ns
        return self.spent_ns


def _cpus() -> int:
    return len(sched_getaffinity(0))
