"""Readings by subject and metric, with the reasons of those that failed."""

from __future__ import annotations

import math
import threading
from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from perfharness.model.telemetry import FailureRecord, SampleLog, Series, TelemetryMeta, UpdatePeriodRecord
from perfharness.telemetry.updates import find_new, find_update_period

Key = tuple[str, str]
"""Subject and metric."""

Values = dict[Key, float | str | list[tuple[int, float]]]
"""What is read together: a number, the reason why there is none, or numbers with monotonic times of their own."""

SENSORS = frozenset({
    "power_instant_mw", "power_average_mw", "sm_clock_mhz", "memory_clock_mhz", "temperature_c",
    "gpu_utilization_percent", "memory_utilization_percent", "pstate", "clock_event_reasons", "energy_total_mj",
    "power_limit_mw", "pcie_rx_kb_per_s", "pcie_tx_kb_per_s", "nvlink_rx_kib", "nvlink_tx_kib",
})  # fmt: skip
"""Metrics that the driver updates now and then, so that readings repeat. All others are made when they are read."""


@dataclass
class _Column:
    """Readings of one metric of one subject, in order of time."""

    time_ns: array[int] = field(default_factory=lambda: array("q"))
    value: array[float] = field(default_factory=lambda: array("d"))
    read_ns: array[int] = field(default_factory=lambda: array("q"))

    def add(self, time_ns: int, value: float, read_ns: int) -> None:
        self.time_ns.append(time_ns)
        self.value.append(value)
        self.read_ns.append(read_ns)


class Readings:
    """All readings of a run so far; several threads add to it."""

    def __init__(self) -> None:
        self._columns: dict[Key, _Column] = {}
        self._failures: Counter[tuple[str, str, str]] = Counter()
        self._lock = threading.Lock()

    def add(self, values: Values, began_ns: int, ended_ns: int) -> None:
        """Add what was read between two moments of the monotonic clock; a reason becomes a null."""
        middle_ns, took_ns = (began_ns + ended_ns) // 2, ended_ns - began_ns
        with self._lock:
            for (subject, metric), value in values.items():
                column = self._columns.setdefault((subject, metric), _Column())
                if isinstance(value, str):
                    self._failures[subject, metric, value] += 1
                    column.add(middle_ns, math.nan, took_ns)
                elif isinstance(value, list):
                    for time_ns, number in value:
                        column.add(time_ns, number, took_ns)
                else:
                    column.add(middle_ns, value, took_ns)

    def log(self, meta: TelemetryMeta) -> SampleLog:
        """The readings as columns, with update periods and failures added to the metadata."""
        with self._lock:
            columns = {key: [_copy(part) for part in vars(column).values()] for key, column in self._columns.items()}
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


def _copy(part: array[Any]) -> Any:
    return np.frombuffer(part.tobytes(), dtype=np.int64 if part.typecode == "q" else np.float64)


def sampled_metrics(log: SampleLog) -> dict[str, list[str]]:
    """Metrics of each subject that were read at least once; the cores together as `cores`."""
    cores = {record.subject for record in log.subjects("core")}
    found: dict[str, dict[str, None]] = {}
    for (subject, metric), series in log.series.items():
        if series.is_read.any():
            found.setdefault("cores" if subject in cores else subject, {})[metric] = None
    return {subject: list(metrics) for subject, metrics in found.items()}


def unread_metrics(log: SampleLog) -> Iterable[FailureRecord]:
    """Why metrics were never read: the most frequent reason for each."""
    never = {key for key, series in log.series.items() if not series.is_read.any()}
    reasons = sorted(log.meta.failures, key=lambda failure: failure.count)
    return {key: failure for failure in reasons if (key := (failure.subject, failure.metric)) in never}.values()
