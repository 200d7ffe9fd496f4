"""Columns that grow, block by block, in one piece of memory: parts put together at the end would need it twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

FIRST_ROWS = 1 << 12


class GrowingColumn:
    """A column to which values are added. Large ones grow where they are, for the system moves pages, not bytes."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._held: npt.NDArray[Any] = np.empty(0, dtype=dtype)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, values: npt.NDArray[Any]) -> None:
        """Append values."""
        stop = self._count + len(values)
        if stop > len(self._held):
            # By an eighth at a time: what is added and not used is filled with zeros, so it takes memory too.
            self._held.resize(max(stop, len(self._held) * 9 // 8, FIRST_ROWS), refcheck=False)
        self._held[self._count : stop] = values
        self._count = stop

    def values(self) -> npt.NDArray[Any]:
        """All of them; nothing must be added any more."""
        self._held.resize(self._count, refcheck=False)
        return self._held
