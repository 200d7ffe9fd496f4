"""What a GPU was busy with: each moment of it given to the classes of work that ran then, in equal parts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfharness.analysis.diagnosis.timeline import merge
from perfharness.model.result import Float64
from perfharness.model.trace import Int64

NS_PER_S = 1e9


class BusyShares:
    """Busy time of each class of work, shared where several ran at once.

    Args:
        work: (start_ns, end_ns) of the operations of each class, in any order, overlaps allowed.
    """

    def __init__(self, work: Sequence[tuple[Int64, Int64]]) -> None:
        merged = [merge(start, end) for start, end in work]
        moments = [np.concatenate(pair) for pair in merged]
        everything = np.unique(np.concatenate(moments)) if moments else np.empty(0, dtype=np.int64)
        self._origin = int(everything[0]) if len(everything) else 0
        self._moment = (everything - self._origin) / NS_PER_S
        inside = [_inside(start, end, everything) for start, end in merged]
        at_once = np.maximum(np.sum(inside, axis=0), 1) if inside else np.empty(0)
        length = np.diff(self._moment, append=self._moment[-1:])
        self._until = [np.r_[0.0, np.cumsum(length * active / at_once)[:-1]] for active in inside]

    def __len__(self) -> int:
        return len(self._until)

    def within(self, start_ns: Float64 | Int64, end_ns: Float64 | Int64) -> Float64:
        """Seconds of each class in each stretch, shape (classes, *stretches)."""
        shape = (len(self), *np.shape(start_ns))
        if not len(self._moment):
            return np.zeros(shape)
        begin, stop = (start_ns - self._origin) / NS_PER_S, (end_ns - self._origin) / NS_PER_S
        found = [np.interp(stop, self._moment, until) - np.interp(begin, self._moment, until) for until in self._until]
        return np.asarray(found, dtype=np.float64).reshape(shape)


def _inside(start: Int64, end: Int64, moments: Int64) -> Int64:
    """1 where the class is at work from a moment to the next, else 0; intervals do not overlap."""
    change = np.zeros(len(moments) + 1, dtype=np.int64)
    change[np.searchsorted(moments, start)] += 1
    change[np.searchsorted(moments, end)] -= 1
    return np.cumsum(change[:-1])
