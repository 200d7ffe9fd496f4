"""What a recorder wrote to the range log, decoded: what the tests compare with."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from perfharness.model.conventions import MARK_CLOCK
from perfharness.tracer import range_log
from perfharness.tracer.log_reader import LoggedRanges, read_log, records_by_thread
from perfharness.tracer.range_log import HAS_PAYLOAD, LOG_SUFFIX, NAMES_SUFFIX, OP_BITS, RangeAttributes, RangeLog
from tests.recorder_marks import READING_MARKS

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


class TemporaryLog(RangeLog):
    """A log in a folder of its own, which is removed with the object."""

    def __init__(self) -> None:
        super().__init__(tempfile.mkdtemp())
        weakref.finalize(self, shutil.rmtree, self.folder)


def read(log: RangeLog) -> LoggedRanges:
    """What was recorded until now; a log without a record may have no file yet."""
    path = Path(log.folder) / log.file_name
    if path.with_name(path.name.replace(LOG_SUFFIX, NAMES_SUFFIX)).exists() and path.exists():
        return read_log(path)
    return LoggedRanges(log.facts, [RangeAttributes(None, "")], 0, np.empty((0, 2), dtype=np.int64))


@contextmanager
def recording() -> Iterator[RangeLog]:
    """A log that recorders made inside write to."""
    log = TemporaryLog()
    range_log.install(log)
    try:
        yield log
    finally:
        range_log.install(None)


def events(log: RangeLog, thread_id: int | None = None, *, clock_marks: bool = False) -> list[Event]:
    """The events of one thread, by default the calling one, in the order in which they were written.

    Marks of clocks come at the beginning and the end of every recorder, and in batches now and then. They are left out
    unless asked for.
    """
    wanted = threading.get_native_id() if thread_id is None else thread_id
    wanted_records = records(log).get(wanted, [])
    decoded = [] if not wanted_records else _decode(log, wanted_records)
    return [event for event in decoded if clock_marks or event.message not in READING_MARKS | {MARK_CLOCK}]


def records(log: RangeLog) -> dict[int, list[tuple[int, int]]]:
    """What each thread wrote."""
    return {
        thread: [(head, value) for head, value in rows.tolist()]
        for thread, rows in records_by_thread(read(log).records)
    }


def _decode(log: RangeLog, pairs: list[tuple[int, int]]) -> list[Event]:
    attributes = read(log).attributes
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


def readings(log: RangeLog, name: str) -> list[int]:
    return [event.payload or 0 for event in events(log, clock_marks=True) if event.message == name]


def busy(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
