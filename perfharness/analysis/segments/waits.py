"""Waits that were recorded as events: in the operating system, for the interpreter lock; garbage collection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.segments.events import Events, activities, unnamed
from perfharness.model.activity import CODES, Activity
from perfharness.model.host_samples import HostEventKind, HostEvents
from perfharness.model.trace import OsWaitKind

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
