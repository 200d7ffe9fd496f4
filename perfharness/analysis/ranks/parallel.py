"""Whether ranks work on the same items (tensor or pipeline parallel) or each on its own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfharness.analysis.ranks.matching import Common, RankInput
from perfharness.analysis.ranks.results import Basis, Parallel
from perfharness.analysis.ranks.work import batch_keys
from perfharness.model.result import Path

MOSTLY = 0.9
"""Of the common batches: so many have collectives in every rank, where ranks share their work."""


@dataclass(frozen=True)
class FoundParallel:
    """Whether ranks share their items, how that is known, and, where it is not, why."""

    kind: Parallel | None
    basis: Basis | None
    reason: str | None = None


def find_parallel(ranks: list[RankInput], common: Common, asked: Parallel | None) -> FoundParallel:
    """What was asked for (`--parallel`), else what the annotation says, else what the batches and their collectives
    show.
    """
    if asked is not None:
        return FoundParallel(asked, "option")
    marked = [one.work.batches.shared for one in ranks]
    if all(shared.all() for shared in marked):
        return FoundParallel("model", "annotation")
    if any(shared.any() for shared in marked):
        return FoundParallel(None, None, f"some batches are annotated as shared and others not; {OPTION}")
    items = [_items(one) for one in ranks]
    everywhere = set(items[0]).intersection(*items[1:])
    if not everywhere or any(len({each[key] for each in items}) > 1 for key in everywhere):
        return FoundParallel("data", "different_batches")
    if any(len(each) > len(everywhere) for each in items):
        return FoundParallel(None, None, f"the ranks have some of their batches in common, and others not; {OPTION}")
    if len(common[0]) and all(_have_collectives(one, of) for one, of in zip(ranks, common, strict=True)):
        return FoundParallel("model", "recognized")
    unseen = next((one.work.reason for one in ranks if one.work.reason is not None), None)
    if unseen is None and all(one.work.kind == "none" for one in ranks):
        return FoundParallel("data", "no_collectives")
    why = unseen or "collectives are in a part of the batches only"
    return FoundParallel(
        None, None, f"all ranks have the same batches, and whether they share their items is not known: {why}; {OPTION}"
    )


OPTION = "say which: --parallel data (each rank has items of its own) or --parallel model (they share them)"


def _items(one: RankInput) -> dict[tuple[Path, int, int], float]:
    """The items of each batch, by path, index and occurrence; -1 where they were not counted."""
    counts = np.nan_to_num(one.work.batches.items, nan=-1.0).tolist()
    return dict(zip(batch_keys(one.work), counts, strict=True))


def _have_collectives(one: RankInput, batches: np.typing.NDArray[np.int64]) -> bool:
    return float(np.isin(batches, one.work.collectives.batch).mean()) >= MOSTLY
