"""Ranges of every source (recorders, Python's nvtx, NVTX in other libraries) into nsys's NVTX_EVENTS."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from perfharness.model import nsys_schema as schema
from perfharness.model.range_log import RangeLog
from perfharness.tracer import cupti, markers, ranges
from perfharness.tracer.nvtx_hook import NvtxAttributes
from perfharness.tracer.ranges import NO_END
from perfharness.tracer.records import Columns
from perfharness.tracer.sqlite_file import TraceFile

if TYPE_CHECKING:
    from perfharness.tracer.session import Session

Table = dict[str, Any]


@dataclass
class Naming:
    """Numbers for what NVTX names: domains, and the categories of each domain."""

    domains: dict[str | None, int] = field(default_factory=lambda: {None: 0})
    categories: dict[tuple[int, str], int] = field(default_factory=dict)
    taken: set[tuple[int, int]] = field(default_factory=set)

    def domain(self, name: str | None) -> int:
        """Id of a domain; the default one is 0."""
        return self.domains.setdefault(name, len(self.domains))

    def category(self, domain: int, name: str) -> int:
        """Id of a named category, none that somebody uses by its number."""
        found = self.categories.get((domain, name))
        if found is None:
            found = 1
            while (domain, found) in self.taken:
                found += 1
            self.taken.add((domain, found))
            self.categories[domain, name] = found
        return found


def write(file: TraceFile, session: Session, records: dict[int, Columns]) -> None:
    """Write all events, ordered by start, outermost first; before them the names of domains and categories."""
    naming = Naming()
    logs = [log for log in (session.log, session.nvtx_log) if log.attributes]
    for log in logs:
        _take_numbers(log, naming)
    tables = [_log_table(file, log, naming) for log in logs]
    if cupti.KIND_MARKER in records:
        tables.append(markers.table(file, records, naming.domain))
    if not tables:
        return
    _write_names(file, session, naming, tables)
    table = _sorted({name: np.concatenate([part[name] for part in tables]) for name in tables[0]})
    count = len(table["start"])
    process = schema.global_tid(session.pid, 0)
    values = {
        "start": table["start"] - session.origin_ns,
        "end": _nullable(table["end"] - session.origin_ns, table["end"] != NO_END),
        "eventType": table["event_type"],
        "rangeId": _nullable(_range_ids(table), table["event_type"] == schema.NVTX_START_END_RANGE),
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


def _take_numbers(log: RangeLog, naming: Naming) -> None:
    for entry in log.attributes:
        domain = naming.domain(entry.domain)
        if isinstance(entry, NvtxAttributes) and entry.category_id is not None:
            naming.taken.add((domain, entry.category_id))


def _log_table(file: TraceFile, log: RangeLog, naming: Naming) -> Table:
    events = ranges.decode(log)
    entries = log.attributes
    domain = [naming.domain(entry.domain) for entry in entries]
    category = [
        naming.category(number, entry.category)
        if entry.category is not None
        else getattr(entry, "category_id", None) or 0
        for number, entry in zip(domain, entries, strict=True)
    ]
    color = [NO_END if entry.color is None else entry.color for entry in entries]
    text = [file.string_id(entry.message) for entry in entries]
    double = [getattr(entry, "double_payload", False) for entry in entries]

    def by_key(values: list[Any], dtype: Any = np.int64) -> Any:
        return np.asarray(values, dtype=dtype)[events.key]

    return {
        "event_type": events.event_type,
        "start": events.start,
        "end": events.end,
        "thread": events.thread,
        "end_thread": events.end_thread,
        "payload": events.payload,
        "has_payload": events.has_payload,
        "domain": by_key(domain),
        "category": by_key(category),
        "color": by_key(color),
        "text": by_key(text),
        "double": by_key(double, np.bool_),
    }


def _write_names(file: TraceFile, session: Session, naming: Naming, tables: list[Table]) -> None:
    """Domains (event 75) and categories (event 33), at the time of the first event."""
    starts = [int(table["start"].min()) for table in tables if len(table["start"])]
    first = min(starts, default=session.origin_ns) - session.origin_ns
    thread = schema.global_tid(session.pid, session.thread_id)
    rows: list[tuple[object, ...]] = [
        (first, schema.NVTX_DOMAIN_CREATE, None, name, thread, number)
        for name, number in naming.domains.items()
        if name is not None
    ]
    rows += [
        (first, schema.NVTX_CATEGORY_EVENT, number, name, thread, domain)
        for (domain, name), number in naming.categories.items()
    ]
    file.insert(schema.TABLE_NVTX, ("start", "eventType", "category", "text", "globalTid", "domainId"), rows)


def _sorted(table: Table) -> Table:
    end = np.where(table["end"] == NO_END, np.iinfo(np.int64).max, table["end"])
    order = np.lexsort((-end, table["start"]))
    return {name: values[order] for name, values in table.items()}


def _range_ids(table: Table) -> Any:
    return np.cumsum(table["event_type"] == schema.NVTX_START_END_RANGE)


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
