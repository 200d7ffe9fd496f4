"""Updates of a GPU's energy sensor, and the energy of an interval of time with its 95 % interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfharness.analysis.statistics import student_t
from perfharness.analysis.timeline.busy import Window
from perfharness.model.columns import Float64, Int64
from perfharness.model.telemetry import SampleLog
from perfharness.model.units import NS_PER_S

COUNTER = "energy_total_mj"
SAMPLES = "power_sample_mw"
SOURCES = (COUNTER, SAMPLES, "power_instant_mw")
"""In order of preference: NVML's energy counter, the mean of the driver's power samples, the mean power."""

MIN_UPDATES = 20
"""Updates in the shortest measurable interval: one at each end may lie outside, 10 % together."""

SMOOTHED_NS = 300e6
"""Power readings may be low-pass filtered over this time; the counter is not."""

MAX_GAP = 10
"""Periods without an update after which the sensor counts as not read."""

TOO_WIDE = 1 / 3
"""Relative error of an energy above which it is null."""

LEAST_DUTY = (0.25, 0.5)
"""Parts of its period that a sensor may sample; the first on some cards (arXiv:2312.02741)."""

HARMONICS = np.arange(1, 9)
"""Harmonics of the batch at which its power may vary."""

SWING = 2.0
"""Largest change of power within a batch, relative to its mean."""

IN_STEP = "updates of the sensor coincide with the same part of each batch"


@dataclass(frozen=True)
class Energy:
    """Energy of an interval with half of its 95 % interval; None with a reason."""

    joules: float | None
    error_j: float | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Sensor:
    """Updates between `early_ns` and `late_ns`; `joules`: so far; `power_w`: mean power until the next update."""

    source: str
    early_ns: Int64
    late_ns: Int64
    joules: Float64
    power_w: Float64
    period_ns: float

    @property
    def time_ns(self) -> Int64:
        """Estimated time of each update: the middle of its interval."""
        return (self.early_ns + self.late_ns) // 2

    def total(self, windows: Sequence[Window], batch_start_ns: Sequence[Int64]) -> Energy:
        """Energy of disjoint windows; None if batches of a process may hide too much from the sensor."""
        parts = [self.between(*window) for window in windows]
        reason = next((part.reason for part in parts if part.reason), None)
        joules, error = sum(part.joules or 0.0 for part in parts), sum(part.error_j or 0.0 for part in parts)
        missed = max((self.missed_part(starts) for starts in batch_start_ns), default=0.0)
        if reason is None and error > TOO_WIDE * joules:
            reason = f"the sensor is too slow: {joules:.1f} J may be off by {error:.1f} J"
        elif reason is None and error + missed * joules > TOO_WIDE * joules:
            reason = f"{IN_STEP}, every {self.period_ns / 1e6:.0f} ms"
        return Energy(joules, error + missed * joules) if reason is None else Energy(None, reason=reason)

    def between(self, start_ns: int, end_ns: int) -> Energy:
        """Energy interpolated between updates. The error covers both ends (spread of power there over one update, and
        error of its time), and chance in a sensor that samples part of the time (mean square successive difference of
        the updates, with Student's t).
        """
        time, period = self.time_ns, self.period_ns
        if end_ns - start_ns < MIN_UPDATES * period:
            short = f"{(end_ns - start_ns) / 1e6:.0f} ms is shorter than {MIN_UPDATES} updates of the sensor"
            return Energy(None, reason=f"{short} ({period / 1e6:.0f} ms each)")
        inside = np.flatnonzero((time[1:] > start_ns) & (time[:-1] < end_ns))
        seconds = np.diff(time)[inside] / NS_PER_S
        is_covered = time[0] - period <= start_ns and end_ns <= time[-1] + period
        if not is_covered or seconds.max(initial=0.0) > MAX_GAP * period / NS_PER_S:
            return Energy(None, reason="the sensor was not read over the whole time")
        changes = np.diff(self.power_w[inside]) * seconds[1:]
        chance = student_t(len(changes) // 2) * float(np.sqrt((changes**2).sum() / 2))
        ends = self._end_error(start_ns) + self._end_error(end_ns)
        return Energy(self._until(end_ns) - self._until(start_ns), float(np.hypot(ends, chance)))

    def _until(self, moment_ns: int) -> float:
        """Energy until a moment, extrapolated beyond the outermost updates with the power there."""
        time = (self.time_ns - self.time_ns[0]) / NS_PER_S
        moment = (moment_ns - int(self.time_ns[0])) / NS_PER_S
        beyond = min(moment, 0.0) * self.power_w[0] + max(moment - time[-1], 0.0) * self.power_w[-1]
        return float(np.interp(moment, time, self.joules) + beyond)

    def _end_error(self, moment_ns: int) -> float:
        late_ns = self.period_ns if self.source == COUNTER else max(self.period_ns, SMOOTHED_NS)
        time = self.time_ns
        near = self.power_w[(time[1:] > moment_ns - 2 * late_ns) & (time[:-1] < moment_ns + 2 * late_ns)]
        misplaced = float(np.median(self.late_ns - self.early_ns)) / np.sqrt(12)
        return float(np.ptp(near) * late_ns + near.max() * misplaced) / NS_PER_S if len(near) else 0.0

    def missed_part(self, batch_start_ns: Int64) -> float:
        """Relative error of the energy, because updates coincide with the same parts of batches.

        For each harmonic of the batch: how far updates keep in step with it, beyond chance, times the response of a
        sensor that samples part of its period.
        """
        if len(batch_start_ns) < 3:
            return 0.0
        time = self.time_ns[(self.time_ns >= batch_start_ns[0]) & (self.time_ns < batch_start_ns[-1])]
        if len(time) < 3:
            return 0.0
        at = np.searchsorted(batch_start_ns, time, side="right") - 1
        length = np.diff(batch_start_ns)[at]
        phase = (time - batch_start_ns[at]) / length
        turns = np.exp(2j * np.pi * HARMONICS[:, None] * phase)
        by_chance = (np.abs(np.diff(turns)) ** 2).mean(axis=1) / 2 / len(time)
        in_step = np.sqrt(np.maximum(np.abs(turns.mean(axis=1)) ** 2 - 3 * by_chance, 0.0))
        per_batch = self.period_ns / float(np.median(length))
        seen = [np.abs(np.sinc(duty * per_batch * HARMONICS)) for duty in LEAST_DUTY]
        return float(SWING * max((in_step * one * 2 / (np.pi * HARMONICS)).sum() for one in seen))


def read_sensor(log: SampleLog, uuid: str) -> Sensor | str:
    """The best energy sensor of a GPU that was read, or the reason why there is none."""
    reason = next((one.reason for one in log.meta.failures if (one.subject, one.metric) == (uuid, COUNTER)), None)
    for source in SOURCES:
        series = log.get(uuid, source)
        if series is None or not series.is_read.any():
            continue
        read = series.select(series.is_read)
        at = np.flatnonzero(read.is_new[1:]) + 1  # the first reading shows an older update
        early = read.time_unix_ns[at if source == SAMPLES else at - 1]  # samples have the driver's own times
        value, late = read.value[at] / 1e3, read.time_unix_ns[at]
        distance = np.diff((early + late) // 2)
        if len(at) < 3:
            reason = reason or f"{source} did not change often enough"
        elif source == COUNTER and (np.diff(value) < 0).any():
            reason = reason or "the energy counter ran backwards; the driver was reloaded during the run"
        else:
            period = float(log.meta.update_period_ns(uuid, source) or np.median(distance))
            if source == COUNTER:
                # Readings date updates roughly, but the number of periods between two of them is exact.
                seconds = np.maximum(np.round(distance / period), 1) * period / NS_PER_S
                return Sensor(source, early, late, value - value[0], np.diff(value) / seconds, period)
            joules = np.r_[0.0, np.cumsum(value[1:] * distance / NS_PER_S)]
            return Sensor(source, early, late, joules, value[1:], period)
    return reason or "the energy sensor was not sampled"
