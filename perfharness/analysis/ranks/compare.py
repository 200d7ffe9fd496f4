"""Compare ranks: communication, waits for the last one, and the stage that caused its delay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from perfharness.analysis.ranks.matching import (
    Common,
    Matched,
    RankInput,
    common_batches,
    find_parallel,
    match_collectives,
)
from perfharness.analysis.ranks.results import (
    ArrivalSkew,
    CallWait,
    Parallel,
    RankDelay,
    RankFigures,
    RankGroup,
    StageWaiting,
)
from perfharness.analysis.ranks.work import RankWork
from perfharness.analysis.statistics import student_interval
from perfharness.analysis.timeline.busy import BusyLine
from perfharness.analysis.timeline.grouping import distinct, group_rows, sum_by_code
from perfharness.model.columns import Bool, Float64, Int64
from perfharness.model.result import Path
from perfharness.model.units import NS_PER_MS

MIN_BATCHES = 8
"""Fewest batches; with fewer, one of two equal ranks is too often last in all of them by chance."""

LATE_SHARE = 0.9
"""Least share of the batches in which a late rank delays the others."""

PARTS = 4
"""Consecutive parts of a run whose mean lags give an interval, because batches may depend on their neighbours."""

LATE_ALPHA = 0.01
"""1 - confidence of that interval: of up to four equal ranks, one is named in at most 5 % of runs
(docs/internals/statistics.md)."""

LAG_SHARE = 0.05
"""Share of the time from batch to batch: smaller lags are ignored."""

LOCATED_SHARE = 0.5
"""Least share of the lag that a stage, or all work of a rank, must explain."""

MIN_FOR_P95 = 20

Basis = Literal["host", "gpu"]


def compare_ranks(
    ranks: Sequence[RankInput], *, world_size: int | None = None, asked: Parallel | None = None
) -> RankGroup:
    """Compare ranks that work together. `asked`: whether they share items (`--parallel`); None to detect it."""
    inputs = sorted(ranks, key=lambda one: one.rank)
    common = common_batches(inputs)
    kinds = {one.work.kind for one in inputs}
    kind = inputs[0].work.kind
    source = kind if len(kinds) == 1 and kind != "none" else None
    parallel, basis, parallel_reason = find_parallel(inputs, common, asked)
    reason = _why_not(inputs, common, source)
    matched: list[Matched] = []
    unmatched = 0
    if reason is None:
        matched, unmatched = match_collectives(inputs, common)
        if not any(each.waited.any() for each in matched):
            reason = "no collective of the batches is in all ranks with every rank waiting for the last"
    count, is_judged = len(common[0]), reason is None
    sides = _sides(inputs, common, matched)
    # Messages between two ranks, calls that do not wait, and collectives that let ranks go on early.
    not_awaited = sum(int((~side.one.work.collectives.is_awaited[side.rows]).sum()) for side in sides)
    not_awaited += sum(int((~each.waited).sum()) * len(each.ranks) for each in matched)
    delays, unsure = _delays(sides, matched, count) if is_judged else ([], reason)
    shown = sides if source is not None and count else []
    return RankGroup(
        processes=[one.process for one in inputs],
        world_size=world_size,
        source=source,
        parallel=parallel,
        parallel_basis=basis,
        parallel_reason=parallel_reason,
        batches=count,
        ranks=[_figures(side, count, is_judged=is_judged) for side in shown],
        stages=[stage for side in shown for stage in _stages(side, count, is_judged=is_judged)],
        delays=delays,
        skew=_skew(matched) if is_judged else None,
        unmatched=unmatched,
        not_awaited=not_awaited,
        reason=unsure,
    )


def _why_not(ranks: list[RankInput], common: Common, source: str | None) -> str | None:
    """Reason why ranks cannot be compared, or None."""
    if len(ranks) < 2:
        return "only one rank was measured"
    if source is None:
        unseen = next((one.work.reason for one in ranks if one.work.reason is not None), None)
        if all(one.work.kind == "none" for one in ranks):
            return unseen or "no batch has a collective"
        return unseen or "some ranks have collectives on the GPU, others on the host or none"
    if not len(common[0]):
        return "the ranks have no measured batch (path and index) in common"
    without = [one.process for one in ranks if one.clock is None]
    if without:
        return f"{', '.join(without)}: the trace has no clock in common with the other ranks"
    return None


@dataclass(frozen=True)
class _Side:
    """One rank in the comparison: its common batches, and its collectives in them (`rows`).

    Columns of all its collectives, valid where `is_known`: its wait, its lag behind the mean of the others, and whether
    it certainly came last.
    """

    one: RankInput
    batches: Int64
    rows: Int64
    length_ns: Int64
    waiting_ns: Int64
    lag_ns: Float64
    is_last: Bool
    is_known: Bool

    @cached_property
    def period_ns(self) -> float:
        """Mean time from a common batch to the next of its loop; for the last one, its length."""
        batches = self.one.work.batches
        period = batches.end_ns - batches.start_ns
        for loop in distinct(batches.loop):
            at = np.flatnonzero(batches.loop == loop)
            period[at[:-1]] = np.diff(batches.start_ns[at])
        return float(period[self.batches].mean())


def _sides(ranks: list[RankInput], common: Common, matched: list[Matched]) -> list[_Side]:
    found = []
    for position, (one, batches) in enumerate(zip(ranks, common, strict=True)):
        calls = one.work.collectives
        waiting, lag = np.zeros(len(calls), dtype=np.int64), np.zeros(len(calls))
        is_known, is_last = np.zeros(len(calls), dtype=np.bool_), np.zeros(len(calls), dtype=np.bool_)
        for each in matched:
            if position not in each.ranks:
                continue
            column = each.ranks.index(position)
            rows = each.row[each.waited, column]
            waiting[rows], lag[rows] = each.waiting_ns[each.waited, column], each.lag_ns[each.waited, column]
            is_known[rows] = True
            came_last = (each.arrival_ns[:, column] == each.last_ns) & (each.margin_ns > each.error_ns)
            is_last[rows] = came_last[each.waited]
        rows = np.flatnonzero(np.isin(calls.batch, batches))
        length = calls.end_ns - calls.start_ns
        found.append(_Side(one, batches, rows, length, waiting, lag, is_last, is_known))
    return found


def _figures(side: _Side, count: int, *, is_judged: bool) -> RankFigures:
    calls, rows, period = side.one.work.collectives, side.rows, side.period_ns
    under_way = BusyLine(calls.start_ns[rows], calls.end_ns[rows]).length / count
    total, judged = int(side.length_ns[rows].sum()), int(side.is_known.sum())
    knows = is_judged and judged > 0
    waiting = int(side.waiting_ns[rows].sum()) / count
    return RankFigures(
        process=side.one.process,
        rank=side.one.rank,
        batch_ms=period / NS_PER_MS,
        collectives=len(rows) / count,
        communication_ms=under_way / NS_PER_MS,
        communication_share=min(under_way / period, 1.0) if period > 0 else 0.0,
        waiting_ms=waiting / NS_PER_MS if knows else None,
        transfer_ms=max(under_way - waiting, 0.0) / NS_PER_MS if knows else None,
        other_ms=max(period - under_way, 0.0) / NS_PER_MS,
        judged_share=int(side.length_ns[side.is_known].sum()) / total if knows and total else None,
        last_share=int(side.is_last.sum()) / judged if knows else None,
        lag_ms=float(side.lag_ns.sum()) / count / NS_PER_MS if knows else None,
    )


def _stages(side: _Side, count: int, *, is_judged: bool) -> Iterator[StageWaiting]:
    work, calls, rows = side.one.work, side.one.work.collectives, side.rows
    for path in dict.fromkeys(calls.stage[rows].tolist()):
        mine = rows[calls.stage[rows] == path]
        knows = is_judged and bool(side.is_known[mine].any())
        yield StageWaiting(
            process=side.one.process,
            path=work.path(path),
            operations=sorted({work.operations[code] for code in calls.operation[mine].tolist()}),
            collectives=len(mine) / count,
            communication_ms=int(side.length_ns[mine].sum()) / count / NS_PER_MS,
            waiting_ms=int(side.waiting_ns[mine].sum()) / count / NS_PER_MS if knows else None,
        )


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
class _Site:
    """Collectives of one operation in one stage of one rank: rows of a `Matched`."""

    each: Matched
    column: int
    rows: Int64
    stage: int
    operation: int


def _delays(sides: list[_Side], matched: list[Matched], count: int) -> tuple[list[RankDelay], str | None]:
    """The delays; without any, the reason why that is uncertain."""
    if count < MIN_BATCHES:
        return [], f"{count} batches are too few, {MIN_BATCHES} are needed"
    found = [
        _delay([sides[position] for position in each.ranks], site, count)
        for each in matched
        for column, position in enumerate(each.ranks)
        for site in _sites(sides[position].one.work, each, column)
    ]
    delays = sorted((one for one in found if isinstance(one, RankDelay)), key=lambda delay: -delay.waiting_ms)
    return delays, None if delays else next((one for one in found if isinstance(one, str)), None)


def _sites(work: RankWork, each: Matched, column: int) -> Iterator[_Site]:
    calls = work.collectives
    awaited = np.flatnonzero(each.waited)
    rows = each.row[awaited, column]
    sites = group_rows(calls.stage[rows], calls.operation[rows])
    for number, first in enumerate(rows[sites.first].tolist()):
        place = int(calls.stage[first]), int(calls.operation[first])
        yield _Site(each, column, awaited[sites.code == number], *place)


def _delay(sides: list[_Side], site: _Site, count: int) -> RankDelay | str | None:
    """The delay of one rank at one site, if the others wait for it in nearly all batches; None if they do not, or the
    reason why it may be chance. `sides`: all ranks that take part.
    """
    each, rows = site.each, site.rows
    one, batch = sides[site.column].one, each.batch[rows]
    lag = sum_by_code(batch, each.lag_ns[rows, site.column], count)
    per_batch = float(np.bincount(batch, minlength=count).mean())
    others = [column for column in range(len(sides)) if column != site.column]
    period = float(np.mean([sides[other].period_ns for other in others]))
    floor = max(each.error_ns * per_batch, LAG_SHARE * period)
    mean, late_share = float(lag.mean()), float((lag > floor).mean())
    bases: tuple[Basis, ...] = ("host", "gpu") if one.work.kind == "gpu" else ("host",)
    excess = (_excess([side.one.work for side in sides], site, basis) for basis in bases)
    total_ns, stage, stage_ns, basis = max(excess, key=lambda found: found[2])
    if late_share < LATE_SHARE or total_ns < LOCATED_SHARE * mean * count:
        return None  # or it came late because the previous collective let it go late
    parts = np.asarray([part.mean() for part in np.array_split(lag, PARTS)], dtype=np.float64)
    if student_interval(parts, LATE_ALPHA)[0] <= floor:
        return f"the lag of rank {one.rank} varies too much for {count} batches, measure more"
    is_last = each.arrival_ns[rows, site.column] == each.last_ns[rows]
    waiting = each.waiting_ns[np.ix_(rows[is_last], others)].sum(axis=0) / count
    calls = [wait for other in others for wait in _call_waits(sides[other].one, each, other, rows[is_last], count)]
    waiting_ns, is_located = float(waiting.mean()), stage_ns >= LOCATED_SHARE * mean * count
    return RankDelay(
        rank=one.rank,
        process=one.process,
        at_stage=one.work.path(site.stage),
        operation=one.work.operations[site.operation],
        batches=count,
        lag_ms=mean / NS_PER_MS,
        late_share=late_share,
        waiting_ms=waiting_ns / NS_PER_MS,
        waiting_by_process={
            sides[other].one.process: ns / NS_PER_MS for other, ns in zip(others, waiting.tolist(), strict=True)
        },
        calls=calls,
        saves_ms=float(each.margin_ns[rows[is_last]].sum()) / count / NS_PER_MS,
        batch_share=min(waiting_ns / period, 1.0),
        stage=stage if is_located else None,
        basis=basis if is_located else None,
        between_batches=is_located and stage in {one.work.path(code) for code in one.work.between},
        excess_ms=stage_ns / count / NS_PER_MS if is_located else None,
        reason=None if is_located else "no single stage takes half of the delay longer than in the other ranks",
    )


def _call_waits(one: RankInput, each: Matched, column: int, rows: Int64, count: int) -> Iterator[CallWait]:
    """Where a rank waits in the collectives of some rows, by the innermost range around the call."""
    own = one.work.collectives.own[each.row[rows, column]]
    for code in distinct(own):
        waiting_ns = int(each.waiting_ns[rows[own == code], column].sum())
        yield CallWait(one.process, one.work.path(code), waiting_ns / count / NS_PER_MS)


def _excess(works: list[RankWork], site: _Site, basis: Basis) -> tuple[float, Path, float, Basis]:
    """Extra time of a rank, over the mean of the others, since the previous collective, on the host or in GPU work: the
    total, and the stage with most of it.
    """
    by_rank: list[dict[Path, float]] = []
    for column, work in enumerate(works):
        before = work.host if basis == "host" else work.gpu
        assert before is not None, "these are collectives of GPUs"
        chosen = np.isin(before.collective, site.each.row[site.rows, column])
        spent = np.bincount(before.path[chosen] + 1, weights=before.ns[chosen])  # 0 is outside
        by_rank.append({work.path(code - 1): float(spent[code]) for code in np.flatnonzero(spent).tolist()})
    own = by_rank.pop(site.column)
    paths = dict.fromkeys(path for one in [own, *by_rank] for path in one)
    more = {path: own.get(path, 0.0) - float(np.mean([one.get(path, 0.0) for one in by_rank])) for path in paths}
    stage = max(more, key=lambda path: more[path], default=())
    return sum(more.values()), stage, more.get(stage, 0.0), basis
