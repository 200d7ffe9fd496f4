"""Percentiles and mean of times under load, with intervals.

Requests in a queue depend on each other. So the run is cut into windows, and intervals allow for windows that depend on
their neighbours (`analysis.statistics`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np

from perfharness.analysis.statistics import MIN_INDEPENDENT, milder, ranks_around, ratio_interval, share_inflation
from perfharness.model.columns import Float64, Int64
from perfharness.model.load import LEAST_BEYOND, PERCENTILES, LoadFigure, LoadTimes
from perfharness.model.units import NS_PER_MS

NEVER_NS = np.iinfo(np.int64).max
"""Time of an unanswered request: slower than all others."""

NOT_ANSWERED = "it is among the requests without an answer before the timeout"

WINDOWS = 240
"""Parts of a phase; a third of them is enough for an interval."""

INDEPENDENT_SHARE = 0.25
"""Share of the windows: most runs near a queue's limit lack its slow episodes and look too steady."""


def load_times(at_ns: Int64, values_ns: Int64, otherwise: str) -> LoadTimes:
    """Statistics of one kind of time of requests due `at_ns`; `NEVER_NS`: unanswered. `otherwise`: why none."""
    slower = int((values_ns == NEVER_NS).sum())
    total = len(values_ns)
    why = f"{slower} of {total} requests ({slower / max(total, 1):.2g} of all) were not answered before the timeout"
    if total == slower:
        return LoadTimes(reason=why if slower else otherwise, slower=slower)
    times = Latencies.of(at_ns, values_ns)
    figures = {name: times.percentile(percent) for name, percent in PERCENTILES.items()}
    figures["mean"] = LoadFigure(reason=why) if slower else times.mean()
    figures["max"] = LoadFigure(reason=why) if slower else LoadFigure(value=float(times.values_ns[-1]) / NS_PER_MS)
    return LoadTimes.model_validate({**figures, "count": total - slower, "slower": slower})


def percentile_of(ordered_ns: Int64, percent: float) -> float | str:
    """A percentile of ordered times, ms, or the reason why it is unknown."""
    total = len(ordered_ns)
    rank = ceil(round(total * percent / 100, 6))
    if not total or (percent > 50 and total - rank < LEAST_BEYOND):
        return f"fewer than {LEAST_BEYOND} of {total} values are beyond it"
    value = ordered_ns[max(rank, 1) - 1]
    return NOT_ANSWERED if value == NEVER_NS else float(value) / NS_PER_MS


@dataclass(frozen=True)
class Latencies:
    """Times in ascending order, each with the window of its request's due time. Empty windows count."""

    windows: int
    window: Int64
    values_ns: Int64

    @staticmethod
    def of(at_ns: Int64, values_ns: Int64, windows: int = WINDOWS) -> Latencies:
        """Assign requests to windows of equal length by due time."""
        order = np.argsort(values_ns, kind="stable")
        length = max(int(np.ptp(at_ns)), 1) if len(at_ns) else 1
        first = at_ns.min() if len(at_ns) else 0
        window = np.minimum((at_ns - first) * windows // length, windows - 1)
        return Latencies(windows, window[order], values_ns[order])

    def part(self, first: int, end: int) -> Latencies:
        """The windows from `first` to `end` (exclusive)."""
        inside = (self.window >= first) & (self.window < end)
        return Latencies(end - first, self.window[inside] - first, self.values_ns[inside])

    def percentile(self, percent: float) -> LoadFigure:
        """A percentile in ms with its interval, or a reason."""
        total, share, values = len(self.values_ns), percent / 100, self.values_ns
        value = percentile_of(values, percent)
        if isinstance(value, str):
            return LoadFigure(reason=value)
        if round(total * (1 - share), 6) < LEAST_BEYOND:
            needed = ceil(round(LEAST_BEYOND / (1 - share), 6))
            why = f"{total} requests are too few; {needed} are needed for {LEAST_BEYOND} beyond it"
            return LoadFigure(value=value, reason=why)
        ranks = ranks_around(total, share, [self._inflation(one) for one in (share, milder(share))])
        if isinstance(ranks, str):
            return LoadFigure(value=value, reason=ranks)
        low, high = values[ranks[0]], values[min(ranks[1], total - 1)]
        if high == NEVER_NS:
            why = "its upper end is among the unanswered requests"
            return LoadFigure(value=value, low=float(low) / NS_PER_MS, reason=why)
        return LoadFigure(value=value, low=float(low) / NS_PER_MS, high=float(high) / NS_PER_MS)

    def mean(self) -> LoadFigure:
        """Mean in ms; all times must be known."""
        sums: Float64 = np.bincount(self.window, self.values_ns / NS_PER_MS, self.windows).astype(np.float64)
        return ratio_figure(sums, self._counts(len(self.window)))

    def _inflation(self, share: float) -> float | str:
        """Variance inflation, by dependence, of the share up to a percentile; ties count as within."""
        total = len(self.values_ns)
        highest = self.values_ns[min(ceil(round(share * total, 6)), total) - 1]
        end = int(np.searchsorted(self.values_ns, highest, side="right"))
        counts = self._counts(total)
        return share_inflation(self._counts(end), counts, _least(counts))

    def _counts(self, end: int) -> Float64:
        """Number of the first `end` values in each window."""
        return np.bincount(self.window[:end], minlength=self.windows).astype(np.float64)


def ratio_figure(sums: Float64, counts: Float64) -> LoadFigure:
    """Ratio of two sums over windows that depend on their neighbours; never below 0."""
    total = float(counts.sum())
    if total <= 0:
        return LoadFigure(reason="nothing to divide by in this part")
    value, found = float(sums.sum()) / total, ratio_interval(sums, counts, _least(counts))
    if isinstance(found, str):
        return LoadFigure(value=value, reason=found)
    return LoadFigure(value=value, low=max(found[0], 0.0), high=found[1])


def _least(windows: Float64) -> float:
    return max(MIN_INDEPENDENT, INDEPENDENT_SHARE * len(windows))
