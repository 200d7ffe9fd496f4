"""Synthetic telemetry from a few lines of a test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from perfharness.model.telemetry import (
    ClockTieRecord,
    SampleLog,
    Series,
    SubjectRecord,
    TelemetryMeta,
    UpdatePeriodRecord,
)

MS = 1_000_000


class SampleBuilder:
    """Collects readings, then makes a `SampleLog`. Times are UTC nanoseconds.

    Args:
        offset_ns: UTC minus monotonic; any value.
        meta: more fields of `TelemetryMeta`.
    """

    def __init__(self, *, period_ns: int = 50 * MS, offset_ns: int = 0, **meta: Any) -> None:
        self.period_ns = period_ns
        self.offset_ns = offset_ns
        self._meta = meta
        self._subjects: dict[str, SubjectRecord] = {}
        self._series: dict[tuple[str, str], Series] = {}
        self._periods: list[UpdatePeriodRecord] = []

    def subject(self, subject: str, kind: Any = "gpu", **facts: Any) -> SampleBuilder:
        """Describe a subject; subjects with readings only are GPUs."""
        self._subjects[subject] = SubjectRecord(subject=subject, kind=kind, **facts)
        return self

    def readings(
        self,
        subject: str,
        metric: str,
        times_ns: Sequence[int],
        values: Sequence[float | None],
        *,
        is_new: Sequence[bool] | None = None,
        update_period_ns: int | None = None,
        read_ns: int = 2_000,
    ) -> SampleBuilder:
        """Add readings; None is a failed one. All are new by default."""
        if subject not in self._subjects:
            self.subject(subject)
        unix = np.asarray(times_ns, dtype=np.int64)
        value = np.asarray([np.nan if number is None else number for number in values], dtype=np.float64)
        new = np.ones(len(unix), dtype=bool) if is_new is None else np.asarray(is_new, dtype=bool)
        self._series[subject, metric] = Series(
            unix, unix - self.offset_ns, value, new, np.full(len(unix), read_ns, dtype=np.int64)
        )
        if update_period_ns is not None:
            changes = int((new & ~np.isnan(value)).sum())
            self._periods.append(
                UpdatePeriodRecord(subject=subject, metric=metric, period_ns=update_period_ns, changes=changes)
            )
        return self

    def polled(
        self,
        subject: str,
        metric: str,
        signal: Callable[[int], float],
        start_ns: int,
        end_ns: int,
        *,
        update_period_ns: int,
        phase_ns: int = 0,
    ) -> SampleBuilder:
        """A source that takes up `signal` (of UTC ns) every `update_period_ns`, read every `period_ns` in between."""
        times = np.arange(start_ns, end_ns + 1, self.period_ns, dtype=np.int64)
        updated = (times - start_ns - phase_ns) // update_period_ns * update_period_ns + start_ns + phase_ns
        values = [float(signal(int(moment))) for moment in updated]
        is_new = np.concatenate([[True], np.diff(updated) > 0])
        return self.readings(
            subject, metric, times.tolist(), values, is_new=is_new.tolist(), update_period_ns=update_period_ns
        )

    def build(self) -> SampleLog:
        """The log of all readings."""
        meta = {
            "period_ns": self.period_ns,
            "clock": ClockTieRecord(offset_ns=self.offset_ns, error_ns=100),
            "subjects": list(self._subjects.values()),
            "update_periods": self._periods,
            "ended": "stopped",
        }
        return SampleLog(dict(self._series), TelemetryMeta(**{**meta, **self._meta}))
