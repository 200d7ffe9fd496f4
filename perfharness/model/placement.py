"""Where a process runs: CPUs, physical cores, memory nodes, and what is near a GPU. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

CpuBind = Literal["auto", "none", "numa", "cores"]


@dataclass(frozen=True)
class CpuTopology:
    """The CPUs of a machine.

    Args:
        allowed: those that the launcher may run on: cgroup, taskset and the like taken off.
        online: all that the machine runs.
        cores: the allowed CPUs of each physical core, SMT siblings together.
        nodes: CPUs of each NUMA node.
    """

    allowed: frozenset[int]
    online: frozenset[int]
    cores: tuple[tuple[int, ...], ...]
    nodes: Mapping[int, frozenset[int]] = field(default_factory=dict)

    def cores_in(self, cpus: frozenset[int]) -> list[tuple[int, ...]]:
        """The physical cores of which all allowed CPUs are among these, in order of their first CPU."""
        return sorted(core for core in self.cores if cpus.issuperset(core))


@dataclass(frozen=True)
class GpuLocality:
    """What is near a GPU.

    Args:
        cpus: the nearest ones; empty where that is not known.
        source: who said so.
        problem: why nothing is known.
    """

    cpus: frozenset[int] = frozenset()
    source: str = ""
    problem: str | None = None


@dataclass(frozen=True)
class Placement:
    """Where one process is put.

    Args:
        cpus: it may run on these and no others; empty: not bound.
        how: for messages.
    """

    cpus: tuple[int, ...] = ()
    how: str = "not bound"


def cpu_list(cpus: Iterable[int]) -> str:
    """`{0, 1, 2, 8}` -> `0-2,8`, as the kernel writes it."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in runs)


def parse_cpu_list(text: str) -> frozenset[int]:
    """The other way; what is no list of CPUs is empty."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdigit() and (not last or last.isdigit()):
            found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)
