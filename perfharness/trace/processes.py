"""Processes of a trace: nsys records a launched process and its children in one file."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import ValidationError

from perfharness.model import conventions
from perfharness.model import nsys_schema as schema
from perfharness.model.columns import Bool, Int64
from perfharness.model.manifest import ProcessFacts
from perfharness.model.trace import ID_MASK, Trace, pid_of
from perfharness.trace.columns import check_events, rows_of
from perfharness.trace.devices import read_devices
from perfharness.trace.events import OPERATION_TABLES
from perfharness.trace.interpreter_lock import DOMAIN as LOCK_DOMAIN
from perfharness.trace.metadata import read_session_start
from perfharness.trace.names import NameTable
from perfharness.trace.nvtx import NVTX_COLUMNS, PAYLOADS, closed, known_ends, make_nvtx
from perfharness.trace.sqlite import ROW_ID, TraceFile

NOT_MEASURED = (conventions.STARTUP_DOMAIN, conventions.CAPTURE_RANGE, LOCK_DOMAIN)
"""Domains whose ranges are not in results."""

_Columns = TypeVar("_Columns", bound=Any)


@dataclass(frozen=True)
class TracedProcess:
    """A process that made ranges or GPU work.

    `pid`: as in the trace, 24 bits. `gpus`: UUIDs with prefix, if in the trace.
    """

    pid: int
    first_unix_ns: int | None
    """UTC of its first range or GPU operation; None if the trace has no start time."""

    gpus: tuple[str, ...] = ()
    facts: ProcessFacts | None = None
    """Facts from the process itself; None for nsys."""


def find_processes(path: Path) -> list[TracedProcess]:
    """Processes with ranges or GPU work, ordered by their first.

    Raises `TraceNotFoundError` if the file is missing, `TraceFormatError` if it is not a complete trace.
    """
    with TraceFile(path) as file:  # runs before each analysis, so it reads only what it needs
        names = NameTable.read(file)
        events = file.integers(schema.TABLE_NVTX, NVTX_COLUMNS, PAYLOADS)
        texts = file.strings(schema.TABLE_NVTX, ROW_ID, "text", unless="textId")
        ranges = make_nvtx(events, texts, path, names, {}).ranges
        tables = [file.integers(table, ["start", "globalPid", "deviceId"]) for table in OPERATION_TABLES.values()]
        devices, origin_ns = read_devices(file), read_session_start(file)
        facts, has_lost_events = _facts(file)
    work = {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
    check_events(path, "GPU operations", work["start"], work["start"], work["globalPid"])
    measured = ~np.isin(ranges.domain, [code for code, name in enumerate(names.values) if name in NOT_MEASURED])
    pid = np.r_[pid_of(ranges.thread[measured]), pid_of(work["globalPid"])]
    start_ns = np.r_[ranges.start_ns[measured], work["start"]]
    first = {one: int(start_ns[pid == one].min()) for one in np.unique(pid).tolist()}
    used = set(zip(pid_of(work["globalPid"]).tolist(), work["deviceId"].tolist(), strict=True))
    return [
        TracedProcess(one, None, facts=facts[one]) for one in sorted(facts) if has_lost_events and one not in first
    ] + [
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


def _facts(file: TraceFile) -> tuple[dict[int, ProcessFacts], bool]:
    """Facts from processes by pid, and whether any of them lost events to a full disk."""
    facts: dict[int, ProcessFacts] = {}
    has_lost_events = False
    for name, value in file.texts(schema.TABLE_PERFHARNESS, "name", "value"):
        has_lost_events |= name == schema.META_LOST_EVENTS and value != "0"
        if name == schema.META_PROCESS:
            with suppress(ValidationError):
                one = ProcessFacts.model_validate_json(value)
                facts.setdefault(one.pid & ID_MASK, one)
    return facts, has_lost_events


def part_of_process(trace: Trace, pid: int) -> Trace:
    """Return the part of a trace from one process; open ranges end with the last event of the process."""

    def own(table: _Columns, process: Int64) -> _Columns:
        return rows_of(table, is_own(process))

    def is_own(process: Int64) -> Bool:
        found: Bool = pid_of(process) == pid
        return found

    threads = (trace.ranges.thread, trace.marks.thread, trace.api.thread, trace.operations.process)
    if all((pid_of(one) == pid).all() for one in threads):
        return trace
    ranges = own(trace.ranges, trace.ranges.thread)
    marks = own(trace.marks, trace.marks.thread)
    api = own(trace.api, trace.api.thread)
    of_gpu = is_own(trace.operations.process)
    operations, details = rows_of(trace.operations, of_gpu), rows_of(trace.details, of_gpu)
    ends = (known_ends(ranges), marks.time_ns, api.end_ns, operations.end_ns)
    end_ns = max(int(column.max(initial=0)) for column in ends)
    os_calls, locks = trace.os_calls, trace.lock_events
    return replace(
        trace,
        ranges=closed(ranges, end_ns),
        marks=marks,
        api=api,
        operations=operations,
        details=details,
        os_calls=None if os_calls is None else own(os_calls, os_calls.thread),
        lock_events=None if locks is None else own(locks, locks.thread),
        end_ns=end_ns,
    )
