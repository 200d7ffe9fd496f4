"""Events that `paint` lays onto ranges: waits, garbage collection, CUDA calls."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.timeline.cuda_calls import call_activities, operation_names
from perfharness.analysis.timeline.grouping import distinct
from perfharness.model.activity import CODES, Activity
from perfharness.model.columns import Int64, Integers
from perfharness.model.host_samples import HostEventKind
from perfharness.model.trace import OsWaitKind

NO_NAME = -1


@dataclass(frozen=True)
class Events:
    """Intervals of threads, aligned columns. If events overlap, the later one counts."""

    thread: Int64
    start_ns: Int64
    end_ns: Int64
    activity: Integers
    """Indices of `ACTIVITIES`."""
    name: Integers
    """Codes of the table's names; -1 for none."""


def unnamed(thread: Int64, start_ns: Int64, end_ns: Int64, activity: Integers) -> Events:
    """Events without names; those without an activity (-1) are dropped."""
    at = np.flatnonzero(activity >= 0)
    no_name = np.full(len(at), NO_NAME, dtype=np.int64)
    return Events(thread[at], start_ns[at], end_ns[at], activity[at], no_name)


def activities(values: Integers, meaning: Mapping[int, Activity]) -> Int64:
    """Activity code of each value; -1 for none."""
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
    """Operating system calls in which a thread waits (from nsys)."""
    calls = analysis.trace.os_calls
    if calls is not None:
        yield unnamed(calls.thread, calls.start_ns, calls.end_ns, activities(calls.kind, OF_WAIT))


def host_events(analysis: Analysis, kind: HostEventKind, activity: Activity) -> Iterator[Events]:
    """Waits for the interpreter lock, or runs of the garbage collector."""
    probe = analysis.host_probe
    for events in (analysis.trace.lock_events, None if probe is None else probe.events):
        if events is not None:
            yield unnamed(
                events.thread, events.start_ns, events.end_ns, np.where(events.kind == kind, CODES[activity], -1)
            )


NAMED = (Activity.ALLOC, Activity.COMPILE, Activity.OTHER)
"""Activities whose function name is worth showing."""
VERSION = re.compile(r"_v\d+$")
OTHERS_WORK = "GPU work of others"
"""GPU work started by another batch, stream or thread of the process."""


class Calls:
    """CUDA calls and GPU operations of a trace by name, with name codes for operations and `OTHERS_WORK`."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis
        names, self.operation = operation_names(analysis.trace)
        for code in distinct(analysis.trace.api.name):
            if code >= 0:
                names[code] = VERSION.sub("", names[code])
        self.names, self.others = [*names, OTHERS_WORK], len(names)

    @cached_property
    def events(self) -> Events:
        """The calls, outer before inner."""
        api = self.analysis.trace.api
        activity = call_activities(self.analysis.trace).astype(np.int64)
        is_named = np.isin(activity, [CODES[one] for one in NAMED])
        return Events(api.thread, api.start_ns, api.end_ns, activity, np.where(is_named, api.name, NO_NAME))

    @cached_property
    def started(self) -> tuple[Int64, Int64]:
        """Thread and time of the call that started each GPU operation; -1 if unknown."""
        launches, api = self.analysis.launches, self.analysis.trace.api
        call = np.full(len(self.operation), -1, dtype=np.int64)
        call[launches.operation] = launches.call
        return np.append(api.thread, -1)[call], np.append(api.start_ns, -1)[call]
