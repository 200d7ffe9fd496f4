"""The slowest batches of a process, each beside the typical one of its kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.slowest.difference import Compared, Difference, LoopFigures
from perfharness.analysis.slowest.results import CommonCause, SlowLoop, SlowRequest, Typical
from perfharness.analysis.slowest.typical import Alike, Groups
from perfharness.analysis.stages.charts import BatchTimeline, batch_timeline
from perfharness.analysis.stages.roles import NOT_COUNTED
from perfharness.analysis.timeline.clock import monotonic_tie
from perfharness.analysis.timeline.grouping import distinct
from perfharness.model.result import Float64, path_text
from perfharness.model.trace import Bool, Int64

NS_PER_MS = 1e6
NS_PER_S = 1e9


@dataclass(frozen=True)
class Requests:
    """Recorded requests, aligned columns; times are ns of CLOCK_MONOTONIC, `begun_ns` is -1 where it is not known;
    `late_ns` is by how much the generator sent it later than it could, 0 where that is not known.
    """

    id: Int64
    intended_ns: Int64
    begun_ns: Int64
    done_ns: Int64
    late_ns: Int64
    items: Int64
    phase: list[str | None]
    input: list[str | None]
    error: list[str | None]

    is_warmup: Bool

    def __len__(self) -> int:
        return len(self.id)


@dataclass(frozen=True)
class ProcessLoop:
    """The slowest requests of one loop path of a process; `beside`: of each its timeline and that of a typical one."""

    loop: str
    batches: int
    by_latency: bool
    requests: list[SlowRequest]
    beside: list[list[BatchTimeline]] = field(default_factory=list)


@dataclass(frozen=True)
class _Batches:
    """Batches of a loop path. `request` is the row of each one's request, -1: none; times are ns."""

    rows: Int64
    total_ns: Float64
    queue_ns: Float64
    """From the intended time until service began; NaN: not known."""
    late_ns: Float64
    outside_ns: Float64
    request: Int64


def slowest_of_process(
    analysis: Analysis,
    process: str,
    most: int,
    requests: Requests | None = None,
    throttled: Mapping[str, Bool] | None = None,
    *,
    timelines: bool = False,
) -> list[ProcessLoop]:
    """The slowest requests of each loop path, warm-up and batches that never ended left out.

    Args:
        analysis: of the process's trace.
        process: its name.
        most: so many of each loop path.
        requests: that were recorded of the process; their ids are batch indices. None: there were none.
        throttled: by reason, which rows of the stage table it touched; None: not known.
        timelines: make them.
    """
    stages, times = analysis.stages, analysis.stage_times
    rows = times.outermost_batches()
    is_open = analysis.trace.ranges.is_open[stages.index[rows]]
    rows = rows[~times.warmup[rows] & ~is_open & (stages.barrier_wait_ns[rows] == 0)]
    path = stages.paths.code[rows]
    origin_ns = int(stages.start_ns[rows].min()) if len(rows) else 0
    found = []
    for code in distinct(path):
        batches = _batches(analysis, rows[path == code], requests)
        known = batches.request >= 0
        by_latency = bool(known.any())
        if by_latency and requests is not None:
            counts = known & ~requests.is_warmup[batches.request]
            batches = _Batches(*(getattr(batches, name)[counts] for name in _Batches.__dataclass_fields__))
        loop = path_text(stages.paths.names(code))
        seen = _Loop(analysis, process, batches, requests if by_latency else None, throttled, origin_ns)
        chosen = seen.slowest(most)
        beside = [seen.timelines(place) for place in chosen] if timelines else []
        found.append(ProcessLoop(loop, len(batches.rows), by_latency, seen.compared(chosen), beside))
    if requests is not None and sum(one.by_latency for one in found) == 1:
        found = [_with_lost(one, analysis, process, requests, most) if one.by_latency else one for one in found]
    return found


def _batches(analysis: Analysis, rows: Int64, requests: Requests | None) -> _Batches:
    stages = analysis.stages
    length = (stages.end_ns - stages.start_ns)[rows].astype(np.float64)
    unknown = np.full(len(rows), np.nan)
    if requests is None or not len(requests):
        nothing = np.zeros(len(rows))
        return _Batches(rows, length, unknown, nothing, nothing, np.full(len(rows), -1, dtype=np.int64))
    request = _request_of(stages.batch_index[rows].astype(np.int64), requests)
    known = request >= 0
    total = np.where(known, (requests.done_ns - requests.intended_ns)[request], length).astype(np.float64)
    begun = requests.begun_ns[request]
    queue = np.where(known & (begun >= 0), (begun - requests.intended_ns[request]).astype(np.float64), np.nan)
    to_trace = monotonic_tie(analysis.trace)
    if to_trace is not None:
        by_range = (stages.start_ns[rows] - to_trace(requests.intended_ns)[request]).astype(np.float64)
        queue = np.where(np.isnan(queue) & known, by_range, queue)
    outside = np.where(known, total - length - np.nan_to_num(queue), 0.0)
    late = np.where(known & ~np.isnan(queue), requests.late_ns[request], 0).astype(np.float64)
    return _Batches(rows, total, queue, late, outside, request)


def _request_of(index: Int64, requests: Requests) -> Int64:
    """The request of each batch index; -1 where there is none, or two batches have the index."""
    order = np.argsort(requests.id, kind="stable")
    at = np.minimum(np.searchsorted(requests.id[order], index), len(order) - 1)
    found = np.where(requests.id[order[at]] == index, order[at], -1)
    indices, inverse, count = np.unique(index, return_inverse=True, return_counts=True)
    return np.where(count[inverse.ravel()] > 1, -1, found) if len(indices) else found


class _Loop:
    """The batches of a loop path, and their requests."""

    def __init__(
        self,
        analysis: Analysis,
        process: str,
        batches: _Batches,
        requests: Requests | None,
        throttled: Mapping[str, Bool] | None,
        origin_ns: int,
    ) -> None:
        self._analysis, self._process, self._batches, self._requests = analysis, process, batches, requests
        self._throttled, self._origin_ns = throttled, origin_ns
        self._place = {row: place for place, row in enumerate(batches.rows.tolist())}
        self._groups = Groups(batches.rows, self._in_common())

    def slowest(self, most: int) -> list[int]:
        """Places of the slowest; of equal ones the earlier."""
        order = np.lexsort((self._batches.rows, -self._batches.total_ns))
        return [int(place) for place in order[:most]]

    def timelines(self, place: int) -> list[BatchTimeline]:
        """Of a batch, and of a typical one where there is any."""
        row = int(self._batches.rows[place])
        found = [batch_timeline(self._analysis, self._process, "worst", row)]
        alike = self._groups.alike(place)
        if alike is not None:
            found.append(batch_timeline(self._analysis, self._process, "typical", self._nearest(alike)))
        return found

    def compared(self, places: Sequence[int]) -> list[SlowRequest]:
        """Each beside the typical one."""
        alike = {place: self._groups.alike(place) for place in places}
        needed = [self._batches.rows[np.asarray(places, dtype=np.int64)]]
        needed += [one.rows for one in alike.values() if one is not None]
        rows = np.unique(np.concatenate(needed)) if places else np.empty(0, dtype=np.int64)
        at = np.asarray([self._place[row] for row in rows.tolist()], dtype=np.int64)
        figures = LoopFigures(
            self._analysis, rows, total_ns=self._batches.total_ns[at], queue_ns=self._batches.queue_ns[at],
            late_ns=self._batches.late_ns[at], outside_ns=self._batches.outside_ns[at], throttled=self._throttled,
        ) if len(rows) else None  # fmt: skip
        return [self._request(place, alike[place], figures) for place in places]

    def _request(self, place: int, alike: Alike | None, figures: LoopFigures | None) -> SlowRequest:
        stages, batches = self._analysis.stages, self._batches
        row, at = int(batches.rows[place]), int(batches.request[place])
        items, requests = int(stages.items[row]), self._requests
        queue = float(batches.queue_ns[place])
        difference, typical = Difference(), None
        if alike is not None and figures is not None:
            compared = figures.compare(row, alike.rows, alike.of)
            difference, typical = compared.difference, self._typical(alike, compared)
        reason = "there are too few other batches in its loop to say what is typical" if alike is None else None
        return SlowRequest(
            process=self._process,
            index=int(stages.batch_index[row]),
            at_s=(int(stages.start_ns[row]) - self._origin_ns) / NS_PER_S,
            items=None if items == NOT_COUNTED else items,
            input=None if requests is None else requests.input[at],
            phase=None if requests is None else requests.phase[at],
            error=None if requests is None else requests.error[at],
            ms=float(batches.total_ns[place]) / NS_PER_MS,
            queue_ms=None if np.isnan(queue) else queue / NS_PER_MS,
            batch_ms=int(stages.end_ns[row] - stages.start_ns[row]) / NS_PER_MS,
            verdict="not-compared" if reason else difference.verdict,
            reason=reason,
            typical=typical,
            difference_ms=difference.ms,
            parts=difference.parts,
            small_ms=difference.small_ms,
            rest_ms=difference.rest_ms,
            stages=difference.stages,
            operations=difference.operations,
        )

    def _typical(self, alike: Alike, compared: Compared) -> Typical:
        return Typical(
            batches=len(alike.rows),
            of=alike.of,
            alike=alike.names,
            ms=compared.typical_ms,
            usual_ms=compared.usual_ms,
            nearest_batch=int(self._analysis.stages.batch_index[self._nearest(alike)]),
        )

    def _nearest(self, alike: Alike) -> int:
        """The row of the batch that is nearest to the median."""
        total = self._batches.total_ns[[self._place[row] for row in alike.rows.tolist()]]
        return int(alike.rows[int(np.argmin(np.abs(total - np.median(total))))])

    def _in_common(self) -> dict[str, tuple[Int64, list[str]]]:
        """What batches may have in common."""
        stages, requests = self._analysis.stages, self._requests
        items = stages.items[self._batches.rows].astype(np.int64)
        found = {"items": (items, ["" if one == NOT_COUNTED else f"{one} items" for one in items.tolist()])}
        if requests is not None:
            for name, values in (("input", requests.input), ("phase", requests.phase)):
                texts = [values[at] for at in self._batches.request.tolist()]
                numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
                code = np.asarray([numbers[text] for text in texts], dtype=np.int64)
                found[name] = (code, ["" if text is None else f"{name} {text}" for text in texts])
        return found


def _with_lost(loop: ProcessLoop, analysis: Analysis, process: str, requests: Requests, most: int) -> ProcessLoop:
    """The loop with the slow requests, too, of which the trace has no batch."""
    lost = np.flatnonzero(~np.isin(requests.id, analysis.stages.batch_index[analysis.stage_times.outermost_batches()]))
    lost = lost[~requests.is_warmup[lost]]
    took = requests.done_ns - requests.intended_ns
    lost = lost[np.argsort(-took[lost], kind="stable")][:most]
    first = int(requests.intended_ns.min())
    without = [
        SlowRequest(
            process=process, index=int(requests.id[at]), at_s=(int(requests.intended_ns[at]) - first) / NS_PER_S,
            items=None if requests.items[at] < 0 else int(requests.items[at]), input=requests.input[at],
            phase=requests.phase[at], error=requests.error[at], ms=float(took[at]) / NS_PER_MS, queue_ms=None,
            batch_ms=None, verdict="not-compared", reason="the trace has no batch of it", typical=None,
            difference_ms=None, parts=[], small_ms=None, rest_ms=None, stages=[], operations=[],
        )
        for at in lost.tolist()
    ]  # fmt: skip
    both = [*zip(loop.requests, loop.beside or [[]] * len(loop.requests), strict=True), *((one, []) for one in without)]
    both = sorted(both, key=lambda one: -one[0].ms)[:most]
    return ProcessLoop(
        loop.loop,
        loop.batches,
        loop.by_latency,
        [one for one, _ in both],
        [lines for _, lines in both] if loop.beside else [],
    )


def pool_loops(found: Sequence[ProcessLoop], most: int) -> tuple[list[SlowLoop], list[list[BatchTimeline]]]:
    """The slowest of all processes, by loop path, those with most batches first; and their timelines, in that order."""
    pooled, beside = [], []
    names = dict.fromkeys(one.loop for one in sorted(found, key=lambda one: -one.batches))
    for name in names:
        mine = [one for one in found if one.loop == name]
        by_latency = any(one.by_latency for one in mine)
        mine = [one for one in mine if one.by_latency == by_latency]
        both = [pair for one in mine for pair in zip(one.requests, one.beside or [[]] * len(one.requests), strict=True)]
        both = sorted(both, key=lambda pair: -pair[0].ms)[:most]
        requests = [request for request, _ in both]
        beside += [lines for _, lines in both if lines]
        pooled.append(
            SlowLoop(
                loop=name,
                processes=len(mine),
                batches=sum(one.batches for one in mine),
                measured_by="latency" if by_latency else "duration",
                requests=requests,
                common=_common(requests),
                unexplained=sum(one.verdict == "unexplained" for one in requests),
            )
        )
    return pooled, beside


def _common(requests: Sequence[SlowRequest]) -> list[CommonCause]:
    """What is the largest part of two requests or more."""
    compared = [one for one in requests if one.verdict != "not-compared"]
    largest = [one.parts[0] for one in compared if one.verdict == "explained" and one.parts]
    counted = Counter((part.reason, part.stage) for part in largest)
    found = []
    for (reason, stage), count in counted.most_common():
        mine = [part for part in largest if (part.reason, part.stage) == (reason, stage)]
        names = {part.name for part in mine}
        if count > 1:
            found.append(
                CommonCause(
                    reason=reason, stage=stage, name=names.pop() if len(names) == 1 else None, requests=count,
                    of=len(compared), median_ms=float(np.median([part.ms for part in mine])),
                )
            )  # fmt: skip
    return found
