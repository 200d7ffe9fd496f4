"""Events of threads as columns: what `paint` lays onto ranges. Waits and garbage collection that were recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.timeline.grouping import distinct
from perfharness.model.activity import CODES, Activity
from perfharness.model.host_samples import HostEventKind, HostEvents
from perfharness.model.trace import Int64, Integers, OsWaitKind

NO_NAME = -1


@dataclass(frozen=True)
class Events:
    """Intervals of threads; aligned columns. Of those that overlap, the later one counts."""

    thread: Int64
    start_ns: Int64
    end_ns: Int64
    activity: Integers
    """Places in `ACTIVITIES`."""
    name: Integers
    """Codes of the table's names; -1: none."""


def unnamed(thread: Int64, start_ns: Int64, end_ns: Int64, activity: Integers) -> Events:
    """Events without a name; those without an activity (-1) are left out."""
    at = np.flatnonzero(activity >= 0)
    no_name = np.full(len(at), NO_NAME, dtype=np.int64)
    return Events(thread[at], start_ns[at], end_ns[at], activity[at], no_name)


def activities(values: Integers, meaning: Mapping[int, Activity]) -> Int64:
    """The code of the activity of each value; -1 where it has none."""
    found = np.full(len(values), -1, dtype=np.int64)
    for value in distinct(values):
        if value in meaning:
            found[values == value] = CODES[meaning[value]]
    return found


OF_WAIT: Mapping[int, Activity] = {
    OsWaitKind.LOCK: Activity.LOCK,
    OsWaitKind.SLEEP: Activity.SLEEP,
    OsWaitKind.PROCESS: Activity.PROCESS,
    OsWaitKind.FILE: Activity.FILE,
    OsWaitKind.SOCKET: Activity.NETWORK,
}


def os_waits(analysis: Analysis) -> Iterator[Events]:
    """Calls of the operating system in which a thread waits (nsys)."""
    calls = analysis.trace.os_calls
    if calls is not None:
        yield unnamed(calls.thread, calls.start_ns, calls.end_ns, activities(calls.kind, OF_WAIT))


def lock_waits(analysis: Analysis) -> Iterator[Events]:
    """Waits for the interpreter lock."""
    return _of_kind(analysis, HostEventKind.GIL_WAITED, Activity.GIL)


def collections(analysis: Analysis) -> Iterator[Events]:
    """Runs of the garbage collector."""
    return _of_kind(analysis, HostEventKind.COLLECTION, Activity.GC)


def _of_kind(analysis: Analysis, kind: HostEventKind, activity: Activity) -> Iterator[Events]:
    for events in _sources(analysis):
        code = np.where(events.kind == kind, CODES[activity], -1)
        yield unnamed(events.thread, events.start_ns, events.end_ns, code)


def _sources(analysis: Analysis) -> Iterator[HostEvents]:
    if analysis.trace.lock_events is not None:
        yield analysis.trace.lock_events
    if analysis.host_probe is not None:
        yield analysis.host_probe.events
