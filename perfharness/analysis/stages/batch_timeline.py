"""What happened in single batches, event by event: stages, CUDA calls, GPU operations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.timeline.operation_names import operation_names
from perfharness.model.result import Float64, Path
from perfharness.model.trace import GpuOperationKind, Int64

NS_PER_MS = 1e6

MAX_BARS = 400
"""Of stages, of calls and of operations each, a batch: where there are more, short neighbours are one bar."""

FINER = 1.25
"""Each try at joining neighbours has parts of a batch that are so many times as long as those of the one before."""

MAX_STREAMS = 12
"""Rows of GPU streams, those with most work first."""

Which = Literal["typical", "best", "worst"]
BarKind = Literal["stage", "call", "kernel", "copy", "memset", "graph", "other"]
KINDS: dict[int, BarKind] = {
    GpuOperationKind.KERNEL: "kernel",
    GpuOperationKind.MEMCPY: "copy",
    GpuOperationKind.MEMSET: "memset",
    GpuOperationKind.GRAPH: "graph",
}


@dataclass(frozen=True)
class Bar:
    """Something that took time, ms since the batch began; `other` is GPU work that the batch did not start."""

    row: str
    name: str
    """Of joined neighbours that of all of them, or empty."""

    kind: BarKind
    start_ms: float
    end_ms: float
    count: int = 1
    """How many neighbours are joined, from the begin of the first to the end of the last."""

    sum_ms: float | None = None
    """Of joined neighbours the sum of their times; None of a single one."""

    @property
    def filled(self) -> float:
        """The part of it that its events take."""
        length_ms = self.end_ms - self.start_ms
        return 1.0 if self.sum_ms is None or not length_ms else min(self.sum_ms / length_ms, 1.0)


@dataclass(frozen=True)
class Thinned:
    """What a timeline does not show one by one of a kind of events."""

    what: str
    all: int
    within_ms: float
    """Neighbours that begin in the same part of so many ms are one bar; longer ones never are."""

    left_out: int = 0
    """How many have no bar: the shortest, and those of further streams."""

    left_out_ms: float = 0.0
    """Sum of their times."""


@dataclass(frozen=True)
class BatchTimeline:
    """One batch. `rows` in the order from above; the end is that of the batch or of its last GPU operation."""

    which: Which
    process: str
    loop: Path
    batch_index: int
    cpu_ms: float
    end_ms: float
    rows: list[str]
    bars: list[Bar]
    thinned: list[Thinned] = field(default_factory=list)
    gpu_reason: str | None = None
    """Why there are no GPU operations, where none were traced."""


@dataclass(frozen=True)
class _Events:
    """Candidates for bars of one kind of events."""

    what: str
    row: list[str]
    name: list[str]
    kind: list[BarKind]
    start_ns: Int64
    end_ns: Int64
    not_shown: int = 0
    """Events of further rows, which there is no room for."""

    not_shown_ns: int = 0


def typical_best_worst(values: Float64) -> dict[Which, int]:
    """Positions of three values: the nearest to the median, the smallest, the largest; fewer where they coincide."""
    if not len(values) or np.isnan(values).all():
        return {}
    positions: tuple[tuple[Which, int], ...] = (
        ("typical", int(np.nanargmin(np.abs(values - np.nanmedian(values))))),
        ("best", int(np.nanargmin(values))),
        ("worst", int(np.nanargmax(values))),
    )
    found: dict[Which, int] = {}
    for which, at in positions:
        if at not in found.values():
            found[which] = at
    return found


def batch_timelines(analysis: Analysis, process: str) -> list[BatchTimeline]:
    """A typical, the best and the worst batch of the loop with most host time, warm-up left out where anything is left.

    Empty where there is no batch.
    """
    times = analysis.stage_times
    cpu_ms = times.times["cpu_time"]
    loops = [rows for rows in times.rows_of_loops if len(rows)]
    if not loops:
        return []
    rows = max(loops, key=lambda one: float(np.nansum(cpu_ms[one])))
    counted = rows[~times.warmup[rows]]
    rows = counted if len(counted) else rows
    chosen = typical_best_worst(cpu_ms[rows])
    return [batch_timeline(analysis, process, which, int(rows[at])) for which, at in chosen.items()]


def batch_timeline(analysis: Analysis, process: str, which: Which, batch: int) -> BatchTimeline:
    """Of one batch, by its row in the stage table."""
    stages, times = analysis.stages, analysis.stage_times
    start = int(stages.start_ns[batch])
    host_end = end = int(stages.end_ns[batch])
    own = _own_operations(analysis, batch)
    if len(own):
        end = max(end, int(analysis.trace.operations.end_ns[own].max()))
    bars: list[Bar] = []
    rows: list[str] = []
    thinned = []
    for events in (_stages(analysis, batch), _calls(analysis, batch), _operations(analysis, own, start, end)):
        drawn, left = _bars(events, start, end)
        bars += drawn
        rows += [row for row in dict.fromkeys(events.row) if any(bar.row == row for bar in drawn)]
        thinned += left
    meta = analysis.trace.meta
    return BatchTimeline(
        which=which,
        process=process,
        loop=stages.paths.of_row(batch),
        batch_index=int(stages.batch_index[batch]),
        cpu_ms=float(times.times["cpu_time"][batch]),
        end_ms=(max(end, host_end) - start) / NS_PER_MS,
        rows=rows,
        bars=bars,
        thinned=thinned,
        gpu_reason=None if meta.gpu_coverage == "traced" else meta.gpu_coverage_reason,
    )


def _bars(events: _Events, start: int, end: int) -> tuple[list[Bar], list[Thinned]]:
    """The events, clipped to the batch, by row and in order of time; and what is not shown one by one."""
    begin, stop = np.maximum(events.start_ns, start), np.minimum(events.end_ns, end)
    rows = {row: number for number, row in enumerate(dict.fromkeys(events.row))}
    row = np.asarray([rows[one] for one in events.row], dtype=np.int64)
    order = np.lexsort((begin, row))
    begin, stop, row = begin[order], np.maximum(stop, begin)[order], row[order]
    length = stop - begin
    firsts, within_ns = _groups(events, order, row, begin - start, length, end - start)
    counts = np.diff([*firsts, len(order)])
    sums = np.add.reduceat(length, firsts) if len(firsts) else length
    kept = np.sort(np.argsort(-sums, kind="stable")[:MAX_BARS])
    bars = []
    for group in kept.tolist():
        members = order[firsts[group] : firsts[group] + counts[group]].tolist()
        names = {events.name[at] for at in members}
        last = int(stop[firsts[group] : firsts[group] + counts[group]].max())
        bars.append(
            Bar(
                row=events.row[members[0]],
                name=names.pop() if len(names) == 1 else "",
                kind=events.kind[members[0]],
                start_ms=float(begin[firsts[group]] - start) / NS_PER_MS,
                end_ms=float(last - start) / NS_PER_MS,
                count=len(members),
                sum_ms=float(sums[group]) / NS_PER_MS if len(members) > 1 else None,
            )
        )
    missing = len(order) - int(counts[kept].sum()) + events.not_shown
    if not within_ns and not missing:
        return bars, []
    missing_ns = int(length.sum() - sums[kept].sum()) + events.not_shown_ns
    every = len(order) + events.not_shown
    return bars, [Thinned(events.what, every, within_ns / NS_PER_MS, missing, missing_ns / NS_PER_MS)]


def _groups(
    events: _Events, order: Int64, row: Int64, begin: Int64, length: Int64, whole_ns: int
) -> tuple[Int64, float]:
    """Where each bar begins among the events in that order, and the part (ns) whose events are one bar; 0: all alone.

    The parts are as short as `MAX_BARS` allows, so a bar hides no pause that is longer than one.
    """
    kinds = {kind: number for number, kind in enumerate(dict.fromkeys(events.kind))}
    kind = np.asarray([kinds[one] for one in events.kind], dtype=np.int64)[order]
    if len(order) <= MAX_BARS:
        return np.arange(len(order)), 0.0
    within = max(whole_ns, 1) / MAX_BARS
    while True:
        part, is_long = begin // within, length > within
        changes = (np.diff(row) != 0) | (np.diff(kind) != 0) | (np.diff(part) != 0) | is_long[1:] | is_long[:-1]
        firsts = np.flatnonzero(np.concatenate([[True], changes]))
        if len(firsts) <= MAX_BARS or within >= whole_ns:
            return firsts, float(within)
        within *= FINER


def _stages(analysis: Analysis, batch: int) -> _Events:
    """The batch and the ranges in it, a row a level of nesting."""
    stages, times = analysis.stages, analysis.stage_times
    rows = np.flatnonzero(times.outer_batch == batch)
    level = stages.level[rows] - stages.level[batch]
    lane = _lanes(stages.start_ns[rows], stages.end_ns[rows], level)
    order = np.lexsort((stages.start_ns[rows], lane, level))
    rows, level, lane = rows[order], level[order], lane[order]
    return _Events(
        "stages",
        [_stage_row(depth, place) for depth, place in zip(level.tolist(), lane.tolist(), strict=True)],
        [stages.names[code] for code in stages.name[rows].tolist()],
        ["stage"] * len(rows),
        stages.start_ns[rows],
        stages.end_ns[rows],
    )


def _stage_row(depth: int, lane: int) -> str:
    return ("batch" if depth == 0 else f"stages {depth}") + (f" ({lane + 1})" if lane else "")


def _lanes(start: Int64, end: Int64, level: Int64) -> Int64:
    """Of intervals of a level that overlap (tasks, start/end ranges), each one's row below the first."""
    lane = np.zeros(len(start), dtype=np.int64)
    ends: dict[int, list[int]] = {}
    for at in np.lexsort((-end, start)).tolist():
        free = ends.setdefault(int(level[at]), [])
        place = next((number for number, until in enumerate(free) if until <= start[at]), len(free))
        free[place : place + 1] = [int(end[at])]
        lane[at] = place
    return lane


def _calls(analysis: Analysis, batch: int) -> _Events:
    """CUDA calls of the batch's thread while it was open."""
    stages, api = analysis.stages, analysis.trace.api
    thread = int(stages.thread[batch])
    mine = (api.thread == thread) & (api.start_ns >= stages.start_ns[batch]) & (api.start_ns < stages.end_ns[batch])
    rows = np.flatnonzero(mine)
    names = analysis.trace.names
    return _Events(
        "CUDA calls",
        ["CUDA calls"] * len(rows),
        [names[code] if code >= 0 else "call" for code in api.name[rows].tolist()],
        ["call"] * len(rows),
        api.start_ns[rows],
        api.end_ns[rows],
    )


def _own_operations(analysis: Analysis, batch: int) -> Int64:
    """Operations that calls in the batch, on its thread, started."""
    stages, api, launches = analysis.stages, analysis.trace.api, analysis.launches
    start = api.start_ns[launches.call]
    mine = (api.thread[launches.call] == stages.thread[batch]) & (start >= stages.start_ns[batch])
    found: Int64 = launches.operation[mine & (start < stages.end_ns[batch])].astype(np.int64)
    return found


def _operations(analysis: Analysis, own: Int64, start: int, end: int) -> _Events:
    """GPU operations of the process that ran meanwhile, by stream; those of other batches and threads are `other`."""
    trace = analysis.trace
    operations = trace.operations
    overlaps = (operations.start_ns < end) & (operations.end_ns > start)
    overlaps[own] = True
    rows = np.flatnonzero(overlaps)
    length = (operations.end_ns - operations.start_ns)[rows]
    lines, line = np.unique(np.stack([operations.device[rows], operations.stream[rows]]), axis=1, return_inverse=True)
    work = np.bincount(line.ravel(), weights=length, minlength=lines.shape[1])
    rank = np.empty(len(work), dtype=np.int64)
    rank[np.argsort(-work, kind="stable")] = np.arange(len(work))
    place = rank[line.ravel()]
    order = np.lexsort((operations.start_ns[rows], place))
    rows, place, line = rows[order], place[order], line.ravel()[order]
    labels = [f"GPU {device}, stream {stream}" for device, stream in lines.T.tolist()]
    names, code = operation_names(trace)
    is_own = np.isin(rows, own)
    shown = place < MAX_STREAMS
    hidden = rows[~shown]
    rows, line, is_own = rows[shown], line[shown], is_own[shown]
    return _Events(
        "GPU operations",
        [labels[number] for number in line.tolist()],
        [names[one] for one in code[rows].tolist()],
        [KINDS[kind] if mine else "other" for kind, mine in zip(operations.kind[rows].tolist(), is_own, strict=True)],
        operations.start_ns[rows],
        operations.end_ns[rows],
        not_shown=len(hidden),
        not_shown_ns=int((operations.end_ns[hidden] - operations.start_ns[hidden]).sum()),
    )
