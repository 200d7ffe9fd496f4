"""Names of NVTX domains and categories, whose ids are unique only within a process.

A forked child continues with its parent's ids, which NVTX_EVENTS defines under the parent's pid. With nsys 2023.4 it
numbers its own from 1 again. The trace has no process tree; the recorders' journals do.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perfharness.model import nsys_schema as schema
from perfharness.model.columns import Bool, Int64, Integers
from perfharness.model.trace import ID_MASK, PROCESS_MASK, pid_of
from perfharness.trace.names import NameTable, find_rows


def name_ids(
    events: dict[str, Integers], is_used: Bool, names: NameTable, parents: Mapping[int, int]
) -> tuple[Int64, Int64]:
    """Name codes of the domains and categories of events; -1 for the default domain or no category.

    An id is defined by its process before the event, else by its nearest ancestor, else by the only other process that
    defines it. Undefined domains are named by number and process.

    Args:
        events: columns of the NVTX table, with name codes as `name`.
        is_used: mask of ranges and marks.
        names: receives names of undefined domains.
        parents: known parents by pid.
    """
    parents = {pid & ID_MASK: parent & ID_MASK for pid, parent in parents.items()}
    process = events["globalTid"] & PROCESS_MASK
    keys = [process, events["domainId"], events["category"]]
    domain, inherited = _resolve(events, keys[:2], events["eventType"] == schema.NVTX_DOMAIN_CREATE, is_used, parents)
    # Categories may be unnamed, so only an inherited domain shows that a process is forked.
    in_forked = is_used & np.isin(process, np.unique(process[inherited]))
    category, _ = _resolve(events, keys, events["eventType"] == schema.NVTX_CATEGORY_EVENT, in_forked, parents)
    nameless = np.flatnonzero(is_used & (domain < 0) & (events["domainId"] != 0))
    ids, group = np.unique(np.stack([key[nameless] for key in keys[:2]]), axis=1, return_inverse=True)
    labels = [f"domain {number} of process {pid_of(pid)}" for pid, number in ids.T.tolist()]
    domain[nameless] = names.add(labels)[group.ravel()]
    return domain, category


def _resolve(
    events: dict[str, Integers], keys: list[Integers], is_definition: Bool, is_used: Bool, parents: Mapping[int, int]
) -> tuple[Int64, Int64]:
    """Name code of each event's id (-1 for none), and the rows with inherited ids.

    Args:
        keys: columns of process and id.
        is_definition: mask of events that define ids.
        is_used: mask of events whose ids may be inherited.
    """
    defining = np.flatnonzero(is_definition)
    definition = find_rows(keys, [key[defining].astype(np.int64) for key in keys])
    name = np.append(events["name"][defining], np.int64(-1))[definition]
    defined_ns = np.append(events["start"][defining], np.iinfo(np.int64).max)[definition]
    rows = np.flatnonzero(is_used & (keys[-1] != 0) & (defined_ns > events["start"]))
    codes_of: dict[tuple[int, ...], dict[int, int]] = {}
    for code, pid, *key in np.stack([column[defining] for column in (events["name"], *keys)]).T.tolist():
        codes_of.setdefault(tuple(key), {}).setdefault(pid_of(pid), code)
    ids, group = np.unique(np.stack([key[rows] for key in keys]), axis=1, return_inverse=True)
    found = [_inherited(pid_of(pid), codes_of.get(tuple(key), {}), parents) for pid, *key in ids.T.tolist()]
    codes = np.asarray([-1 if one is None else one for one in found], dtype=np.int64)[group.ravel()]
    name[rows] = np.where(codes < 0, name[rows], codes)
    return name, rows[codes >= 0]


def _inherited(pid: int, code_of: Mapping[int, int], parents: Mapping[int, int]) -> int | None:
    """Name of an id from the nearest ancestor, else from the only other process that defines it."""
    seen = {pid}
    while (pid := parents.get(pid, pid)) not in seen:
        if pid in code_of:
            return code_of[pid]
        seen.add(pid)
    others = {code for other, code in code_of.items() if other not in seen}
    return others.pop() if len(others) == 1 else None
