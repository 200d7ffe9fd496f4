"""Which rank a slow request's rank waited for in collectives, and for how long; beside its other batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from perfharness.analysis.ranks.compare import RankCalls
from perfharness.analysis.slowest.difference import MIN_SHARE
from perfharness.analysis.slowest.results import RankWait, SlowLoop, SlowRequest
from perfharness.analysis.timeline.grouping import group_rows
from perfharness.model.result import path_text

NS_PER_MS = 1e6

Waits = Mapping[tuple[str, str, int], RankWait]
"""By process, loop and index of the batch."""


def waits_for_ranks(groups: Iterable[Sequence[RankCalls]]) -> Waits:
    """What the batches of ranks waited in collectives for the rank that came last most. Those of which it is not known
    have none.
    """
    return {key: wait for ranks in groups for one in ranks for key, wait in _of_rank(one).items()}


def _of_rank(one: RankCalls) -> dict[tuple[str, str, int], RankWait]:
    known = np.flatnonzero((one.waiting_ns >= 0) & (one.last_rank >= 0))
    loops = [path_text(path) for path in one.batch_path]
    numbers = {loop: number for number, loop in enumerate(dict.fromkeys(loops))}
    loop = np.asarray([numbers[loops[at]] for at in known.tolist()], dtype=np.int64)
    batches = group_rows(loop, one.batch_index[known]) if len(known) else None
    if batches is None:
        return {}
    waited = np.bincount(batches.code, weights=one.waiting_ns[known])
    found = {}
    for number, first in enumerate(batches.first.tolist()):
        name = loops[int(known[first])]
        mine = known[batches.code == number]
        ranks, of_rank = np.unique(one.last_rank[mine], return_inverse=True)
        by_rank = np.bincount(of_rank.ravel(), weights=one.waiting_ns[mine])
        if ranks[by_rank.argmax()] == one.rank:
            continue  # it came last itself
        others = waited[(loop[batches.first] == loop[first]) & (np.arange(len(waited)) != number)]
        found[one.process, name, int(one.batch_index[known[first]])] = RankWait(
            rank=int(ranks[by_rank.argmax()]),
            ms=float(by_rank.max()) / NS_PER_MS,
            typical_ms=float(np.median(others)) / NS_PER_MS if len(others) else None,
        )
    return found


def with_rank_waits(loops: Sequence[SlowLoop], waits: Waits) -> list[SlowLoop]:
    """The loops with what each of their requests waited for a rank."""
    return [
        loop.model_copy(
            update={
                "requests": [
                    one.model_copy(update={"waited_for": _named(one, waits.get((one.process, loop.loop, one.index)))})
                    for one in loop.requests
                ]
            }
        )
        for loop in loops
    ]


def _named(request: SlowRequest, wait: RankWait | None) -> RankWait | None:
    """The wait, where it is a part of the difference that would be named."""
    if wait is None or request.difference_ms is None:
        return None
    more_ms = wait.ms - (wait.typical_ms or 0.0)
    return wait if more_ms > MIN_SHARE * abs(request.difference_ms) else None
