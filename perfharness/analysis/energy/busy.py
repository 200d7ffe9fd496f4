"""What a GPU was busy with: each moment of it given to the classes of work that ran then, in equal parts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfharness.analysis.timeline import merge
from perfharness.model.result import Float64
from perfharness.model.trace import Int64

NS_PER_S = 1e9


class BusyShares:
    """Busy time of each class of work, shared where several ran at once.

    Args:
        work: (start_ns, end_ns) of the operations of each class, in any order, overlaps allowed.
    """

    def __init__(self, work: Sequence[tuple[Int64, Int64]]) -> None:
        self.spans: Spans = [merge(start, end) for start, end in work]
        self._origin = min((int(start[0]) for start, _ in self.spans if len(start)), default=0)
        self._lines = _alone(self.spans, self._origin) if _take_turns(self.spans) else _shared(self.spans, self._origin)

    def __len__(self) -> int:
        return len(self._lines)

    def until(self, row: int, moment_ns: Float64 | Int64) -> Float64:
        """Seconds of one class before each moment."""
        moment, until = self._lines[row]
        at = (moment_ns - self._origin) / NS_PER_S
        return np.interp(at, moment, until) if len(moment) else np.zeros(np.shape(at))

    def within(self, start_ns: Float64 | Int64, end_ns: Float64 | Int64) -> Float64:
        """Seconds of each class in each stretch, shape (classes, *stretches)."""
        found = np.zeros((len(self), *np.shape(start_ns)))
        for row in range(len(self)):
            found[row] = self.until(row, end_ns) - self.until(row, start_ns)
        return found


Spans = list[tuple[Int64, Int64]]
Lines = list[tuple[Float64, Float64]]
"""Of each class: moments in seconds, and busy seconds until then."""


def _take_turns(merged: Spans) -> bool:
    """Whether no two classes are ever at work at once, as on a GPU with one stream."""
    start = np.concatenate([start for start, _ in merged]) if merged else np.empty(0, dtype=np.int64)
    end = np.concatenate([end for _, end in merged]) if merged else np.empty(0, dtype=np.int64)
    order = np.argsort(start, kind="stable")
    return not (start[order][1:] < end[order][:-1]).any()


def _alone(merged: Spans, origin: int) -> Lines:
    lines = []
    for start, end in merged:
        moment = (np.stack([start, end], axis=1).ravel() - origin) / NS_PER_S
        total = np.cumsum((end - start) / NS_PER_S)
        until = np.zeros(len(moment))
        until[1::2], until[2::2] = total, total[:-1]
        lines.append((moment, until))
    return lines


def _shared(merged: Spans, origin: int) -> Lines:
    moments = np.unique(np.concatenate([np.concatenate(pair) for pair in merged]))
    inside = [_inside(start, end, moments).astype(np.int16) for start, end in merged]
    at_once = np.maximum(np.sum(inside, axis=0), 1)
    seconds = (moments - origin) / NS_PER_S
    length = np.diff(seconds, append=seconds[-1:])
    return [(seconds, np.r_[0.0, np.cumsum(length * active / at_once)[:-1]]) for active in inside]


def _inside(start: Int64, end: Int64, moments: Int64) -> Int64:
    """1 where the class is at work from a moment to the next, else 0; intervals do not overlap."""
    change = np.zeros(len(moments) + 1, dtype=np.int64)
    change[np.searchsorted(moments, start)] += 1
    change[np.searchsorted(moments, end)] -= 1
    return np.cumsum(change[:-1])
