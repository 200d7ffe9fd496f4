"""NVTX events of C and C++ libraries: CUPTI's marker records into rows of `nvtx_table`.

A push or a start is one record, its end another with the same id; color, category and payload are in a third record.
CUPTI 13.0 does not separate the two kinds of range: one that ended on another thread, or not as the innermost, is taken
as start/end, the others as push/pop.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from perfharness.model import nsys_schema as schema
from perfharness.tracer import cupti
from perfharness.tracer.ranges import NO_END
from perfharness.tracer.records import Columns
from perfharness.tracer.sqlite_file import TraceFile

FLAG_INSTANTANEOUS, FLAG_START, FLAG_END = 1, 2, 4
FLAG_COLOR_ARGB = 2
OBJECT_THREAD = 2
PAYLOAD_DOUBLE, PAYLOAD_UINT64, PAYLOAD_INT64 = 0, 1, 4
"""CUpti_MetricValueKind; an event without a payload has a double of 0."""

DEFAULT_DOMAIN = "NVTX"


def table(file: TraceFile, records: dict[int, Columns], domain_id: Callable[[str | None], int]) -> dict[str, Any]:
    """Rows of `nvtx_table`; times are `perf_counter_ns`."""
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
        "domain": _by_pointer(marker["domain"][begins], lambda text: domain_id(_domain_name(text))),
        "text": _by_pointer(marker["name"][begins], lambda text: file.string_id(text or "")),
        **_data(marker["id"][begins], records.get(cupti.KIND_MARKER_DATA)),
    }


def _domain_name(text: str | None) -> str | None:
    return None if text in (None, "", DEFAULT_DOMAIN) else text


def _match(ids: Any, candidates: Any) -> Any:
    """For each id the position of the candidate of the same id, or -1."""
    if len(candidates) == 0:
        return np.full(len(ids), -1, dtype=np.int64)
    order = np.argsort(candidates, kind="stable")
    at = np.minimum(np.searchsorted(candidates[order], ids), len(candidates) - 1)
    return np.where(candidates[order][at] == ids, order[at], -1)


def _crossing(start: Any, end: Any, thread: Any, domain: Any, among: Any) -> Any:
    """Which ranges end while one that began later on their thread and domain is still open: these are not nested.

    start end of the crossing one    |-------|
    a later one of the same stack        |-------|
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


def _data(ids: Any, data: Columns | None) -> dict[str, Any]:
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
    numbers = [
        number(ctypes.string_at(pointer).decode(errors="replace") if pointer else None) for pointer in unique.tolist()
    ]
    return np.asarray(numbers, dtype=np.int64)[which]
