"""Memory over a run: its peak, whether it grows, and the peaks of batches."""

from __future__ import annotations

import numpy as np

from perfharness.analysis.metrics.figures import Window, held
from perfharness.analysis.metrics.results import BatchPeak, Growth
from perfharness.analysis.statistics import student_t, trend
from perfharness.model.telemetry import Float64, Series
from perfharness.model.trace import Int64

BLOCKS = 20
"""Parts of the window through whose lowest values a line is laid: what comes and goes with each batch is no growth, and
neighbouring readings are not independent, parts nearly are."""

MIN_READINGS = 6
"""Readings of GPU memory that a window too short for that needs: fewer, all rising, may be chance."""

MIN_GROWTH_SHARE = 0.02
MIN_GROWTH_BYTES = 16 << 20
"""Growth over the window that is reported: allocators take pages in steps of this size, and caches fill up."""

NS_PER_S = 1e9
NO_BATCHES = "there is no measured window, and while a program starts its memory grows in any case"


def growth(
    series: Series | None,
    window: Window | None,
    batches: int | None,
    *,
    is_on_gpu: bool = False,
) -> Growth:
    """Peak and slope of memory over a window with so many batches; None: it is not a measured window.

    `grows`: the slope is above 0 with its whole interval, over the window and over its second half alone (a cache that
    fills up and stays so is no leak), and the growth is at least 2 % of the mean and 16 MiB.
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
    edges = np.linspace(window[0], window[1], BLOCKS + 1)
    block = np.clip(np.searchsorted(edges, read.time_unix_ns, side="right") - 1, 0, BLOCKS - 1)
    if len(np.unique(block)) == BLOCKS:
        values = np.full(BLOCKS, np.inf)
        np.minimum.at(values, block, read.value)
        at_s = (edges[:-1] + edges[1:]) / 2 / NS_PER_S
        slope, half = _line(at_s - at_s[0], values)
        late, late_half = _line(at_s[BLOCKS // 2 :] - at_s[0], values[BLOCKS // 2 :])
        low, high, grows_late = slope - half, slope + half, late - late_half > 0
    else:
        values = read.value
        found = trend(values) if is_on_gpu and len(values) >= MIN_READINGS else None
        if found is None:
            return unknown("it was read too seldom in the measured window to show growth", peak)
        per_s = NS_PER_S / float(np.median(np.diff(read.time_unix_ns)))
        slope, low, high = (one * per_s for one in (found.value, found.low, found.high))
        grows_late = bool(values[-1] > values[len(values) // 2])
    enough = slope * seconds >= max(MIN_GROWTH_SHARE * float(values.mean()), MIN_GROWTH_BYTES)
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


def _line(x: Float64, y: Float64) -> tuple[float, float]:
    """Slope of the least-squares line, and half of its 95 % interval."""
    slope, start = np.polyfit(x, y, 1)
    freedom = len(x) - 2
    left = float(((y - slope * x - start) ** 2).sum()) / freedom
    return float(slope), student_t(freedom) * float(np.sqrt(left / ((x - x.mean()) ** 2).sum()))


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
