"""The collectives of all ranks side by side: the k-th of an operation in a batch is the same one in every rank."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from perfharness.analysis.ranks.work import RankWork, batch_keys, occurrences
from perfharness.model.result import Float64
from perfharness.model.trace import Bool, Int64


@dataclass(frozen=True)
class RankClock:
    """What to add to a trace's times for a clock that the ranks share, and by how much that may be off."""

    offset_ns: int
    error_ns: int


@dataclass(frozen=True)
class RankInput:
    """One rank: its name in results (the folder of its process), its number, its work and its clock (None: unknown)."""

    process: str
    rank: int
    work: RankWork
    clock: RankClock | None


@dataclass(frozen=True)
class CommonBatches:
    """The batches that all ranks have, as a rule those that are warm-up in none; `of[r]`: their positions in a rank."""

    of: list[Int64]

    def __len__(self) -> int:
        return len(self.of[0]) if self.of else 0


@dataclass(frozen=True)
class Matched:
    """Collectives of one set of ranks, a row each and a column a rank: which of theirs it is, and on one clock when
    each came and was done.

    `ranks` are positions of the ranks; `batch` numbers the common batches; `waited`: no rank went on before the last
    had come, so that all others waited for it.
    """

    ranks: list[int]
    batch: Int64
    row: Int64
    arrival_ns: Int64
    end_ns: Int64
    waited: Bool
    error_ns: int

    def __len__(self) -> int:
        return len(self.batch)

    @cached_property
    def last_ns(self) -> Int64:
        """When the last rank came."""
        found: Int64 = self.arrival_ns.max(axis=1)
        return found

    @cached_property
    def waiting_ns(self) -> Int64:
        """What each rank waited for the last one; 0 where they did not wait."""
        until = np.minimum(self.end_ns, self.last_ns[:, None])
        waiting: Int64 = np.where(self.waited[:, None], np.maximum(until - self.arrival_ns, 0), 0)
        return waiting

    @cached_property
    def lag_ns(self) -> Float64:
        """How much later than the mean of the others each rank came."""
        arrival, ranks = self.arrival_ns - self.arrival_ns.min(axis=1, keepdims=True), len(self.ranks)
        return np.asarray((arrival * ranks - arrival.sum(axis=1, keepdims=True)) / (ranks - 1), dtype=np.float64)

    @cached_property
    def margin_ns(self) -> Int64:
        """How much later than the second last the last one came."""
        in_order = np.sort(self.arrival_ns, axis=1)
        margin: Int64 = in_order[:, -1] - in_order[:, -2]
        return margin


def common_batches(ranks: list[RankInput], *, with_warmup: bool = False) -> CommonBatches:
    """Batches of equal path, index and occurrence in all ranks, in the order of the first one.

    Where ranks have none in common, as data-parallel ones that number theirs over all ranks, the k-th of a path in each
    belong together: their collectives meet in the order of their calls.
    """
    positions = [{key: at for at, key in enumerate(batch_keys(one.work))} for one in ranks]
    if not set(positions[0]).intersection(*positions[1:]):
        positions = [{key: at for at, key in enumerate(batch_keys(one.work, by_order=True))} for one in ranks]
    common = [
        key
        for key in positions[0]
        if all(
            key in there and (with_warmup or not one.work.batches.warmup[there[key]])
            for one, there in zip(ranks, positions, strict=True)
        )
    ]
    return CommonBatches([np.asarray([there[key] for key in common], dtype=np.int64) for there in positions])


def match_collectives(ranks: list[RankInput], common: CommonBatches) -> tuple[list[Matched], int]:
    """Collectives that are in all of their ranks, and how many rows are in a rank and not matched.

    Where the ranks called an operation a different number of times in a batch, which call belongs to which is not
    known, and none of that batch is matched. Messages between two ranks and calls that do not wait are left out.
    """
    signatures = _signatures(ranks)
    keyed = [_keys(one, of, signatures, ranks) for one, of in zip(ranks, common.of, strict=True)]
    found: list[Matched] = []
    unmatched = 0
    for members in dict.fromkeys(members for _, members in signatures):
        taking_part = [at for at, one in enumerate(ranks) if members is None or one.rank in members]
        numbers = [number for number, (_, own) in enumerate(signatures) if own == members]
        mine = [keyed[at].of(numbers) for at in taking_part]
        total = sum(len(each.key) for each in mine)
        is_whole = members is None or len(taking_part) == len(members)
        if len(taking_part) < 2 or not is_whole:
            unmatched += total
            continue
        kept = _equally_often(mine)
        unmatched += total - len(kept[0].key) * len(kept)
        if len(kept[0].key):
            found.append(_side_by_side([ranks[at] for at in taking_part], taking_part, kept))
    return found, unmatched


_Signature = tuple[str, "tuple[int, ...] | None"]


@dataclass(frozen=True)
class _Keys:
    """Collectives of a rank in common batches: row, common batch, signature and occurrence in the batch; ordered."""

    row: Int64
    batch: Int64
    signature: Int64
    key: Int64

    def of(self, signatures: list[int]) -> _Keys:
        """Those of some signatures."""
        return self.at(np.isin(self.signature, signatures))

    def at(self, chosen: Bool) -> _Keys:
        """Those that are marked."""
        return _Keys(self.row[chosen], self.batch[chosen], self.signature[chosen], self.key[chosen])


def _signatures(ranks: list[RankInput]) -> list[_Signature]:
    """Operations with their ranks, as all ranks name them; all of them stand for None."""
    everyone = tuple(sorted(one.rank for one in ranks))
    found: dict[_Signature, None] = {}
    for one in ranks:
        work = one.work
        for operation, members in zip(
            work.collectives.operation.tolist(), work.collectives.members.tolist(), strict=True
        ):
            named = work.members[members]
            found.setdefault((work.operations[operation], None if named == everyone else named))
    return list(found)


def _keys(one: RankInput, batches: Int64, signatures: list[_Signature], ranks: list[RankInput]) -> _Keys:
    work, calls = one.work, one.work.collectives
    everyone = tuple(sorted(each.rank for each in ranks))
    number = np.full((len(work.operations), len(work.members)), -1, dtype=np.int64)
    for operation, text in enumerate(work.operations):
        for members, named in enumerate(work.members):
            asked = (text, None if named == everyone else named)
            if asked in signatures:
                number[operation, members] = signatures.index(asked)
    common = np.full(len(work.batches), -1, dtype=np.int64)
    common[batches] = np.arange(len(batches))
    rows = np.flatnonzero((common[calls.batch] >= 0) & calls.is_awaited)
    batch, signature = common[calls.batch[rows]], number[calls.operation[rows], calls.members[rows]]
    occurrence = occurrences(batch, signature)
    key = (batch * len(signatures) + signature) * _STRIDE + occurrence
    order = np.argsort(key, kind="stable")
    return _Keys(rows[order], batch[order], signature[order], key[order])


_STRIDE = 1 << 32
"""More collectives than fit in memory."""


def _equally_often(mine: list[_Keys]) -> list[_Keys]:
    """Those whose operation every rank called equally often in the batch: then their keys are the same."""
    groups = [each.key // _STRIDE for each in mine]
    counts = [
        dict(zip(*(column.tolist() for column in np.unique(group, return_counts=True)), strict=True))
        for group in groups
    ]
    wanted = [group for group, count in counts[0].items() if all(other.get(group) == count for other in counts[1:])]
    chosen = np.asarray(wanted, dtype=np.int64)
    return [each.at(np.isin(group, chosen)) for each, group in zip(mine, groups, strict=True)]


def _side_by_side(ranks: list[RankInput], positions: list[int], mine: list[_Keys]) -> Matched:
    rows = np.stack([each.row for each in mine], axis=1)
    arrival, end, errors = [], [], []
    for one, each in zip(ranks, mine, strict=True):
        assert one.clock is not None, "ranks without a clock are not compared"
        calls = one.work.collectives
        arrival.append(calls.start_ns[each.row] + one.clock.offset_ns)
        end.append(calls.end_ns[each.row] + one.clock.offset_ns)
        errors.append(one.clock.error_ns)
    arrival_ns, end_ns = np.stack(arrival, axis=1), np.stack(end, axis=1)
    error_ns = sum(sorted(errors)[-2:])
    waited = np.asarray(end_ns.min(axis=1) >= arrival_ns.max(axis=1) - error_ns, dtype=np.bool_)
    return Matched(positions, mine[0].batch, rows, arrival_ns, end_ns, waited, error_ns)
