"""Ranks side by side: communication, waiting for the last one, and the stage in which its delay arose."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from typing import Literal

import numpy as np

from perfharness.analysis.ranks.matching import CommonBatches, Matched, RankInput, common_batches, match_collectives
from perfharness.analysis.ranks.parallel import find_parallel
from perfharness.analysis.ranks.rank_work import OUTSIDE, WorkBefore
from perfharness.analysis.ranks.results import (
    ArrivalSkew,
    Parallel,
    RankDelay,
    RankFigures,
    RankGroup,
    StageWaiting,
)
from perfharness.analysis.statistics import student_t
from perfharness.analysis.timeline.busy import BusyLine
from perfharness.model.result import Float64, Path
from perfharness.model.trace import Bool, Int64

NS_PER_MS = 1e6

MIN_BATCHES = 8
"""With fewer, chance makes one rank the last of two in every batch too often."""

ERROR_RATE = 0.01
"""Of the interval of a lag. So one of several equal ranks is called late in 0.7 % of runs at most, where their work
varies by chance; in up to 4 % of runs of 20 batches, and 10 % of 8, where it varies much and slowly
(`scripts/rank_calibration`)."""

LAG_SHARE = 0.05
"""Of the time from batch to batch: ranks that are less apart, surely, are not worth the reader's time."""

LOCATED_SHARE = 0.5
"""Of the lag: a stage, or all work of a rank, that explains less does not explain it."""

MIN_FOR_P95 = 20


def compare_ranks(
    ranks: Sequence[RankInput], *, world_size: int | None = None, asked: Parallel | None = None
) -> RankGroup:
    """Compare ranks that work together.

    Args:
        ranks: two or more, of one machine.
        world_size: how many there are; None: not known.
        asked: whether they share their items (`--parallel`); None: find out.
    """
    inputs = sorted(ranks, key=lambda one: one.rank)
    common = common_batches(inputs)
    kinds: set[str] = {one.work.kind for one in inputs}
    source: Literal["gpu", "host"] | None = None
    if kinds == {"gpu"}:
        source = "gpu"
    elif kinds == {"host"}:
        source = "host"
    parallel = find_parallel(inputs, common, asked)
    reason = _why_not(inputs, common, source, kinds)
    matched: list[Matched] = []
    unmatched = 0
    if reason is None:
        matched, unmatched = match_collectives(inputs, common)
        if not any(each.waited.any() for each in matched):
            reason = "no collective of the batches is in all ranks with every rank waiting for the last"
    not_awaited = sum(_others(one, of) for one, of in zip(inputs, common.of, strict=True))
    not_awaited += sum(int((~each.waited).sum()) * len(each.ranks) for each in matched)
    view = _View(inputs, common, matched)
    return RankGroup(
        processes=[one.process for one in inputs],
        world_size=world_size,
        source=source,
        parallel=parallel.kind,
        parallel_basis=parallel.basis,
        parallel_reason=parallel.reason,
        batches=len(common),
        ranks=list(_figures(view, is_judged=reason is None)) if source is not None and len(common) else [],
        stages=list(_stages(view, is_judged=reason is None)) if source is not None and len(common) else [],
        delays=_delays(view) if reason is None else [],
        skew=_skew(matched) if reason is None else None,
        unmatched=unmatched,
        not_awaited=not_awaited,
        reason=reason,
    )


def _why_not(ranks: list[RankInput], common: CommonBatches, source: str | None, kinds: set[str]) -> str | None:
    """Why ranks cannot be compared; None where they can."""
    if len(ranks) < 2:
        return "only one rank was measured"
    if source is None:
        unseen = next((one.work.reason for one in ranks if one.work.reason is not None), None)
        if kinds == {"none"}:
            return unseen or "no batch has a collective"
        return (
            unseen or "collectives were seen on the GPU in some ranks and on the host in others, or in some not at all"
        )
    if not len(common):
        return "the ranks have no batch in common (path and index) that is warm-up in none"
    without = [one.process for one in ranks if one.clock is None]
    if without:
        return f"{', '.join(without)}: nothing ties the clock of the trace to that of the other ranks"
    return None


def _others(one: RankInput, batches: Int64) -> int:
    """Messages between two ranks and calls that do not wait, in common batches."""
    calls = one.work.collectives
    return int((np.isin(calls.batch, batches) & ~calls.is_awaited).sum())


@dataclass(frozen=True)
class _View:
    """All that is compared. Waiting of a rank is summed over matched collectives."""

    ranks: list[RankInput]
    common: CommonBatches
    matched: list[Matched]

    def in_common(self, position: int) -> Int64:
        """Rows of a rank's collectives in common batches."""
        calls = self.ranks[position].work.collectives
        return np.flatnonzero(np.isin(calls.batch, self.common.of[position]))

    def waiting_ns(self, position: int) -> tuple[Int64, Bool]:
        """What a rank waited in each of its collectives, and which of them are known."""
        calls = self.ranks[position].work.collectives
        waiting, is_known = np.zeros(len(calls), dtype=np.int64), np.zeros(len(calls), dtype=np.bool_)
        for each in self.matched:
            if position in each.ranks:
                column = each.ranks.index(position)
                rows = each.row[each.waited, column]
                waiting[rows] = each.waiting_ns[each.waited, column]
                is_known[rows] = True
        return waiting, is_known

    @cached_property
    def periods_ns(self) -> list[float]:
        """Of each rank, mean time from the start of a common batch to that of the next one of its loop; of the last,
        its length.
        """
        return [self._period_ns(position) for position in range(len(self.ranks))]

    def _period_ns(self, position: int) -> float:
        batches = self.ranks[position].work.batches
        period = batches.end_ns - batches.start_ns
        for loop in np.unique(batches.loop).tolist():
            at = np.flatnonzero(batches.loop == loop)
            period[at[:-1]] = np.diff(batches.start_ns[at])
        return float(period[self.common.of[position]].mean())


def _figures(view: _View, *, is_judged: bool) -> Iterator[RankFigures]:
    count = len(view.common)
    for position, one in enumerate(view.ranks):
        calls, rows = one.work.collectives, view.in_common(position)
        under_way = BusyLine(calls.start_ns[rows], calls.end_ns[rows]).length
        period = view.periods_ns[position]
        waiting, is_known = view.waiting_ns(position)
        length = calls.end_ns - calls.start_ns
        total = int(length[rows].sum())
        mine = [(each, each.ranks.index(position)) for each in view.matched if position in each.ranks]
        judged = sum(int(each.waited.sum()) for each, _ in mine)
        last = sum(int((each.waited & _is_last(each, column)).sum()) for each, column in mine)
        lag = sum(float(each.lag_ns[each.waited, column].sum()) for each, column in mine)
        knows = is_judged and judged > 0
        waiting_ns = int(waiting[rows].sum()) / count
        yield RankFigures(
            process=one.process,
            rank=one.rank,
            batch_ms=period / NS_PER_MS,
            collectives=len(rows) / count,
            communication_ms=under_way / count / NS_PER_MS,
            communication_share=min(under_way / count / period, 1.0) if period > 0 else 0.0,
            waiting_ms=waiting_ns / NS_PER_MS if knows else None,
            transfer_ms=max(under_way / count - waiting_ns, 0.0) / NS_PER_MS if knows else None,
            other_ms=max(period - under_way / count, 0.0) / NS_PER_MS,
            judged_share=int(length[rows[is_known[rows]]].sum()) / total if knows and total else None,
            last_share=last / judged if knows else None,
            lag_ms=lag / count / NS_PER_MS if knows else None,
        )


def _is_last(each: Matched, column: int) -> Bool:
    """Collectives in which a rank came last by more than the clocks may be off."""
    is_last = each.arrival_ns[:, column] == each.last_ns
    return np.asarray(is_last & (each.margin_ns > each.error_ns), dtype=np.bool_)


def _stages(view: _View, *, is_judged: bool) -> Iterator[StageWaiting]:
    count = len(view.common)
    for position, one in enumerate(view.ranks):
        work, calls, rows = one.work, one.work.collectives, view.in_common(position)
        waiting, is_known = view.waiting_ns(position)
        length = calls.end_ns - calls.start_ns
        for path in dict.fromkeys(calls.stage[rows].tolist()):
            mine = rows[calls.stage[rows] == path]
            operations = sorted({work.operations[code] for code in calls.operation[mine].tolist()})
            knows = is_judged and bool(is_known[mine].any())
            yield StageWaiting(
                process=one.process,
                path=_path(one, path),
                operations=operations,
                collectives=len(mine) / count,
                communication_ms=int(length[mine].sum()) / count / NS_PER_MS,
                waiting_ms=int(waiting[mine].sum()) / count / NS_PER_MS if knows else None,
            )


def _path(one: RankInput, code: int) -> Path:
    return () if code == OUTSIDE else one.work.paths[code]


def _skew(matched: list[Matched]) -> ArrivalSkew | None:
    spreads = [each.last_ns[each.waited] - each.arrival_ns[each.waited].min(axis=1) for each in matched]
    spread = np.concatenate(spreads) / NS_PER_MS
    return ArrivalSkew(
        collectives=len(spread),
        p50_ms=float(np.median(spread)),
        p95_ms=float(np.percentile(spread, 95)) if len(spread) >= MIN_FOR_P95 else None,
        max_ms=float(spread.max()),
        clock_error_ms=max(each.error_ns for each in matched) / NS_PER_MS,
    )


@dataclass(frozen=True)
class RankCalls:
    """The collectives of a rank in its batches: for a timeline.

    Times are on the clock of the trace of `clock_of`, a process: of the first rank, or its own where nothing ties the
    clocks. `waiting_ns` is -1 where it is not known; `last_rank` is the rank that all waited for, -1 where it is not
    known. `batch_path` and `batch_index` are of the outermost batch around each.
    """

    process: str
    rank: int
    clock_of: str
    batch_path: list[Path]
    batch_index: Int64
    operation: list[str]
    start_ns: Int64
    end_ns: Int64
    waiting_ns: Int64
    last_rank: Int64


def calls_of_ranks(ranks: Sequence[RankInput]) -> list[RankCalls]:
    """All collectives of ranks that work together, warm-up too; without waiting where nothing ties their clocks."""
    inputs = sorted(ranks, key=lambda one: one.rank)
    common = common_batches(inputs, with_warmup=True)
    clocks = [one.clock for one in inputs if one.clock is not None]
    has_clocks = len(clocks) == len(inputs)
    matched = match_collectives(inputs, common)[0] if has_clocks and len(common) and len(inputs) > 1 else []
    view = _View(inputs, common, matched)
    found = []
    for position, one in enumerate(inputs):
        calls = one.work.collectives
        moved = clocks[position].offset_ns - clocks[0].offset_ns if has_clocks else 0
        waiting, is_known = view.waiting_ns(position)
        last = np.full(len(calls), -1, dtype=np.int64)
        for each in matched:
            if position in each.ranks:
                numbers = np.asarray([inputs[at].rank for at in each.ranks], dtype=np.int64)
                which = numbers[each.arrival_ns.argmax(axis=1)]
                last[each.row[each.waited, each.ranks.index(position)]] = which[each.waited]
        found.append(
            RankCalls(
                process=one.process,
                rank=one.rank,
                operation=[one.work.operations[code] for code in calls.operation.tolist()],
                clock_of=inputs[0].process if has_clocks else one.process,
                batch_path=[one.work.paths[path] for path in one.work.batches.path[calls.batch].tolist()],
                batch_index=one.work.batches.index[calls.batch],
                start_ns=calls.start_ns + moved,
                end_ns=calls.end_ns + moved,
                waiting_ns=np.where(is_known, waiting, -1),
                last_rank=last,
            )
        )
    return found


# ---- who is late, and where ----


@dataclass(frozen=True)
class _Site:
    """Collectives of one operation in one stage, as one rank has them: rows of a `Matched`."""

    each: Matched
    rows: Int64
    at_stage: Path
    operation: str
    call: Path | None


def _sites(view: _View, each: Matched, column: int) -> Iterator[_Site]:
    one = view.ranks[each.ranks[column]]
    calls = one.work.collectives
    awaited = np.flatnonzero(each.waited)
    rows = each.row[awaited, column]
    stage, operation, own = calls.stage[rows], calls.operation[rows], calls.own[rows]
    for site in dict.fromkeys(zip(stage.tolist(), operation.tolist(), own.tolist(), strict=True)):
        chosen = awaited[(stage == site[0]) & (operation == site[1]) & (own == site[2])]
        call = None if site[2] == OUTSIDE else one.work.paths[site[2]]
        yield _Site(each, chosen, _path(one, site[0]), one.work.operations[site[1]], call)


def _delays(view: _View) -> list[RankDelay]:
    if len(view.common) < MIN_BATCHES:
        return []
    found = [
        delay
        for each in view.matched
        for column in range(len(each.ranks))
        for site in _sites(view, each, column)
        if (delay := _delay(view, site, column)) is not None
    ]
    return sorted(found, key=lambda delay: -delay.waiting_ms)


def _delay(view: _View, site: _Site, column: int) -> RankDelay | None:
    """The delay of one rank at one site, where the others surely wait for it; None where they do not."""
    each, rows = site.each, site.rows
    position, count = each.ranks[column], len(view.common)
    lag = each.lag_ns[rows, column]
    per_batch: Float64 = np.bincount(each.batch[rows], weights=lag, minlength=count).astype(np.float64)
    calls = np.bincount(each.batch[rows], minlength=count)
    mean = float(per_batch.mean())
    half = half_interval(per_batch)
    period = float(np.mean([view.periods_ns[other] for other in each.ranks if other != position]))
    if mean - half <= max(each.error_ns * float(calls.mean()), LAG_SHARE * period):
        return None
    if _work_excess_ns(view, site, column) < LOCATED_SHARE * mean * count:
        return None  # it came late because the collective before let it go late
    is_last = each.arrival_ns[rows, column] == each.last_ns[rows]
    others = [other for other in range(len(each.ranks)) if other != column]
    waiting = each.waiting_ns[np.ix_(rows[is_last], others)].sum(axis=0) / count
    waiting_ns = float(waiting.mean())
    where = _origin(view, site, column, mean)
    one = view.ranks[position]
    return RankDelay(
        rank=one.rank,
        process=one.process,
        at_stage=site.at_stage,
        operation=site.operation,
        call=site.call,
        batches=count,
        lag_ms=mean / NS_PER_MS,
        lag_low_ms=(mean - half) / NS_PER_MS,
        lag_high_ms=(mean + half) / NS_PER_MS,
        waiting_ms=waiting_ns / NS_PER_MS,
        waiting_by_process={
            view.ranks[each.ranks[other]].process: float(ns) / NS_PER_MS
            for other, ns in zip(others, waiting.tolist(), strict=True)
        },
        saves_ms=float(each.margin_ns[rows[is_last]].sum()) / count / NS_PER_MS,
        batch_share=min(waiting_ns / period, 1.0),
        stage=where.stage,
        basis=where.basis,
        between_batches=where.between,
        excess_ms=where.excess_ns / NS_PER_MS if where.excess_ns is not None else None,
        reason=where.reason,
    )


def _work_excess_ns(view: _View, site: _Site, column: int) -> float:
    """How much longer than the mean of the others a rank took from the collective before to these."""
    each = site.each
    before = [
        view.ranks[position].work.collectives.before_ns[each.row[site.rows, at]]
        for at, position in enumerate(each.ranks)
    ]
    others = np.mean(np.stack([one for at, one in enumerate(before) if at != column]), axis=0)
    return float((before[column] - others).sum())


def half_interval(values: Float64) -> float:
    """Half of the interval of the mean over batches, which may be alike from one to the next."""
    count = _effective(values)
    return student_t(count - 1, 1 - ERROR_RATE / 2) * float(values.std(ddof=1)) / sqrt(count)


def _effective(values: Float64) -> int:
    """So many independent values are worth what these are, which may be alike from one to the next; two at least."""
    count, spread = len(values), values - values.mean()
    scale = float((spread**2).sum())
    if scale <= 0:
        return count
    correlation = min(max(float((spread[1:] * spread[:-1]).sum()) / scale, 0.0), 0.9)
    return max(int(count * (1 - correlation) / (1 + correlation)), 2)


@dataclass(frozen=True)
class _Origin:
    stage: Path | None = None
    basis: Literal["host", "gpu"] | None = None
    between: bool = False
    excess_ns: float | None = None
    reason: str | None = None


def _origin(view: _View, site: _Site, column: int, lag_ns: float) -> _Origin:
    """In which stage a rank spent the time, since the collective before, that the others did not."""
    each, rows, count = site.each, site.rows, len(view.common)
    works = [view.ranks[position].work for position in each.ranks]
    gpu = [work.gpu for work in works]
    idle = [work.gpu_idle_ns for work in works]
    found: list[_Origin] = []
    host = _excess([(view.ranks[at], view.ranks[at].work.host) for at in each.ranks], each, rows, column)
    if all(one is not None for one in gpu):
        pairs = [(view.ranks[at], one) for at, one in zip(each.ranks, gpu, strict=True) if one is not None]
        of_gpu = _excess(pairs, each, rows, column)
        idle_ns = [float(one[each.row[rows, at]].sum()) for at, one in enumerate(idle) if one is not None]
        more_idle = idle_ns[column] - float(np.mean(np.delete(idle_ns, column)))
        most = max(of_gpu.values(), default=0.0)
        if most >= more_idle and most > 0:
            found.append(_named(works[column].between, view.ranks[each.ranks[column]], of_gpu, "gpu", count))
    if not found and host:
        found.append(_named(works[column].between, view.ranks[each.ranks[column]], host, "host", count))
    best = found[0] if found else _Origin()
    if best.excess_ns is None or best.excess_ns < LOCATED_SHARE * lag_ns:
        where = "its GPU and its host" if all(one is not None for one in gpu) else "its host"
        return _Origin(reason=f"no single stage of {where} takes half of the delay longer than in the other ranks")
    return best


def _excess(ranks: list[tuple[RankInput, WorkBefore]], each: Matched, rows: Int64, column: int) -> dict[Path, float]:
    """By stage of a rank, how much more time it took in front of these collectives than the mean of the others."""
    totals: list[dict[Path, float]] = []
    for at, (one, work) in enumerate(ranks):
        chosen = np.isin(work.collective, each.row[rows, at])
        path, spent = work.path[chosen], work.spent_ns[chosen]
        total = np.bincount(path + 1, weights=spent)  # 0 stands for outside
        totals.append({_path(one, code - 1): float(total[code]) for code in np.flatnonzero(total).tolist()})
    others = [total for at, total in enumerate(totals) if at != column]
    return {
        path: spent - float(np.mean([other.get(path, 0.0) for other in others]))
        for path, spent in totals[column].items()
    }


def _named(
    between: frozenset[int], one: RankInput, excess: dict[Path, float], basis: Literal["host", "gpu"], count: int
) -> _Origin:
    stage = max(excess, key=lambda path: excess[path])
    around = {_path(one, code) for code in between}
    return _Origin(stage, basis, stage in around, excess[stage] / count)
