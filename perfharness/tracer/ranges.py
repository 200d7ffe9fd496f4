"""Range logs into columns: every push with its pop, every start with its end. Runs after the script has ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfharness.model import nsys_schema as schema
from perfharness.model.range_log import END, HAS_PAYLOAD, MARK, OP_BITS, POP, PUSH, RECORD_WIDTH, START, RangeLog

Int64 = NDArray[np.int64]

NO_END = -1
"""In `RangeEvents.end`: the range was never closed."""

_OP_MASK = (1 << OP_BITS) - 1
_INT64_MASK = (1 << 64) - 1


@dataclass
class RangeEvents:
    """Events of one log, a row each; times are `perf_counter_ns`.

    Args:
        key: index into the log's `attributes`.
        end: `NO_END` for a range that was never closed, and for marks.
        end_thread: thread that ended it, where that is another one; else `NO_END`.
        payload: 64 bits; counts where `has_payload`.
    """

    event_type: Int64
    key: Int64
    start: Int64
    end: Int64
    thread: Int64
    end_thread: Int64
    range_id: Int64
    has_payload: NDArray[np.bool_]
    payload: Int64


def decode(log: RangeLog) -> RangeEvents:
    """All events of a log, in no particular order. Pops and ends that match nothing are left out, as nsys does."""
    columns = [_thread_columns(thread, list(records)) for thread, records in log.buffers]
    if not columns:
        columns = [_thread_columns(0, [])]
    domains = _domain_numbers(log)
    events = [_paired(table, domains) for table in columns]
    everything = {name: np.concatenate([table[name] for table in columns]) for name in columns[0]}
    events.append(_marks(everything))
    events.append(_start_end(everything))
    return _joined(events)


def _joined(events: list[RangeEvents]) -> RangeEvents:
    names = RangeEvents.__dataclass_fields__
    return RangeEvents(**{name: np.concatenate([getattr(part, name) for part in events]) for name in names})


def _domain_numbers(log: RangeLog) -> Int64:
    """Number of the stack that each key's pushes and pops use: one for each domain, as in NVTX."""
    numbers: dict[str | None, int] = {}
    return np.asarray(
        [numbers.setdefault(entry.domain, len(numbers)) for entry in log.attributes] or [0], dtype=np.int64
    )


def _thread_columns(thread: int, records: list[int]) -> dict[str, Int64]:
    count = len(records) // RECORD_WIDTH
    table = _int64(records[: count * RECORD_WIDTH]).reshape(count, RECORD_WIDTH)
    return {
        "op": table[:, 0] & _OP_MASK,
        "key": table[:, 0] >> OP_BITS,
        "time": table[:, 1],
        "payload": table[:, 2],
        "range_id": table[:, 3],
        "thread": np.full(count, thread, dtype=np.int64),
    }


def _int64(values: list[int]) -> Int64:
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError:
        # A payload beyond 63 bits: its lowest 64 are kept, as NVTX's own payload would.
        wrapped = [value & _INT64_MASK for value in values]
        return np.array(wrapped, dtype=np.uint64).view(np.int64)


def _paired(table: dict[str, Int64], domains: Int64) -> RangeEvents:
    op = table["op"] & ~HAS_PAYLOAD
    on_stack = (op == PUSH) | (op == POP)
    stack = np.where(on_stack, domains[table["key"]], -1)
    parts = [_pair_stack(table, np.flatnonzero(stack == number)) for number in np.unique(stack[on_stack])]
    return _joined([*parts, _events(table, np.empty(0, dtype=np.int64), schema.NVTX_PUSH_POP_RANGE)])


def _pair_stack(table: dict[str, Int64], rows: Int64) -> RangeEvents:
    """Ranges of one thread and one stack. `rows`: its pushes and pops, in the order of their recording.

    The depth at which a push arrives is the depth from which its pop leaves; at one depth they take turns.
    """
    is_push = (table["op"][rows] & ~HAS_PAYLOAD) == PUSH
    step = np.where(is_push, 1, -1)
    level = np.cumsum(step)
    lowest = np.minimum.accumulate(np.minimum(level, 0))
    unmatched = ~is_push & (lowest < np.concatenate(([0], lowest[:-1])))
    if unmatched.any():
        return _pair_stack(table, rows[~unmatched])
    depth = np.where(is_push, level, level + 1)
    order = np.argsort(depth, kind="stable")
    pushes = order[is_push[order]]
    follower = np.full(len(rows), -1, dtype=np.int64)
    follower[order[:-1]] = order[1:]
    closing = follower[pushes]
    closed = (closing >= 0) & ~is_push[closing] & (depth[closing] == depth[pushes])
    end = np.where(closed, table["time"][rows[closing]], NO_END)
    return _events(table, rows[pushes], schema.NVTX_PUSH_POP_RANGE, end)


def _marks(table: dict[str, Int64]) -> RangeEvents:
    return _events(table, np.flatnonzero((table["op"] & ~HAS_PAYLOAD) == MARK), schema.NVTX_MARK_EVENT)


def _start_end(table: dict[str, Int64]) -> RangeEvents:
    op = table["op"] & ~HAS_PAYLOAD
    starts, ends = np.flatnonzero(op == START), np.flatnonzero(op == END)
    ends = ends[np.argsort(table["range_id"][ends], kind="stable")]
    ids = table["range_id"][ends]
    at = np.searchsorted(ids, table["range_id"][starts])
    found = at < len(ids)
    found[found] = ids[at[found]] == table["range_id"][starts[found]]
    end = np.full(len(starts), NO_END, dtype=np.int64)
    end_thread = np.full(len(starts), NO_END, dtype=np.int64)
    closing = ends[at[found]]
    end[found] = table["time"][closing]
    elsewhere = table["thread"][closing] != table["thread"][starts[found]]
    end_thread[np.flatnonzero(found)[elsewhere]] = table["thread"][closing[elsewhere]]
    return _events(table, starts, schema.NVTX_START_END_RANGE, end, end_thread)


def _events(
    table: dict[str, Int64], rows: Int64, event_type: int, end: Any = None, end_thread: Any = None
) -> RangeEvents:
    nothing = np.full(len(rows), NO_END, dtype=np.int64)
    return RangeEvents(
        event_type=np.full(len(rows), event_type, dtype=np.int64),
        key=table["key"][rows],
        start=table["time"][rows],
        end=nothing if end is None else end,
        thread=table["thread"][rows],
        end_thread=nothing if end_thread is None else end_thread,
        range_id=table["range_id"][rows],
        has_payload=(table["op"][rows] & HAS_PAYLOAD) != 0,
        payload=table["payload"][rows],
    )
