"""Which threads take the CPUs that a stage waits for: those of its own process, of its siblings, or of others."""

from __future__ import annotations

from dataclasses import dataclass

TOLERANCE = 0.25
"""By how much the number of threads of a process may exceed a whole number."""


@dataclass(frozen=True)
class CpuSupply:
    """The CPUs that a process shares with its siblings, processes of the same launch.

    `threads`: how many threads of all these processes run, or are ready to, at once; None: not known.
    """

    cpus: int | None = None
    processes: int = 1
    threads: float | None = None

    @property
    def is_contended(self) -> bool:
        """Whether several processes have more threads than CPUs together."""
        if self.cpus is None or self.threads is None or self.processes < 2:
            return False
        return self.threads > self.cpus + TOLERANCE * self.processes
