"""Chart data about batches, of limited size for any number of batches and events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.timeline.busy import stretches
from perfharness.analysis.timeline.cuda_calls import operation_names
from perfharness.analysis.timeline.grouping import count_by_code, sum_by_code
from perfharness.model.columns import Bool, Float64, Int64, Integers
from perfharness.model.result import BatchLoop, Path
from perfharness.model.trace import GpuOperationKind
from perfharness.model.units import NS_PER_MS, NS_PER_S

MAX_POINTS = 1000
"""Points per loop: batches, or groups of neighbouring batches."""

MAX_SPANS = 200
"""Most shaded stretches; beyond it, the closest ones are joined."""

MAX_BINS = 50
TAIL, FAR = 0.995, 8.0
"""Width of a histogram: up to this quantile, and this many quartile distances above the upper quartile."""

MAX_BARS = 400
"""Most bars in a timeline row; events closer than the batch's length over this are joined."""

MAX_STREAMS = 12
"""Most rows of GPU streams, busiest first."""

OVERLAP = "stages of one batch overlap in time"

Which = Literal["typical", "best", "worst"]
BarKind = Literal["stage", "call", "kernel", "copy", "memset", "graph", "other"]
KINDS: dict[int, BarKind] = {
    GpuOperationKind.KERNEL: "kernel",
    GpuOperationKind.MEMCPY: "copy",
    GpuOperationKind.MEMSET: "memset",
    GpuOperationKind.GRAPH: "graph",
}


@dataclass(frozen=True)
class BatchSeries:
    """Times of a loop's batches by group of neighbours; `start_s`: since the first batch. Spans exclude their end."""

    batches: int
    batches_per_group: int
    first: list[int]
    start_s: list[float]
    min_ms: list[float]
    median_ms: list[float]
    max_ms: list[float]
    longest_measured_ms: float | None
    warmup: list[tuple[int, int]]
    throttled: list[tuple[int, int]] | None
    """None if unknown."""


def batch_series(loop: BatchLoop, max_points: int = MAX_POINTS) -> BatchSeries:
    """Summarise the batches of a loop in at most `max_points` groups."""
    values = (loop.end_ns - loop.start_ns) / NS_PER_MS
    size = max(1, -(-len(values) // max_points))
    first = np.arange(0, len(values), size)
    measured = values[~loop.warmup]
    groups = [values[begin : begin + size] for begin in first.tolist()]
    return BatchSeries(
        batches=len(values),
        batches_per_group=size,
        first=first.tolist(),
        start_s=((loop.start_ns[first] - loop.start_ns[:1]) / NS_PER_S).tolist(),
        min_ms=[float(group.min()) for group in groups],
        median_ms=[float(np.median(group)) for group in groups],
        max_ms=[float(group.max()) for group in groups],
        longest_measured_ms=float(measured.max()) if len(measured) else None,
        warmup=spans_of(loop.warmup),
        throttled=None if loop.throttled is None else spans_of(loop.throttled),
    )


def spans_of(flags: Bool, most: int = MAX_SPANS) -> list[tuple[int, int]]:
    """Runs of true values; beyond `most`, the closest ones are joined."""
    starts, ends = stretches(flags)
    if len(starts) > most:
        kept = np.sort(np.argsort(ends[:-1] - starts[1:], kind="stable")[: most - 1])
        starts, ends = np.r_[starts[0], starts[1:][kept]], np.r_[ends[:-1][kept], ends[-1]]
    return list(zip(starts.tolist(), ends.tolist(), strict=True))


@dataclass(frozen=True)
class Histogram:
    """Counts between neighbouring edges (ms), and beyond the last edge, up to `max_ms`."""

    values: int
    edges_ms: list[float]
    counts: list[int]
    beyond: int
    max_ms: float


def histogram(values: Float64) -> Histogram | None:
    """Bin the known values by the rule of Freedman and Diaconis (1981); None if fewer than two are known."""
    known = np.sort(values[~np.isnan(values)])
    if len(known) < 2:
        return None
    low, high = float(known[0]), float(np.quantile(known, TAIL, method="higher"))
    lower, upper = (float(np.quantile(known, share)) for share in (0.25, 0.75))
    spread = upper - lower
    if spread > 0:
        high = min(high, upper + FAR * spread)
    width = 2 * spread / len(known) ** (1 / 3)
    bins = int(np.clip(np.ceil((high - low) / width), 1, MAX_BINS)) if width > 0 else 10
    if high <= low:
        low, high, bins = low, low + max(abs(low), 1e-6) * 1e-3, 1
    counts, edges = np.histogram(known[known <= high], bins=bins, range=(low, high))
    return Histogram(len(known), edges.tolist(), counts.tolist(), int((known > high).sum()), float(known[-1]))


@dataclass(frozen=True)
class Rest:
    """Time of batches outside their stages, one value per batch (ms), or the reason why it is unknown."""

    values_ms: Float64 | None
    reason: str | None = None


def rest_of_batches(analysis: Analysis) -> dict[Path, Rest]:
    """By path of the batch, without warm-up and batches without stages."""
    stages, times = analysis.stages, analysis.stage_times
    batches = np.flatnonzero(stages.is_batch & ~times.warmup)
    inside = np.flatnonzero((stages.parent >= 0) & ~times.warmup)
    inside = inside[stages.is_batch[stages.parent[inside]]]
    inside = inside[np.lexsort((stages.start_ns[inside], stages.parent[inside]))]
    parent, start, end = stages.parent[inside], stages.start_ns[inside], stages.end_ns[inside]
    overlapping = np.unique(parent[1:][(parent[1:] == parent[:-1]) & (start[1:] < end[:-1])])
    cpu_ms = times.times["cpu_time"]
    spent = sum_by_code(parent, cpu_ms[inside], len(stages))
    has_stages = count_by_code(parent, len(stages)) > 0
    path, found = stages.paths.code[batches], {}
    for code in np.unique(path).tolist():
        rows = batches[path == code]
        if has_stages[rows].any():
            overlaps = np.isin(rows, overlapping).any()
            found[stages.paths.names(code)] = Rest(None, OVERLAP) if overlaps else Rest(cpu_ms[rows] - spent[rows])
    return found


@dataclass(frozen=True)
class Bar:
    """An event, ms since the batch began; `other` is GPU work that the batch did not start."""

    row: str
    name: str
    """Empty for joined events of several names."""

    kind: BarKind
    start_ms: float
    end_ms: float
    count: int = 1
    """Number of joined events."""

    sum_ms: float | None = None
    """Total time of joined events; None for a single one."""

    @property
    def filled(self) -> float:
        """Share of the bar covered by events."""
        length_ms = self.end_ms - self.start_ms
        return 1.0 if self.sum_ms is None or not length_ms else min(self.sum_ms / length_ms, 1.0)


@dataclass(frozen=True)
class BatchTimeline:
    """One batch. `rows` from top to bottom; it ends with the batch or its last GPU operation."""

    which: Which
    process: str
    loop: Path
    batch_index: int
    cpu_ms: float
    end_ms: float
    rows: list[str]
    bars: list[Bar]
    joined_ms: float | None = None
    """Distance up to which events are joined; None if none are."""

    streams_left_out: int = 0
    gpu_reason: str | None = None
    """Reason for missing GPU operations."""


@dataclass(frozen=True)
class _Events:
    """Candidates for bars: columns, and rows from top to bottom."""

    rows: list[str]
    row: Int64
    names: list[str]
    name: Int64
    kind: list[BarKind]
    start_ns: Int64
    end_ns: Int64
    streams_left_out: int = field(default=0)


def typical_best_worst(values: Float64) -> dict[Which, int]:
    """Indices of the values nearest to the median, smallest and largest, without duplicates."""
    if not len(values) or np.isnan(values).all():
        return {}
    typical, found = np.nanargmin(np.abs(values - np.nanmedian(values))), dict[Which, int]()
    every: dict[Which, np.intp] = {"typical": typical, "best": np.nanargmin(values), "worst": np.nanargmax(values)}
    for which, at in every.items():
        if at not in found.values():
            found[which] = int(at)
    return found


def batch_timelines(analysis: Analysis, process: str) -> list[BatchTimeline]:
    """A typical, the best and the worst batch of the longest loop, without warm-up if possible."""
    times = analysis.stage_times
    cpu_ms = times.times["cpu_time"]
    if not times.rows_of_loops:
        return []
    rows = max(times.rows_of_loops, key=lambda one: float(np.nansum(cpu_ms[one])))
    counted = rows[~times.warmup[rows]]
    rows = counted if len(counted) else rows
    chosen = typical_best_worst(cpu_ms[rows])
    return [batch_timeline(analysis, process, which, int(rows[at])) for which, at in chosen.items()]


def batch_timeline(analysis: Analysis, process: str, which: Which, batch: int) -> BatchTimeline:
    """One batch by its row in the stage table."""
    stages, meta = analysis.stages, analysis.trace.meta
    start, end = int(stages.start_ns[batch]), int(stages.end_ns[batch])
    at = slice(batch, batch + 1)
    first, last = analysis.launches.lines.slices(stages.thread[at], stages.start_ns[at], stages.end_ns[at] - 1)
    own = analysis.launches.operation[first[0] : last[0]]  # started by calls in the batch, on its thread
    end = max(end, int(analysis.trace.operations.end_ns[own].max(initial=end)))
    kinds = [_stages(analysis, batch), _calls(analysis, batch), _operations(analysis, own, start, end)]
    bars = [bar for events in kinds for bar in _bars(events, start, end)]
    is_joined = any(bar.count > 1 for bar in bars)
    return BatchTimeline(
        which=which,
        process=process,
        loop=stages.paths.of_row(batch),
        batch_index=int(stages.batch_index[batch]),
        cpu_ms=float(analysis.stage_times.times["cpu_time"][batch]),
        end_ms=(end - start) / NS_PER_MS,
        rows=[row for events in kinds for row in events.rows],
        bars=bars,
        joined_ms=(end - start) / MAX_BARS / NS_PER_MS if is_joined else None,
        streams_left_out=kinds[-1].streams_left_out,
        gpu_reason=None if meta.gpu_coverage == "traced" else meta.gpu_coverage_reason,
    )


def _bars(events: _Events, start: int, end: int) -> Iterator[Bar]:
    """The events clipped to the batch, by row and time; in rows with too many, close neighbours are joined."""
    if not len(events.row):
        return
    order = np.lexsort((events.start_ns, events.row))
    row, name = events.row[order], events.name[order]
    begin = np.maximum(events.start_ns[order], start)
    stop = np.maximum(np.minimum(events.end_ns[order], end), begin)
    kind = np.asarray([events.kind[at] for at in order.tolist()], dtype=object)
    resolution = (end - start) / MAX_BARS
    is_many = np.bincount(row, minlength=len(events.rows))[row] > MAX_BARS
    is_near = is_many[1:] & (begin[1:] - stop[:-1] < resolution) & (stop - begin < resolution)[1:]
    is_near &= (row[1:] == row[:-1]) & (kind[1:] == kind[:-1]).astype(np.bool_) & (stop - begin < resolution)[:-1]
    firsts = np.flatnonzero(np.r_[True, ~is_near])
    for first, last in zip(firsts.tolist(), [*firsts[1:].tolist(), len(row)], strict=True):
        names = np.unique(name[first:last])
        yield Bar(
            row=events.rows[row[first]],
            name=events.names[names[0]] if len(names) == 1 else "",
            kind=kind[first],
            start_ms=float(begin[first] - start) / NS_PER_MS,
            end_ms=float(stop[first:last].max() - start) / NS_PER_MS,
            count=last - first,
            sum_ms=float((stop - begin)[first:last].sum()) / NS_PER_MS if last - first > 1 else None,
        )


def _stages(analysis: Analysis, batch: int) -> _Events:
    """The batch and its ranges, one row per nesting level, and more for ranges that overlap."""
    stages = analysis.stages
    rows = np.flatnonzero(analysis.stage_times.outer_batch == batch)
    level = (stages.level[rows] - stages.level[batch]).astype(np.int64)
    place = np.zeros(len(rows), dtype=np.int64)
    ends: dict[int, list[int]] = {}
    for at in np.lexsort((-stages.end_ns[rows], stages.start_ns[rows])).tolist():
        free = ends.setdefault(int(level[at]), [])
        place[at] = next((at_ for at_, until in enumerate(free) if until <= stages.start_ns[rows[at]]), len(free))
        free[place[at] : place[at] + 1] = [int(stages.end_ns[rows[at]])]
    (levels, places), row = np.unique(np.stack([level, place]), axis=1, return_inverse=True)
    labels = [
        ("batch" if depth == 0 else f"stages {depth}") + (f" ({number + 1})" if number else "")
        for depth, number in zip(levels.tolist(), places.tolist(), strict=True)
    ]
    start_ns, end_ns = stages.start_ns[rows], stages.end_ns[rows]
    return _Events(labels, row.ravel(), stages.names, stages.name[rows], ["stage"] * len(rows), start_ns, end_ns)


def _calls(analysis: Analysis, batch: int) -> _Events:
    """CUDA calls of the batch's thread during the batch."""
    stages, api = analysis.stages, analysis.trace.api
    begins_inside = (api.start_ns >= stages.start_ns[batch]) & (api.start_ns < stages.end_ns[batch])
    rows = np.flatnonzero((api.thread == stages.thread[batch]) & begins_inside)
    names = [*analysis.trace.names, "call"]  # the last one is code -1
    labels = ["CUDA calls"] if len(rows) else []
    name = np.where(api.name[rows] < 0, len(names) - 1, api.name[rows])
    return _Events(labels, np.zeros_like(rows), names, name, ["call"] * len(rows), api.start_ns[rows], api.end_ns[rows])


def _operations(analysis: Analysis, own: Integers, start: int, end: int) -> _Events:
    """GPU operations of the process during the batch, by stream; those of other batches and threads are `other`."""
    operations = analysis.trace.operations
    overlaps = (operations.start_ns < end) & (operations.end_ns > start)
    overlaps[own] = True
    rows = np.flatnonzero(overlaps)
    streams, stream = np.unique(
        np.stack([operations.device[rows], operations.stream[rows]]), axis=1, return_inverse=True
    )
    work = np.bincount(stream.ravel(), weights=(operations.end_ns - operations.start_ns)[rows])
    shown = np.argsort(-work, kind="stable")[:MAX_STREAMS]
    place = np.full(len(work), -1, dtype=np.int64)
    place[shown] = np.arange(len(shown))
    rows, row = rows[place[stream.ravel()] >= 0], place[stream.ravel()]
    names, code = operation_names(analysis.trace)
    kinds = zip(operations.kind[rows].tolist(), np.isin(rows, own).tolist(), strict=True)
    return _Events(
        rows=[f"GPU {streams[0, at]}, stream {streams[1, at]}" for at in shown.tolist()],
        row=row[row >= 0],
        names=names,
        name=code[rows],
        kind=[KINDS[kind] if is_own else "other" for kind, is_own in kinds],
        start_ns=operations.start_ns[rows],
        end_ns=operations.end_ns[rows],
        streams_left_out=len(work) - len(shown),
    )
