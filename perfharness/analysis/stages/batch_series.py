"""Batches over time and by length, in so few numbers that a chart can hold them, however many batches there were."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfharness.analysis.timeline.busy import stretches
from perfharness.model.result import BatchLoop, Float64
from perfharness.model.trace import Bool

NS_PER_MS = 1e6
NS_PER_S = 1e9

MAX_POINTS = 1000
"""Batches, or groups of neighbouring batches, of a loop."""

MAX_SPANS = 200
"""Stretches of batches that are shaded; more are joined over the smallest gaps."""

MAX_BINS = 50
TAIL = 0.995
"""Of the values: what is longer than this quantile is counted, and not part of the histogram's width."""

FAR = 8.0
"""Distances between the quartiles: so far above the upper one is not part of the width either."""


@dataclass(frozen=True)
class BatchSeries:
    """Host time of the batches of a loop in order: each, or of groups of neighbours their smallest, median and largest.

    Columns have one value a group. `start_s` is since the first batch of the loop began. Spans are of positions of
    batches in the loop, the last one excluded.
    """

    batches: int
    batches_per_group: int
    first: list[int]
    start_s: list[float]
    min_ms: list[float]
    median_ms: list[float]
    max_ms: list[float]
    longest_measured_ms: float | None
    """Of the batches that are no warm-up; None where there are none."""

    warmup: list[tuple[int, int]]
    throttled: list[tuple[int, int]] | None
    """None: not known."""


@dataclass(frozen=True)
class Histogram:
    """How many values lie between neighbouring edges (ms), and how many beyond the last one, up to `max_ms`."""

    values: int
    edges_ms: list[float]
    counts: list[int]
    beyond: int
    max_ms: float


def batch_series(loop: BatchLoop, max_points: int = MAX_POINTS) -> BatchSeries:
    """The batches of a loop, in at most `max_points` groups."""
    values = (loop.end_ns - loop.start_ns) / NS_PER_MS
    count = len(values)
    size = max(1, -(-count // max_points))
    first = np.arange(0, count, size)
    measured = values[~loop.warmup]
    groups = [values[begin : begin + size] for begin in first.tolist()]
    return BatchSeries(
        batches=count,
        batches_per_group=size,
        first=first.tolist(),
        start_s=((loop.start_ns[first] - loop.start_ns[0]) / NS_PER_S).tolist() if count else [],
        min_ms=[float(group.min()) for group in groups],
        median_ms=[float(np.median(group)) for group in groups],
        max_ms=[float(group.max()) for group in groups],
        longest_measured_ms=float(measured.max()) if len(measured) else None,
        warmup=spans_of(loop.warmup),
        throttled=None if loop.throttled is None else spans_of(loop.throttled),
    )


def spans_of(flags: Bool, most: int = MAX_SPANS) -> list[tuple[int, int]]:
    """Stretches of neighbours that are true; where there are too many, the nearest ones are joined."""
    starts, ends = stretches(flags)
    if len(starts) > most:
        gaps = starts[1:] - ends[:-1]
        kept = np.sort(np.argsort(-gaps, kind="stable")[: most - 1])
        starts, ends = np.r_[starts[0], starts[1:][kept]], np.r_[ends[:-1][kept], ends[-1]]
    return list(zip(starts.tolist(), ends.tolist(), strict=True))


def histogram(values: Float64) -> Histogram | None:
    """Of the known values; None where fewer than two are known.

    The width of a bin is that of Freedman and Diaconis (Zeitschrift für Wahrscheinlichkeitstheorie 57, 1981), within
    limits on the number of bins.
    """
    known = np.sort(values[~np.isnan(values)])
    if len(known) < 2:
        return None
    low, high = float(known[0]), float(np.quantile(known, TAIL, method="higher"))
    spread = float(np.quantile(known, 0.75) - np.quantile(known, 0.25))
    if spread > 0:
        high = min(high, float(np.quantile(known, 0.75)) + FAR * spread)
    width = 2 * spread / len(known) ** (1 / 3)
    bins = int(np.clip(np.ceil((high - low) / width), 1, MAX_BINS)) if width > 0 else min(MAX_BINS, 10)
    if high <= low:
        low, high, bins = low, low + max(abs(low), 1e-6) * 1e-3, 1
    counts, edges = np.histogram(known[known <= high], bins=bins, range=(low, high))
    return Histogram(len(known), edges.tolist(), counts.tolist(), int((known > high).sum()), float(known[-1]))
