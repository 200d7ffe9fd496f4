"""The energy sensors of one GPU in a log, and which of them to believe for what."""

from __future__ import annotations

from collections.abc import Sequence

from perfharness.analysis.energy.attribution import IDLE_FLOOR
from perfharness.analysis.energy.kinds import KnownWork
from perfharness.analysis.energy.sensors import Explained
from perfharness.analysis.energy.steps import Energy, Readings, Steps, counter_steps, power_steps
from perfharness.model.telemetry import SampleLog, Series

COUNTER = "energy_total_mj"
POWER_SAMPLES = "power_sample_mw"
POWER_INSTANT = "power_instant_mw"
POWER_AVERAGE = "power_average_mw"
POWERS = (POWER_SAMPLES, POWER_INSTANT, POWER_AVERAGE)
"""What power can be integrated from, the best first: the driver's own buffer is the finest, and has its own times."""

METRICS = (COUNTER, *POWERS)

AVERAGED_NS = 1e9
"""`nvmlDeviceGetPowerUsage` and NVML_FI_DEV_POWER_AVERAGE on Ampere (except GA100) and later (NVML's reference)."""

PEAK_OVER_LIMIT = 1.3
"""The power limit holds over some time only: an H200 limited to 700 W drew 880 W for 20 ms when a load began
(tests/nvml/h200.json.gz)."""

DRIVER_TIMES_ERROR_NS = 1e6
"""Times of the driver's buffer come in microseconds; its rhythm is taken to be kept to a millisecond."""

Window = tuple[int, int]


class GpuSensors:
    """The energy sensors of one GPU in a log, as steps, or why there are none."""

    def __init__(self, log: SampleLog, uuid: str) -> None:
        self.uuid = uuid
        self._log = log
        self.steps = {metric: self._steps(metric) for metric in METRICS}

    def readings(self, metric: str) -> Readings | str:
        """Good readings of a metric, or why there are none."""
        series = self._log.get(self.uuid, metric)
        if series is None or not series.is_read.any():
            return self._why(metric, series)
        read = series.select(series.is_read)
        period = self._log.meta.update_period_ns(self.uuid, metric)
        return Readings(read.time_unix_ns, read.value, read.is_new, None if period is None else float(period))

    def limit_w(self) -> float | None:
        """More than this the GPU does not draw, not even for a moment; None where its limit is not known."""
        limit = self.readings("power_limit_mw")
        if isinstance(limit, str):
            return None
        found = [limit, *(self.readings(metric) for metric in POWERS)]
        highest = [float(readings.value.max()) / 1e3 for readings in found if not isinstance(readings, str)]
        return PEAK_OVER_LIMIT * max(highest)

    def period_ns(self, metric: str) -> float | None:
        """Update period of a sensor."""
        steps = self.steps[metric]
        return None if isinstance(steps, str) else steps.period_ns

    def _steps(self, metric: str) -> Steps | str:
        readings = self.readings(metric)
        if isinstance(readings, str):
            return readings
        if metric == COUNTER:
            return counter_steps(readings)
        error = DRIVER_TIMES_ERROR_NS if metric == POWER_SAMPLES else None
        return power_steps(readings, AVERAGED_NS if metric == POWER_AVERAGE else None, error)

    def _why(self, metric: str, series: Series | None) -> str:
        for failure in self._log.meta.failures:
            if failure.subject == self.uuid and failure.metric == metric:
                return failure.reason
        return "it was not sampled" if series is None else "every reading failed"


class WindowEnergy:
    """What the sensors of a GPU measured in a window of time and of stretches of it.

    Args:
        sensors: of the GPU.
        windows: UTC ns; in order, they do not overlap.
        work: when the GPU was at work; None: not known.
        idle_w: power before the run, where known.
    """

    def __init__(
        self, sensors: GpuSensors, windows: Sequence[Window], work: KnownWork | None, idle_w: float | None = None
    ) -> None:
        self.windows = windows
        self.window = windows[0][0], windows[-1][1]
        self._sensors = sensors
        self._work = work
        self._low_w = IDLE_FLOOR * (idle_w or 0.0)
        self._found: dict[str, Explained] = {}

    @property
    def seconds(self) -> float:
        """Of the windows, without the pauses between them."""
        return sum(end - start for start, end in self.windows) / 1e9

    def explained(self, metric: str) -> Explained:
        """One sensor from the start of the first window to the end of the last."""
        if metric not in self._found:
            steps, high_w = self._sensors.steps[metric], self._sensors.limit_w()
            self._found[metric] = Explained(steps, self.window, self._work, low_w=self._low_w, high_w=high_w)
        return self._found[metric]

    def energy(self, metric: str, stretch: Window | None = None) -> Energy:
        """Of all windows, or of another stretch of time, by one sensor."""
        explained = self.explained(metric)
        if stretch is not None:
            return explained.energy(*stretch)
        if len(self.windows) == 1:
            return explained.total
        parts = [explained.energy(*window) for window in self.windows]
        unknown = next((part for part in parts if part.joules is None), None)
        if unknown is not None:
            return Energy(None, reason=f"of the windows of {len(parts)} loops: {unknown.reason}")
        # Their errors may all have one cause, so they add up.
        return Energy(
            sum(part.joules or 0.0 for part in parts), sum(part.error_j or 0.0 for part in parts), self.seconds
        )

    def best(self) -> tuple[str, Energy]:
        """The energy by the sensor whose error is least, the first in `METRICS` of equal ones."""
        found = [(metric, self.energy(metric)) for metric in METRICS]
        known = [one for one in found if one[1].joules is not None]
        return min(known, key=lambda one: one[1].error_j or 0.0, default=found[0])

    @property
    def ambiguous(self) -> bool:
        """No sensor gives an energy, though one was read: its readings fit energies that differ widely."""
        return self.best()[1].joules is None and any(one.fits for one in self._found.values())

    def finest(self) -> str | None:
        """The sensor whose steps resolve time best: the finest that was read over all of the window."""
        usable = (metric for metric in (POWER_SAMPLES, COUNTER, POWER_INSTANT) if self.explained(metric).total.joules)
        return next(usable, None)
