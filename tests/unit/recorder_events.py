"""What a recorder wrote to the range log, decoded: what the tests compare with."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from perfharness.model import range_log
from perfharness.model.conventions import MARK_CLOCK
from perfharness.model.range_log import FIRST_CHUNK_BYTES, HAS_PAYLOAD, OP_BITS, RECORD_BYTES, RangeLog
from perfharness.tracer.ranges import log_in_memory

OP_NAMES = {
    range_log.PUSH: "push",
    range_log.POP: "pop",
    range_log.START: "start",
    range_log.END: "end",
    range_log.MARK: "mark",
}


class Event(NamedTuple):
    """One record; `range_id` only of start and end."""

    op: str
    message: str | None = None
    category: str | None = None
    payload: int | None = None
    domain: str | None = None
    color: int | None = None
    range_id: int | None = None
    time_ns: int = 0


@contextmanager
def recording() -> Iterator[RangeLog]:
    """A log that recorders made inside write to."""
    log = RangeLog()
    range_log.install(log)
    try:
        yield log
    finally:
        range_log.install(None)


def events(log: RangeLog, thread_id: int | None = None, *, clock_marks: bool = False) -> list[Event]:
    """The events of one thread, by default the calling one, in the order in which they were written.

    Marks that tie the clocks come at the beginning and the end of every recorder, and are left out unless asked for.
    """
    wanted = threading.get_native_id() if thread_id is None else thread_id
    wanted_records = records(log).get(wanted, [])
    decoded = [] if not wanted_records else _decode(log, wanted_records)
    return [event for event in decoded if clock_marks or event.message != MARK_CLOCK]


def records(log: RangeLog) -> dict[int, list[tuple[int, int]]]:
    """What each thread wrote, as it stands in the log's memory."""
    found: dict[int, list[tuple[int, int]]] = {}
    for number, region in enumerate(log.regions):
        values = region.cast("B").cast("q").tolist()
        pairs = list(zip(values[::2], values[1::2], strict=True))
        at = FIRST_CHUNK_BYTES // RECORD_BYTES if number == 0 else 0
        while at < len(pairs) and pairs[at][0]:
            length = (pairs[at][0] >> OP_BITS) // RECORD_BYTES
            chunk = [pair for pair in pairs[at + 1 : at + length] if pair != (0, 0)]
            found.setdefault(pairs[at][1], []).extend(chunk)
            at += length
    return found


def _decode(log: RangeLog, pairs: list[tuple[int, int]]) -> list[Event]:
    attributes = log_in_memory(log).attributes
    decoded = []
    payload = range_id = 0
    for head, value in pairs:
        op = head & ((1 << OP_BITS) - 1)
        if op == range_log.VALUE:
            payload = value
        elif op == range_log.ID:
            range_id = value
        else:
            has_payload, op = bool(op & HAS_PAYLOAD), op & ~HAS_PAYLOAD
            name = OP_NAMES[op]
            paired = range_id if op in (range_log.START, range_log.END) else None
            if op in (range_log.POP, range_log.END):
                decoded.append(Event(name, range_id=paired, time_ns=value))
                continue
            a = attributes[head >> OP_BITS]
            shown = payload if has_payload else None
            decoded.append(Event(name, a.message, a.category, shown, a.domain, a.color, paired, value))
    return decoded


def drawn(log: RangeLog, thread_id: int | None = None) -> str:
    """The events in one line: `batch=0(stage() !perfharness.items=4)`; start/end ranges with their category."""
    parts: list[str] = []
    by_id: dict[int | None, str] = {}
    for event in events(log, thread_id):
        value = "" if event.payload is None else f"={event.payload}"
        if event.op == "push":
            parts.append(f"{event.message}{value}(")
        elif event.op == "pop":
            parts.append(")")
        elif event.op == "mark":
            lane = "" if not event.category or "#" not in event.category else "#" + event.category.rpartition("#")[2]
            parts.append(f"!{str(event.message).removeprefix('perfharness.')}{value}{lane}")
        elif event.op == "start":
            by_id[event.range_id] = f"{event.message}#{str(event.category).rpartition('#')[2]}"
            parts.append(f"<{by_id[event.range_id]}{value}")
        else:
            parts.append(f"{by_id[event.range_id]}>")
    return " ".join(parts).replace("( ", "(").replace(" )", ")")
