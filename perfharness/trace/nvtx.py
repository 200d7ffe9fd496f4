"""NVTX events into ranges and marks, window by window; what is the same in all rows is held once."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from perfharness.errors import TraceFormatError
from perfharness.model import nsys_schema as schema
from perfharness.model.findings import Finding
from perfharness.model.trace import PROCESS_MASK, Bool, Int64, Integers, NvtxMarks, NvtxRanges, Style
from perfharness.trace.inherited import Definitions, Family, Id, ParentPids, inherit, pid_of, unclear_ids
from perfharness.trace.names import NameTable, lookup
from perfharness.trace.parallel import Readers
from perfharness.trace.source import MISSING, ROW_ID, TraceSource, Window

NVTX_COLUMNS = [
    "start", "end", "eventType", "category", "globalTid", "endGlobalTid", "textId", "domainId"
]  # fmt: skip
PAYLOAD_COLUMNS = ["int64Value", "uint64Value", "int32Value", "uint32Value"]

Column = npt.NDArray[Any]


@dataclass(frozen=True)
class Nvtx:
    """What the NVTX table holds. `last_ns` is the time of its last event; open ranges end there, for the time being."""

    ranges: NvtxRanges
    marks: NvtxMarks
    last_ns: int
    findings: list[Finding]


@dataclass(frozen=True)
class _Part:
    """Events of one window; `domain` and `category` are still the trace's ids."""

    ranges: NvtxRanges
    marks: NvtxMarks
    domains: Definitions
    categories: Definitions
    last_ns: int


def read_nvtx(readers: Readers, path: Path, windows: Sequence[Window], names: NameTable, parents: ParentPids) -> Nvtx:
    """All ranges and marks. Raises `TraceFormatError` where events have no type, no time, or a name that is not there.

    Args:
        windows: those of the NVTX table.
        names: gets the names that stand in the events themselves.
        parents: the process tree, as far as it is known; the ids of forked processes are looked up in it.
    """
    adding = threading.Lock()

    def task(window: Window) -> Callable[[TraceSource], _Part]:
        return lambda source: _read_part(source, path, window, names, adding)

    parts = list(readers.map(task(window) for window in windows))
    ids = _read_ids(parts, names, parents)
    last_ns = max((part.last_ns for part in parts), default=0)
    named_ranges, named_marks = [], []
    while parts:
        part = parts.pop(0)
        named_ranges.append(_named(part.ranges, part.ranges.start_ns, ids))
        named_marks.append(_named(part.marks, part.marks.time_ns, ids))
    return Nvtx(_joined(NvtxRanges, named_ranges), _joined(NvtxMarks, named_marks), last_ns, unclear_ids(ids.unclear))


def _read_part(source: TraceSource, path: Path, window: Window, names: NameTable, adding: threading.Lock) -> _Part:
    events = source.integers(
        schema.TABLE_NVTX, NVTX_COLUMNS, row_id=True, first_of={"payload": PAYLOAD_COLUMNS}, window=window
    )
    events["name"] = names.codes_of_ids(events["textId"])
    if "text" in source.columns(schema.TABLE_NVTX):
        rows, texts = source.strings(schema.TABLE_NVTX, ROW_ID, "text", unless="textId", window=window)
        if len(rows):
            encoded = pc.dictionary_encode(texts).combine_chunks()
            with adding:
                codes = names.add(encoded.dictionary.to_pylist())
            events["name"][np.searchsorted(events[ROW_ID], rows)] = codes[encoded.indices.to_numpy()]
    return _split(path, events)


def _split(path: Path, events: dict[str, Int64]) -> _Part:
    kind = events["eventType"]
    nameless = (events["textId"] != MISSING) & (events["name"] < 0)
    if nameless.any() or (kind == MISSING).any():
        raise TraceFormatError(
            f"{path} contradicts itself: at least {int(nameless.sum())} NVTX events have names that are not in "
            f"{schema.TABLE_STRINGS}, and at least {int((kind == MISSING).sum())} have no type. The file is damaged; "
            "export it again with `nsys export --type sqlite`."
        )
    events["domain"] = np.where(events["domainId"] == MISSING, 0, events["domainId"])
    events["category"] = np.where(events["category"] == MISSING, 0, events["category"])
    is_push_pop = np.isin(kind, schema.PUSH_POP_EVENTS)
    is_range = is_push_pop | np.isin(kind, schema.START_END_EVENTS)
    times = [events[column] for column in ("start", "end")]
    return _Part(
        ranges=_ranges(events, is_push_pop, slice(None) if is_range.all() else np.flatnonzero(is_range)),
        marks=_marks(events, np.flatnonzero(kind == schema.NVTX_MARK_EVENT)),
        domains=_definitions(events, ["domain"], kind == schema.NVTX_DOMAIN_CREATE),
        categories=_definitions(events, ["domain", "category"], kind == schema.NVTX_CATEGORY_EVENT),
        last_ns=max(int(column.max()) for column in times) if len(kind) else 0,
    )


def _ranges(events: dict[str, Int64], is_push_pop: Bool, at: Int64 | slice) -> NvtxRanges:
    end, payload = events["end"][at], events["payload"][at]
    is_open = end == MISSING
    ended_on, began_on = events["endGlobalTid"][at], events["globalTid"][at]
    return _compact(
        NvtxRanges(
            row=events[ROW_ID][at],
            start_ns=events["start"][at],
            end_ns=end,
            thread=began_on,
            style=np.where(is_push_pop[at], np.int8(Style.PUSH_POP), np.int8(Style.START_END)),
            name=events["name"][at],
            domain=events["domain"][at],
            category=events["category"][at],
            payload=np.where(payload == MISSING, 0, payload),
            has_payload=payload != MISSING,
            is_open=is_open,
            crosses_threads=(ended_on != MISSING) & (ended_on != began_on) & ~is_push_pop[at],
        ),
        as_they_are=("start_ns", "end_ns"),
    )


def _marks(events: dict[str, Int64], at: Int64) -> NvtxMarks:
    payload = events["payload"][at]
    return _compact(
        NvtxMarks(
            time_ns=events["start"][at],
            thread=events["globalTid"][at],
            name=events["name"][at],
            domain=events["domain"][at],
            category=events["category"][at],
            payload=np.where(payload == MISSING, 0, payload),
            has_payload=payload != MISSING,
        ),
        as_they_are=("time_ns",),
    )


def _definitions(events: dict[str, Int64], ids: list[str], is_definition: Bool) -> Definitions:
    at = np.flatnonzero(is_definition)
    return Definitions(
        [events["globalTid"][at] & PROCESS_MASK, *(events[column][at] for column in ids)],
        events["start"][at],
        events["name"][at],
    )


def _joined_definitions(parts: list[Definitions], columns: int) -> Definitions:
    none: Int64 = np.empty(0, dtype=np.int64)
    return Definitions(
        [np.concatenate([none, *(part.keys[place] for part in parts)]) for place in range(columns)],
        np.concatenate([none, *(part.time_ns for part in parts)]),
        np.concatenate([none, *(part.name for part in parts)]),
    )


@dataclass(frozen=True)
class _Names:
    """Names of ids: what each process defined itself, and what it may use besides."""

    own: Definitions
    inherited: Definitions

    def of(self, keys: list[Int64], time_ns: Int64) -> Integers:
        """Name codes of ids; -1 where there is none."""
        found = _look_up(keys, self.own)
        if not len(self.inherited.name):
            return found
        inherited = _look_up(keys, self.inherited)
        replaced = (inherited >= 0) & ~self.own.cover(keys, time_ns)
        return held_once(np.where(replaced, inherited, found)) if replaced.any() else found


@dataclass(frozen=True)
class _Ids:
    domains: _Names
    categories: _Names
    unnamed: int
    unclear: dict[int, int]


def _read_ids(parts: list[_Part], names: NameTable, parents: ParentPids) -> _Ids:
    """What the ids of domains and categories mean, in forked processes too."""
    domains = _joined_definitions([part.domains for part in parts], 2)
    categories = _joined_definitions([part.categories for part in parts], 3)
    uncovered = list(_uncovered(parts, domains, None))
    inherited = inherit(uncovered, domains, parents)
    inherited_categories = inherit(_uncovered(parts, categories, inherited.forked), categories, parents)
    unclear = Counter(inherited.unclear) + Counter(inherited_categories.unclear)
    for definitions, found in ((domains, inherited), (categories, inherited_categories)):
        unclear += _count_uses(parts, definitions, Family(definitions, parents).with_two_meanings(found))
    # A domain that nobody defined is not the default one.
    named = inherited.definitions
    known = {key for found in (domains, named) for key in zip(*(column.tolist() for column in found.keys), strict=True)}
    nameless = sorted({key for key, _ in uncovered} - known)
    if nameless:
        codes = names.add([f"domain {key[1]} of process {pid_of(key[0])}" for key in nameless])
        named = Definitions(
            [np.r_[column, [key[place] for key in nameless]] for place, column in enumerate(named.keys)],
            np.zeros(len(named.name) + len(nameless), dtype=np.int64),
            np.r_[named.name, codes],
        )
    return _Ids(
        _Names(domains, named),
        _Names(categories, inherited_categories.definitions),
        int(names.add([""])[0]),
        dict(unclear),
    )


def _uses(part: _Part, columns: int) -> Iterator[tuple[list[Int64], Int64]]:
    """Process, domain and, with three columns, category of the events of a part; and their times."""
    for events, time_ns in ((part.ranges, part.ranges.start_ns), (part.marks, part.marks.time_ns)):
        if len(events):
            yield [held_once(events.thread & PROCESS_MASK), events.domain, events.category][:columns], time_ns


def _uncovered(
    parts: list[_Part], definitions: Definitions, processes: frozenset[int] | None
) -> Iterator[tuple[Id, int]]:
    """Ids that processes use without having defined them before, and how often; of these processes, None: of all."""
    if processes is not None and not processes:
        return
    for part in parts:
        for keys, time_ns in _uses(part, len(definitions.keys)):
            if (keys[-1] == 0).all():
                continue
            wanted = (keys[-1] != 0) & ~definitions.cover(keys, time_ns)
            if processes is not None:
                wanted &= np.isin(keys[0], list(processes))
            at = np.flatnonzero(wanted)
            found, counts = np.unique(np.stack([key[at] for key in keys]), axis=1, return_counts=True)
            yield from zip((tuple(key) for key in found.T.tolist()), counts.tolist(), strict=True)


def _count_uses(parts: list[_Part], definitions: Definitions, ids: list[tuple[int, Id]]) -> Counter[int]:
    """Events that have one of these ids, by process, after the process has defined it."""
    counts: Counter[int] = Counter()
    for process, key in ids:
        for part in parts:
            for keys, time_ns in _uses(part, len(definitions.keys)):
                same = np.logical_and.reduce(
                    [column == value for column, value in zip(keys, (process, *key), strict=True)]
                )
                counts[process] += int((same & definitions.cover(keys, time_ns)).sum())
    return counts


_Events = TypeVar("_Events", NvtxRanges, NvtxMarks)


def _named(events: _Events, time_ns: Int64, ids: _Ids) -> _Events:
    """Name codes for ids of domains and categories; and no event without a name, be it an empty one."""
    process = held_once(events.thread & PROCESS_MASK)
    columns: dict[str, Column] = {column.name: getattr(events, column.name) for column in fields(events)}
    columns["domain"] = ids.domains.of([process, events.domain], time_ns)
    columns["category"] = ids.categories.of([process, events.domain, events.category], time_ns)
    columns["name"] = np.where(events.name < 0, np.int32(ids.unnamed), events.name)
    return type(events)(**columns)


def _look_up(keys: list[Int64], definitions: Definitions) -> Integers:
    if len(keys[0]) and all(is_held_once(key) for key in keys):
        found = lookup([key[:1] for key in keys], definitions.keys, definitions.name)
        return np.broadcast_to(found.astype(np.int32)[0], len(keys[0]))
    return held_once(lookup(keys, definitions.keys, definitions.name).astype(np.int32))


def _compact(events: _Events, as_they_are: tuple[str, ...]) -> _Events:
    columns = {column.name: getattr(events, column.name) for column in fields(events)}
    return type(events)(
        **{name: values if name in as_they_are else held_once(narrow(values)) for name, values in columns.items()}
    )


def _joined(kind: type[_Events], parts: list[_Events]) -> _Events:
    """All parts as one; each column is let go of when it has been copied."""
    columns: dict[str, Column] = {}
    held = [{column.name: getattr(part, column.name) for column in fields(part)} for part in parts]
    parts.clear()
    for column in fields(kind):
        columns[column.name] = joined_column([part.pop(column.name) for part in held], EMPTY[column.type])
    return kind(**columns)


EMPTY: dict[Any, Column] = {
    "Int64": np.empty(0, dtype=np.int64),
    "Integers": np.empty(0, dtype=np.int32),
    "Bool": np.empty(0, dtype=np.bool_),
}


def joined_column(parts: list[Column], empty: Column) -> Column:
    """Parts of a column as one; where all rows are the same, one value, repeated."""
    parts = [part for part in parts if len(part)]
    if not parts:
        return empty
    if all(is_held_once(part) for part in parts) and len({part[0].item() for part in parts}) == 1:
        return np.broadcast_to(parts[0][0], sum(len(part) for part in parts))
    return np.concatenate(parts)


def is_held_once(values: Column) -> bool:
    """Whether a column is one value, repeated without memory of its own."""
    return values.strides == (0,)


def held_once(values: Column) -> Column:
    """The column, or, where all rows are the same, one value, repeated."""
    if len(values) and not is_held_once(values) and (values == values[0]).all():
        return np.broadcast_to(values[0].copy(), len(values))
    return values


def narrow(values: Column) -> Column:
    """Integers in 32 bits where they fit."""
    if values.dtype != np.int64 or not len(values):
        return values
    limits = np.iinfo(np.int32)
    if int(values.min()) < limits.min or int(values.max()) > limits.max:
        return values
    return values.astype(np.int32)
