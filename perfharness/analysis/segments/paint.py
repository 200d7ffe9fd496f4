"""The segment table: ranges divided into disjoint pieces.

Events are painted onto the ranges, most specific last: waits in the operating system, waits for the interpreter lock,
CUDA calls, garbage collection. Each moment belongs to the last event painted, so a range's segments add up to its
duration. Moments without an event are `unknown`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.segments.events import NO_NAME, Calls, host_events, os_waits
from perfharness.analysis.stages.roles import StageTable
from perfharness.analysis.timeline.busy import expand
from perfharness.analysis.timeline.grouping import distinct, group_rows, row_order, sum_by_code, unique
from perfharness.model.activity import CODES, Activity
from perfharness.model.columns import Columns, Float64, Int64, Integers
from perfharness.model.host_samples import HostEventKind
from perfharness.model.trace import PROCESS_MASK
from perfharness.trace.columns import narrow

WAITS_FOR_GPU = (Activity.SYNC, Activity.COPY)
"""Activities shown by the GPU's work meanwhile, like unknown time in traces without calls that only wait."""


@dataclass(frozen=True)
class Sums:
    """Time per combination of values: `keys` by column, `ns`, and the number of samples behind it (NaN if recorded)."""

    keys: dict[str, Int64]
    ns: Float64
    samples: Float64


def sum_by(keys: dict[str, Int64], ns: Float64, samples: Float64) -> Sums:
    """Sum per combination of key values, in order of first appearance."""
    groups = group_rows(*keys.values())
    sums = (sum_by_code(groups.code, each, len(groups)) for each in (ns, samples))
    return Sums({column: values[groups.first] for column, values in keys.items()}, *sums)


@dataclass(frozen=True)
class Segments(Columns):
    """One row per segment, ordered by painted range and time. `row`: innermost range (row of the stage table). `stage`:
    its path code. `batch`: row of the outermost batch around it (-1 for none). `activity`: index of `ACTIVITIES`.
    `name`: CUDA function of a call; `gpu`: GPU work of this process during waits for the GPU and unknown time; both
    index `names`, -1 for none.
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

    def sum_by(self, *columns: str) -> Sums:
        """Nanoseconds per combination of values of these columns, in order of first appearance."""
        keys = {column: np.asarray(getattr(self, column), dtype=np.int64) for column in columns}
        return sum_by(keys, (self.end_ns - self.start_ns).astype(np.float64), np.full(len(self), np.nan))

    def at(self, column: str, values: Int64, time_ns: Int64) -> Int64:
        """The segment at each time with this value of a column (thread, range); -1 for none."""
        key, count = np.asarray(getattr(self, column), dtype=np.int64), len(self)
        keys, times = np.concatenate([key, values]), np.concatenate([self.start_ns, time_ns])
        order = np.lexsort((np.arange(len(keys)), times, keys))
        last = np.maximum.accumulate(np.where(order < count, np.arange(len(order)), -1))
        found = np.empty(len(keys), dtype=np.int64)
        found[order] = np.where(last >= 0, order[last], -1)
        found = found[count:]
        is_there = (np.append(key, -1)[found] == values) & (np.append(self.end_ns, 0)[found] > time_ns)
        return np.where(is_there & (found >= 0), found, -1)


def paint(analysis: Analysis, rows: Int64 | None = None) -> Segments:
    """Divide the time of ranges. `rows`: disjoint rows of the stage table; None for all outermost ranges."""
    stages, calls = analysis.stages, Calls(analysis)
    rows = np.flatnonzero(stages.parent < 0) if rows is None else rows
    start, end, row, activity, name = _painted(analysis, rows, calls)
    segments = Segments(
        start_ns=start,
        end_ns=end,
        thread=stages.thread[row],
        row=row,
        stage=narrow(stages.paths.code)[row],
        batch=narrow(np.asarray(analysis.stage_times.outer_batch))[row],
        activity=activity,
        name=name,
        gpu=np.full(len(row), NO_NAME, dtype=np.int32),
        names=calls.names,
    )
    return _with_gpu(segments, analysis, calls)


def _painted(analysis: Analysis, rows: Int64, calls: Calls) -> tuple[Int64, Int64, Integers, Integers, Integers]:
    """Start, end, innermost range, activity and name of each segment, without GPU work."""
    stages = analysis.stages
    line = Line(stages.start_ns[rows], stages.end_ns[rows], stages.thread[rows])
    levels = _ranges_inside(stages, rows)
    own = [line.spans(place, stages.start_ns[inner], stages.end_ns[inner]) for inner, place in levels]
    events = [
        *os_waits(analysis),
        *host_events(analysis, HostEventKind.GIL_WAITED, Activity.GIL),
        calls.events,
        *host_events(analysis, HostEventKind.COLLECTION, Activity.GC),
    ]
    spans = [line.lay(one.thread, one.start_ns, one.end_ns) for one in events]
    pieces = Pieces(line, [*own, *spans])
    row = narrow(np.concatenate([rows[:0], *(inner for inner, _ in levels)]))[pieces.topmost(own)]
    top = pieces.topmost(spans)
    activity, name = (
        np.append(np.concatenate([column[at.event] for column, at in zip(columns, spans, strict=True)]), default)[top]
        for columns, default in (
            ([narrow(one.activity, np.int8) for one in events], np.int8(CODES[Activity.UNKNOWN])),
            ([narrow(one.name) for one in events], np.int32(NO_NAME)),
        )
    )
    del own, spans, top  # large arrays
    first = pieces.changes(row, activity, name)
    return *pieces.times(first), row[first], activity[first], name[first]


def _with_gpu(segments: Segments, analysis: Analysis, calls: Calls) -> Segments:
    """Split segments that wait for the GPU by its work for the process; work of their own thread has priority."""
    waiting = WAITS_FOR_GPU if analysis.trace.meta.has_all_calls else (*WAITS_FOR_GPU, Activity.UNKNOWN)
    at = np.flatnonzero(np.isin(segments.activity, [CODES[one] for one in waiting]))
    work = analysis.trace.operations
    if not len(at) or not len(work):
        return segments
    line = Line(segments.start_ns[at], segments.end_ns[at], segments.thread[at] & PROCESS_MASK)
    spans = line.lay(work.process, work.start_ns, work.end_ns)
    segment = at[spans.place]
    thread, called_ns = (column[spans.event] for column in calls.started)
    batch_ns = np.append(analysis.stages.start_ns, np.iinfo(np.int64).min)[segments.batch[segment]]
    is_own = (thread == segments.thread[segment]) & (called_ns >= batch_ns)
    pieces = Pieces(line, [spans])
    others, own = pieces.topmost([spans.select(~is_own)]), pieces.topmost([spans.select(is_own)])
    name = np.append(calls.operation[spans.event[is_own]], NO_NAME)[own]
    name = np.where((own < 0) & (others >= 0), calls.others, name)
    first = pieces.changes(name)
    start, end = pieces.times(first)
    count = np.ones(len(segments), dtype=np.int64)
    count[at] = np.bincount(pieces.place[first], minlength=len(at))
    is_part = np.zeros(len(segments), dtype=np.bool_)
    is_part[at] = True
    parts = np.flatnonzero(np.repeat(is_part, count))
    found = segments.select(np.repeat(np.arange(len(segments), dtype=np.int32), count))
    for column, values in ((found.start_ns, start), (found.end_ns, end), (found.gpu, name[first])):
        column[parts] = values
    return found


@dataclass(frozen=True)
class Spans(Columns):
    """Parts of events on a `Line`: the event, the stretch, begin and end."""

    event: Integers
    place: Integers
    begin: Int64
    stop: Int64


class Line:
    """Stretches of threads, one after the other on a single time line."""

    def __init__(self, start_ns: Int64, end_ns: Int64, thread: Int64) -> None:
        self.start_ns, self.end_ns, self.thread = start_ns, end_ns, thread
        length = end_ns - start_ns
        self.begin = np.cumsum(length) - length
        self.stop = self.begin + length

    def lay(self, thread: Int64, start_ns: Int64, end_ns: Int64) -> Spans:
        """Clip events to the stretches of their thread, ordered by start, outer before inner."""
        order = row_order(thread, start_ns, -end_ns)
        order = np.arange(len(thread)) if order is None else order
        in_order = thread[order]
        events, places = [order[:0]], [order[:0]]
        for one in distinct(self.thread):
            first, last = np.searchsorted(in_order, [one, one + 1]).tolist()
            if first == last:
                continue
            mine, of_thread = np.flatnonzero(self.thread == one), order[first:last]
            begin = np.searchsorted(np.maximum.accumulate(end_ns[of_thread]), self.start_ns[mine], side="right")
            stop = np.searchsorted(start_ns[of_thread], self.end_ns[mine], side="left")
            member, which = expand(begin.astype(np.int64), np.maximum(stop, begin).astype(np.int64))
            event, place = of_thread[member], mine[which]
            overlaps = end_ns[event] > self.start_ns[place]
            events.append(event[overlaps])
            places.append(place[overlaps])
        event, place = np.concatenate(events), np.concatenate(places)
        return replace(self.spans(place, start_ns[event], end_ns[event]), event=event)

    def spans(self, place: Integers, start_ns: Int64, end_ns: Int64) -> Spans:
        """Positions of events, each clipped to its stretch."""
        first, last = self.start_ns[place], self.end_ns[place]
        shift = self.begin[place] - first
        begin, stop = np.clip(start_ns, first, last) + shift, np.clip(end_ns, first, last) + shift
        return Spans(np.arange(len(place), dtype=np.int32), narrow(place), begin, stop)


class Pieces:
    """A line cut at the ends of spans; `place` is the stretch of each piece."""

    def __init__(self, line: Line, layers: Sequence[Spans]) -> None:
        ends = np.concatenate([line.begin, line.stop, *(end for one in layers for end in (one.begin, one.stop))])
        ends.sort(kind="stable")  # fast, because it joins sorted runs
        self._line, self._bounds = line, unique(ends)
        self.place = narrow(np.searchsorted(line.begin, self._bounds[:-1], side="right") - 1)

    def topmost(self, layers: Sequence[Spans]) -> Integers:
        """For each piece, the last span that covers it, numbered through all layers; -1 for none."""
        top, count = np.full(len(self.place), -1, dtype=np.int32), 0
        for one in layers:
            piece, span = expand(np.searchsorted(self._bounds, one.begin), np.searchsorted(self._bounds, one.stop))
            top[piece] = span + np.int32(count)  # the last span of a piece stays
            count += len(one.event)
        return top

    def changes(self, *columns: Integers) -> Integers:
        """First pieces of runs of equal values within a stretch."""
        found = np.zeros(len(self.place), dtype=np.bool_)
        found[:1] = True
        for column in (self.place, *columns):
            found[1:] |= column[1:] != column[:-1]
        return narrow(np.flatnonzero(found))

    def times(self, first: Integers) -> tuple[Int64, Int64]:
        """Start and end of each run of pieces, given the first pieces."""
        start, shift = self._bounds[first], (self._line.start_ns - self._line.begin)[self.place[first]]
        end = np.append(start, self._bounds[-1:])[1:]
        start += shift
        end += shift
        return start, end


def _ranges_inside(stages: StageTable, rows: Int64) -> list[tuple[Integers, Integers]]:
    """Ranges `rows` and those inside them, by level from the outermost; and the index in `rows` of each."""
    place = np.full(len(stages) + 1, -1, dtype=np.int32)
    place[rows] = np.arange(len(rows))
    found = []
    for at in stages.rows_of_levels:
        place[at] = np.where(place[at] >= 0, place[at], place[stages.parent[at]])
        inside = at[place[at] >= 0]
        inside = inside[np.argsort(stages.start_ns[inside], kind="stable")]
        found.append((inside, place[inside]))
    return found
