"""Range logs into columns: every push with its pop, every start with its end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfharness.model import nsys_schema as schema
from perfharness.model.conventions import printable
from perfharness.model.range_log import (
    CHUNK,
    END,
    FIRST_CHUNK_BYTES,
    HAS_PAYLOAD,
    HEADER,
    ID,
    MAGIC,
    MARK,
    NAMES_SUFFIX,
    NOTE_START,
    OP_BITS,
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
Table = dict[str, NDArray[Any]]

NO_END = -1
"""The end of a range that was never closed."""

_OP_MASK = (1 << OP_BITS) - 1
_NO_NAME = RangeAttributes(None, "(unnamed)")
UNWRITTEN_KEYS = 1000
"""A file of names may lack so many of those before the last: a fork or a signal's handler comes between the number of a
name and its line."""

_REGION_RECORDS = REGION_BYTES // RECORD_BYTES


@dataclass(frozen=True)
class LoggedRanges:
    """The log of one process.

    Args:
        attributes: of each key; keys that could not be written have no name.
        lost_events: how many were dropped for lack of disk space.
        records: the file of records, as two columns.
    """

    facts: LogFacts
    attributes: list[RangeAttributes]
    lost_events: int
    records: Int64


def read_log(path: Path) -> LoggedRanges:
    """The log at that path. Raises OSError and ValueError where it is none."""
    facts, attributes = _read_names(path.with_suffix(NAMES_SUFFIX))
    values = np.fromfile(path, dtype=np.int64)
    lost_events = 0
    if values.nbytes >= HEADER.size:
        magic, lost_events = HEADER.unpack(values[: HEADER.size // 8].tobytes())
        if magic not in (MAGIC, bytes(len(MAGIC))):
            raise ValueError(f"{path} is no log of ranges")
    return LoggedRanges(facts, attributes, lost_events, values[: len(values) // 2 * 2].reshape(-1, 2))


def read_facts(path: Path) -> LogFacts:
    """Whose log it is. Raises OSError and ValueError where it is none."""
    return _read_names(path.with_suffix(NAMES_SUFFIX))[0]


def _read_names(names: Path) -> tuple[LogFacts, list[RangeAttributes]]:
    if names.is_symlink():
        raise ValueError(f"{names} is a link")
    first, *lines = names.read_bytes().splitlines(keepends=True) or [b""]
    try:
        facts = LogFacts(**json.loads(first))
        named = dict(_attributes(line) for line in lines if line.endswith(b"\n") and not _is_note(line))
    except (TypeError, RecursionError, OverflowError) as error:
        raise ValueError(f"{names} holds no names of ranges: {error}") from error
    if facts.rank is None and (end := read_end(names)).rank is not None:
        facts = replace(facts, rank=end.rank)
    if not all(type(number) is int and 0 <= number < 1 << 63 for number in (facts.pid, facts.started_ns)):
        raise ValueError(f"{names} does not name its process")
    last = max(named, default=0)
    if last > len(lines) + UNWRITTEN_KEYS:
        raise ValueError(f"{names} has a name that is number {last} of {len(lines)}")
    return facts, [named.get(key, _NO_NAME) for key in range(last + 1)]


def _is_note(line: bytes) -> bool:
    return line.startswith(NOTE_START)


@dataclass(frozen=True)
class LogEnd:
    """What a process noted at its end; None: nothing."""

    cuda_used: bool | None = None
    gpu_reason: str | None = None
    diagnostics: tuple[str, ...] = ()
    rank: dict[str, Any] | None = None


def read_end(path: Path) -> LogEnd:
    """What the process of the log at that path noted at its end. Raises OSError where there is no log."""
    lines = [line for line in path.with_suffix(NAMES_SUFFIX).read_bytes().splitlines()[1:] if _is_note(line)]
    try:
        note: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    except ValueError:
        return LogEnd()
    used, reason, rank = note.get("cuda_used"), note.get("gpu_reason"), note.get("rank")
    said = note.get("diagnostics")
    return LogEnd(
        used if isinstance(used, bool) else None,
        printable(reason) if isinstance(reason, str) else None,
        tuple(printable(text) for text in said if isinstance(text, str)) if isinstance(said, list) else (),
        rank if isinstance(rank, dict) else None,
    )


def _attributes(line: bytes) -> tuple[int, RangeAttributes]:
    """Key and attributes of a line; their texts are valid UTF-8."""
    values: list[Any] = json.loads(line)
    texts: list[Any] = [printable(value) if isinstance(value, str) else value for value in values]
    key, domain, message, category, color, category_id, double_payload = texts
    optional_texts = all(value is None or type(value) is str for value in (domain, category))
    optional_numbers = all(
        value is None or (type(value) is int and abs(value) < 1 << 63) for value in (color, category_id)
    )
    if not (optional_texts and optional_numbers and type(message) is str and type(key) is int and key > 0):
        raise ValueError(f"{line[:80]!r} describes no range")
    return key, RangeAttributes(domain, message, category, color, category_id, bool(double_payload))


_TYPE_OF_OP = {
    PUSH: schema.NVTX_PUSH_POP_RANGE,
    START: schema.NVTX_START_END_RANGE,
    MARK: schema.NVTX_MARK_EVENT,
}


def decode(log: LoggedRanges) -> Table:
    """All events of a log, a row each, in no particular order. Unmatched pops and ends are dropped, as nsys does.

    Columns: `event_type`; `key`, an index into the log's `attributes`; `start`, `end` (`perf_counter_ns`), where
    `NO_END` is a mark's or that of a range that was never closed; `thread`; `end_thread`, `NO_END` unless another
    thread ended it; `payload`, 64 bits that count where `has_payload`.
    """
    numbers: dict[str | None, int] = {}
    stack_of_key = np.asarray([numbers.setdefault(entry.domain, len(numbers)) for entry in log.attributes])
    parts = [_thread_events(thread, records, stack_of_key) for thread, records in records_by_thread(log.records)]
    if not parts:
        parts = [_thread_events(0, np.empty((0, 2), dtype=np.int64), stack_of_key)]
    table = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    starts, ends = _matching(table["range_id"], table["op"] == START, table["op"] == END)
    threads = table["thread"]
    table["end"][starts] = table["start"][ends]
    table["end_thread"] = np.full(len(threads), NO_END, dtype=np.int64)
    table["end_thread"][starts] = np.where(threads[ends] != threads[starts], threads[ends], NO_END)
    begins = table["op"] != END
    del table["range_id"]
    table = {name: table.pop(name)[begins] for name in list(table)}
    op = table.pop("op")
    table["event_type"] = np.select([op == code for code in _TYPE_OF_OP], list(_TYPE_OF_OP.values()))
    return table


def records_by_thread(records: Int64) -> Iterator[tuple[int, Int64]]:
    """The records of each thread, in order, without unwritten ones."""
    parts: dict[int, list[Int64]] = {}
    for region in range(0, len(records), _REGION_RECORDS):
        at = region or FIRST_CHUNK_BYTES // RECORD_BYTES
        end = min(region + _REGION_RECORDS, len(records))
        while at < end:
            head, thread = records[at].tolist()
            length = head >> OP_BITS
            if head & _OP_MASK != CHUNK or length < RECORD_BYTES:
                break  # the process ended before it used the rest
            stop = min(at + length // RECORD_BYTES, end)
            chunk = records[at + 1 : stop]
            parts.setdefault(thread, []).append(chunk[(chunk != 0).any(axis=1)])
            at = stop
    for thread, found in parts.items():
        yield thread, np.concatenate(found)


def _thread_events(thread: int, records: Int64, stack_of_key: Int64) -> Table:
    """The events of one thread, each with the payload and the id recorded before it; a push has its pop's time."""
    value, op = records[:, 1], records[:, 0] & _OP_MASK
    payload_at, id_at = _places_before(op)
    rows = np.flatnonzero((op != VALUE) & (op != ID) & (value != 0))  # no time: the process was killed as it wrote it
    key = records[rows, 0] >> OP_BITS
    table = {
        "op": op[rows] & ~HAS_PAYLOAD,
        "key": np.where(key < len(stack_of_key), key, 0),
        "start": value[rows],
        "end": np.full(len(rows), NO_END, dtype=np.int64),
        "thread": np.full(len(rows), thread, dtype=np.int64),
        "has_payload": payload_at[rows] >= 0,
        "payload": np.where(payload_at[rows] >= 0, value[payload_at[rows]], 0),
        "range_id": np.where(id_at[rows] >= 0, value[id_at[rows]], 0),
    }
    on_stack = (table["op"] == PUSH) | (table["op"] == POP)
    stack = np.where(on_stack, stack_of_key[table["key"]], -1)
    for number in np.unique(stack[on_stack]).tolist():
        places = np.flatnonzero(stack == number)
        pushes, pops = _pairs(table["op"][places] == PUSH)
        table["end"][places[pushes]] = table["start"][places[pops]]
    return {name: values[table["op"] != POP] for name, values in table.items()}


def _places_before(op: Int64) -> tuple[Int64, Int64]:
    """Positions of each event's payload and id, or -1: right before it, the payload before the id."""
    kind = op & ~HAS_PAYLOAD
    is_event = (op != VALUE) & (op != ID)
    numbered = is_event & ((kind == START) | (kind == END))
    with_payload = is_event & ((op & HAS_PAYLOAD) != 0)
    place = np.arange(len(op))
    id_at = np.where(numbered, place - 1, -1)
    payload_at = np.where(with_payload, place - 1 - (kind == START), -1)
    in_order = (op[id_at[numbered]] == ID).all() and (op[payload_at[with_payload]] == VALUE).all()
    if in_order and (id_at[numbered] >= 0).all() and (payload_at[with_payload] >= 0).all():
        return payload_at, id_at
    # A signal's handler has written events in between.
    values: list[int] = []
    ids: list[int] = []
    for at, code in enumerate(op.tolist()):
        if code == VALUE:
            values.append(at)
        elif code == ID:
            ids.append(at)
        else:
            payload_at[at] = values.pop() if with_payload[at] and values else -1
            id_at[at] = ids.pop() if numbered[at] and ids else -1
    return payload_at, id_at


def _pairs(is_push: NDArray[np.bool_]) -> tuple[Int64, Int64]:
    """Positions of the pushes that were popped, on one stack, and of their pops.

    The depth after a push equals the depth before its pop; at one depth pushes and pops alternate.
    """
    level = np.cumsum(np.where(is_push, 1, -1))
    lowest = np.minimum.accumulate(np.minimum(level, 0))
    places = np.flatnonzero(is_push | (lowest == np.concatenate(([0], lowest[:-1]))))  # a pop of nothing is dropped
    is_push = is_push[places]
    level = np.cumsum(np.where(is_push, 1, -1))
    order = np.argsort(np.where(is_push, level, level + 1), kind="stable")
    popped = np.flatnonzero(is_push[order][:-1] & ~is_push[order][1:])
    return places[order[popped]], places[order[popped + 1]]


def _matching(ids: Int64, is_start: NDArray[np.bool_], is_end: NDArray[np.bool_]) -> tuple[Int64, Int64]:
    """Rows of the starts whose end was recorded, on whichever thread, and of their ends."""
    starts, ends = np.flatnonzero(is_start), np.flatnonzero(is_end)
    _, of_starts, of_ends = np.intersect1d(ids[starts], ids[ends], return_indices=True)
    return starts[of_starts], ends[of_ends]
