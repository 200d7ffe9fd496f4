"""Ranges of every source (recorders, Python's nvtx, NVTX in other libraries) into nsys's NVTX_EVENTS."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from perfharness.model import nsys_schema as schema
from perfharness.model.range_log import LogFacts
from perfharness.tracer import cupti, markers, ranges
from perfharness.tracer.ranges import NO_END, LoggedRanges, RangeEvents
from perfharness.tracer.records import Columns, joined_columns
from perfharness.tracer.sqlite_file import TraceFile

if TYPE_CHECKING:
    from perfharness.tracer.session import Session

Table = dict[str, Any]

FIRST_DOMAIN_OF_LIBRARIES = 1 << 20


@dataclass
class Naming:
    """Ids of NVTX domains, and of the categories of each domain."""

    first: int = 1
    domains: dict[str | None, int] = field(default_factory=lambda: {None: 0})
    categories: dict[tuple[int, str], int] = field(default_factory=dict)
    taken: set[tuple[int, int]] = field(default_factory=set)

    def domain(self, name: str | None) -> int:
        """Id of a domain; the default one is 0."""
        return self.domains.setdefault(name, len(self.domains) - 1 + self.first)

    def category(self, domain: int, name: str) -> int:
        """Id of a named category; numbers that are used without a name are skipped."""
        found = self.categories.get((domain, name))
        if found is None:
            found = 1
            while (domain, found) in self.taken:
                found += 1
            self.taken.add((domain, found))
            self.categories[domain, name] = found
        return found


def write_log(file: TraceFile, log: LoggedRanges, origin_ns: int) -> None:
    """Write the names of domains and categories of one process, then its events, block by block.

    Args:
        origin_ns: time 0 of the trace, `perf_counter_ns`.
    """
    naming = Naming()
    for entry in log.attributes:
        domain = naming.domain(entry.domain)
        if entry.category_id is not None:
            naming.taken.add((domain, entry.category_id))
    columns = _KeyColumns.of(file, log, naming)
    _write_names(file, log.facts, naming, log.facts.started_ns - origin_ns)
    for events in ranges.decode(log):
        _write_events(file, log.facts.pid, columns.table(events), origin_ns)


class MarkerTable:
    """Writes the NVTX events of other libraries, which CUPTI recorded, block by block.

    A range is written once its end is there; until then its records are kept.
    """

    def __init__(self, file: TraceFile, session: Session) -> None:
        self._file = file
        self._session = session
        # Separate ids: those of the log's domains are assigned when it is written.
        self._naming = Naming(first=FIRST_DOMAIN_OF_LIBRARIES)
        self._kept: dict[int, Columns] = {}

    def add(self, records: dict[int, Columns]) -> None:
        """Write the events that are complete after this block."""
        for kind in (cupti.KIND_MARKER, cupti.KIND_MARKER_DATA):
            if kind in records:
                self._kept[kind] = joined_columns([*([self._kept[kind]] if kind in self._kept else []), records[kind]])
        if cupti.KIND_MARKER in self._kept:
            self._write(markers.ended(self._kept[cupti.KIND_MARKER]))

    def finish(self) -> None:
        """Write the ranges that were never ended, and the names of the domains."""
        if cupti.KIND_MARKER in self._kept:
            self._write(np.ones(len(self._kept[cupti.KIND_MARKER]["id"]), dtype=np.bool_))
        _write_names(self._file, self._session.log.facts, self._naming, 0)

    def _write(self, wanted: Any) -> None:
        table = markers.table(self._file, self._kept, self._naming.domain, wanted)
        _write_events(self._file, self._session.pid, table, self._session.origin_ns)
        marker = self._kept[cupti.KIND_MARKER]
        self._kept[cupti.KIND_MARKER] = {name: values[~wanted] for name, values in marker.items()}
        if cupti.KIND_MARKER_DATA in self._kept:
            data = self._kept[cupti.KIND_MARKER_DATA]
            # Data may precede its marker, which comes in a later block.
            rest = ~np.isin(data["id"], marker["id"][wanted])
            self._kept[cupti.KIND_MARKER_DATA] = {name: values[rest] for name, values in data.items()}


def _write_events(file: TraceFile, pid: int, table: Table, origin_ns: int) -> None:
    count = len(table["start"])
    if count == 0:
        return
    table = _sorted(table)
    process = schema.global_tid(pid, 0)
    first_id = file.next_range_id
    numbers = np.cumsum(table["event_type"] == schema.NVTX_START_END_RANGE)
    file.next_range_id += int(numbers[-1])
    values = {
        "start": table["start"] - origin_ns,
        "end": _nullable(table["end"] - origin_ns, table["end"] != NO_END),
        "eventType": table["event_type"],
        "rangeId": _nullable(numbers + (first_id - 1), table["event_type"] == schema.NVTX_START_END_RANGE),
        "category": _nullable(table["category"], table["category"] != 0),
        "color": _nullable(table["color"], table["color"] >= 0),
        "globalTid": process | table["thread"] & schema.ID_MASK,
        "endGlobalTid": _nullable(process | table["end_thread"] & schema.ID_MASK, table["end_thread"] != NO_END),
        "textId": table["text"],
        "domainId": table["domain"],
        "int64Value": _nullable(table["payload"], table["has_payload"] & ~table["double"]),
        "doubleValue": _nullable(table["payload"].view(np.float64), table["has_payload"] & table["double"]),
    }
    file.insert_columns(schema.TABLE_NVTX, values, count)


@dataclass(frozen=True)
class _KeyColumns:
    """The attributes of a log's keys, as columns."""

    domain: Any
    category: Any
    color: Any
    text: Any
    double: Any

    @classmethod
    def of(cls, file: TraceFile, log: LoggedRanges, naming: Naming) -> _KeyColumns:
        entries = log.attributes
        domain = [naming.domain(entry.domain) for entry in entries]
        category = [
            naming.category(number, entry.category) if entry.category is not None else entry.category_id or 0
            for number, entry in zip(domain, entries, strict=True)
        ]
        return cls(
            domain=np.asarray(domain, dtype=np.int64),
            category=np.asarray(category, dtype=np.int64),
            color=np.asarray([NO_END if entry.color is None else entry.color for entry in entries], dtype=np.int64),
            text=np.asarray([file.string_id(entry.message) for entry in entries], dtype=np.int64),
            double=np.asarray([entry.double_payload for entry in entries], dtype=np.bool_),
        )

    def table(self, events: RangeEvents) -> Table:
        columns = {name: getattr(self, name)[events.key] for name in self.__dataclass_fields__}
        return {
            **columns,
            "event_type": events.event_type,
            "start": events.start,
            "end": events.end,
            "thread": events.thread,
            "end_thread": events.end_thread,
            "payload": events.payload,
            "has_payload": events.has_payload,
        }


def _write_names(file: TraceFile, facts: LogFacts, naming: Naming, at_ns: int) -> None:
    """Domains (event 75) and categories (event 33) of a process."""
    thread = schema.global_tid(facts.pid, facts.pid)
    rows: list[tuple[object, ...]] = [
        (at_ns, schema.NVTX_DOMAIN_CREATE, None, name, thread, number)
        for name, number in naming.domains.items()
        if name is not None
    ]
    rows += [
        (at_ns, schema.NVTX_CATEGORY_EVENT, number, name, thread, domain)
        for (domain, name), number in naming.categories.items()
    ]
    file.insert(schema.TABLE_NVTX, ("start", "eventType", "category", "text", "globalTid", "domainId"), rows)


def _sorted(table: Table) -> Table:
    end = np.where(table["end"] == NO_END, np.iinfo(np.int64).max, table["end"])
    order = np.lexsort((-end, table["start"]))
    return {name: values[order] for name, values in table.items()}


def _nullable(values: Any, valid: Any) -> Any:
    """A list with None where not valid; the array itself, or one None, where that is the same everywhere."""
    if valid.all():
        return values
    if not valid.any():
        return None
    listed = values.tolist()
    for at in np.flatnonzero(~valid).tolist():
        listed[at] = None
    return listed
