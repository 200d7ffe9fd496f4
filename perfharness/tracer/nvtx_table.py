"""Ranges of every source (recorders, Python's nvtx, NVTX in other libraries) into nsys's NVTX_EVENTS."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from perfharness.model import nsys_schema as schema
from perfharness.model.range_log import LogFacts
from perfharness.tracer import cupti, markers, ranges
from perfharness.tracer.ranges import NO_END, LoggedRanges, Table
from perfharness.tracer.records import Columns
from perfharness.tracer.sqlite_file import TraceFile

if TYPE_CHECKING:
    from perfharness.tracer.session import Session

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
    """Write the names of domains and categories of one process, then its events.

    Args:
        origin_ns: time 0 of the trace, `perf_counter_ns`.
    """
    naming = Naming()
    entries = log.attributes
    domain = [naming.domain(entry.domain) for entry in entries]
    naming.taken.update(
        (number, entry.category_id)
        for number, entry in zip(domain, entries, strict=True)
        if entry.category_id is not None
    )
    category = [
        naming.category(number, entry.category) if entry.category is not None else entry.category_id or 0
        for number, entry in zip(domain, entries, strict=True)
    ]
    of_keys = {
        "domain": np.asarray(domain, dtype=np.int64),
        "category": np.asarray(category, dtype=np.int64),
        "color": np.asarray([NO_END if entry.color is None else entry.color for entry in entries], dtype=np.int64),
        "text": np.asarray([file.string_id(entry.message) for entry in entries], dtype=np.int64),
        "double": np.asarray([entry.double_payload for entry in entries], dtype=np.bool_),
    }
    _write_names(file, log.facts, naming, log.facts.started_ns - origin_ns)
    table = ranges.decode(log)
    table.update((name, values[table["key"]]) for name, values in of_keys.items())
    _write_events(file, log.facts.pid, table, origin_ns)


def write_markers(file: TraceFile, session: Session, records: dict[int, Columns]) -> None:
    """Write the NVTX events of other libraries, which CUPTI recorded."""
    if cupti.KIND_MARKER not in records:
        return
    # Separate ids: those of the log's domains are assigned when it is written.
    naming = Naming(first=FIRST_DOMAIN_OF_LIBRARIES)
    _write_events(file, session.pid, markers.table(file, records, naming.domain), session.origin_ns)
    _write_names(file, session.log.facts, naming, 0)


def _write_events(file: TraceFile, pid: int, table: Table, origin_ns: int) -> None:
    order = np.lexsort((-np.where(table["end"] == NO_END, np.iinfo(np.int64).max, table["end"]), table["start"]))
    table = {name: table.pop(name)[order] for name in list(table)}  # one by one: there may be millions of rows
    process = schema.global_tid(pid, 0)
    is_numbered = table["event_type"] == schema.NVTX_START_END_RANGE
    numbers = np.cumsum(is_numbered)
    values = {
        "start": table["start"] - origin_ns,
        "end": _nullable(table["end"] - origin_ns, table["end"] != NO_END),
        "eventType": table["event_type"],
        "rangeId": _nullable(numbers + (file.next_range_id - 1), is_numbered),
        "category": _nullable(table["category"], table["category"] != 0),
        "color": _nullable(table["color"], table["color"] >= 0),
        "globalTid": process | table["thread"] & schema.ID_MASK,
        "endGlobalTid": _nullable(process | table["end_thread"] & schema.ID_MASK, table["end_thread"] != NO_END),
        "textId": table["text"],
        "domainId": table["domain"],
        "int64Value": _nullable(table["payload"], table["has_payload"] & ~table["double"]),
        "doubleValue": _nullable(table["payload"].view(np.float64), table["has_payload"] & table["double"]),
    }
    file.insert_columns(schema.TABLE_NVTX, values, len(order))
    file.next_range_id += int(is_numbered.sum())


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


def _nullable(values: Any, valid: Any) -> Any:
    return values if valid.all() else np.ma.masked_array(values, ~valid)
