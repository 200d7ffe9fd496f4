"""Rows of a timeline: viewers draw slices of one row inside each other, so overlapping ones need further rows."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from perfharness.model.trace import Int64

FIRST_MADE_ID = 1 << 24
"""First generated id; those of the system's processes and threads are smaller."""


def rows_that_nest(start: Int64, end: Int64, group: Int64) -> Int64:
    """A row for each interval, so that the intervals of a row are disjoint or nested. Row 0 takes as many as fit.

    Args:
        start: starts, any order.
        end: ends, `end >= start`.
        group: intervals of different groups share no row; each numbers its rows from 0.

    Of equal intervals the first one is the outer one. An interval goes into the first row where it fits.
    """
    rows = np.zeros(len(start), dtype=np.int64)
    order = np.lexsort((-end, start, group))
    borders = np.flatnonzero(np.diff(group[order])) + 1
    for mine in np.split(order, borders):
        if len(mine) and (start[mine][1:] < np.maximum.accumulate(end[mine])[:-1]).any():
            rows[mine] = _first_rows_that_fit(start[mine].tolist(), end[mine].tolist())
    return rows


def _first_rows_that_fit(starts: list[int], ends: list[int]) -> list[int]:
    """Rows of intervals in order of start, the longer first."""
    open_ends: list[list[int]] = []  # per row, the ends of what is open, the innermost last
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


@dataclass
class Ids:
    """Process and thread ids of the timeline, whose processes may have had equal ids."""

    used_pids: set[int] = field(default_factory=set)
    next_id: int = FIRST_MADE_ID

    def pid(self, wanted: int | None = None) -> int:
        """The wanted process id if it is free, else a new one."""
        pid = wanted if wanted is not None and wanted > 0 and wanted not in self.used_pids else self.make()
        self.used_pids.add(pid)
        return pid

    def make(self) -> int:
        """A new id."""
        self.next_id += 1
        return self.next_id


@dataclass(frozen=True)
class Tracks:
    """The row of each slice as viewers name it, and the metadata events that give the rows their names."""

    pid: Int64
    tid: Int64
    metadata: list[str]


def name_process(pid: int, name: str, place: int) -> list[str]:
    """Metadata events of a process: its name and where it is drawn."""
    return [
        f'{{"ph":"M","name":"process_name","pid":{pid},"args":{{"name":{json.dumps(name)}}}}}',
        f'{{"ph":"M","name":"process_sort_index","pid":{pid},"args":{{"sort_index":{place}}}}}',
    ]


def make_tracks(
    ids: Ids, pid: Int64, wanted_tid: Int64, line: Int64, row: Int64, names: Iterable[tuple[str, str]]
) -> Tracks:
    """Thread ids and names for the rows of slices.

    Args:
        ids: gives out ids.
        pid: the timeline's process of each slice.
        wanted_tid: the id that row 0 of a line should have; a new one where viewers do not accept it.
        line: what the rows belong to, as a number: a thread, a task, a stream.
        row: from `rows_that_nest`, within the line.
        names: for each line, in order of its number, its name and what a further row is called.
    """
    label = list(names)
    keys, first, inverse = np.unique(np.stack([pid, line, row]), axis=1, return_index=True, return_inverse=True)
    tids = np.zeros(keys.shape[1], dtype=np.int64)
    metadata = []
    taken: set[tuple[int, int]] = set()
    for place, (of_pid, of_line, of_row) in enumerate(keys.T.tolist()):
        wanted = int(wanted_tid[first[place]])
        has_own = of_row == 0 and 0 < wanted < FIRST_MADE_ID and (of_pid, wanted) not in taken
        tid = wanted if has_own else ids.make()
        taken.add((of_pid, tid))
        tids[place] = tid
        name, further = label[of_line]
        shown = name if of_row == 0 else f"{name}, {further} {of_row + 1}"
        metadata += [
            f'{{"ph":"M","name":"thread_name","pid":{of_pid},"tid":{tid},"args":{{"name":{json.dumps(shown)}}}}}',
            f'{{"ph":"M","name":"thread_sort_index","pid":{of_pid},"tid":{tid},"args":{{"sort_index":{place}}}}}',
        ]
    return Tracks(pid, tids[inverse.ravel()], metadata)
