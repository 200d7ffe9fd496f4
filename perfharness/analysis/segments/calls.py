"""CUDA calls as events of threads, and the GPU work that a thread waits for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.segments.events import NO_NAME, Events
from perfharness.analysis.timeline.cuda_calls import call_activities, operation_names
from perfharness.analysis.timeline.grouping import distinct
from perfharness.model.activity import CODES, Activity
from perfharness.model.trace import Int64

NAMED = (Activity.ALLOC, Activity.COMPILE, Activity.OTHER)
"""The function says more than the kind of these calls."""
VERSION = re.compile(r"_v\d+$")
OTHERS_WORK = "GPU work of others"
"""What another batch, stream or thread of the process started."""


@dataclass(frozen=True)
class Calls:
    """The CUDA calls and GPU operations of a trace by name: code of each operation, and of `OTHERS_WORK`."""

    analysis: Analysis

    @cached_property
    def _named(self) -> tuple[list[str], Int64]:
        names, operation = operation_names(self.analysis.trace)
        for code in distinct(self.analysis.trace.api.name):
            if code >= 0:
                names[code] = VERSION.sub("", names[code])
        return [*names, OTHERS_WORK], operation

    @property
    def names(self) -> list[str]:
        """By code."""
        return self._named[0]

    @property
    def operation(self) -> Int64:
        """Code of the name of each GPU operation."""
        return self._named[1]

    @property
    def others(self) -> int:
        """Code of `OTHERS_WORK`."""
        return len(self.names) - 1

    @cached_property
    def events(self) -> Events:
        """The calls, an outer call before those inside it."""
        api = self.analysis.trace.api
        activity = call_activities(self.analysis.trace).astype(np.int64)
        is_named = np.isin(activity, [CODES[one] for one in NAMED])
        return Events(api.thread, api.start_ns, api.end_ns, activity, np.where(is_named, api.name, NO_NAME))

    @cached_property
    def started(self) -> tuple[Int64, Int64]:
        """Thread and time of the call that started each GPU operation; -1: not known."""
        launches, api = self.analysis.launches, self.analysis.trace.api
        call = np.full(len(self.operation), -1, dtype=np.int64)
        call[launches.operation] = launches.call
        return np.append(api.thread, -1)[call], np.append(api.start_ns, -1)[call]
