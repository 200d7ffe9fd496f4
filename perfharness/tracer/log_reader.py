"""Read range logs as columns: pushes with their pops, starts with their ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfharness.model import nsys_schema as schema
from perfharness.model.conventions import LANE_SEPARATOR, printable
from perfharness.tracer.range_log import (
    CHUNK,
    END,
    FIRST_CHUNK_BYTES,
    HAS_PAYLOAD,
    HEADER,
    ID,
    MAGIC,
    MARK,
    NAMES_SUFFIX,
    OP_BITS,
    OP_MASK,
    POP,
    PUSH,
    RECORD_BYTES,
    REGION_BYTES,
    START,
    VALUE,
    LogFacts,
    RangeAttributes,
)

Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]
Table = dict[str, NDArray[Any]]

NO_END = -1
"""End of a range that was never closed."""

UNWRITTEN_KEYS = 1000
"""Most missing keys: a process that was killed or forked did not write them."""

NO_NAME = RangeAttributes(None, "(unnamed)")
_REGION_RECORDS = REGION_BYTES // RECORD_BYTES
_LATEST_NS = np.iinfo(np.int64).max
_EVENT_TYPES = {
    PUSH: schema.NVTX_PUSH_POP_RANGE,
    START: schema.NVTX_START_END_RANGE,
    MARK: schema.NVTX_MARK_EVENT,
}


@dataclass(frozen=True)
class LogEnd:
    """Notes of a process at its end; None if missing."""

    cuda_used: bool | None = None
    gpu_reason: str | None = None
    rank: dict[str, Any] | None = None
    until_ns: int | None = None  # end of a window


@dataclass(frozen=True)
class LoggedRanges:
    """The log of a process.

    Args:
        attributes: by key; missing keys have no name.
        lost_events: events that did not fit on the disk.
        records: the file of records, as two columns.
        until_ns: end of a window, or None for the end of the process.
    """

    facts: LogFacts
    attributes: list[RangeAttributes]
    lost_events: int
    records: Int64
    until_ns: int | None = None


def read_log(path: Path) -> LoggedRanges:
    """Read a log. Raises `OSError`, or `ValueError` if the file is not a log."""
    facts, end, attributes = read_names(path)
    values = np.fromfile(path, dtype=np.int64)
    lost_events = 0
    if values.nbytes >= HEADER.size:
        magic, lost_events = HEADER.unpack(values[: HEADER.size // 8].tobytes())
        if magic not in (MAGIC, bytes(len(MAGIC))):
            raise ValueError(f"{path} is not a range log")
    records = values[: len(values) // 2 * 2].reshape(-1, 2)
    return LoggedRanges(facts, attributes, lost_events, records, end.until_ns)


def read_names(path: Path) -> tuple[LogFacts, LogEnd, list[RangeAttributes]]:
    """Read the process of a log, its end, and attributes by key.

    Raises `OSError`, or `ValueError` if the file does not belong to a log.
    """
    names = path.with_suffix(NAMES_SUFFIX)
    first, *lines = names.read_bytes().splitlines(keepends=True) or [b""]
    try:
        facts = LogFacts(**json.loads(first))
        if not all(type(number) is int and 0 <= number < 1 << 63 for number in (facts.pid, facts.started_ns)):
            raise ValueError("pid or start time is missing")
        written = [json.loads(line) for line in lines if line.endswith(b"\n")]
        named = dict(_attributes(*line) for line in written if isinstance(line, list))
        end = LogEnd(**{key: value for line in written if isinstance(line, dict) for key, value in line.items()})
        last = max(named, default=0)
        if last > len(lines) + UNWRITTEN_KEYS:
            raise ValueError(f"key {last} in a file with {len(lines)} lines")
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{names} is damaged: {error}") from error
    attributes = [named.get(key, NO_NAME) for key in range(last + 1)]
    return replace(facts, rank=facts.rank or end.rank), end, attributes


def _attributes(
    key: int, domain: str | None, message: str, category: str | None, color: int | None
) -> tuple[int, RangeAttributes]:
    """Check a line; return its key and attributes, with texts in valid UTF-8."""
    domain, category = (None if text is None else printable(text) for text in (domain, category))
    if not (type(key) is int and key > 0 and (color is None or (type(color) is int and abs(color) < 1 << 63))):
        raise ValueError(f"key {key} or its colour is invalid")
    return key, RangeAttributes(domain, printable(message), category, color)


def decode(log: LoggedRanges) -> tuple[Table, int]:
    """Return the events of a log as rows in any order, and the number of starts and ends without ID.

    Pops and ends without a begin are dropped, as by nsys.

    Columns: `event_type`; `key`, an index into `attributes`; `start`, `end` (`perf_counter_ns`, `NO_END` for marks and
    ranges that were never closed); `thread`; `end_thread`, or `NO_END` if it is `thread`; `payload`, valid with
    `has_payload`.
    """
    numbers: dict[str | None, int] = {}
    stack_of_key = np.asarray([numbers.setdefault(entry.domain, len(numbers)) for entry in log.attributes])
    latest_ns = _LATEST_NS if log.until_ns is None else log.until_ns
    parts = [
        _thread_events(thread, records, stack_of_key, latest_ns) for thread, records in records_by_thread(log.records)
    ]
    if not parts:
        parts = [_thread_events(0, np.empty((0, 2), dtype=np.int64), stack_of_key, latest_ns)]
    table = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    op, range_id, thread = table.pop("op"), table.pop("range_id"), table["thread"]
    is_lost = ((op == START) | (op == END)) & (range_id == 0)
    starts, ends = np.flatnonzero((op == START) & ~is_lost), np.flatnonzero((op == END) & ~is_lost)
    _, paired_starts, paired_ends = np.intersect1d(range_id[starts], range_id[ends], return_indices=True)
    starts, ends = starts[paired_starts], ends[paired_ends]
    table["end"][starts] = table["start"][ends]
    table["end_thread"] = np.full(len(op), NO_END, dtype=np.int64)
    table["end_thread"][starts] = np.where(thread[ends] != thread[starts], thread[ends], NO_END)
    kept = (op != END) & ~is_lost
    table = {name: table.pop(name)[kept] for name in list(table)}
    table["event_type"] = np.select([op[kept] == code for code in _EVENT_TYPES], list(_EVENT_TYPES.values()))
    if log.until_ns is not None:
        table = _cut_off(table, log.attributes, log.until_ns)
    return table, int(is_lost.sum())


def _cut_off(table: Table, attributes: list[RangeAttributes], until_ns: int) -> Table:
    """Close or drop the ranges that were open when a window ended.

    Ranges around batches end with the window, as they began with it. Others are dropped, and batches
    (the ranges with a payload) with all ranges inside.
    """
    lanes = [_lane(entry) for entry in attributes]
    numbers = {lane: number for number, lane in enumerate(dict.fromkeys(lanes))}
    stack = np.asarray([numbers[lane] for lane in lanes])[table["key"]] + table["thread"] * len(numbers)
    is_mark = table["event_type"] == schema.NVTX_MARK_EVENT
    is_open, is_batch = ~is_mark & (table["end"] == NO_END), ~is_mark & table["has_payload"]
    kept = ~is_open
    for number in np.unique(stack[is_open]).tolist():
        here, start = stack == number, table["start"]
        cut = start[here & is_open & is_batch]
        if len(cut):
            kept &= ~here | (start < cut.min())
        batches = start[here & is_batch & kept]
        if len(batches):
            around = here & is_open & ~is_batch & (start < batches.max())
            table["end"][around] = until_ns
            kept |= around
    return {name: values[kept] for name, values in table.items()}


def _lane(attributes: RangeAttributes) -> tuple[str | None, str] | None:
    """Domain and lane of a task's range; None if it is on the thread's own stack."""
    _, separator, lane = (attributes.category or "").rpartition(LANE_SEPARATOR)
    return (attributes.domain, lane) if separator and lane.isdigit() else None


def records_by_thread(records: Int64) -> Iterator[tuple[int, Int64]]:
    """Yield the written records of each thread, in order."""
    parts: dict[int, list[Int64]] = {}
    for region in range(0, len(records), _REGION_RECORDS):
        at = region or FIRST_CHUNK_BYTES // RECORD_BYTES
        end = min(region + _REGION_RECORDS, len(records))
        while at < end:
            head, thread = records[at].tolist()
            length = head >> OP_BITS
            if head & OP_MASK != CHUNK or length < RECORD_BYTES:
                break  # the rest of the region is unused
            stop = min(at + length // RECORD_BYTES, end)
            chunk = records[at + 1 : stop]
            parts.setdefault(thread, []).append(chunk[(chunk != 0).any(axis=1)])
            at = stop
    for thread, found in parts.items():
        yield thread, np.concatenate(found)


def _thread_events(thread: int, records: Int64, stack_of_key: Int64, latest_ns: int) -> Table:
    """Events of a thread, with the payload and ID recorded before each, and the end of each push."""
    value, op = records[:, 1], records[:, 0] & OP_MASK
    kind = op & ~HAS_PAYLOAD
    is_timed = (kind != VALUE) & (kind != ID) & (value != 0)  # 0: killed during the write
    rows = np.flatnonzero(is_timed & (value <= latest_ns))
    key = records[rows, 0] >> OP_BITS
    payload_at = rows - 1 - (kind[rows] == START)
    has_payload = ((op[rows] & HAS_PAYLOAD) != 0) & (payload_at >= 0) & (op[payload_at] == VALUE)
    has_id = (rows > 0) & (op[rows - 1] == ID)
    table = {
        "op": kind[rows],
        "key": np.where(key < len(stack_of_key), key, 0),
        "start": value[rows],
        "end": np.full(len(rows), NO_END, dtype=np.int64),
        "thread": np.full(len(rows), thread, dtype=np.int64),
        "has_payload": has_payload,
        "payload": np.where(has_payload, value[payload_at], 0),
        "range_id": np.where(has_id, value[rows - 1], 0),
    }
    on_stack = (table["op"] == PUSH) | (table["op"] == POP)
    stack = np.where(on_stack, stack_of_key[table["key"]], -1)
    for number in np.unique(stack[on_stack]).tolist():
        places = np.flatnonzero(stack == number)
        pushes, pops = _pairs(table["op"][places] == PUSH)
        table["end"][places[pushes]] = table["start"][places[pops]]
    return {name: values[table["op"] != POP] for name, values in table.items()}


def _pairs(is_push: Bool) -> tuple[Int64, Int64]:
    """Positions of popped pushes on a stack, and of their pops.

    The depth after a push equals the depth before its pop; at each depth pushes and pops alternate.
    """
    level = np.cumsum(np.where(is_push, 1, -1))
    lowest = np.minimum.accumulate(np.minimum(level, 0))
    places = np.flatnonzero(is_push | (lowest == np.concatenate(([0], lowest[:-1]))))  # drop pops without a push
    is_push = is_push[places]
    level = np.cumsum(np.where(is_push, 1, -1))
    order = np.argsort(np.where(is_push, level, level + 1), kind="stable")
    popped = np.flatnonzero(is_push[order][:-1] & ~is_push[order][1:])
    return places[order[popped]], places[order[popped + 1]]
