"""NVTX events into ranges and marks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfharness.errors import TraceFormatError
from perfharness.model import nsys_schema as schema
from perfharness.model.findings import Finding
from perfharness.model.trace import PROCESS_MASK, Bool, Int64, Integers, NvtxMarks, NvtxRanges, Style, pid_of
from perfharness.trace.columns import check_events, narrow
from perfharness.trace.inherited import Definitions, Family, Id, ParentPids, inherit, unclear_ids
from perfharness.trace.names import NameTable, lookup
from perfharness.trace.source import MISSING, ROW_ID

NVTX_COLUMNS = [
    "start", "end", "eventType", "category", "globalTid", "endGlobalTid", "textId", "domainId"
]  # fmt: skip
PAYLOAD_COLUMNS = ["int64Value", "uint64Value", "int32Value", "uint32Value"]


@dataclass(frozen=True)
class Nvtx:
    """What the NVTX table holds. `last_ns` is the time of its last event; open ranges have no end yet (`MISSING`)."""

    ranges: NvtxRanges
    marks: NvtxMarks
    last_ns: int
    findings: list[Finding]


def make_nvtx(
    events: dict[str, Integers], texts: tuple[Int64, pa.ChunkedArray], path: Path, names: NameTable, parents: ParentPids
) -> Nvtx:
    """All ranges and marks. Raises `TraceFormatError` where events have no type, no time, or a name that is not there.

    Args:
        events: columns of the NVTX table.
        texts: names that stand in the events themselves, behind their row ids.
        path: of the trace.
        names: gets the names that stand in the events.
        parents: the process tree, as far as it is known; ids of forked processes are resolved by it.
    """
    kind = events["eventType"]
    events["name"] = _names(events, texts, names)
    nameless = (events["textId"] != MISSING) & (events["name"] < 0)
    if nameless.any() or (kind == MISSING).any():
        raise TraceFormatError(
            f"{path} contradicts itself: {int(nameless.sum())} NVTX events have names that are not in "
            f"{schema.TABLE_STRINGS}, and {int((kind == MISSING).sum())} have no type. The file is damaged; "
            "export it again with `nsys export --type sqlite`."
        )
    for column in ("domainId", "category"):
        events[column] = np.where(events[column] == MISSING, 0, events[column])
    is_push_pop = np.isin(kind, schema.PUSH_POP_EVENTS)
    is_range = is_push_pop | np.isin(kind, schema.START_END_EVENTS)
    ranges, marks = _ranges(events, is_push_pop, is_range), _marks(events, kind == schema.NVTX_MARK_EVENT)
    check_events(path, "NVTX ranges", ranges.start_ns, known_ends(ranges), ranges.thread)
    ids = _read_ids(
        ranges,
        marks,
        _definitions(events, ["domainId"], kind == schema.NVTX_DOMAIN_CREATE),
        _definitions(events, ["domainId", "category"], kind == schema.NVTX_CATEGORY_EVENT),
        names,
        parents,
    )
    last_ns = max(int(events[column].max(initial=0)) for column in ("start", "end"))
    return Nvtx(
        _named(ranges, ranges.start_ns, ids), _named(marks, marks.time_ns, ids), last_ns, unclear_ids(ids.unclear)
    )


def _names(events: dict[str, Integers], texts: tuple[Int64, pa.ChunkedArray], names: NameTable) -> Int64:
    """Name codes of all events, of texts that stand in the events too."""
    codes = names.codes_of_ids(events["textId"])
    rows, strings = texts
    if len(rows):
        encoded = pc.dictionary_encode(strings.combine_chunks())
        at = np.searchsorted(events[ROW_ID], rows)
        codes[at] = names.add(encoded.dictionary.to_pylist())[np.from_dlpack(encoded.indices)]
    return codes


def _ranges(events: dict[str, Integers], is_push_pop: Bool, is_range: Bool) -> NvtxRanges:
    at = slice(None) if is_range.all() else np.flatnonzero(is_range)
    end, payload = events["end"][at], events["payload"][at]
    ended_on, began_on = events["endGlobalTid"][at], events["globalTid"][at]
    return NvtxRanges(
        row=narrow(events[ROW_ID][at]),
        start_ns=events["start"][at],
        end_ns=end,
        thread=began_on,
        style=np.where(is_push_pop[at], np.int8(Style.PUSH_POP), np.int8(Style.START_END)),
        name=narrow(events["name"][at]),
        domain=narrow(events["domainId"][at]),
        category=narrow(events["category"][at]),
        payload=narrow(np.where(payload == MISSING, 0, payload)),
        has_payload=payload != MISSING,
        is_open=end == MISSING,
        crosses_threads=(ended_on != MISSING) & (ended_on != began_on) & ~is_push_pop[at],
    )


def closed(ranges: NvtxRanges, end_ns: int) -> NvtxRanges:
    """Ranges never closed end where the trace ends."""
    if not ranges.is_open.any():
        return ranges
    return replace(ranges, end_ns=np.where(ranges.is_open, np.maximum(end_ns, ranges.start_ns), ranges.end_ns))


def known_ends(ranges: NvtxRanges) -> Int64:
    """When each range ended; of one never closed its start."""
    return np.where(ranges.is_open, ranges.start_ns, ranges.end_ns) if ranges.is_open.any() else ranges.end_ns


def _marks(events: dict[str, Integers], is_mark: Bool) -> NvtxMarks:
    at = np.flatnonzero(is_mark)
    payload = events["payload"][at]
    return NvtxMarks(
        time_ns=events["start"][at],
        thread=events["globalTid"][at],
        name=events["name"][at],
        domain=events["domainId"][at],
        category=events["category"][at],
        payload=np.where(payload == MISSING, np.int64(0), payload),
        has_payload=payload != MISSING,
    )


def _definitions(events: dict[str, Integers], ids: list[str], is_definition: Bool) -> Definitions:
    at = np.flatnonzero(is_definition)
    return Definitions(
        [events["globalTid"][at] & PROCESS_MASK, *(events[column][at].astype(np.int64) for column in ids)],
        events["start"][at],
        events["name"][at],
    )


@dataclass(frozen=True)
class _Names:
    """Names of ids: what each process defined itself, and what it may use besides."""

    own: Definitions
    inherited: Definitions

    def of(self, keys: list[Int64], time_ns: Int64) -> Int64:
        """Name codes of ids; -1 where there is none."""
        found = lookup(keys, self.own.keys, self.own.name)
        if not len(self.inherited.name):
            return found
        inherited = lookup(keys, self.inherited.keys, self.inherited.name)
        replaced = (inherited >= 0) & ~self.own.cover(keys, time_ns)
        return np.where(replaced, inherited, found)


@dataclass(frozen=True)
class _Ids:
    domains: _Names
    categories: _Names
    unnamed: int
    unclear: dict[int, int]


def _read_ids(
    ranges: NvtxRanges,
    marks: NvtxMarks,
    domains: Definitions,
    categories: Definitions,
    names: NameTable,
    parents: ParentPids,
) -> _Ids:
    """What the ids of domains and categories mean, in forked processes too."""
    uncovered = list(_uncovered(_uses(ranges, marks, 2), domains, None))
    inherited = inherit(uncovered, domains, parents)
    in_forked = _uncovered(_uses(ranges, marks, 3), categories, inherited.forked)
    inherited_categories = inherit(in_forked, categories, parents)
    unclear = Counter(inherited.unclear) + Counter(inherited_categories.unclear)
    for definitions, found in ((domains, inherited), (categories, inherited_categories)):
        twice = Family(definitions, parents).with_two_meanings(found)
        unclear += _count_uses(_uses(ranges, marks, len(definitions.keys)), definitions, twice)
    # A domain without a definition is not the default one.
    named = inherited.definitions
    known = {key for found in (domains, named) for key in zip(*(column.tolist() for column in found.keys), strict=True)}
    nameless = sorted({key for key, _ in uncovered} - known)
    if nameless:
        codes = names.add([f"domain {key[1]} of process {pid_of(key[0])}" for key in nameless])
        named = Definitions(
            [np.r_[column, [key[position] for key in nameless]] for position, column in enumerate(named.keys)],
            np.zeros(len(named.name) + len(nameless), dtype=np.int64),
            np.r_[named.name, codes],
        )
    return _Ids(
        _Names(domains, named),
        _Names(categories, inherited_categories.definitions),
        int(names.add([""])[0]),
        dict(unclear),
    )


_Uses = list[tuple[list[Int64], Int64]]


def _uses(ranges: NvtxRanges, marks: NvtxMarks, columns: int) -> _Uses:
    """Process, domain and, with three columns, category of ranges and of marks; and their times."""
    return [
        ([events.thread & PROCESS_MASK, events.domain, events.category][:columns], time_ns)
        for events, time_ns in ((ranges, ranges.start_ns), (marks, marks.time_ns))
    ]


def _uncovered(uses: _Uses, definitions: Definitions, processes: frozenset[int] | None) -> Iterator[tuple[Id, int]]:
    """Ids that processes use without having defined them before, and how often; of these processes, None: of all."""
    if processes is not None and not processes:
        return
    for keys, time_ns in uses:
        if not keys[-1].any():
            continue
        wanted = (keys[-1] != 0) & ~definitions.cover(keys, time_ns)
        if processes is not None:
            wanted &= np.isin(keys[0], list(processes))
        at = np.flatnonzero(wanted)
        found, counts = np.unique(np.stack([key[at] for key in keys]), axis=1, return_counts=True)
        yield from zip((tuple(key) for key in found.T.tolist()), counts.tolist(), strict=True)


def _count_uses(uses: _Uses, definitions: Definitions, ids: list[tuple[int, Id]]) -> Counter[int]:
    """Events that have one of these ids, by process, after the process has defined it."""
    counts: Counter[int] = Counter()
    for process, key in ids:
        for keys, time_ns in uses:
            same = np.logical_and.reduce([column == value for column, value in zip(keys, (process, *key), strict=True)])
            counts[process] += int((same & definitions.cover(keys, time_ns)).sum())
    return counts


_Events = TypeVar("_Events", NvtxRanges, NvtxMarks)


def _named(events: _Events, time_ns: Int64, ids: _Ids) -> _Events:
    """Name codes for ids of domains and categories; and no event without a name, be it an empty one."""
    process = events.thread & PROCESS_MASK
    return replace(
        events,
        domain=narrow(ids.domains.of([process, events.domain], time_ns)),
        category=narrow(ids.categories.of([process, events.domain, events.category], time_ns)),
        name=np.where(events.name < 0, np.int32(ids.unnamed), events.name),
    )
