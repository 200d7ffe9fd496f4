"""The processes of a trace: nsys records a launched process and all that it starts in one file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import ValidationError

from perfharness.model import conventions
from perfharness.model import nsys_schema as schema
from perfharness.model.measured import ProcessFacts
from perfharness.model.trace import ID_MASK, PROCESS_MASK, Bool, Int64, Trace, pid_of
from perfharness.trace.columns import rows_of
from perfharness.trace.devices import read_devices
from perfharness.trace.events import OPERATION_TABLES
from perfharness.trace.interpreter_lock import DOMAIN as LOCK_DOMAIN
from perfharness.trace.metadata import read_session_start
from perfharness.trace.names import NameTable
from perfharness.trace.nvtx import closed, known_ends
from perfharness.trace.readers import Readers
from perfharness.trace.source import MISSING, ROW_ID, TraceSource

NOT_MEASURED = (conventions.STARTUP_DOMAIN, conventions.CAPTURE_RANGE, LOCK_DOMAIN)
"""Domains whose ranges are in no result."""

_Columns = TypeVar("_Columns", bound=Any)


@dataclass(frozen=True)
class TracedProcess:
    """A process that made ranges or GPU work.

    `pid` is what a trace holds of it, 24 bits; `gpus` are UUIDs, with the prefix, as far as the trace has them.
    """

    pid: int
    first_unix_ns: int | None
    """UTC time of its first range or GPU operation; None where the trace does not have its start time."""

    gpus: tuple[str, ...] = ()
    facts: ProcessFacts | None = None
    """What it said of itself; None in a trace of nsys."""


def find_processes(path: Path) -> list[TracedProcess]:
    """The processes that made ranges or GPU work, by their first. Names are read only of domains, for this is asked of
    every trace before it is analysed.

    Raises `TraceNotFoundError` where there is no file, `TraceFormatError` where it is no whole trace.
    """
    with Readers(path) as readers:
        events = readers.integers(
            schema.TABLE_NVTX, ["start", "eventType", "globalTid", "domainId", "textId"], row_id=True
        )
        operations = [
            readers.integers(table, ["start", "globalPid", "deviceId"]) for table in OPERATION_TABLES.values()
        ]
        nvtx = events()
        wanted = np.isin(nvtx["eventType"], (*schema.PUSH_POP_EVENTS, *schema.START_END_EVENTS))
        for process_of, domain in _domains_left_out(readers, nvtx):
            wanted &= (nvtx["globalTid"] & PROCESS_MASK != process_of) | (nvtx["domainId"] != domain)
        rows = [rows() for rows in operations]
        process = np.concatenate([nvtx["globalTid"][wanted], *(one["globalPid"] for one in rows)])
        start = np.concatenate([nvtx["start"][wanted], *(one["start"] for one in rows)])
        used = {
            (int(pid), int(device))
            for one in rows
            for pid, device in np.unique(np.stack([pid_of(one["globalPid"]), one["deviceId"]]), axis=1).T.tolist()
        }
        lost = _lost_events(readers.source)
        devices, origin_ns = read_devices(readers.source), read_session_start(readers.source)
        facts = {one.pid & ID_MASK: one for one in reversed(list(_facts(readers.source)))}
    pid = pid_of(process)
    first: dict[int, int] = {}
    for one in np.unique(pid).tolist():
        first[one] = int(start[pid == one].min())
    all_lost = [TracedProcess(one, None, facts=facts[one]) for one in sorted(facts) if lost and one not in first]
    return all_lost + [
        TracedProcess(
            one,
            None if origin_ns is None else origin_ns + first[one],
            tuple(
                f"GPU-{device.uuid}"
                for device in devices
                if device.uuid is not None and device.pid in (None, one) and (one, device.number) in used
            ),
            facts.get(one),
        )
        for one in sorted(first, key=lambda one: first[one])
    ]


def _domains_left_out(readers: Readers, nvtx: dict[str, Int64]) -> list[tuple[int, int]]:
    """Process and id of each domain whose ranges are in no result."""
    definitions = np.flatnonzero(nvtx["eventType"] == schema.NVTX_DOMAIN_CREATE)
    keys, texts = readers.strings(schema.TABLE_NVTX, ROW_ID, "text", unless="textId")()
    at = np.flatnonzero(np.isin(keys, nvtx[ROW_ID][definitions]))
    name_of = dict(zip(keys[at].tolist(), texts.take(at).to_pylist(), strict=True))
    names = NameTable.read(readers.source) if (nvtx["textId"][definitions] != MISSING).any() else None
    found = []
    for row in definitions.tolist():
        name = name_of.get(int(nvtx[ROW_ID][row]))
        if name is None and names is not None:
            code = int(names.codes_of_ids(nvtx["textId"][row : row + 1])[0])
            name = names.values[code] if code >= 0 else None
        if name in NOT_MEASURED:
            found.append((int(nvtx["globalTid"][row] & PROCESS_MASK), int(nvtx["domainId"][row])))
    return found


def _facts(source: TraceSource) -> Iterator[ProcessFacts]:
    if not {"name", "value"} <= source.columns(schema.TABLE_PERFHARNESS):
        return
    for name, value in source.texts(schema.TABLE_PERFHARNESS, ["name", "value"]):
        if name == schema.META_PROCESS:
            with suppress(ValidationError):
                yield ProcessFacts.model_validate_json(value)


def _lost_events(source: TraceSource) -> bool:
    """Whether the disk had no room for events: then a process without any may have made some."""
    if not {"name", "value"} <= source.columns(schema.TABLE_PERFHARNESS):
        return False
    rows = source.texts(schema.TABLE_PERFHARNESS, ["name", "value"])
    return any(name == schema.META_LOST_EVENTS and value != "0" for name, value in rows)


def part_of_process(trace: Trace, pid: int, from_ns: int | None = None, until_ns: int | None = None) -> Trace:
    """What a trace has of one process; the trace itself where it holds no other.

    What the process left open ends with its own last event, not with that of another.

    Args:
        from_ns, until_ns: on the trace's clock, where others had its pid before or after it: what begins from the one
            on and before the other is its own.
    """

    def own(table: _Columns, process: Int64, begin_ns: Int64) -> _Columns:
        return rows_of(table, is_own(process, begin_ns))

    def is_own(process: Int64, begin_ns: Int64) -> Bool:
        found: Bool = pid_of(process) == pid
        if from_ns is not None:
            found &= begin_ns >= from_ns
        if until_ns is not None:
            found &= begin_ns < until_ns
        return found

    threads = (trace.ranges.thread, trace.marks.thread, trace.api.thread, trace.operations.process)
    if from_ns is until_ns is None and all((pid_of(one) == pid).all() for one in threads):
        return trace
    ranges = own(trace.ranges, trace.ranges.thread, trace.ranges.start_ns)
    marks = own(trace.marks, trace.marks.thread, trace.marks.time_ns)
    api = own(trace.api, trace.api.thread, trace.api.start_ns)
    of_gpu = is_own(trace.operations.process, trace.operations.start_ns)
    operations, details = rows_of(trace.operations, of_gpu), rows_of(trace.details, of_gpu)
    ends = (known_ends(ranges), marks.time_ns, api.end_ns, operations.end_ns)
    end_ns = max(int(column.max(initial=0)) for column in ends)
    waits, os_calls, locks = trace.synchronizations, trace.os_calls, trace.lock_events
    return replace(
        trace,
        ranges=closed(ranges, end_ns),
        marks=marks,
        api=api,
        operations=operations,
        details=details,
        synchronizations=own(waits, waits.process, waits.start_ns),
        os_calls=None if os_calls is None else own(os_calls, os_calls.thread, os_calls.start_ns),
        lock_events=None if locks is None else own(locks, locks.thread, locks.start_ns),
        end_ns=end_ns,
    )
