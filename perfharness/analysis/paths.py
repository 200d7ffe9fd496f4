"""The paths of stages: names from the outermost range down, batch indices left out, and the keys they have in files.

Keys are unique beneath their parent. The name of a batch is its key, and that of a stage, unless it is a number's key
or that of a batch beside it, with or without an index; then ` (range)` follows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from perfharness.analysis.keys import group_rows
from perfharness.model.result import RESERVED_KEYS, Path
from perfharness.model.trace import Bool, Int64, Integers

if TYPE_CHECKING:
    from collections.abc import Callable

    from perfharness.analysis.stages import StageTable

STAGE_SUFFIX = " (range)"
BATCH_SUFFIX = " (batch)"
INDEXED = re.compile(r"(.*)_-?\d+", re.DOTALL)
"""How the key of a batch with its index looks."""


@dataclass(frozen=True)
class StagePaths:
    """The path of each stage (`code`); per path its first stage, the path around it (-1: none), its key and its owner.

    A path stands behind the one around it.
    """

    code: Integers
    first: Int64
    parent: Int64
    is_batch: Bool
    keys: list[str]
    owners: list[str]

    def __len__(self) -> int:
        return len(self.first)

    def names(self, path: int) -> Path:
        """Recorder and keys from the outermost range down to this one."""
        owner, found = self.owners[path], []
        while path >= 0:
            found.append(self.keys[path])
            path = int(self.parent[path])
        return (owner, *reversed(found))

    def of_row(self, row: int) -> Path:
        """`names` of a stage."""
        return self.names(int(self.code[row]))


def find_paths(stages: StageTable) -> StagePaths:
    """Number the paths of all stages, and give them keys."""
    code = name_paths(stages)
    count = int(code.max(initial=-1)) + 1
    first = np.zeros(count, dtype=np.int64)
    first[code[::-1]] = np.arange(len(code) - 1, -1, -1)  # of several writes the last one stays
    above = stages.parent[first]
    parent = np.where(above >= 0, code[above], -1).astype(np.int64)
    owner = np.asarray(stages.owner[first], dtype=np.int64)
    is_batch = np.asarray(stages.is_batch[first], dtype=np.bool_)
    names = [stages.names[name] for name in stages.name[first].tolist()]
    around = np.where(parent >= 0, parent, -1 - owner).tolist()
    owners = [stages.owners[place] for place in owner.tolist()]
    return StagePaths(code, first, parent, is_batch, unique_keys(around, names, is_batch.tolist()), owners)


def unique_keys(parent: list[int], names: list[str], is_batch: list[bool]) -> list[str]:
    """A key for each path, unique among those of one parent. Stages keep their name where it is free."""
    keys = list(names)
    used: dict[int, set[str]] = {}
    batches: dict[int, set[str]] = {}

    def is_free(of: int, key: str) -> bool:
        indexed = INDEXED.fullmatch(key)
        return (
            key not in RESERVED_KEYS
            and key not in used.get(of, ())
            and (indexed is None or indexed[1] not in batches.get(of, ()))
        )

    for place, of in enumerate(parent):
        if is_batch[place]:
            batches.setdefault(of, set()).add(names[place])
    # Names that are free first, so that no made key takes one; batches before stages.
    order = sorted(range(len(names)), key=lambda place: (not is_batch[place], names[place] in RESERVED_KEYS))
    pending = []
    for place in order:
        if is_free(parent[place], names[place]) or (is_batch[place] and names[place] not in RESERVED_KEYS):
            used.setdefault(parent[place], set()).add(names[place])
        else:
            pending.append(place)
    for place in pending:
        of = parent[place]
        suffix = BATCH_SUFFIX if is_batch[place] else STAGE_SUFFIX
        keys[place] = free_key(names[place], lambda key, of=of: not is_free(of, key), suffix)  # type: ignore[misc]
        used.setdefault(of, set()).add(keys[place])
    return keys


def free_key(name: str, is_used: Callable[[str], bool], suffix: str = STAGE_SUFFIX) -> str:
    """The name, followed by the suffix as often as it takes to be unused."""
    while is_used(name):
        name += suffix
    return name


def name_paths(stages: StageTable) -> Integers:
    """One number per chain of names from the outermost range down, owners, batches and stages told apart."""
    path = np.zeros(len(stages), dtype=np.int32)
    next_number = 0
    for at in stages.rows_of_levels:
        parent = stages.parent[at]
        above = np.where(parent >= 0, path[parent], -1)
        groups = group_rows(stages.owner[at], above, stages.name[at], stages.is_batch[at].astype(np.int8))
        path[at] = groups.code + next_number
        next_number += len(groups)
    return path
