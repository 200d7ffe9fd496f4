"""Rows of a timeline: slices in one row must nest, so overlapping ones get more rows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfharness.model.columns import Int64

Event = dict[str, Any]

FIRST_MADE_ID = 1 << 24
"""First generated id, above all process and thread ids of the system."""


class Ids:
    """Unique process, thread and arrow ids of a timeline; processes of a run may share ids."""

    def __init__(self) -> None:
        self._made, self.arrows = itertools.count(FIRST_MADE_ID), itertools.count()
        self._pids: set[int] = set()

    def pid(self, wanted: int = 0) -> int:
        """Return the wanted process id if it is free, else a new one."""
        pid = wanted if wanted > 0 and wanted not in self._pids else self.make()
        self._pids.add(pid)
        return pid

    def make(self) -> int:
        """Return a new id."""
        return next(self._made)


@dataclass(frozen=True)
class Line:
    """Thread, tasks of a thread, or stream, drawn in one or more rows.

    Args:
        pid: process on the timeline.
        tid: id of the first row, or 0 for a new one.
    """

    pid: int
    name: str
    tid: int = 0


@dataclass(frozen=True)
class Slices:
    """Starts and ends (ns) of slices, their ids, and the events that name processes and rows."""

    start: Int64
    end: Int64
    pid: list[int]
    tid: list[int]
    names: list[Event]


def placed(start: Int64, end: Int64, of: Int64, lines: Sequence[Line], ids: Ids, processes: Sequence[Event]) -> Slices:
    """Place slices in rows.

    Args:
        of: index of each slice's line.
        processes: events that name the processes.
    """
    keys, inverse = np.unique(np.stack([of, rows_that_nest(start, end, of)]), axis=1, return_inverse=True)
    tids, names = [], [*processes]
    for place, (at, row) in enumerate(keys.T.tolist()):
        line = lines[at]
        tids.append(line.tid if row == 0 and 0 < line.tid < FIRST_MADE_ID else ids.make())
        name = line.name if row == 0 else f"{line.name}, row {row + 1}"
        names += named("thread", name, place, pid=line.pid, tid=tids[-1])
    pids = np.asarray([line.pid for line in lines], dtype=np.int64)[of]
    return Slices(start, end, pids.tolist(), np.asarray(tids, dtype=np.int64)[inverse.ravel()].tolist(), names)


def named(what: str, name: str, place: int, **ids: int) -> list[Event]:
    """Events that name and place a `process` or `thread`."""
    return [
        {"ph": "M", "name": f"{what}_name", **ids, "args": {"name": name}},
        {"ph": "M", "name": f"{what}_sort_index", **ids, "args": {"sort_index": place}},
    ]


def rows_that_nest(start: Int64, end: Int64, group: Int64) -> Int64:
    """First row for each interval in which all overlapping intervals nest.

    Args:
        start: starts, in any order.
        end: ends, `end >= start`.
        group: intervals of different groups share no row; rows of each group begin at 0.
    """
    rows = np.zeros(len(start), dtype=np.int64)
    order = np.lexsort((-end, start, group))
    borders = np.flatnonzero(np.diff(group[order])) + 1
    for mine in np.split(order, borders):
        if len(mine) and (start[mine][1:] < np.maximum.accumulate(end[mine])[:-1]).any():
            rows[mine] = _first_that_fit(start[mine].tolist(), end[mine].tolist())
    return rows


def _first_that_fit(starts: list[int], ends: list[int]) -> list[int]:
    """Rows of intervals that are sorted by start, longer ones first."""
    open_ends: list[list[int]] = []  # per row, ends of open intervals, innermost last
    rows = []
    for start, end in zip(starts, ends, strict=True):
        row = 0
        while row < len(open_ends):
            stack = open_ends[row]
            while stack and stack[-1] <= start:
                stack.pop()
            if not stack or stack[-1] >= end:
                break
            row += 1
        else:
            open_ends.append([])
        open_ends[row].append(end)
        rows.append(row)
    return rows
