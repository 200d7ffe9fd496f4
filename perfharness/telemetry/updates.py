"""How often a source is updated, found from the changes seen, and which readings are therefore new.

Polling faster than a sensor updates reads each value several times. Counted as independent readings, the repeats make
the uncertainty of a mean too small.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfharness.model.telemetry import Float64
from perfharness.model.trace import Bool, Int64

MIN_CHANGES = 5
"""Fewer changes give no update period."""

MIN_SHARE = 0.5
"""At least this share of the times between changes must be one period long; else they come from the signal, not the
source: a temperature changes when it crosses a degree."""


SLACK = 0.05
"""How far an update may be from its time, in periods."""


@dataclass(frozen=True)
class UpdatePeriod:
    """`period_ns` is None where it is not known; `resolved` is false where it is no longer than the polling."""

    period_ns: int | None
    changes: int
    resolved: bool = True


def find_update_period(time_ns: Int64, value: Float64) -> UpdatePeriod:
    """The time between updates of a source that is polled.

    The times between changes are multiples of the update period, give or take the polling period. The shortest usual
    one is one period; the mean of all that may be one period averages the polling away.

    Args:
        time_ns: of the readings, in order.
        value: NaN where the reading failed.
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
    """Which readings found the source updated.

    A value other than the one before is new. Between two changes that are several update periods apart, the source was
    updated without a change of value: the reading after each of these updates is new too. Where the period is not
    known, only changes are. Failed readings are not new, and the first good one is.
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
    """Mark the readings that came first after each update without a change, in each stretch of equal values."""
    polling = float(np.median(np.diff(times))) if len(times) > 1 else 0.0
    first = np.flatnonzero(changed)
    after = np.append(first[1:], len(changed))
    # Either change was seen up to one polling period late: as few updates as the times allow. The last one has none.
    end = times[np.minimum(after, len(times) - 1)]
    updates = np.ceil((end - times[first] - polling) / period_ns - SLACK).astype(np.int64) - 1
    updates[-1:] = np.floor((end[-1:] - times[first[-1:]]) / period_ns + SLACK).astype(np.int64)
    updates = np.maximum(updates, 0)
    stretch = np.repeat(np.arange(len(first)), updates)
    number = np.arange(len(stretch)) - np.repeat(np.cumsum(updates) - updates, updates) + 1
    due = times[first[stretch]] + number * period_ns - polling / 2
    places = np.clip(np.searchsorted(times, due), first[stretch], after[stretch])
    changed[places[places < after[stretch]]] = True
