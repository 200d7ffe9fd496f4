"""Range logs into columns: every push with its pop, every start with its end, block by block.

A block is the records of some regions of the file. Ranges open at the end of a block are kept for the next, so memory
is bounded by the block, the names, and the ranges that are open at one time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
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
    OP_BITS,
    POP,
    PUSH,
    RECORD_BYTES,
    REGION_BYTES,
    START,
    VALUE,
    LogFacts,
    RangeAttributes,
    RangeLog,
)

Int64 = NDArray[np.int64]

NO_END = -1
"""In `RangeEvents.end`: the range was never closed."""

REGIONS_OF_BLOCK = 8

_OP_MASK = (1 << OP_BITS) - 1
_NO_NAME = RangeAttributes(None, "(unnamed)")
_REGION_RECORDS = REGION_BYTES // RECORD_BYTES


@dataclass
class RangeEvents:
    """Events of one log, a row each; times are `perf_counter_ns`.

    Args:
        key: index into the log's `attributes`.
        end: `NO_END` for a range that was never closed, and for marks.
        end_thread: thread that ended it, if another one; else `NO_END`.
        payload: 64 bits; counts where `has_payload`.
    """

    event_type: Int64
    key: Int64
    start: Int64
    end: Int64
    thread: Int64
    end_thread: Int64
    has_payload: NDArray[np.bool_]
    payload: Int64

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True)
class LoggedRanges:
    """The log of one process.

    Args:
        attributes: of each key; keys that could not be written have no name.
        lost_events: how many were dropped for lack of disk space.
        path: file of the records; None: they are in `regions`.
        regions: the records, if in memory.
    """

    facts: LogFacts
    attributes: list[RangeAttributes]
    lost_events: int
    path: Path | None
    regions: tuple[Int64, ...] = ()

    def blocks(self) -> Iterator[Int64]:
        """The records in file order, some regions at a time, as two columns."""
        if self.path is None:
            for region in self.regions:
                yield region.reshape(-1, 2)
            return
        with self.path.open("rb") as file:
            while True:
                values = np.fromfile(file, dtype=np.int64, count=REGIONS_OF_BLOCK * REGION_BYTES // 8)
                if len(values) == 0:
                    return
                yield values[: len(values) // 2 * 2].reshape(-1, 2)


def read_log(path: Path) -> LoggedRanges:
    """The log at that path. Raises OSError and ValueError where it is none."""
    with path.open("rb") as file:
        header = file.read(HEADER.size)
    lost_events = 0
    if len(header) == HEADER.size:
        magic, lost_events = HEADER.unpack(header)
        if magic not in (MAGIC, bytes(len(MAGIC))):
            raise ValueError(f"{path} is no log of ranges")
    names = path.with_suffix(NAMES_SUFFIX)
    if names.is_symlink():
        raise ValueError(f"{names} is a link")
    first, *lines = names.read_bytes().splitlines(keepends=True) or [b""]
    try:
        facts = LogFacts(**json.loads(first))
        attributes = [_NO_NAME, *(_attributes(line) for line in lines if line.endswith(b"\n"))]
    except (TypeError, RecursionError, OverflowError) as error:
        raise ValueError(f"{names} holds no names of ranges: {error}") from error
    if not all(type(number) is int and 0 <= number < 1 << 63 for number in (facts.pid, facts.started_ns)):
        raise ValueError(f"{names} does not name its process")
    return LoggedRanges(facts, attributes, lost_events, path)


def log_in_memory(log: RangeLog) -> LoggedRanges:
    """The log of this process, from memory."""
    attributes = [_NO_NAME, *(_attributes(line) for line in log.definitions)]
    regions = tuple(np.frombuffer(region, dtype=np.int64) for region in log.regions)
    return LoggedRanges(log.facts, attributes, log.lost_events, None, regions)


def _attributes(line: bytes) -> RangeAttributes:
    """Attributes of a line; their texts are valid UTF-8."""
    values: list[Any] = json.loads(line)
    texts: list[Any] = [printable(value) if isinstance(value, str) else value for value in values]
    domain, message, category, color, category_id, double_payload = texts
    optional_texts = all(value is None or type(value) is str for value in (domain, category))
    optional_numbers = all(
        value is None or (type(value) is int and abs(value) < 1 << 63) for value in (color, category_id)
    )
    if not (optional_texts and optional_numbers and type(message) is str):
        raise ValueError(f"{line[:80]!r} describes no range")
    return RangeAttributes(domain, message, category, color, category_id, bool(double_payload))


def decode(log: LoggedRanges) -> Iterator[RangeEvents]:
    """All events of a log, in no particular order. Unmatched pops and ends are dropped, as nsys does."""
    pairing = _Pairing(log.attributes)
    is_first = True
    for block in log.blocks():
        for thread, records in _records_by_thread(block, is_first=is_first):
            pairing.add(thread, records)
        is_first = False
        yield pairing.take_closed()
    yield pairing.take_open()


def joined(parts: list[RangeEvents]) -> RangeEvents:
    """Events of several blocks as one."""
    names = RangeEvents.__dataclass_fields__
    return RangeEvents(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


def _records_by_thread(block: Int64, *, is_first: bool) -> Iterator[tuple[int, Int64]]:
    """The records of each thread in a block, in order, without unwritten ones."""
    parts: dict[int, list[Int64]] = {}
    for region in range(0, len(block), _REGION_RECORDS):
        at = region + (FIRST_CHUNK_BYTES // RECORD_BYTES if is_first and region == 0 else 0)
        end = min(region + _REGION_RECORDS, len(block))
        while at < end:
            head, thread = block[at].tolist()
            length = head >> OP_BITS
            if head & _OP_MASK != CHUNK or length < RECORD_BYTES:
                break  # the process ended before it used the rest
            stop = min(at + length // RECORD_BYTES, end)
            records = block[at + 1 : stop]
            parts.setdefault(thread, []).append(records[(records != 0).any(axis=1)])
            at = stop
    for thread, found in parts.items():
        yield thread, np.concatenate(found)


class _Pairing:
    """Ranges whose end is in a later block."""

    def __init__(self, attributes: list[RangeAttributes]) -> None:
        numbers: dict[str | None, int] = {}
        self._known = len(attributes)
        self._stack_of_key = np.asarray(
            [numbers.setdefault(entry.domain, len(numbers)) for entry in attributes], dtype=np.int64
        )
        self._open_pushes: dict[tuple[int, int], list[tuple[int, ...]]] = {}
        self._open_starts: dict[int, tuple[int, ...]] = {}
        self._open_ends: dict[int, tuple[int, int]] = {}
        self._rests: dict[int, Int64] = {}
        self._closed: list[RangeEvents] = []
        self._start_end: list[dict[str, Int64]] = []

    def add(self, thread: int, records: Int64) -> None:
        """The next records of a thread."""
        if thread in self._rests:
            records = np.concatenate([self._rests.pop(thread), records])
        whole = len(records)
        while whole and int(records[whole - 1, 0]) & _OP_MASK in (VALUE, ID):
            whole -= 1  # their event comes with the next block
        if whole < len(records):
            self._rests[thread] = records[whole:]
        table = _event_columns(thread, records[:whole])
        table["key"] = np.where(table["key"] < self._known, table["key"], 0)
        self._closed.append(_events(table, np.flatnonzero(table["op"] == MARK), schema.NVTX_MARK_EVENT))
        on_stack = (table["op"] == PUSH) | (table["op"] == POP)
        stack = np.where(on_stack, self._stack_of_key[table["key"]], -1)
        for number in np.unique(stack[on_stack]).tolist():
            self._pair_stack(table, np.flatnonzero(stack == number), self._open_pushes.setdefault((thread, number), []))
        rows = np.flatnonzero((table["op"] == START) | (table["op"] == END))
        if len(rows):
            self._start_end.append({name: values[rows] for name, values in table.items()})

    def take_closed(self) -> RangeEvents:
        """The ranges completed since the last call."""
        if self._start_end:
            parts = self._start_end
            self._pair_start_end({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})
            self._start_end = []
        closed = joined([*self._closed, _no_events()])
        self._closed = []
        return closed

    def take_open(self) -> RangeEvents:
        """The ranges that were never closed."""
        pushes = [row for rows in self._open_pushes.values() for row in rows]
        starts = list(self._open_starts.values())
        return joined(
            [_open_events(pushes, schema.NVTX_PUSH_POP_RANGE), _open_events(starts, schema.NVTX_START_END_RANGE)]
        )

    def _pair_stack(self, table: dict[str, Int64], rows: Int64, before: list[tuple[int, ...]]) -> None:
        """Ranges of one thread and one stack. `rows`: its pushes and pops, in recorded order.

        The depth after a push equals the depth before its pop; at one depth pushes and pops alternate. A pop below the
        block's initial depth closes the innermost of the ranges open before it.
        """
        is_push = table["op"][rows] == PUSH
        level = np.cumsum(np.where(is_push, 1, -1))
        lowest = np.minimum.accumulate(np.minimum(level, 0))
        below = ~is_push & (lowest < np.concatenate(([0], lowest[:-1])))
        ends_of_before = table["time"][rows[below]].tolist()[: len(before)]
        if ends_of_before:
            closed = [before.pop() for _ in ends_of_before]
            self._closed.append(_open_events(closed, schema.NVTX_PUSH_POP_RANGE, ends_of_before))
        rows, is_push = rows[~below], is_push[~below]
        level = np.cumsum(np.where(is_push, 1, -1))
        depth = np.where(is_push, level, level + 1)
        order = np.argsort(depth, kind="stable")
        pushes = order[is_push[order]]
        follower = np.full(len(rows), -1, dtype=np.int64)
        follower[order[:-1]] = order[1:]
        closing = follower[pushes]
        is_closed = (closing >= 0) & ~is_push[closing] & (depth[closing] == depth[pushes])
        end = table["time"][rows[closing[is_closed]]]
        self._closed.append(_events(table, rows[pushes[is_closed]], schema.NVTX_PUSH_POP_RANGE, end))
        before.extend(_as_tuples(table, rows[np.sort(pushes[~is_closed])]))

    def _pair_start_end(self, table: dict[str, Int64]) -> None:
        """Match the starts and ends of all threads by id."""
        starts, ends = np.flatnonzero(table["op"] == START), np.flatnonzero(table["op"] == END)
        ends = ends[np.argsort(table["range_id"][ends], kind="stable")]
        ids = table["range_id"][ends]
        at = np.searchsorted(ids, table["range_id"][starts])
        found = at < len(ids)
        found[found] = ids[at[found]] == table["range_id"][starts[found]]
        closing = ends[at[found]]
        self._close_starts(
            _events(table, starts[found], schema.NVTX_START_END_RANGE, table["time"][closing]), table["thread"][closing]
        )
        others = starts[~found]
        self._open_starts.update(zip(table["range_id"][others].tolist(), _as_tuples(table, others), strict=True))
        unused = np.ones(len(ends), dtype=np.bool_)
        unused[at[found]] = False
        rest = ends[unused]
        times = zip(table["time"][rest].tolist(), table["thread"][rest].tolist(), strict=True)
        self._open_ends.update(zip(table["range_id"][rest].tolist(), times, strict=True))
        across = self._open_starts.keys() & self._open_ends.keys()
        if across:
            opened = [self._open_starts.pop(number) for number in across]
            closed = [self._open_ends.pop(number) for number in across]
            events = _open_events(opened, schema.NVTX_START_END_RANGE, [time_ns for time_ns, _ in closed])
            self._close_starts(events, np.asarray([thread for _, thread in closed], dtype=np.int64))

    def _close_starts(self, events: RangeEvents, end_thread: Int64) -> None:
        events.end_thread = np.where(end_thread != events.thread, end_thread, NO_END)
        self._closed.append(events)


def _event_columns(thread: int, records: Int64) -> dict[str, Int64]:
    """Columns of the events of one thread, each with the payload and the id recorded before it."""
    op = records[:, 0] & _OP_MASK
    kind = op & ~HAS_PAYLOAD
    is_event = (op != VALUE) & (op != ID)
    numbered = (kind == START) | (kind == END)
    has_payload = (op & HAS_PAYLOAD) != 0
    place = np.arange(len(records))
    number_at = place - 1
    value_at = np.where(kind == START, place - 2, place - 1)
    in_order = np.where(numbered, (number_at >= 0) & (op[number_at] == ID), True)
    in_order &= np.where(has_payload, (value_at >= 0) & (op[value_at] == VALUE), True)
    if not in_order[is_event].all():
        number_at, value_at = _places_by_stack(op)
    rows = np.flatnonzero(is_event & (records[:, 1] != 0))  # a time of 0: the process was killed as it wrote it
    value = records[:, 1]
    return {
        "op": kind[rows],
        "key": records[rows, 0] >> OP_BITS,
        "time": value[rows],
        "payload": np.where(has_payload[rows] & (value_at[rows] >= 0), value[value_at[rows]], 0),
        "has_payload": has_payload[rows] & (value_at[rows] >= 0),
        "range_id": np.where(numbered[rows] & (number_at[rows] >= 0), value[number_at[rows]], 0),
        "thread": np.full(len(rows), thread, dtype=np.int64),
    }


def _places_by_stack(op: Int64) -> tuple[Int64, Int64]:
    """Positions of each event's id and payload, or -1, where a signal handler has written events in between."""
    number_at, value_at = np.full(len(op), -1, dtype=np.int64), np.full(len(op), -1, dtype=np.int64)
    values: list[int] = []
    numbers: list[int] = []
    for place, code in enumerate(op.tolist()):
        if code == VALUE:
            values.append(place)
        elif code == ID:
            numbers.append(place)
        else:
            if code & HAS_PAYLOAD and values:
                value_at[place] = values.pop()
            if code & ~HAS_PAYLOAD in (START, END) and numbers:
                number_at[place] = numbers.pop()
    return number_at, value_at


_ROW_COLUMNS = ("key", "time", "thread", "has_payload", "payload")


def _as_tuples(table: dict[str, Int64], rows: Int64) -> list[tuple[int, ...]]:
    return list(zip(*(table[name][rows].tolist() for name in _ROW_COLUMNS), strict=True))


def _open_events(rows: list[tuple[int, ...]], event_type: int, ends: list[int] | None = None) -> RangeEvents:
    """Events of rows that were kept as tuples."""
    values = np.asarray(rows, dtype=np.int64).reshape(len(rows), len(_ROW_COLUMNS))
    table = {name: values[:, place] for place, name in enumerate(_ROW_COLUMNS)}
    end = None if ends is None else np.asarray(ends, dtype=np.int64)
    return _events(table, np.arange(len(rows)), event_type, end)


def _no_events() -> RangeEvents:
    return _open_events([], schema.NVTX_PUSH_POP_RANGE)


def _events(table: dict[str, Int64], rows: Int64, event_type: int, end: Any = None) -> RangeEvents:
    nothing = np.full(len(rows), NO_END, dtype=np.int64)
    return RangeEvents(
        event_type=np.full(len(rows), event_type, dtype=np.int64),
        key=table["key"][rows],
        start=table["time"][rows],
        end=nothing if end is None else end,
        thread=table["thread"][rows],
        end_thread=nothing,
        has_payload=table["has_payload"][rows].astype(np.bool_),
        payload=table["payload"][rows],
    )
