"""What a recorder wrote to the range log, decoded: what the tests compare with."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from perfharness.model import range_log
from perfharness.model.conventions import MARK_CLOCK
from perfharness.model.range_log import HAS_PAYLOAD, OP_BITS, RECORD_WIDTH, RangeLog

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
    decoded = []
    for written_by, buffer in log.buffers:
        if written_by == wanted:
            assert len(buffer) % RECORD_WIDTH == 0
            records = zip(*(buffer[i::RECORD_WIDTH] for i in range(RECORD_WIDTH)), strict=True)
            decoded += [_decode(log, *record) for record in records]
    return [event for event in decoded if clock_marks or event.message != MARK_CLOCK]


def _decode(log: RangeLog, head: int, time_ns: int, payload: int, range_id: int) -> Event:
    op = head & ((1 << OP_BITS) - 1)
    has_payload, op = bool(op & HAS_PAYLOAD), op & ~HAS_PAYLOAD
    name = OP_NAMES[op]
    value = payload if has_payload else None
    paired = range_id if op in (range_log.START, range_log.END) else None
    if op in (range_log.POP, range_log.END):
        assert op == range_log.POP or head >> OP_BITS == 0
        return Event(name, range_id=paired, time_ns=time_ns)
    attributes = log.attributes[head >> OP_BITS]
    return Event(
        name, attributes.message, attributes.category, value, attributes.domain, attributes.color, paired, time_ns
    )


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
