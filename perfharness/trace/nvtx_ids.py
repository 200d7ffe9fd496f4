"""The names of NVTX domains and categories, whose ids are unique in a process only, in forked processes too.

Facts read off nsys 2023.4 with nvtx 0.2.11: a forked child goes on with the ids that its parent had, and NVTX_EVENTS
holds their definitions under the parent's pid only. What the child defines itself is numbered from 1 again, so that one
number may mean two things in it. The trace does not hold the process tree; the recorders' journals know it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from perfharness.model import nsys_schema as schema
from perfharness.model.findings import Finding, Severity
from perfharness.model.trace import ID_MASK, PROCESS_MASK, Bool, Int64, Integers, pid_of
from perfharness.trace.names import NameTable, find_rows


def name_ids(
    events: dict[str, Integers], is_used: Bool, names: NameTable, parents: Mapping[int, int]
) -> tuple[Int64, Int64, list[Finding]]:
    """Name codes of the domains and of the categories of all events, -1: none; and what is not known for certain.

    An id means what its process defined before, else what the nearest ancestor did, else what the only other process
    did that defined it. A domain without a definition is not the default one: it is called by number and process.

    Args:
        events: columns of the NVTX table, with name codes as `name`.
        is_used: which events are ranges or marks.
        names: gets the names of domains without a definition.
        parents: pid -> pid of its parent, as far as known.
    """
    parents = {pid & ID_MASK: parent & ID_MASK for pid, parent in parents.items()}
    process = events["globalTid"] & PROCESS_MASK
    keys = [process, events["domainId"], events["category"]]
    domains = _resolve(events, keys[:2], events["eventType"] == schema.NVTX_DOMAIN_CREATE, is_used, parents)
    # Categories need no name, so only a process that uses a domain of another one is known to be forked.
    in_forked = is_used & np.isin(process, list(domains.forked)) if domains.forked else np.zeros_like(is_used)
    categories = _resolve(events, keys, events["eventType"] == schema.NVTX_CATEGORY_EVENT, in_forked, parents)
    nameless = np.flatnonzero(is_used & (domains.name < 0) & (events["domainId"] != 0))
    ids, group = np.unique(np.stack([key[nameless] for key in keys[:2]]), axis=1, return_inverse=True)
    labels = [f"domain {domain} of process {pid_of(pid)}" for pid, domain in ids.T.tolist()]
    domains.name[nameless] = names.add(labels)[group.ravel()]
    return domains.name, categories.name, _unclear(process, domains.is_unclear, categories.is_unclear)


@dataclass(frozen=True)
class _Resolved:
    """Name code of each event's id, -1: none; processes that use ids of others; events whose id is ambiguous."""

    name: Int64
    forked: set[int]
    is_unclear: Bool


def _resolve(
    events: dict[str, Integers], keys: list[Integers], is_definition: Bool, is_used: Bool, parents: Mapping[int, int]
) -> _Resolved:
    """Look up ids.

    Args:
        keys: columns of the process and the id.
        is_definition: which events define ids.
        is_used: events whose ids may be inherited.
    """
    defining = np.flatnonzero(is_definition)
    definition = find_rows(keys, [key[defining].astype(np.int64) for key in keys])
    name = np.append(events["name"][defining], np.int64(-1))[definition]
    undefined = is_used & (keys[-1] != 0) & (definition < 0)
    if len(np.unique(keys[0][defining])) > 1:
        defined_ns = np.append(events["start"][defining], np.int64(0))[definition]
        undefined |= is_used & (keys[-1] != 0) & (defined_ns > events["start"])
    resolved = _Resolved(name, set(), np.zeros(len(name), dtype=np.bool_))
    rows = np.flatnonzero(undefined)
    if not len(rows):
        return resolved

    names_of: dict[tuple[int, ...], dict[int, int]] = {}
    for pid, *key, code in zip(
        *(key[defining].tolist() for key in keys), events["name"][defining].tolist(), strict=True
    ):
        names_of.setdefault(tuple(key), {}).setdefault(pid_of(pid), code)
    inherited: set[tuple[int, ...]] = set()
    ids, group = np.unique(np.stack([key[rows] for key in keys]), axis=1, return_inverse=True)
    for number, (pid, *key) in enumerate(ids.T.tolist()):
        mine = rows[group.ravel() == number]
        definitions = names_of.get(tuple(key), {})
        ancestor = _name_of_ancestor(pid_of(pid), definitions, parents)
        others = {code for other, code in definitions.items() if other != pid_of(pid)}
        meanings = others if ancestor is None else {ancestor}
        if meanings:
            resolved.forked.add(pid)
        if len(meanings) == 1:
            name[mine] = meanings.pop()
            inherited.add((pid, *key))
        elif meanings:
            resolved.is_unclear[mine] = True

    for at, (pid, *key) in enumerate(zip(*(key[defining].tolist() for key in keys), strict=True)):
        ancestor = _name_of_ancestor(pid_of(pid), names_of[tuple(key)], parents)
        is_second = ancestor not in (None, events["name"][defining[at]]) or (pid, *key) in inherited
        if pid in resolved.forked and is_second:
            resolved.is_unclear[is_used & (definition == at) & ~undefined] = True
    return resolved


def _name_of_ancestor(pid: int, definitions: Mapping[int, int], parents: Mapping[int, int]) -> int | None:
    """What the nearest ancestor that defined an id called it."""
    seen = {pid}
    while (pid := parents.get(pid, pid)) not in seen:
        if pid in definitions:
            return definitions[pid]
        seen.add(pid)
    return None


def _unclear(process: Int64, *is_unclear: Bool) -> list[Finding]:
    """The finding about events whose domain or category is not known for certain."""
    count = sum(int(one.sum()) for one in is_unclear)
    if not count:
        return []
    pids = np.unique(pid_of(process[np.logical_or.reduce(is_unclear)])).tolist()
    return [
        Finding(
            "inherited-ids-unclear",
            Severity.ERROR,
            f"{count} NVTX events of forked process(es) {', '.join(map(str, pids[:5]))} have a domain or category "
            "whose number stands for different names, and the trace does not tell which of them was meant; they may "
            "be missing or stand under a wrong name.",
            "Start workers with the spawn method, or make recorders and NVTX domains in each worker after the fork.",
        )
    ]
