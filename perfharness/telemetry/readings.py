"""Readings by subject and metric, with reasons of failures."""

from __future__ import annotations

import math
import threading
from array import array
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

from perfharness.model.telemetry import FailureRecord, SampleLog, Series, TelemetryMeta, UpdatePeriodRecord
from perfharness.telemetry.updates import find_new, find_update_period

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
