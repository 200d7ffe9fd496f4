"""Readings by subject and metric, with reasons of failures, and which of them are new."""

from __future__ import annotations

import math
import threading
from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfharness.model.columns import Bool, Float64, Int64
from perfharness.model.telemetry import FailureRecord, SampleLog, Series, TelemetryMeta, UpdatePeriodRecord

Key = tuple[str, str]
"""Subject and metric."""

Values = dict[Key, float | str | list[tuple[int, float]]]
"""Values read together: a number, the reason for none, or numbers with their own monotonic times."""

_SENSORS = (
    "power_instant_mw power_average_mw sm_clock_mhz memory_clock_mhz temperature_c gpu_utilization_percent "
    "memory_utilization_percent pstate clock_event_reasons energy_total_mj power_limit_mw pcie_rx_kb_per_s "
    "pcie_tx_kb_per_s nvlink_rx_kib nvlink_tx_kib"
)
SENSORS = frozenset(_SENSORS.split())
"""Metrics updated by the driver from time to time, so that readings repeat. Others are computed on reading."""


class Readings:
    """All readings of a run so far; thread-safe."""

    def __init__(self) -> None:
        self._columns: dict[Key, tuple[array[int], array[float], array[int]]] = {}
        """Times, values and reading durations, ordered by time."""
        self._failures: Counter[tuple[str, str, str]] = Counter()
        self._lock = threading.Lock()

    def add(self, values: Values, began_ns: int, ended_ns: int) -> None:
        """Add values read between two monotonic times; a reason becomes a null."""
        middle_ns, took_ns = (began_ns + ended_ns) // 2, ended_ns - began_ns
        with self._lock:
            for key, value in values.items():
                if isinstance(value, str):
                    self._failures[key[0], key[1], value] += 1
                    rows = [(middle_ns, math.nan)]
                else:
                    rows = value if isinstance(value, list) else [(middle_ns, value)]
                times, numbers, reads = self._columns.setdefault(key, (array("q"), array("d"), array("q")))
                times.extend([time_ns for time_ns, _ in rows])
                numbers.extend([number for _, number in rows])
                reads.extend([took_ns] * len(rows))

    def newest(self, since_ns: int) -> dict[str, dict[str, float | None]]:
        """Last values read after a monotonic time, by subject and metric; None for failed readings."""
        found: dict[str, dict[str, float | None]] = {}
        with self._lock:
            for (subject, metric), (times, values, _) in self._columns.items():
                if times and times[-1] > since_ns:
                    value = values[-1]
                    found.setdefault(subject, {})[metric] = None if math.isnan(value) else value
        return found

    def log(self, meta: TelemetryMeta) -> SampleLog:
        """Readings as columns, with update periods and failures in the metadata."""
        with self._lock:
            columns = {key: [_copy(column) for column in of_key] for key, of_key in self._columns.items()}
            failures = [
                FailureRecord(subject=subject, metric=metric, reason=reason, count=count)
                for (subject, metric, reason), count in self._failures.items()
            ]
        series, periods = {}, []
        for (subject, metric), (time_ns, value, read_ns) in columns.items():
            is_new = ~np.isnan(value)
            if metric in SENSORS:
                update = find_update_period(time_ns, value)
                is_new = find_new(time_ns, value, update)
                periods.append(UpdatePeriodRecord(subject=subject, metric=metric, **vars(update)))
            series[subject, metric] = Series(time_ns + meta.clock.offset_ns, time_ns, value, is_new, read_ns)
        added = {"update_periods": periods, "failures": [*meta.failures, *failures]}
        return SampleLog(series, meta.model_copy(update=added))


def _copy(column: array[Any]) -> Any:
    return np.frombuffer(column.tobytes(), dtype=np.int64 if column.typecode == "q" else np.float64)


def unread_metrics(log: SampleLog) -> Iterable[FailureRecord]:
    """Most frequent reason for each metric that was never read."""
    never = {key for key, series in log.series.items() if not series.is_read.any()}
    reasons = sorted(log.meta.failures, key=lambda failure: failure.count)
    return {key: failure for failure in reasons if (key := (failure.subject, failure.metric)) in never}.values()


# ---- updates: polling faster than a sensor updates repeats values, which are no independent readings ----

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
