"""Memory over a run: its peak, whether it grows, and what single batches took."""

from __future__ import annotations

import numpy as np

from perfharness.analysis.metrics.figures import Window, held
from perfharness.analysis.metrics.results import BatchPeak, Growth
from perfharness.analysis.statistics import student_t
from perfharness.model.telemetry import Float64, Series
from perfharness.model.trace import Int64

BLOCKS = 20
"""The window is cut into so many parts, and a line is laid through their lowest values: what comes and goes with each
batch is no growth, and neighbouring readings are not independent, parts nearly are."""

MIN_GROWTH_SHARE = 0.02
MIN_GROWTH_BYTES = 16 << 20
"""Growth over the window that is reported: allocators take pages in steps of this size, and caches settle."""

NS_PER_S = 1e9


NO_BATCHES = "there is no measured window, and while a program starts its memory grows in any case"


def growth(series: Series | None, window: Window | None, *, is_measured: bool = True) -> Growth:
    """Peak and slope of memory over a window; of one without measured batches only the peak.

    `grows`: the slope is above 0 with its whole interval, over the window and over its second half alone (a cache that
    fills up and stays so is no leak), and the growth is at least 2 % of the mean and 16 MiB.
    """
    if series is None or not series.is_read.any():
        return Growth(None, None, None, None, None, "it was not sampled")
    if window is None:
        return Growth(None, None, None, None, None, "there is no measured window")
    inside = held(series).within(window)
    if not len(inside.value):
        return Growth(None, None, None, None, None, "it was not read in the measured window")
    peak = int(inside.value.max())
    if not is_measured:
        return Growth(peak, None, None, None, None, NO_BATCHES)
    read = series.select(series.is_read).between(*window)
    edges = np.linspace(window[0], window[1], BLOCKS + 1)
    block = np.clip(np.searchsorted(edges, read.time_unix_ns, side="right") - 1, 0, BLOCKS - 1)
    if len(np.unique(block)) < BLOCKS:
        return Growth(peak, None, None, None, None, "it was read too seldom in the measured window to show growth")
    lowest = np.full(BLOCKS, np.inf)
    np.minimum.at(lowest, block, read.value)
    seconds = (edges[:-1] + edges[1:]) / 2 / NS_PER_S
    seconds = seconds - seconds[0]
    slope, half = _line(seconds, lowest)
    late, late_half = _line(seconds[BLOCKS // 2 :], lowest[BLOCKS // 2 :])
    gained = slope * (window[1] - window[0]) / NS_PER_S
    enough = gained >= max(MIN_GROWTH_SHARE * float(lowest.mean()), MIN_GROWTH_BYTES)
    grows = bool(slope - half > 0 and late - late_half > 0 and enough)
    return Growth(peak, round(slope, 3), round(slope - half, 3), round(slope + half, 3), grows, None)


def _line(x: Float64, y: Float64) -> tuple[float, float]:
    """Slope of the least-squares line, and half of its 95 % interval."""
    slope, start = np.polyfit(x, y, 1)
    freedom = len(x) - 2
    left = float(((y - slope * x - start) ** 2).sum()) / freedom
    return float(slope), student_t(freedom) * float(np.sqrt(left / ((x - x.mean()) ** 2).sum()))


def kernel_peak(series: Series | None) -> int | None:
    """The kernel's peak of resident memory, which lasts from the start of a process; None: not sampled."""
    return None if series is None or not series.is_read.any() else int(np.nanmax(series.value))


def batch_peak(series: Series | None, start_ns: Int64, end_ns: Int64) -> BatchPeak:
    """Highest memory of each batch, of those that last for two readings or more."""
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
