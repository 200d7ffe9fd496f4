"""Shares and percentiles of latencies that depend on their neighbours, with intervals.

In a queue a slow request follows a slow one, so n requests are worth n / inflation independent ones. The run is cut
into batches, and the inflation is the variance of the share of requests below a threshold between batches, over that of
independent requests (batch means; Law, Simulation Modeling and Analysis, section 9.5.3), as that of a ratio, since
batches differ in their number of requests (Woodruff, Confidence intervals for medians and other position measures,
Journal of the American Statistical Association 47, 1952). The largest is taken of batches of several lengths, and where
few requests are beyond the threshold, of the thresholds below: the few slow episodes of a short run say too little
about themselves. Student's t of the fewest
batches widens it. The interval of a percentile is that of order statistics of so many independent values, as in
`latency_statistics`.

`scripts/load_calibration` simulates how often the intervals hold the truth of queues (`docs/internals/load.md`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, sqrt

import numpy as np
import numpy.typing as npt

from perfharness.analysis.statistics import student_quantile
from perfharness.analysis.suites.latency_statistics import binomial_ranks
from perfharness.model.load import LEAST_BEYOND
from perfharness.model.load_judgement import LoadFigure

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]

NEVER_NS = np.iinfo(np.int64).max
"""The latency of a request without an answer: slower than all others."""

BATCHES = (10, 14, 20, 28, 40, 56, 80)
"""The run is cut into so many batches; the longest ones hold the slowest changes."""

MIN_BEYOND = 5.0
"""Independent values on the thinner side of a percentile; with fewer there is no interval."""

BELOW = (0.5, 0.75, 0.9, 0.95, 0.99)
"""Shares whose inflation is a lower bound of that of larger shares."""

EPISODES = 30.0
"""Independent requests beyond a percentile, by their own inflation, from which on that is known by itself."""

MEAN_NEEDS = 50.0
"""Independent requests; the mean of a queue hangs on its slow episodes, of which fewer have none or one too many."""

ALPHA = 0.05
NS_PER_MS = 1e6


@dataclass(frozen=True)
class WindowedCounts:
    """Latencies by window, in order of the latency: of single requests, or of the buckets of histograms.

    Args:
        windows: how many there are; those without a request count.
        window: of each entry, from 0.
        low_ns, high_ns: of each entry; equal where values are exact.
        count: requests of each entry.
    """

    windows: int
    window: Int64
    low_ns: Int64
    high_ns: Int64
    count: Int64

    @staticmethod
    def of_values(at_ns: Int64, values_ns: Int64, windows: int = BATCHES[-1]) -> WindowedCounts:
        """Of single requests: when each was due, and its latency (`NEVER_NS`: none), in so many equal parts of time."""
        if not len(at_ns):
            empty = np.empty(0, np.int64)
            return WindowedCounts(windows, empty, empty, empty, empty)
        begin, length = int(at_ns.min()), max(int(np.ptp(at_ns)), 1)
        window = np.minimum((at_ns - begin) * windows // length, windows - 1)
        order = np.argsort(values_ns, kind="stable")
        ordered = values_ns[order]
        return WindowedCounts(windows, window[order], ordered, ordered, np.ones(len(ordered), np.int64))

    @staticmethod
    def of_buckets(windows: int, window: Int64, low_ns: Int64, high_ns: Int64, count: Int64) -> WindowedCounts:
        """Of the buckets of the windows' histograms, in any order."""
        order = np.argsort(low_ns, kind="stable")
        return WindowedCounts(windows, window[order], low_ns[order], high_ns[order], count[order])

    @property
    def total(self) -> int:
        """Requests."""
        return int(self.count.sum())

    def part(self, first: int, end: int) -> WindowedCounts:
        """The windows from `first` up to, without, `end`."""
        inside = (self.window >= first) & (self.window < end)
        columns = (self.low_ns, self.high_ns, self.count)
        return WindowedCounts(end - first, self.window[inside] - first, *(column[inside] for column in columns))


class Latencies:
    """Answers questions about the latencies of a phase: percentiles, the share within a limit, the mean."""

    def __init__(self, counts: WindowedCounts) -> None:
        """Of the latencies by window."""
        self._counts = counts
        self._upto = np.cumsum(counts.count)
        self._inflations: dict[int, float] = {}
        self.total = counts.total
        self._per_window: Float64 = np.bincount(counts.window, counts.count, counts.windows).astype(np.float64)

    def percentile(self, percent: float) -> LoadFigure:
        """In ms. Null where fewer than 10 values are beyond it, or it is among requests without an answer."""
        share = percent / 100
        beyond = self.total * (1 - share)
        if round(beyond, 6) < LEAST_BEYOND:
            needed = ceil(round(LEAST_BEYOND / (1 - share), 6))
            return LoadFigure(reason=f"{self.total} requests are too few; {needed} have {LEAST_BEYOND} beyond it")
        entry = self._entry(ceil(round(share * self.total, 6)))
        if self._counts.high_ns[entry] == NEVER_NS:
            return LoadFigure(reason="it is among the requests that were never answered")
        value = float(self._counts.high_ns[entry]) / NS_PER_MS
        if isinstance(inflation := self._inflation_to(entry), str):
            return LoadFigure(value=value, reason=inflation)
        independent = int(self.total / inflation)
        low, high = binomial_ranks(independent, share) if independent * min(share, 1 - share) >= MIN_BEYOND else (-1, 0)
        if low < 0 or high >= independent:
            times = MIN_BEYOND / max(independent * min(share, 1 - share), MIN_BEYOND / 1000)
            why = f"{self.total} requests are worth about {independent} independent ones"
            return LoadFigure(
                value=value, reason=f"{why}, too few for an interval; measure {max(times, 2):.0f} times as long"
            )
        first = self._entry(max(floor(low * self.total / independent), 0) + 1)
        last = self._entry(min(ceil((high + 1) * self.total / independent), self.total))
        if self._counts.high_ns[last] == NEVER_NS:
            return LoadFigure(
                value=value, low=float(self._counts.low_ns[first]) / NS_PER_MS,
                reason="its upper end is among the requests that were never answered",
            )  # fmt: skip
        return LoadFigure(
            value=value,
            low=min(value, float(self._counts.low_ns[first]) / NS_PER_MS),
            high=max(value, float(self._counts.high_ns[last]) / NS_PER_MS),
        )

    def mean(self) -> LoadFigure:
        """In ms, with an interval by Student's t of batch means."""
        counts = self._counts
        if not self.total:
            return LoadFigure(reason="there is no request")
        if counts.high_ns[-1] == NEVER_NS:
            return LoadFigure(reason="some requests were never answered")
        middle = (counts.low_ns / 2 + counts.high_ns / 2) * counts.count
        sums = np.bincount(counts.window, middle, counts.windows)
        mean = float(sums.sum()) / self.total
        variance = batch_variance(sums - mean * self._per_window, self._per_window)
        if isinstance(variance, str):
            return LoadFigure(value=mean / NS_PER_MS, reason=variance)
        inflation = self._inflation_to(self._entry(ceil(0.9 * self.total)))
        assert not isinstance(inflation, str)  # its windows are those of the mean
        if self.total / inflation < MEAN_NEEDS:
            why = f"{self.total} requests are worth about {self.total / inflation:.0f} independent ones"
            return LoadFigure(value=mean / NS_PER_MS, reason=f"{why}, too few for an interval")
        power = float((counts.count * (counts.low_ns / 2 + counts.high_ns / 2 - mean) ** 2).sum())
        half = student_quantile(1 - ALPHA / 2, BATCHES[0] - 1) * sqrt(max(variance, power)) / self.total
        return LoadFigure(value=mean / NS_PER_MS, low=max(mean - half, 0) / NS_PER_MS, high=(mean + half) / NS_PER_MS)

    def _entry(self, rank: int) -> int:
        """The entry of a rank, from 1."""
        return min(int(np.searchsorted(self._upto, rank)), len(self._upto) - 1)

    def _last_of_equals(self, entry: int) -> int:
        """Requests of one latency are all within a threshold, or none of them."""
        return int(np.searchsorted(self._counts.high_ns, self._counts.high_ns[entry], side="right")) - 1

    def _inflation_to(self, entry: int) -> float | str:
        """Of the share up to an entry, with its own uncertainty; where few are beyond, not below smaller shares'."""
        last = self._last_of_equals(entry)
        largest = self._inflation(last)
        if isinstance(largest, str):
            return largest
        wider = student_quantile(1 - ALPHA / 2, BATCHES[0] - 1) / student_quantile(1 - ALPHA / 2, np.inf)
        if self.total - self._upto[last] < EPISODES * max(largest, 1.0) * wider**2:
            below = {self._entry(ceil(share * self.total)) for share in BELOW if share * self.total < self._upto[entry]}
            for one in {self._last_of_equals(one) for one in below}:
                if isinstance(inflation := self._inflation(one), str):
                    return inflation
                largest = max(largest, inflation)
        return 1.0 if largest <= 1 else largest * wider**2

    def _inflation(self, entry: int) -> float | str:
        if (known := self._inflations.get(entry)) is not None:
            return known
        counts, share = self._counts, float(self._upto[entry]) / self.total
        below = np.bincount(counts.window[: entry + 1], counts.count[: entry + 1], counts.windows)
        variance = batch_variance(below - share * self._per_window, self._per_window)
        if isinstance(variance, str):
            return variance
        independent = self.total * share * (1 - share)
        self._inflations[entry] = variance / independent if independent > 0 else 1.0
        return self._inflations[entry]


def batch_variance(residuals: Float64, per_window: Float64) -> float | str:
    """Variance of the sum of the residuals of all windows: the largest that batches of several lengths show."""
    used = np.flatnonzero(per_window)
    if len(used) < BATCHES[0]:
        return f"requests came in {len(used)} windows; an interval needs {BATCHES[0]}"
    found = []
    for batches in BATCHES:
        if batches > len(residuals):
            break
        begins = np.arange(batches) * len(residuals) // batches
        sums = np.add.reduceat(residuals, begins)
        found.append(float(sums @ sums) * batches / (batches - 1))
    return max(found)
