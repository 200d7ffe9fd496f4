"""Write ranges of recorders, Python's nvtx and NVTX in C and C++ libraries to nsys's NVTX_EVENTS.

CUPTI records events of libraries as markers: one for the begin and one for the end, with the same
ID, and a third for color, category and payload. CUPTI 13.0 does not tell push/pop from start/end
ranges: those that end on another thread, or not as the innermost, become start/end ranges. It loses
ends with an extended payload (NCCL in PyTorch 2.11). Ranges without an end in a library's own
domain are therefore dropped and counted.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from perfharness.model import nsys_schema as schema
from perfharness.tracer import cupti, log_reader
from perfharness.tracer.log_reader import NO_END, LoggedRanges, Table
from perfharness.tracer.range_log import LogFacts
from perfharness.tracer.records import Columns
from perfharness.tracer.trace_file import TraceFile

if TYPE_CHECKING:
    from perfharness.tracer.session import Session

FIRST_DOMAIN_OF_LIBRARIES = 1 << 20
"""First ID, beyond those of the log's domains."""

FLAG_INSTANTANEOUS, FLAG_START, FLAG_END = 1, 2, 4
FLAG_COLOR_ARGB = 2
OBJECT_THREAD = 2
PAYLOAD_DOUBLE, PAYLOAD_UINT64, PAYLOAD_INT64 = 0, 1, 4
"""CUpti_MetricValueKind. An event without a payload has a double of 0."""

UNNAMED = (None, "", "NVTX")
"""Names of the default domain."""


@dataclass
class Naming:
    """IDs of NVTX domains and of their categories."""

    first: int = 1
    domains: dict[str | None, int] = field(default_factory=lambda: {None: 0})
    categories: dict[int, dict[str, int]] = field(default_factory=dict)

    def domain(self, name: str | None) -> int:
        """ID of a domain; 0 for the default domain."""
        return self.domains.setdefault(name, len(self.domains) - 1 + self.first)

    def category(self, domain: int, name: str | None) -> int:
        """ID of a category in its domain, from 1, or 0 for none."""
        if name is None:
            return 0
        named = self.categories.setdefault(domain, {})
        return named.setdefault(name, len(named) + 1)


def write_log(file: TraceFile, log: LoggedRanges, origin_ns: int, naming: Naming) -> int:
    """Write the domains, categories and events of a log; return the number of unusable records.

    Args:
        origin_ns: time 0 of the trace, `perf_counter_ns`.
        naming: IDs of the process, which has a further log after `exec`.
    """
    rows = []
    for entry in log.attributes:
        domain = naming.domain(entry.domain)
        color = NO_END if entry.color is None else entry.color
        rows.append((domain, naming.category(domain, entry.category), color, file.string_id(entry.message)))
    by_key = np.asarray(rows, dtype=np.int64)
    _write_names(file, log.facts, naming, log.facts.started_ns - origin_ns)
    table, unusable = log_reader.decode(log)
    for column, name in enumerate(("domain", "category", "color", "text")):
        table[name] = by_key[table["key"], column]
    table["double"] = np.zeros(len(table["key"]), dtype=np.bool_)
    _write_events(file, log.facts.pid, table, origin_ns)
    return unusable


def write_markers(file: TraceFile, session: Session, records: dict[int, Columns]) -> dict[str, int]:
    """Write the NVTX events of libraries; return the counts of ranges without an end, by name."""
    if cupti.KIND_MARKER not in records:
        return {}
    naming = Naming(first=FIRST_DOMAIN_OF_LIBRARIES)
    rows = _marker_rows(file, records, naming.domain)
    endless = (rows["end"] == NO_END) & (rows["event_type"] != schema.NVTX_MARK_EVENT) & (rows["domain"] != 0)
    marker = records[cupti.KIND_MARKER]
    begins = np.flatnonzero((marker["flags"] & (FLAG_START | FLAG_INSTANTANEOUS)) != 0)[endless]
    names = zip(marker["domain"][begins].tolist(), marker["name"][begins].tolist(), strict=True)
    counted = Counter(f"{_text(domain)} {_text(name)}" for domain, name in names)
    _write_events(file, session.pid, {name: values[~endless] for name, values in rows.items()}, session.origin_ns)
    _write_names(file, session.log.facts, naming, 0)
    return dict(counted)


def _write_events(file: TraceFile, pid: int, table: Table, origin_ns: int) -> None:
    order = np.lexsort((-np.where(table["end"] == NO_END, np.iinfo(np.int64).max, table["end"]), table["start"]))
    table = {name: table.pop(name)[order] for name in list(table)}  # frees each column of maybe millions of rows
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
    """Write the domains and categories of a process, as events."""
    thread = schema.global_tid(facts.pid, facts.pid)
    rows: list[tuple[object, ...]] = [
        (at_ns, schema.NVTX_DOMAIN_CREATE, None, name, thread, number)
        for name, number in naming.domains.items()
        if name is not None
    ]
    rows += [
        (at_ns, schema.NVTX_CATEGORY_EVENT, number, name, thread, domain)
        for domain, named in naming.categories.items()
        for name, number in named.items()
    ]
    file.insert(schema.TABLE_NVTX, ("start", "eventType", "category", "text", "globalTid", "domainId"), rows)


def _nullable(values: Any, valid: Any) -> Any:
    """Mask invalid values, as NULL; return None if all are invalid."""
    if not valid.any():
        return None
    return values if valid.all() else np.ma.masked_array(values, ~valid)


def _marker_rows(file: TraceFile, records: dict[int, Columns], domain_id: Callable[[str | None], int]) -> Table:
    """Convert CUPTI's markers to rows, with times in `perf_counter_ns`."""
    marker = records[cupti.KIND_MARKER]
    begins = np.flatnonzero((marker["flags"] & (FLAG_START | FLAG_INSTANTANEOUS)) != 0)
    ends = np.flatnonzero((marker["flags"] & FLAG_END) != 0)
    instantaneous = (marker["flags"][begins] & FLAG_INSTANTANEOUS) != 0
    closing = _match(marker["id"][begins], marker["id"][ends])
    found = (closing >= 0) & ~instantaneous
    at = ends[closing[found]]
    threads = marker["thread"].astype(np.int64)
    start, thread = marker["timestamp"][begins].astype(np.int64), threads[begins]
    end, end_thread = np.full((2, len(begins)), NO_END, dtype=np.int64)
    end[found] = marker["timestamp"][at]
    end_thread[found] = np.where(threads[at] != thread[found], threads[at], NO_END)
    on_stack = (marker["object_kind"][begins] == OBJECT_THREAD) & (end_thread == NO_END)
    nested = on_stack & ~_crossing(start, end, thread, marker["domain"][begins], on_stack & found)
    event_type = np.where(nested, schema.NVTX_PUSH_POP_RANGE, schema.NVTX_START_END_RANGE)
    return {
        "event_type": np.where(instantaneous, schema.NVTX_MARK_EVENT, event_type),
        "start": start,
        "end": end,
        "thread": thread,
        "end_thread": end_thread,
        "domain": _by_pointer(marker["domain"][begins], lambda text: domain_id(None if text in UNNAMED else text)),
        "text": _by_pointer(marker["name"][begins], lambda text: file.string_id(text or "")),
        **_data(marker["id"][begins], records.get(cupti.KIND_MARKER_DATA)),
    }


def _match(ids: Any, candidates: Any) -> Any:
    """Position of each ID among the candidates, or -1."""
    if len(candidates) == 0:
        return np.full(len(ids), -1, dtype=np.int64)
    order = np.argsort(candidates, kind="stable")
    at = np.minimum(np.searchsorted(candidates[order], ids), len(candidates) - 1)
    return np.where(candidates[order][at] == ids, order[at], -1)


def _crossing(start: Any, end: Any, thread: Any, domain: Any, among: Any) -> Any:
    """Which ranges end while a later one of their thread and domain is open, and so are not nested.

    crossing range           |-------|
    later one of its stack       |-------|
    """
    crossing = np.zeros(len(start), dtype=np.bool_)
    rows = np.flatnonzero(among)
    rows = rows[np.lexsort((-end[rows], start[rows], domain[rows], thread[rows]))]
    open_rows: list[int] = []
    for row in rows.tolist():
        while open_rows and (
            end[open_rows[-1]] <= start[row]
            or thread[open_rows[-1]] != thread[row]
            or domain[open_rows[-1]] != domain[row]
        ):
            open_rows.pop()
        for other in open_rows:
            crossing[other] |= end[other] < end[row]
        open_rows.append(row)
    return crossing


def _data(ids: Any, data: Columns | None) -> Table:
    """Category, color and payload of events, by ID."""
    if data is None or len(data["id"]) == 0:
        nothing = np.zeros(len(ids), dtype=np.int64)
        none = np.zeros(len(ids), dtype=np.bool_)
        return {"category": nothing, "color": nothing - 1, "payload": nothing, "has_payload": none, "double": none}
    at = _match(ids, data["id"])
    known = at >= 0
    kind = data["payload_kind"][at]
    colored = known & ((data["flags"][at] & FLAG_COLOR_ARGB) != 0)
    payload = data["payload"][at]
    double = known & (kind == PAYLOAD_DOUBLE) & (payload != 0)
    return {
        "category": np.where(known, data["category"][at], 0).astype(np.int64),
        "color": np.where(colored, data["color"][at].astype(np.int64), NO_END),
        "payload": payload,
        "has_payload": double | known & ((kind == PAYLOAD_INT64) | (kind == PAYLOAD_UINT64)),
        "double": double,
    }


def _by_pointer(pointers: Any, number: Callable[[str | None], int]) -> Any:
    unique, which = np.unique(pointers, return_inverse=True)
    return np.asarray([number(_text(pointer)) for pointer in unique.tolist()], dtype=np.int64)[which]


def _text(pointer: int) -> str | None:
    return ctypes.string_at(pointer).decode(errors="replace") if pointer else None
