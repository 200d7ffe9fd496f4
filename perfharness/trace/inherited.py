"""What the ids of NVTX domains and categories mean in a forked child, which inherits them from its parent.

Facts read off nsys 2023.4 with nvtx 0.2.11: a forked child goes on with the ids that its parent had, and NVTX_EVENTS
holds their definitions under the parent's pid only. What the child defines itself is numbered from 1 again, so that one
number may mean two things in it. The trace does not hold the process tree; the recorders' journals know it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from perfharness.model.findings import Finding, Severity
from perfharness.model.trace import ID_MASK, Bool, Int64, pid_of
from perfharness.trace.names import lookup

NO_NAME = -1

ParentPids = Mapping[int, int]
"""Pid of a process -> pid of its parent, as far as it is known."""

Id = tuple[int, ...]
"""A domain, or a domain and a category; unique in a process only."""


@dataclass(frozen=True)
class Definitions:
    """Names of ids: `keys` are columns of the process and the id; of equal ones the first counts.

    `time_ns` is when a process defined them, or the smallest integer.
    """

    keys: list[Int64]
    time_ns: Int64
    name: Int64

    def cover(self, keys: list[Int64], time_ns: Int64) -> Bool:
        """Whether each of these ids was defined by the process that uses it, before it used it."""
        defined: Bool = lookup(keys, self.keys, self.name) >= 0
        if len(self.name) and (self.keys[0] != self.keys[0][0]).any():
            defined &= lookup(keys, self.keys, self.time_ns) <= time_ns
        return defined


@dataclass(frozen=True)
class Inherited:
    """Names of ids that processes use without having defined them before, and what could not be found out.

    `ids` are those, the process before each. `forked`: processes that use an id of another one. `unclear`: per process,
    events whose id may mean several things.
    """

    definitions: Definitions
    ids: frozenset[Id]
    forked: frozenset[int]
    unclear: dict[int, int]


class Family:
    """Who defined which ids, and who descends from whom."""

    def __init__(self, definitions: Definitions, parents: ParentPids) -> None:
        self._parents = {pid & ID_MASK: parent & ID_MASK for pid, parent in parents.items()}
        self._names: dict[Id, dict[int, int]] = {}
        processes, *ids = (column.tolist() for column in definitions.keys)
        for process, key, name in zip(processes, zip(*ids, strict=True), definitions.name.tolist(), strict=True):
            self._names.setdefault(key, {}).setdefault(process, name)

    def inherited_names(self, process: int, key: Id) -> set[int]:
        """What an id may mean that a process did not define: what its ancestors called it, else what anybody did."""
        others = {name for other, name in self._names.get(key, {}).items() if other != process}
        return self._names_of_ancestors(process, key) or others

    def _names_of_ancestors(self, process: int, key: Id) -> set[int]:
        defined = {pid_of(other): name for other, name in self._names.get(key, {}).items()}
        found: set[int] = set()
        seen = {pid_of(process)}
        ancestor = self._parents.get(pid_of(process))
        while ancestor is not None and ancestor not in seen:
            found |= {defined[ancestor]} if ancestor in defined else set()
            seen.add(ancestor)
            ancestor = self._parents.get(ancestor)
        return found

    def with_two_meanings(self, inherited: Inherited) -> list[tuple[int, Id]]:
        """Ids that forked processes defined though one that they inherit has the same number."""
        return [
            (process, key)
            for key, names in self._names.items()
            for process, name in names.items()
            if process in inherited.forked
            and (self._names_of_ancestors(process, key) - {name} or (process, *key) in inherited.ids)
        ]


def inherit(uses: Iterable[tuple[Id, int]], definitions: Definitions, parents: ParentPids) -> Inherited:
    """Find the names of ids that are used without a definition.

    Args:
        uses: process and id, and how many events there are of it; an id may come more than once.
        definitions: what processes defined themselves.
        parents: the process tree, as far as it is known.
    """
    family = Family(definitions, parents)
    counts: dict[Id, int] = {}
    for key, count in uses:
        counts[key] = counts.get(key, 0) + count
    found: dict[Id, int] = {}
    forked: set[int] = set()
    unclear: dict[int, int] = {}
    for use, count in counts.items():
        process = use[0]
        names = family.inherited_names(process, use[1:])
        if names:
            forked.add(process)
        if len(names) == 1:
            found[use] = names.pop()
        elif names:
            unclear[process] = unclear.get(process, 0) + count
    columns = np.asarray(list(found), dtype=np.int64).reshape(len(found), len(definitions.keys)).T
    return Inherited(
        Definitions(
            list(columns), np.zeros(len(found), dtype=np.int64), np.asarray(list(found.values()), dtype=np.int64)
        ),
        frozenset(found),
        frozenset(forked),
        unclear,
    )


def unclear_ids(unclear: Mapping[int, int]) -> list[Finding]:
    """The finding about events whose domain or category is not known for certain."""
    if not unclear:
        return []
    pids = ", ".join(str(pid_of(process)) for process in sorted(unclear)[:5])
    return [
        Finding(
            "inherited-ids-unclear",
            Severity.ERROR,
            f"{sum(unclear.values())} NVTX events of forked process(es) {pids} have a domain or category whose number "
            "stands for different names, and the trace does not tell which of them was meant; they may be missing or "
            "stand under a wrong name.",
            "Start workers with the spawn method, or make recorders and NVTX domains in each worker after the fork.",
        )
    ]
