"""Figures of one metric over a window, each value weighted by how long it holds (mostly until the next update)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfharness.analysis.metrics.results import MetricFigures
from perfharness.analysis.statistics import min_count, weighted_quantile
from perfharness.analysis.timeline.busy import Window
from perfharness.model.columns import Columns, Float64, Int64
from perfharness.model.rounding import figure
from perfharness.model.telemetry import Series

MIN_KNOWN = 0.5
"""Least part of a window with known values; with less, a mean would represent another window."""

HOLD_READINGS = 3.0
"""Usual reading intervals for which a value holds after the last reading."""


@dataclass(frozen=True)
class Held(Columns):
    """A metric as steps: `value[i]` from `start_ns[i]` to `end_ns[i]`, without failed readings."""

    start_ns: Int64
    end_ns: Int64
    value: Float64

    def within(self, window: Window) -> Held:
        """Clip to a window."""
        start, end = np.maximum(self.start_ns, window[0]), np.minimum(self.end_ns, window[1])
        return Held(start, end, self.value).select(end > start)

    def quantile(self, share: float) -> float | None:
        """Quantile weighted by time; None without steps."""
        return weighted_quantile(self.value, self.weight, share) if len(self.value) else None

    @property
    def weight(self) -> Float64:
        """Lengths, ns."""
        return (self.end_ns - self.start_ns).astype(np.float64)


def held(series: Series) -> Held:
    """At least one reading of a metric as steps. A failed reading ends the step before it."""
    at = np.flatnonzero(series.is_new | ~series.is_read | np.r_[True, ~series.is_read[:-1]])
    time, hold = series.time_unix_ns, HOLD_READINGS * series.usual_ns
    end = np.append(time[at[1:]], int(time[-1] + hold))
    # After a long gap without readings, the value before it is unknown.
    longest = np.append(time[at[1:] - 1], time[-1]) + round(hold)
    return Held(time[at], np.minimum(end, np.maximum(longest, time[at])), series.value[at]).select(
        ~np.isnan(series.value[at])
    )


def since_last_reading(series: Series) -> Held:
    """Readings that average over the time since the previous reading, as steps. The first covers the usual interval."""
    time = series.time_unix_ns
    if len(time) < 2:
        return held(series)
    start = np.r_[time[0] - np.int64(np.median(np.diff(time))), time[:-1]]
    return Held(start, time, series.value).select(~np.isnan(series.value))


def window_figures(
    series: Series | None,
    window: Window | None,
    *,
    scale: float = 1.0,
    period_ns: int | None = None,
    since_last: bool = False,
    reason: str | None = None,
) -> MetricFigures:
    """Figures of a metric over a window. `scale`: factor to the result's unit; `since_last`: values average over the
    time since the previous reading; `reason`: known reason for missing readings.
    """
    period_ms = None if period_ns is None else period_ns / 1e6

    def nothing(count: int, why: str) -> MetricFigures:
        return MetricFigures(count, None, None, None, None, None, period_ms, why)

    if series is None or not series.is_read.any():
        return nothing(0, reason or "it was not sampled")
    if window is None:
        return nothing(0, "there is no measured window")
    inside = (since_last_reading(series) if since_last else held(series)).within(window)
    count = len(series.updates().between(*window))
    known = float(inside.weight.sum()) / (window[1] - window[0])
    if known < MIN_KNOWN:
        return nothing(count, f"it was read in only {100 * known:.0f} % of the measured window")
    value, weight = inside.value * scale, inside.weight
    return MetricFigures(
        new_readings=count,
        mean=figure(np.average(value, weights=weight)),
        min=figure(value.min()),
        p50=figure(weighted_quantile(value, weight, 0.5)),
        p95=figure(weighted_quantile(value, weight, 0.95)) if count >= min_count(95) else None,
        max=figure(value.max()),
        update_period_ms=period_ms,
        reason=None,
    )


def counter_total(series: Series | None, window: Window | None, scale: float = 1.0) -> float | None:
    """Increase of a counter over a window, interpolated between readings; None if unknown."""
    if series is None or window is None:
        return None
    read = series.select(series.is_read)
    if len(read) < 2 or read.time_unix_ns[0] > window[0] or read.time_unix_ns[-1] < window[1]:
        return None
    if (np.diff(read.value) < 0).any():
        return None
    time = read.time_unix_ns - read.time_unix_ns[0]
    first, last = np.interp(np.asarray(window) - read.time_unix_ns[0], time, read.value)
    return figure((last - first) * scale)
