"""Events of threads as columns: what `paint` lays onto ranges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from perfharness.analysis.timeline.grouping import distinct
from perfharness.model.activity import CODES, Activity
from perfharness.model.trace import Int64, Integers

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
