"""Build ranges and marks from NVTX events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from perfharness.errors import TraceFormatError
from perfharness.model import nsys_schema as schema
from perfharness.model.columns import Bool, Int64, Integers
from perfharness.model.trace import NvtxMarks, NvtxRanges, Style
from perfharness.trace.columns import MISSING, check_events, narrow
from perfharness.trace.names import NameTable
from perfharness.trace.nvtx_ids import name_ids
from perfharness.trace.sqlite import ROW_ID

NVTX_COLUMNS = [
    ROW_ID,
    "start",
    "end",
    "eventType",
    "category",
    "globalTid",
    "endGlobalTid",
    "textId",
    "domainId",
]
PAYLOADS = {"payload": ["int64Value", "uint64Value", "int32Value", "uint32Value"]}


@dataclass(frozen=True)
class Nvtx:
    """Contents of the NVTX table. `last_ns`: time of the last event; open ranges have no end yet (`MISSING`)."""

    ranges: NvtxRanges
    marks: NvtxMarks
    last_ns: int


def make_nvtx(
    events: dict[str, Integers],
    texts: tuple[Int64, Int64, list[str]],
    path: Path,
    names: NameTable,
    parents: Mapping[int, int],
) -> Nvtx:
    """Build all ranges and marks. Raises `TraceFormatError` for events without type, time, or a known name.

    Args:
        events: columns of the NVTX table.
        texts: names in the events themselves, from `TraceFile.strings`.
        path: path of the trace.
        names: receives the names in the events.
        parents: known parents by pid, to resolve ids of forked processes.
    """
    kind = events["eventType"]
    name = names.codes_of_ids(events["textId"])
    nameless = (events["textId"] != MISSING) & (name < 0)
    if nameless.any() or (kind == MISSING).any():
        raise TraceFormatError(
            f"{path} contradicts itself: {int(nameless.sum())} NVTX events have names that are not in "
            f"{schema.TABLE_STRINGS}, and {int((kind == MISSING).sum())} have no type. The file is damaged; "
            "export it again with `nsys export --type sqlite`."
        )
    rows, places, strings = texts
    name[np.searchsorted(events[ROW_ID], rows)] = names.add(strings)[places]
    events["name"] = name
    for column in ("domainId", "category"):
        events[column] = np.where(events[column] == MISSING, 0, events[column])

    is_push_pop = np.isin(kind, schema.PUSH_POP_EVENTS)
    is_range = is_push_pop | np.isin(kind, schema.START_END_EVENTS)
    is_mark = kind == schema.NVTX_MARK_EVENT
    events["domainId"], events["category"] = name_ids(events, is_range | is_mark, names, parents)
    events["name"] = np.where(name < 0, np.int32(names.add([""])[0]), name)
    ranges = _ranges(events, is_push_pop, is_range)
    check_events(path, "NVTX ranges", ranges.start_ns, known_ends(ranges), ranges.thread)
    last_ns = max(int(events[column].max(initial=0)) for column in ("start", "end"))
    return Nvtx(ranges, _marks(events, is_mark), last_ns)


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


def _marks(events: dict[str, Integers], is_mark: Bool) -> NvtxMarks:
    at = np.flatnonzero(is_mark)
    payload = events["payload"][at]
    return NvtxMarks(
        time_ns=events["start"][at],
        thread=events["globalTid"][at],
        name=events["name"][at],
        domain=narrow(events["domainId"][at]),
        category=narrow(events["category"][at]),
        payload=np.where(payload == MISSING, np.int64(0), payload),
        has_payload=payload != MISSING,
    )


def closed(ranges: NvtxRanges, end_ns: int) -> NvtxRanges:
    """Let ranges that were never closed end with the trace."""
    if not ranges.is_open.any():
        return ranges
    return replace(ranges, end_ns=np.where(ranges.is_open, np.maximum(end_ns, ranges.start_ns), ranges.end_ns))


def known_ends(ranges: NvtxRanges) -> Int64:
    """End of each range; for one never closed, its start."""
    return np.where(ranges.is_open, ranges.start_ns, ranges.end_ns) if ranges.is_open.any() else ranges.end_ns
