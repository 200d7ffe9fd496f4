"""Estimate the update period of a sensor from its changes, and mark new readings.

Polling faster than a sensor updates repeats values, which must not count as independent readings.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfharness.model.columns import Bool, Float64, Int64

MIN_CHANGES = 5
"""Fewest changes for an update period."""

MIN_SHARE = 0.5
"""Least share of times between changes that are one period long. Otherwise changes come from the signal, not the
source: a temperature changes when it crosses a degree."""


SLACK = 0.05
"""Tolerance of an update's time, in periods."""


@dataclass(frozen=True)
class UpdatePeriod:
    """`period_ns` is None if unknown; `resolved` is false if it is not longer than the polling period."""

    period_ns: int | None
    changes: int
    resolved: bool = True


def find_update_period(time_ns: Int64, value: Float64) -> UpdatePeriod:
    """Estimate the update period of a polled source.

    Times between changes are multiples of the update period, plus or minus the polling period. The mean of the
    shortest usual ones removes the effect of polling.

    Args:
        time_ns: times of the readings, in order.
        value: NaN for failed readings.
    """
    read = ~np.isnan(value)
    time_ns, value = time_ns[read], value[read]
    changed = np.flatnonzero(np.diff(value) != 0) + 1
    if len(changed) < MIN_CHANGES:
        return UpdatePeriod(None, len(changed))
    between = np.diff(time_ns[changed])
    polling = float(np.median(np.diff(time_ns)))
    shortest = max(float(np.quantile(between, 0.1)), polling)
    single = between[between <= shortest + max(shortest / 2, 1.5 * polling)]
    if len(single) < MIN_SHARE * len(between):
        return UpdatePeriod(None, len(changed))
    period = float(single.mean())
    return UpdatePeriod(round(period), len(changed), resolved=period > 1.25 * polling)


def find_new(time_ns: Int64, value: Float64, update: UpdatePeriod) -> Bool:
    """Mask of readings that found an update.

    Changed values are new. If changes are several update periods apart, the first reading after each update in between
    is new as well. Without a known period, only changes are new. Failed readings are not new.
    """
    is_new = np.zeros(len(value), dtype=bool)
    read = np.flatnonzero(~np.isnan(value))
    if not len(read):
        return is_new
    times, values = time_ns[read], value[read]
    changed = np.concatenate([[True], np.diff(values) != 0])
    if update.period_ns is not None:
        _mark_silent_updates(changed, times, update.period_ns)
    is_new[read] = changed
    return is_new


def _mark_silent_updates(changed: Bool, times: Int64, period_ns: int) -> None:
    """Mark the first reading after each update without a change, in each run of equal values."""
    polling = float(np.median(np.diff(times))) if len(times) > 1 else 0.0
    first = np.flatnonzero(changed)
    after = np.append(first[1:], len(changed))
    # Both changes may be seen one polling period late: assume the fewest updates. The last run ends without.
    end = times[np.minimum(after, len(times) - 1)]
    updates = np.ceil((end - times[first] - polling) / period_ns - SLACK).astype(np.int64) - 1
    updates[-1:] = np.floor((end[-1:] - times[first[-1:]]) / period_ns + SLACK).astype(np.int64)
    updates = np.maximum(updates, 0)
    stretch = np.repeat(np.arange(len(first)), updates)
    number = np.arange(len(stretch)) - np.repeat(np.cumsum(updates) - updates, updates) + 1
    due = times[first[stretch]] + number * period_ns - polling / 2
    places = np.clip(np.searchsorted(times, due), first[stretch], after[stretch])
    changed[places[places < after[stretch]]] = True
