"""Percentiles and the mean of latencies under load, with intervals.

In a queue a slow request follows a slow one. So the run is cut into windows, and the intervals are those of values that
depend on their neighbours (`analysis.statistics`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np

from perfharness.analysis.statistics import MIN_INDEPENDENT, milder, ranks_around, ratio_interval, share_inflation
from perfharness.model.columns import Float64, Int64
from perfharness.model.load import LEAST_BEYOND, LoadFigure
from perfharness.model.units import NS_PER_MS

NEVER_NS = np.iinfo(np.int64).max
"""The latency of a request without an answer: slower than all others."""

WINDOWS = 240
"""Of single requests; a third of them has an interval, too."""

INDEPENDENT_SHARE = 0.25
"""Of the windows: a queue near its limit looks steadier than it is, as most runs lack its slow episodes."""


@dataclass(frozen=True)
class WindowedCounts:
    """Latencies by window, in order of the latency: of single requests, or of the buckets of histograms (from `low_ns`
    to `high_ns`). Windows without requests count.
    """

    windows: int
    window: Int64
    low_ns: Int64
    high_ns: Int64
    count: Int64

    @staticmethod
    def of_values(at_ns: Int64, values_ns: Int64, windows: int = WINDOWS) -> WindowedCounts:
        """Of single requests: when each was due, and its latency (`NEVER_NS`: none), in so many equal parts of time."""
        if not len(at_ns):
            empty = np.empty(0, np.int64)
            return WindowedCounts(windows, empty, empty, empty, empty)
        length = max(int(np.ptp(at_ns)), 1)
        window = np.minimum((at_ns - at_ns.min()) * windows // length, windows - 1)
        return WindowedCounts.of_buckets(windows, window, values_ns, values_ns, np.ones(len(at_ns), np.int64))

    @staticmethod
    def of_buckets(windows: int, window: Int64, low_ns: Int64, high_ns: Int64, count: Int64) -> WindowedCounts:
        """Of the buckets of the windows' histograms, in any order."""
        order = np.argsort(low_ns, kind="stable")
        return WindowedCounts(windows, window[order], low_ns[order], high_ns[order], count[order])

    def part(self, first: int, end: int) -> WindowedCounts:
        """The windows from `first` up to, without, `end`."""
        inside = (self.window >= first) & (self.window < end)
        columns = (self.low_ns, self.high_ns, self.count)
        return WindowedCounts(end - first, self.window[inside] - first, *(column[inside] for column in columns))


class Latencies:
    """Answers questions about the latencies of a phase: percentiles, the mean."""

    def __init__(self, counts: WindowedCounts) -> None:
        self._counts = counts
        self._upto = np.cumsum(counts.count)
        self._total = int(counts.count.sum())
        self._per_window = _per_window(counts, counts.count)

    def percentile(self, percent: float) -> LoadFigure:
        """In ms. Null where fewer than 10 values are beyond it, or it is among requests without an answer."""
        share = percent / 100
        if round(self._total * (1 - share), 6) < LEAST_BEYOND:
            needed = ceil(round(LEAST_BEYOND / (1 - share), 6))
            return LoadFigure(reason=f"{self._total} requests are too few; {needed} have {LEAST_BEYOND} beyond it")
        low_ns, high_ns = self._counts.low_ns, self._counts.high_ns
        entry = self._entry(ceil(round(share * self._total, 6)))
        if high_ns[entry] == NEVER_NS:
            return LoadFigure(reason="it is among the requests that were never answered")
        value = float(high_ns[entry]) / NS_PER_MS
        ranks = ranks_around(self._total, share, [self._inflation(one) for one in (share, milder(share))])
        if isinstance(ranks, str):
            return LoadFigure(value=value, reason=ranks)
        first, last = (self._entry(rank + 1) for rank in ranks)
        low = min(value, float(low_ns[first]) / NS_PER_MS)
        if high_ns[last] == NEVER_NS:
            why = "its upper end is among the requests that were never answered"
            return LoadFigure(value=value, low=low, reason=why)
        return LoadFigure(value=value, low=low, high=max(value, float(high_ns[last]) / NS_PER_MS))

    def mean(self) -> LoadFigure:
        """In ms."""
        counts = self._counts
        if not self._total:
            return LoadFigure(reason="there is no request")
        if counts.high_ns[-1] == NEVER_NS:
            return LoadFigure(reason="some requests were never answered")
        middle = (counts.low_ns / 2 + counts.high_ns / 2) * counts.count / NS_PER_MS
        return ratio_figure(_per_window(counts, middle), self._per_window)

    def _entry(self, rank: int) -> int:
        """The entry of a rank, from 1."""
        return min(int(np.searchsorted(self._upto, rank)), len(self._upto) - 1)

    def _inflation(self, share: float) -> float | str:
        """Of the share of requests up to a percentile; requests of one latency are all within it."""
        highest = self._counts.high_ns[self._entry(ceil(round(share * self._total, 6)))]
        end = int(np.searchsorted(self._counts.high_ns, highest, side="right"))
        below = np.bincount(self._counts.window[:end], self._counts.count[:end], self._counts.windows)
        return share_inflation(below.astype(np.float64), self._per_window, _least(self._per_window))


def _per_window(counts: WindowedCounts, values: Float64 | Int64) -> Float64:
    return np.bincount(counts.window, values, counts.windows).astype(np.float64)


def ratio_figure(sums: Float64, counts: Float64) -> LoadFigure:
    """Sum over sum of windows that depend on their neighbours, neither below 0."""
    total = float(counts.sum())
    if total <= 0:
        return LoadFigure(reason="there is none of it")
    value, found = float(sums.sum()) / total, ratio_interval(sums, counts, _least(counts))
    if isinstance(found, str):
        return LoadFigure(value=value, reason=found)
    return LoadFigure(value=value, low=max(found[0], 0.0), high=found[1])


def _least(windows: Float64) -> float:
    return max(MIN_INDEPENDENT, INDEPENDENT_SHARE * len(windows))
