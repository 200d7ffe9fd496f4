"""The paths of stages: names from the outermost range down, batch indices left out, and the keys they have in files.

Keys are unique beneath their parent. The name of a batch is its key, and that of a stage, unless it is a number's key
or that of a batch under the same parent, with or without an index; then ` (range)` follows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perfharness.model.result import RESERVED_KEYS, Path
from perfharness.model.trace import Bool, Int64, Integers

if TYPE_CHECKING:
    from collections.abc import Callable


STAGE_SUFFIX = " (range)"
BATCH_SUFFIX = " (batch)"
INDEXED = re.compile(r"(.*)_-?\d+", re.DOTALL)
"""Form of the key of a batch with its index."""


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

    for position, of in enumerate(parent):
        if is_batch[position]:
            batches.setdefault(of, set()).add(names[position])
    # Names that are free first, so that no made key takes one; batches before stages.
    order = sorted(range(len(names)), key=lambda position: (not is_batch[position], names[position] in RESERVED_KEYS))
    pending = []
    for position in order:
        if is_free(parent[position], names[position]) or (is_batch[position] and names[position] not in RESERVED_KEYS):
            used.setdefault(parent[position], set()).add(names[position])
        else:
            pending.append(position)
    for position in pending:
        of = parent[position]
        suffix = BATCH_SUFFIX if is_batch[position] else STAGE_SUFFIX
        keys[position] = free_key(names[position], lambda key, of=of: not is_free(of, key), suffix)  # type: ignore[misc]
        used.setdefault(of, set()).add(keys[position])
    return keys


def free_key(name: str, is_used: Callable[[str], bool], suffix: str = STAGE_SUFFIX) -> str:
    """The name, followed by the suffix as often as it takes to be unused."""
    while is_used(name):
        name += suffix
    return name
