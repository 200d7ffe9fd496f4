"""Memory over a run: peak, growth, and peaks of batches."""

from __future__ import annotations

import numpy as np

from perfharness.analysis import statistics
from perfharness.analysis.metrics.figures import held
from perfharness.analysis.metrics.results import BatchPeak, Growth
from perfharness.analysis.timeline.busy import Window
from perfharness.model.columns import Int64
from perfharness.model.telemetry import Series
from perfharness.model.units import NS_PER_S

BLOCKS = 20
"""Parts of the window; the lowest value of each ignores memory that batches take and return."""

MIN_READINGS = 6
"""Fewest readings of GPU memory in a window too short for blocks; fewer may all rise by chance."""

MIN_GROWTH_SHARE = 0.02
MIN_GROWTH_BYTES = 16 << 20
"""Least growth over the window to report; allocators grow in steps of this size, and caches fill up."""

LATE_SHARE = 0.25
"""Least share of the growth in the second half of the window; a cache that fills up grows early."""

NO_BATCHES = "there is no measured window, and memory always grows while a program starts"


def growth(series: Series | None, window: Window | None, batches: int | None, *, is_on_gpu: bool = False) -> Growth:
    """Peak and growth of memory over a window with this many batches (None if it is not a measured window). `grows`:
    beyond chance, by at least 2 % of the mean and 16 MiB, and not only early.
    """

    def unknown(reason: str, peak: int | None = None) -> Growth:
        return Growth(peak, None, None, None, None, None, reason)

    if series is None or not series.is_read.any():
        return unknown("it was not sampled")
    if window is None:
        return unknown("there is no measured window")
    inside = held(series).within(window)
    if not len(inside.value):
        return unknown("it was not read in the measured window")
    peak = int(inside.value.max())
    if batches is None:
        return unknown(NO_BATCHES, peak)
    read = series.select(series.is_read).between(*window)
    seconds = (window[1] - window[0]) / NS_PER_S
    block = np.clip((read.time_unix_ns - window[0]) * BLOCKS // (window[1] - window[0]), 0, BLOCKS - 1)
    first = np.flatnonzero(np.diff(block, prepend=-1))
    if len(first) == BLOCKS:
        levels, per_s = np.minimum.reduceat(read.value, first), BLOCKS / seconds
    elif is_on_gpu and len(read) >= MIN_READINGS:
        levels, per_s = read.value, NS_PER_S / float(np.median(np.diff(read.time_unix_ns)))
    else:
        return unknown("too few readings in the measured window to show growth", peak)
    found = statistics.growth(levels)
    slope, low, high = (one * per_s for one in (found.value, found.low, found.high))
    enough = slope * seconds >= max(MIN_GROWTH_SHARE * float(levels.mean()), MIN_GROWTH_BYTES)
    grows_late = levels[-1] - levels[len(levels) // 2] >= LATE_SHARE * (levels[-1] - levels[0])
    per_batch = round(slope * seconds / batches, 3) if batches else None
    return Growth(
        peak_bytes=peak,
        bytes_per_s=round(slope, 3),
        bytes_per_s_low=round(low, 3),
        bytes_per_s_high=round(high, 3),
        bytes_per_batch=per_batch,
        grows=bool(low > 0 and grows_late and enough),
        reason=None,
    )


def batch_peak(series: Series | None, start_ns: Int64, end_ns: Int64) -> BatchPeak:
    """Highest memory of batches that cover at least two readings."""
    if series is None or not series.is_read.any():
        return BatchPeak(0, None, None, "it was not sampled")
    read = series.select(series.is_read)
    if len(read) < 2 or not len(start_ns):
        return BatchPeak(0, None, None, "there are no batches, or no readings")
    period = read.usual_ns
    first = np.searchsorted(read.time_unix_ns, start_ns)
    last = np.searchsorted(read.time_unix_ns, end_ns, side="right")
    resolved = np.flatnonzero((last - first >= 2) & (end_ns - start_ns >= 2 * period))
    if len(resolved) < len(start_ns) / 2:
        typical = float(np.median(end_ns - start_ns)) / 1e6
        why = f"memory is read every {period / 1e6:.0f} ms, which does not resolve batches of {typical:.3g} ms"
        return BatchPeak(len(resolved), None, None, why)
    padded = np.append(read.value, -np.inf)
    peaks = np.maximum.reduceat(padded, np.stack([first[resolved], last[resolved]], axis=1).ravel())[::2]
    return BatchPeak(len(resolved), round(float(peaks.mean()), 3), int(peaks.max()), None)
