"""Counters of one GPU as means over windows of time, out of a run's telemetry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfharness.model.telemetry import GPM_EDGE_ERROR, GPM_RATES, GPM_SHARES, GPM_WINDOW, Float64, SampleLog, Series
from perfharness.model.trace import Bool, Int64, TraceMeta

MIB = 1 << 20
WORSE = 3.0
"""Times the usual error of an end."""

CLOCKS = (2, 98)
"""Percentiles of the clock in the windows that are taken for its lowest and highest."""

UNREAD_RATIO = 1.5
"""Where no clock was read, so far apart they may have been."""

MAX_CLOCK_MISS_NS = 1_000_000_000
MOST_WINDOWS = 600
"""So many are looked at for what is the same in all of them: the clocks, the delay."""

SAYS_SOMETHING = 0.02
"""Of the peak: a counter that never exceeds it has nothing to be explained."""


@dataclass(frozen=True)
class GpmReadings:
    """Windows of time and the means of each counter in them; columns of one length, in order, windows do not overlap.

    `values` has shares of the peak (0 to 1) and rates in bytes per second, by metric of telemetry.parquet; NaN: not
    read. `missing` has why a metric was never read, under `GPM_WINDOW` why none was. `edge_error_ns` is how far the
    ends of the windows may lie from where they seem; `clock_error_ns` is the part of it that the trace's clock has.
    """

    start_ns: Int64
    end_ns: Int64
    values: Mapping[str, Float64]
    sm_clock_mhz: Float64
    """The clock of the multiprocessors at the end of each window; NaN: not read."""
    missing: Mapping[str, str]
    edge_error_ns: int
    clock_error_ns: int = 0

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def clock_ratio(self) -> float:
        """The highest clock over the lowest, outliers left out."""
        read = self.sm_clock_mhz[~np.isnan(self.sm_clock_mhz)]
        low, high = np.percentile(read, CLOCKS) if len(read) else (0.0, 0.0)
        return float(high / low) if low > 0 else UNREAD_RATIO

    def select(self, which: Bool) -> GpmReadings:
        """Some of the windows."""
        return replace(
            self,
            start_ns=self.start_ns[which],
            end_ns=self.end_ns[which],
            values={metric: column[which] for metric, column in self.values.items()},
            sm_clock_mhz=self.sm_clock_mhz[which],
        )

    def moved(self, by_ns: int, error_ns: int = 0) -> GpmReadings:
        """On another clock, by a constant; its error adds up."""
        start, end = self.start_ns + by_ns, self.end_ns + by_ns
        return replace(self, start_ns=start, end_ns=end, edge_error_ns=self.edge_error_ns + error_ns)


def some_of(windows: Int64) -> Int64:
    """Of many windows as many as are looked at, evenly spread."""
    places = np.linspace(0, len(windows) - 1, min(len(windows), MOST_WINDOWS)).round()
    return np.asarray(windows[np.unique(places.astype(np.int64))], dtype=np.int64)


def joined(parts: Sequence[GpmReadings]) -> GpmReadings:
    """Successive readings of one GPU; at least one part, all of the same counters."""
    return replace(
        parts[0],
        start_ns=np.concatenate([part.start_ns for part in parts]),
        end_ns=np.concatenate([part.end_ns for part in parts]),
        values={name: np.concatenate([part.values[name] for part in parts]) for name in parts[0].values},
        sm_clock_mhz=np.concatenate([part.sm_clock_mhz for part in parts]),
        edge_error_ns=max(part.edge_error_ns for part in parts),
    )


def on_trace_clock(readings: Mapping[str, GpmReadings], meta: TraceMeta) -> dict[str, GpmReadings]:
    """Readings with UTC times on the clock of a trace; without any where the trace does not have its UTC time."""
    utc, clock = meta.session_start_unix_ns, meta.clock
    if utc is None:
        missing = {GPM_WINDOW: "the trace has no UTC start time, so the readings cannot be aligned with it"}
        nothing = np.zeros(0, dtype=np.int64)
        return {uuid: GpmReadings(nothing, nothing, {}, np.zeros(0), missing, 0) for uuid in readings}
    error_ns = 0 if clock is None else clock.error_ns
    return {uuid: replace(one.moved(-utc, error_ns), clock_error_ns=error_ns) for uuid, one in readings.items()}


def gpm_readings(log: SampleLog, uuid: str) -> GpmReadings | None:
    """The readings of a GPU or MIG instance, UTC ns; None where it was not sampled."""
    window = log.get(uuid, GPM_WINDOW)
    failures = {one.metric: one.reason for one in reversed(log.meta.failures) if one.subject == uuid}
    if window is None:
        return None
    read = window.select(window.is_read)
    end, values = read.time_unix_ns, {}
    missing = {}
    for metric in (*GPM_SHARES, *GPM_RATES):
        series = log.get(uuid, metric)
        if series is None or not series.is_read.any():
            missing[metric] = failures.get(metric, "it was not sampled")
            continue
        values[metric] = _aligned(series, end) * (0.01 if metric in GPM_SHARES else MIB)
    errors = _aligned(log.get(uuid, GPM_EDGE_ERROR), end)
    if not len(end):
        missing[GPM_WINDOW] = failures.get(GPM_WINDOW, "it was not sampled")
    found = GpmReadings(
        start_ns=end - read.value.astype(np.int64),
        end_ns=end,
        values=values,
        sm_clock_mhz=_clock_at(log, uuid, end),
        missing=missing,
        edge_error_ns=0,
    )
    return found if not len(end) else _of_known_ends(found, errors, int(np.median(read.read_ns)) // 2)


def _of_known_ends(found: GpmReadings, error_ns: Float64, least_ns: int) -> GpmReadings:
    """Without the windows whose ends are known far worse than usual: those before the rhythm of refreshes was found."""
    error_ns = np.maximum(np.where(np.isnan(error_ns), 0.0, error_ns), least_ns)
    usual = float(np.median(error_ns))
    begins = np.r_[error_ns[:1], error_ns[:-1]]
    kept = np.maximum(error_ns, begins) <= WORSE * usual
    return replace(found.select(kept), edge_error_ns=round(usual))


def _aligned(series: Series | None, end: Int64) -> Float64:
    """Readings at the ends of windows; NaN where there is none."""
    column = np.full(len(end), np.nan)
    if series is None or not len(end):
        return column
    at = np.minimum(np.searchsorted(end, series.time_unix_ns), len(end) - 1)
    same = end[at] == series.time_unix_ns
    column[at[same]] = series.value[same]
    return column


def _clock_at(log: SampleLog, uuid: str, moment_ns: Int64) -> Float64:
    """The last reading of the clock before each moment, or the next one; a MIG instance has its GPU's."""
    parents = {record.subject: record.parent_uuid for record in log.meta.subjects}
    series = log.get(parents.get(uuid) or uuid, "sm_clock_mhz")
    if series is None or not series.is_read.any():
        return np.full(len(moment_ns), np.nan)
    read = series.select(series.is_read)
    at = np.clip(np.searchsorted(read.time_unix_ns, moment_ns, side="right") - 1, 0, len(read) - 1)
    clock = read.value[at].astype(np.float64)
    return np.where(np.abs(read.time_unix_ns[at] - moment_ns) <= MAX_CLOCK_MISS_NS, clock, np.nan)
