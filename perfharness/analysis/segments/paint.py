"""The segment table: the time of ranges in pieces that do not overlap.

Events are painted onto the ranges, the most specific last: waits in the operating system, waits for the interpreter
lock, CUDA calls, garbage collection. Each moment belongs to the last event painted, so the segments of a range add up
to its duration. Moments without an event are `unknown`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.segments.calls import Calls
from perfharness.analysis.segments.events import NO_NAME, Events
from perfharness.analysis.segments.waits import collections, lock_waits, os_waits
from perfharness.analysis.stages.roles import StageTable
from perfharness.analysis.timeline.busy import expand
from perfharness.analysis.timeline.grouping import distinct, group_rows
from perfharness.model.activity import CODES, Activity
from perfharness.model.result import Float64
from perfharness.model.trace import PROCESS_MASK, Bool, Int64, Integers

NOTHING = -1
WAITS_FOR_GPU = (Activity.SYNC, Activity.COPY, Activity.UNKNOWN)
"""In these, what the GPU does meanwhile says more."""


@dataclass(frozen=True)
class Sums:
    """Time of each combination of values: `keys` by column, `ns`, and `samples`: how many it is known from (NaN: all of
    it was recorded).
    """

    keys: dict[str, Int64]
    ns: Float64
    samples: Float64

    def __len__(self) -> int:
        return len(self.ns)


@dataclass(frozen=True)
class Segments:
    """One row per stretch of time, ordered by painted range and time; aligned columns.

    `row` is the innermost range (a row of the stage table), `stage` the code of its path, `batch` the row of the
    outermost batch around it (-1: none), `thread` its thread, `activity` a place in `ACTIVITIES`. `name` is the CUDA
    function of a call, `gpu` what the GPU did for this process in a call that waits for it, or in unknown time; both
    are places in `names`, -1: none.
    """

    start_ns: Int64
    end_ns: Int64
    thread: Int64
    row: Integers
    stage: Integers
    batch: Integers
    activity: Integers
    name: Integers
    gpu: Integers
    names: list[str]

    def __len__(self) -> int:
        return len(self.row)

    def sum_by(self, *columns: str) -> Sums:
        """Nanoseconds of each combination of values of these columns, in order of first appearance."""
        values = [np.asarray(getattr(self, column), dtype=np.int64) for column in columns]
        groups = group_rows(*values)
        total = np.bincount(groups.code, weights=self.end_ns - self.start_ns, minlength=len(groups))
        keys = {column: value[groups.first] for column, value in zip(columns, values, strict=True)}
        return Sums(keys, total.astype(np.float64), np.full(len(groups), np.nan))

    def where(self, chosen: Bool) -> Segments:
        """The chosen rows."""
        return replace(self, **{name: getattr(self, name)[chosen] for name in COLUMNS})


COLUMNS = ("start_ns", "end_ns", "thread", "row", "stage", "batch", "activity", "name", "gpu")


def paint(analysis: Analysis, rows: Int64 | None = None) -> Segments:
    """Divide the time of ranges.

    Args:
        analysis: of the trace.
        rows: the ranges, rows of the stage table, none inside another. None: the outermost range of each thread.
    """
    stages = analysis.stages
    rows = np.flatnonzero(np.asarray(stages.parent) < 0) if rows is None else rows
    line, calls = Line(stages, rows), Calls(analysis)
    inner = line.ranges_inside()
    events = list(_events(analysis, calls))
    spans = [line.lay(one.thread, one.start_ns, one.end_ns) for one in events]
    gpu, operation = _gpu_spans(analysis, line, calls)
    own = line.spans(line.place[inner], stages.start_ns[inner], stages.end_ns[inner])
    ends = [line.begin, line.stop, *(end for one in (own, *spans, gpu) for end in (one.begin, one.stop))]
    bounds = np.unique(np.concatenate(ends))
    row = inner[_topmost(bounds, [own])]
    code = np.append(np.concatenate([one.activity[at.event] for one, at in zip(events, spans, strict=True)]), NOTHING)
    name = np.append(np.concatenate([one.name[at.event] for one, at in zip(events, spans, strict=True)]), NO_NAME)
    top = _topmost(bounds, spans)
    activity = np.where(top >= 0, code[top], CODES[Activity.UNKNOWN])
    is_waiting = np.isin(activity, [CODES[one] for one in WAITS_FOR_GPU])
    on_gpu = np.where(is_waiting, np.append(operation, NO_NAME)[_topmost(bounds, [gpu])], NO_NAME)
    place = np.searchsorted(line.begin, bounds[:-1], side="right") - 1
    columns = (place, row, activity, name[top], on_gpu)
    first = np.flatnonzero(_differs(columns))
    start = (bounds[:-1] - line.begin[place] + stages.start_ns[rows[place]])[first]
    length = np.diff(np.append(bounds[first], bounds[-1:]))
    _, row, activity, called, on_gpu = (column[first] for column in columns)
    return Segments(
        start_ns=start,
        end_ns=start + length,
        thread=stages.thread[row],
        row=row,
        stage=stages.paths.code[row],
        batch=np.asarray(analysis.stage_times.outer_batch)[row],
        activity=activity,
        name=called,
        gpu=on_gpu,
        names=calls.names,
    )


def _events(analysis: Analysis, calls: Calls) -> Iterator[Events]:
    """From the least to the most specific."""
    yield from os_waits(analysis)
    yield from lock_waits(analysis)
    yield calls.events
    yield from collections(analysis)


@dataclass(frozen=True)
class Spans:
    """Parts of events on a `Line`: which event, from where to where."""

    event: Integers
    begin: Int64
    stop: Int64


class Line:
    """Ranges of threads, one behind the other on a line of time."""

    def __init__(self, stages: StageTable, rows: Int64) -> None:
        self._stages, self.rows = stages, rows
        self.start_ns, self.end_ns, self.thread = stages.start_ns[rows], stages.end_ns[rows], stages.thread[rows]
        length = self.end_ns - self.start_ns
        self.begin = np.cumsum(length) - length
        self.stop = self.begin + length
        self.place = _places(stages, rows)
        """Of each row of the stage table: which of the ranges it is in; -1: none."""

    def ranges_inside(self) -> Int64:
        """The ranges and those inside them, outer ones first."""
        inside = np.flatnonzero(self.place >= 0)
        return inside[np.lexsort((self._stages.start_ns[inside], self._stages.level[inside]))]

    def lay(self, thread: Int64, start_ns: Int64, end_ns: Int64) -> Spans:
        """Where events of threads lie, in order of start, an outer one before those inside it."""
        event, place = events_inside(self, thread, start_ns, end_ns)
        spans = self.spans(place, start_ns[event], end_ns[event])
        return Spans(event, spans.begin, spans.stop)

    def spans(self, place: Int64, start_ns: Int64, end_ns: Int64) -> Spans:
        """Where stretches lie, clipped to the range that each is in."""
        first, last = self.start_ns[place], self.end_ns[place]
        shift = self.begin[place] - first
        event = np.arange(len(place))
        return Spans(event, np.clip(start_ns, first, last) + shift, np.clip(end_ns, first, last) + shift)


def events_inside(
    line: Line, thread: Int64, start_ns: Int64, end_ns: Int64, *, mask: int = NOTHING
) -> tuple[Integers, Integers]:
    """Events that overlap ranges of their thread: the event and the place of the range, one row for each pair.

    Args:
        mask: which part of the threads has to be equal.
    """
    order = np.lexsort((-end_ns, start_ns, thread))
    in_order, of_line = thread[order], line.thread & mask
    events, places = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    for one in distinct(of_line):
        first, last = np.searchsorted(in_order, [one, one + 1]).tolist()
        if first == last:
            continue
        mine, of_thread = np.flatnonzero(of_line == one), order[first:last]
        begin = np.searchsorted(np.maximum.accumulate(end_ns[of_thread]), line.start_ns[mine], side="right")
        stop = np.searchsorted(start_ns[of_thread], line.end_ns[mine], side="left")
        member, which = expand(begin.astype(np.int64), np.maximum(stop, begin).astype(np.int64))
        event, place = of_thread[member], mine[which]
        overlaps = end_ns[event] > line.start_ns[place]
        events.append(event[overlaps])
        places.append(place[overlaps])
    return np.concatenate(events), np.concatenate(places)


def _gpu_spans(analysis: Analysis, line: Line, calls: Calls) -> tuple[Spans, Int64]:
    """GPU work of the process, and its names: last, what the range's own thread started in it."""
    work = analysis.trace.operations
    event, place = events_inside(line, work.process, work.start_ns, work.end_ns, mask=PROCESS_MASK)
    thread, called_ns = (column[event] for column in calls.started)
    is_own = (thread == line.thread[place]) & (called_ns >= line.start_ns[place]) & (called_ns < line.end_ns[place])
    order = np.argsort(is_own, kind="stable")
    spans = line.spans(place[order], work.start_ns[event[order]], work.end_ns[event[order]])
    return spans, np.where(is_own, calls.operation[event], calls.others)[order]


def _places(stages: StageTable, rows: Int64) -> Int64:
    place = np.full(len(stages) + 1, -1, dtype=np.int64)
    place[rows] = np.arange(len(rows))
    for at in stages.rows_of_levels:
        around = place[stages.parent[at]]
        place[at] = np.where(place[at] >= 0, place[at], around)
    return place[:-1]


def _topmost(bounds: Int64, layers: list[Spans]) -> Int64:
    """For each piece between two bounds, the last of the spans of all layers that covers it; -1: none."""
    begin, stop = (np.concatenate(ends) for ends in zip(*((one.begin, one.stop) for one in layers), strict=True))
    piece, span = expand(np.searchsorted(bounds, begin), np.searchsorted(bounds, stop))
    top = np.full(max(len(bounds) - 1, 0), NOTHING, dtype=span.dtype)
    np.maximum.at(top, piece, span)
    return top.astype(np.int64)


def _differs(columns: tuple[Integers, ...]) -> Bool:
    """Whether each row differs from the one before it."""
    found = np.zeros(len(columns[0]), dtype=np.bool_)
    found[:1] = True
    for column in columns:
        found[1:] |= column[1:] != column[:-1]
    return found
