"""Match collectives of all ranks: the k-th of an operation in a batch is the same in every rank."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from perfharness.analysis.ranks.results import Basis, Parallel
from perfharness.analysis.ranks.work import RankWork, batch_keys
from perfharness.analysis.timeline.grouping import group_rows, occurrences
from perfharness.model.columns import Bool, Float64, Int64

Common = list[Int64]
"""Batches common to all ranks, as positions in each rank."""


@dataclass(frozen=True)
class RankClock:
    """Offset from a trace's clock to a clock that the ranks share, and its error."""

    offset_ns: int
    error_ns: int


@dataclass(frozen=True)
class RankInput:
    """One rank: its process folder, number, work and clock (None if unknown)."""

    process: str
    rank: int
    work: RankWork
    clock: RankClock | None


@dataclass(frozen=True)
class Matched:
    """Collectives of one set of ranks (`ranks`: positions): a row per collective, a column per rank, times on one
    clock. `batch` numbers the common batches; `row` is the collective's row in each rank.
    """

    ranks: list[int]
    batch: Int64
    row: Int64
    arrival_ns: Int64
    end_ns: Int64
    error_ns: int

    @cached_property
    def waited(self) -> Bool:
        """Mask of collectives in which every rank waited for the last."""
        return np.asarray(self.end_ns.min(axis=1) >= self.last_ns - self.error_ns, dtype=np.bool_)

    @cached_property
    def last_ns(self) -> Int64:
        """Arrival of the last rank."""
        found: Int64 = self.arrival_ns.max(axis=1)
        return found

    @cached_property
    def waiting_ns(self) -> Int64:
        """Wait of each rank for the last; 0 if not all waited."""
        until = np.minimum(self.end_ns, self.last_ns[:, None])
        waiting: Int64 = np.where(self.waited[:, None], np.maximum(until - self.arrival_ns, 0), 0)
        return waiting

    @cached_property
    def lag_ns(self) -> Float64:
        """Arrival of each rank relative to the mean of the others."""
        arrival, ranks = self.arrival_ns - self.arrival_ns.min(axis=1, keepdims=True), len(self.ranks)
        return np.asarray((arrival * ranks - arrival.sum(axis=1, keepdims=True)) / (ranks - 1), dtype=np.float64)

    @cached_property
    def margin_ns(self) -> Int64:
        """Time from the second last to the last arrival."""
        in_order = np.sort(self.arrival_ns, axis=1)
        margin: Int64 = in_order[:, -1] - in_order[:, -2]
        return margin


def common_batches(ranks: list[RankInput]) -> Common:
    """Batches of equal path, index and occurrence in all ranks, in the order of the first. If there are none, as in
    data-parallel ranks that number batches globally, the k-th batches of a path are matched.
    """
    positions = [{key: at for at, key in enumerate(batch_keys(one.work))} for one in ranks]
    if not set(positions[0]).intersection(*positions[1:]):
        positions = [{key: at for at, key in enumerate(batch_keys(one.work, by_order=True))} for one in ranks]
    common = [
        key
        for key in positions[0]
        if all(
            key in there and not one.work.batches.warmup[there[key]]
            for one, there in zip(ranks, positions, strict=True)
        )
    ]
    return [np.asarray([there[key] for key in common], dtype=np.int64) for there in positions]


def match_collectives(ranks: list[RankInput], common: Common) -> tuple[list[Matched], int]:
    """Collectives present in all of their ranks, and the number of unmatched rows. Operations that ranks called a
    different number of times in a batch are not matched. Messages between two ranks and calls that do not wait are left
    out.
    """
    calls = _calls(ranks, common)
    of = group_rows(calls.batch, calls.signature)
    number_in_batch = occurrences(calls.rank, of.code)
    count = np.zeros((len(ranks), len(of)), dtype=np.int64)
    np.add.at(count, (calls.rank, of.code), 1)
    found, unmatched = [], 0
    for members in dict.fromkeys(members for _, members in calls.signatures):
        taking_part = [at for at, one in enumerate(ranks) if members is None or one.rank in members]
        is_mine = np.asarray([own == members for _, own in calls.signatures])[calls.signature]
        is_mine &= np.isin(calls.rank, taking_part)
        is_whole = len(taking_part) > 1 and (members is None or len(taking_part) == len(members))
        is_equal = (count[taking_part] == count[taking_part[:1]]).all(axis=0) & is_whole
        kept = np.flatnonzero(is_mine & is_equal[of.code])
        unmatched += int(is_mine.sum()) - len(kept)
        if len(kept):
            in_order = np.lexsort((calls.rank, number_in_batch, calls.signature, calls.batch))
            at = in_order[np.isin(in_order, kept)].reshape(-1, len(taking_part))
            found.append(_side_by_side(ranks, taking_part, calls.batch[at[:, 0]], calls.row[at]))
    return found, unmatched


@dataclass(frozen=True)
class _Calls:
    """Awaited collectives of all ranks in common batches. A signature: operation and its ranks, None for all."""

    rank: Int64
    row: Int64
    batch: Int64
    signature: Int64
    signatures: list[tuple[str, tuple[int, ...] | None]]


def _calls(ranks: list[RankInput], common: Common) -> _Calls:
    everyone = tuple(sorted(one.rank for one in ranks))
    numbers: dict[tuple[str, tuple[int, ...] | None], int] = {}
    columns = []
    for position, (one, batches) in enumerate(zip(ranks, common, strict=True)):
        work, calls = one.work, one.work.collectives
        place = np.full(len(work.batches), -1, dtype=np.int64)
        place[batches] = np.arange(len(batches))
        row = np.flatnonzero((place[calls.batch] >= 0) & calls.is_awaited)
        kinds = group_rows(calls.operation[row], calls.members[row])
        signature = np.zeros(len(kinds), dtype=np.int64)
        for kind, first in enumerate(row[kinds.first].tolist()):
            members = work.members[calls.members[first]]
            key = work.operations[calls.operation[first]], None if members == everyone else members
            signature[kind] = numbers.setdefault(key, len(numbers))
        columns.append(np.stack([np.full(len(row), position), row, place[calls.batch[row]], signature[kinds.code]]))
    rank, row, batch, signature = np.concatenate(columns, axis=1)
    return _Calls(rank, row, batch, signature, list(numbers))


def _side_by_side(ranks: list[RankInput], positions: list[int], batch: Int64, rows: Int64) -> Matched:
    arrival, end, errors = [], [], []
    for position, row in zip(positions, rows.T, strict=True):
        calls, clock = ranks[position].work.collectives, ranks[position].clock
        assert clock is not None, "ranks without a clock are not compared"
        arrival.append(calls.start_ns[row] + clock.offset_ns)
        end.append(calls.end_ns[row] + clock.offset_ns)
        errors.append(clock.error_ns)
    return Matched(
        positions, batch, rows, np.stack(arrival, axis=1), np.stack(end, axis=1), error_ns=sum(sorted(errors)[-2:])
    )


OPTION = "use --parallel data (each rank has items of its own) or --parallel model (ranks share items)"
MOSTLY = 0.9
"""Least share of the common batches with collectives in every rank, if ranks share their work."""


def find_parallel(
    ranks: list[RankInput], common: Common, asked: Parallel | None
) -> tuple[Parallel | None, Basis | None, str | None]:
    """Whether ranks share items, and by what: option, annotation, or batches and collectives; else the reason."""
    if asked is not None:
        return asked, "option", None
    marked = [one.work.batches.shared for one in ranks]
    if all(shared.all() for shared in marked):
        return "model", "annotation", None
    if any(shared.any() for shared in marked):
        return None, None, f"some batches are annotated as shared and others not; {OPTION}"
    # Items per batch by path, index and occurrence; -1 if not counted.
    counts = [np.nan_to_num(one.work.batches.items, nan=-1.0).tolist() for one in ranks]
    items = [dict(zip(batch_keys(one.work), count, strict=True)) for one, count in zip(ranks, counts, strict=True)]
    everywhere = set(items[0]).intersection(*items[1:])
    if not everywhere or any(len({each[key] for each in items}) > 1 for key in everywhere):
        return "data", "different_batches", None
    if any(len(each) > len(everywhere) for each in items):
        return None, None, f"the ranks have only some of their batches in common; {OPTION}"
    having = [np.isin(of, one.work.collectives.batch) for one, of in zip(ranks, common, strict=True)]
    if len(common[0]) and all(each.mean() >= MOSTLY for each in having):
        return "model", "recognized", None
    unseen = next((one.work.reason for one in ranks if one.work.reason is not None), None)
    if unseen is None and all(one.work.kind == "none" for one in ranks):
        return "data", "no_collectives", None
    why = unseen or "collectives are in only part of the batches"
    same = "all ranks have the same batches, but it is unknown whether they share items"
    return None, None, f"{same}: {why}; {OPTION}"
