"""Find the slowest batches of a process and compare each with the typical one of its loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.slowest.difference import EXPLAINED_SHARE, MIN_NS, Divided, usual
from perfharness.analysis.slowest.results import (
    GENERATOR,
    OUTSIDE,
    QUEUE,
    SlowLoop,
    SlowRequest,
    Typical,
    Verdict,
)
from perfharness.analysis.stages.charts import BatchTimeline, Which, batch_timeline
from perfharness.analysis.stages.roles import NOT_COUNTED
from perfharness.analysis.timeline.clock import monotonic_tie
from perfharness.analysis.timeline.grouping import distinct
from perfharness.model.columns import Bool, Columns, Float64, Int64
from perfharness.model.result import path_text
from perfharness.model.units import NS_PER_MS, NS_PER_S

MIN_TYPICAL = 5
"""Fewest other batches to define a typical one."""
MAX_TYPICAL = 2_000
"""Batches to draw for the median; more add nothing."""
SEED = 17


@dataclass(frozen=True)
class Requests(Columns):
    """Recorded requests. Times are ns of CLOCK_MONOTONIC; `begun_ns` is -1 if unknown. `late_ns`: delay of the
    generator in sending it, 0 if unknown.
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


@dataclass(frozen=True)
class ProcessLoop:
    """The slowest requests of one loop path of a process, each with timelines of its batch and of a typical one."""

    loop: str
    batches: int
    by_latency: bool
    requests: list[tuple[SlowRequest, list[BatchTimeline]]]


@dataclass(frozen=True)
class _Batches(Columns):
    """Batches of a loop path; ns. `request`: row of each one's request, -1 for none; `queue_ns`: NaN if unknown."""

    rows: Int64
    request: Int64
    total_ns: Float64
    queue_ns: Float64
    late_ns: Float64


def slowest_of_process(
    analysis: Analysis,
    process: str,
    most: int,
    requests: Requests | None = None,
    throttled: Mapping[str, Bool] | None = None,
    *,
    timelines: bool = False,
) -> list[ProcessLoop]:
    """The slowest requests of each loop path, without warm-up and unfinished batches. `throttled`: mask of affected
    stage rows by reason; `requests`: None for batches alone; `timelines`: whether to build them.
    """
    stages, times = analysis.stages, analysis.stage_times
    rows = times.outermost_batches()
    is_open = analysis.trace.ranges.is_open[stages.index[rows]]
    rows = np.sort(rows[~times.warmup[rows] & ~is_open & (stages.barrier_wait_ns[rows] == 0)])
    path, origin_ns = stages.paths.code[rows], int(stages.start_ns[rows].min(initial=np.iinfo(np.int64).max))
    found = []
    for code in distinct(path):
        batches = _batches(analysis, rows[path == code], requests)
        by_latency = bool((batches.request >= 0).any())
        if by_latency and requests is not None:
            counts = (batches.request >= 0) & ~requests.is_warmup[batches.request]
            batches = batches.select(counts)
        loop = _Loop(analysis, process, batches, requests if by_latency else None, throttled or {}, origin_ns)
        slow = loop.slowest(most, timelines=timelines)
        found.append(ProcessLoop(path_text(stages.paths.names(code)), len(batches.rows), by_latency, slow))
    if requests is not None and sum(one.by_latency for one in found) == 1:
        at = next(at for at, one in enumerate(found) if one.by_latency)
        every = [*found[at].requests, *_without_batch(analysis, process, requests)]
        found[at] = replace(found[at], requests=sorted(every, key=lambda pair: -pair[0].ms)[:most])
    return found


def _batches(analysis: Analysis, rows: Int64, requests: Requests | None) -> _Batches:
    stages = analysis.stages
    length = (stages.end_ns - stages.start_ns)[rows].astype(np.float64)
    if requests is None or not len(requests):
        return _Batches(rows, np.full(len(rows), -1), length, np.full(len(rows), np.nan), np.zeros(len(rows)))
    request = _request_of(stages.batch_index[rows].astype(np.int64), requests)
    known = request >= 0
    total = np.where(known, (requests.done_ns - requests.intended_ns)[request], length).astype(np.float64)
    begun = requests.begun_ns[request]
    queue = np.where(known & (begun >= 0), (begun - requests.intended_ns[request]).astype(np.float64), np.nan)
    to_trace = monotonic_tie(analysis.trace)
    if to_trace is not None:
        by_range = (stages.start_ns[rows] - to_trace(requests.intended_ns)[request]).astype(np.float64)
        queue = np.where(np.isnan(queue) & known, by_range, queue)
    late = np.where(known & ~np.isnan(queue), requests.late_ns[request], 0).astype(np.float64)
    return _Batches(rows, request, total, queue, late)


def _request_of(index: Int64, requests: Requests) -> Int64:
    """The request of each batch index; -1 if there is none, or if two batches have the index."""
    order = np.argsort(requests.id, kind="stable")
    at = np.minimum(np.searchsorted(requests.id[order], index), len(order) - 1)
    found = np.where(requests.id[order[at]] == index, order[at], -1)
    _, inverse, count = np.unique(index, return_inverse=True, return_counts=True)
    return np.where(count[inverse.ravel()] > 1, -1, found)


@dataclass(frozen=True)
class _Loop:
    """Batches of a loop path and their requests."""

    analysis: Analysis
    process: str
    batches: _Batches
    requests: Requests | None
    throttled: Mapping[str, Bool]
    origin_ns: int

    def slowest(self, most: int, *, timelines: bool) -> list[tuple[SlowRequest, list[BatchTimeline]]]:
        """Compare the slowest with the typical one, the earlier first if equal; with timelines."""
        batches = self.batches
        slow = np.lexsort((batches.rows, -batches.total_ns))[:most]
        drawn, divided = np.arange(len(batches.rows)), None
        if len(drawn) > MAX_TYPICAL + 1:
            drawn = np.random.default_rng(SEED).choice(drawn, MAX_TYPICAL, replace=False)
        if len(drawn) > MIN_TYPICAL:
            used = np.unique(np.concatenate([slow, drawn]))
            divided = Divided(self.analysis, batches.rows[used], _outside(self.analysis, batches.select(used)))
        pairs = []
        for place in slow.tolist():
            if divided is None:
                reason = "too few other batches in its loop to define a typical one"
                request, shown = self._request(place, "not-compared", reason), [place]
            else:
                typical = np.sort(drawn[drawn != place])
                total = batches.total_ns[typical]
                nearest = int(typical[np.argmin(np.abs(total - np.median(total)))])
                request, shown = self._compared(divided, place, typical, nearest), [place, nearest]
            which: tuple[Which, ...] = ("worst", "typical")
            rows = zip(which, batches.rows[shown].tolist(), strict=False)
            lines = [batch_timeline(self.analysis, self.process, *one) for one in rows if timelines]
            pairs.append((request, lines))
        return pairs

    def _compared(self, divided: Divided, place: int, typical: Int64, nearest: int) -> SlowRequest:
        batches, stages = self.batches, self.analysis.stages
        row, rows, total = int(batches.rows[place]), batches.rows[typical], batches.total_ns[typical]
        difference, usual_ns = float(batches.total_ns[place] - np.median(total)), max(usual(total), MIN_NS)
        parts, small_ns = divided.parts(row, rows, difference)
        named_ns = sum(part.ms for part in parts) * NS_PER_MS
        is_explained = difference > 0 and named_ns >= EXPLAINED_SHARE * difference
        why = [
            reason
            for reason, touched in self.throttled.items()
            if touched[row] and 2 * int(touched[rows].sum()) <= len(rows)
        ]
        return self._request(
            place,
            "explained" if is_explained else "usual" if difference <= usual_ns else "unexplained",
            typical=Typical(
                batches=len(rows),
                ms=float(np.median(total)) / NS_PER_MS,
                usual_ms=usual_ns / NS_PER_MS,
                nearest_batch=int(stages.batch_index[batches.rows[nearest]]),
            ),
            difference_ms=difference / NS_PER_MS,
            parts=parts,
            small_ms=small_ns / NS_PER_MS,
            rest_ms=(difference - named_ns - small_ns) / NS_PER_MS,
            throttled=why,
            stages=divided.stages(row, rows),
            operations=divided.operations(row, rows),
        )

    def _request(self, place: int, verdict: Verdict, reason: str | None = None, **compared: object) -> SlowRequest:
        stages, batches, requests = self.analysis.stages, self.batches, self.requests
        row, at = int(batches.rows[place]), int(batches.request[place])
        items, queue = int(stages.items[row]), float(batches.queue_ns[place])
        return SlowRequest.model_validate(
            {
                "process": self.process,
                "index": int(stages.batch_index[row]),
                "at_s": (int(stages.start_ns[row]) - self.origin_ns) / NS_PER_S,
                "items": None if items == NOT_COUNTED else items,
                "input": None if requests is None else requests.input[at],
                "phase": None if requests is None else requests.phase[at],
                "error": None if requests is None else requests.error[at],
                "ms": float(batches.total_ns[place]) / NS_PER_MS,
                "queue_ms": None if np.isnan(queue) else queue / NS_PER_MS,
                "batch_ms": int(stages.end_ns[row] - stages.start_ns[row]) / NS_PER_MS,
                "verdict": verdict,
                "reason": reason,
                **compared,
            }
        )


def _outside(analysis: Analysis, batches: _Batches) -> dict[str, Float64]:
    """Time of requests outside their batches, by reason; the queue is separate if known for all."""
    length = (analysis.stages.end_ns - analysis.stages.start_ns)[batches.rows]
    outside = batches.total_ns - length
    if np.isnan(batches.queue_ns).any():
        found = {OUTSIDE: outside}
    else:
        queue, late = batches.queue_ns, batches.late_ns
        found = {OUTSIDE: outside - queue, QUEUE: queue - late, GENERATOR: late}
    return {reason: column for reason, column in found.items() if column.any()}


def _without_batch(
    analysis: Analysis, process: str, requests: Requests
) -> list[tuple[SlowRequest, list[BatchTimeline]]]:
    """Requests without a batch in the trace."""
    batches = analysis.stages.batch_index[analysis.stage_times.outermost_batches()]
    lost = np.flatnonzero(~np.isin(requests.id, batches) & ~requests.is_warmup)
    first = int(requests.intended_ns.min(initial=np.iinfo(np.int64).max))
    return [
        (
            SlowRequest(
                process=process,
                index=int(requests.id[at]),
                at_s=(int(requests.intended_ns[at]) - first) / NS_PER_S,
                items=None if requests.items[at] < 0 else int(requests.items[at]),
                input=requests.input[at],
                phase=requests.phase[at],
                error=requests.error[at],
                ms=int(requests.done_ns[at] - requests.intended_ns[at]) / NS_PER_MS,
                queue_ms=None,
                batch_ms=None,
                verdict="not-compared",
                reason="the trace has no batch of it",
            ),
            [],
        )
        for at in lost.tolist()
    ]


def pool_loops(found: Sequence[ProcessLoop], most: int) -> tuple[list[SlowLoop], list[list[BatchTimeline]]]:
    """The slowest of all processes by loop path, paths with most batches first; and their timelines in that order."""
    pooled, beside = [], []
    for name in dict.fromkeys(one.loop for one in sorted(found, key=lambda one: -one.batches)):
        mine = [one for one in found if one.loop == name]
        by_latency = any(one.by_latency for one in mine)
        mine = [one for one in mine if one.by_latency == by_latency]
        pairs = sorted((pair for one in mine for pair in one.requests), key=lambda pair: -pair[0].ms)[:most]
        requests = [request for request, _ in pairs]
        beside += [lines for _, lines in pairs if lines]
        pooled.append(
            SlowLoop(
                loop=name,
                processes=len(mine),
                batches=sum(one.batches for one in mine),
                measured_by="latency" if by_latency else "duration",
                requests=requests,
                unexplained=sum(one.verdict == "unexplained" for one in requests),
            )
        )
    return pooled, beside
