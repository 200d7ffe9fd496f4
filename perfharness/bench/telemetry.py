"""The telemetry pass: rounds with the sampler running, for utilisation, power, energy, memory."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from perfharness.analysis.energy.sensor import Energy, read_sensor
from perfharness.analysis.metrics.clocks import clock_hold
from perfharness.analysis.metrics.figures import window_figures
from perfharness.analysis.timeline.busy import Window
from perfharness.bench.spec import TelemetrySettings
from perfharness.errors import ResultError
from perfharness.model.bench import Estimate
from perfharness.model.telemetry import HOST, TELEMETRY_NAME, SampleLog, process_subject
from perfharness.telemetry.processes import FollowedProcess
from perfharness.telemetry.sampler import sampling

SUBJECT = "case"


@dataclass(frozen=True)
class TelemetryFigures:
    """Figures of the telemetry pass; `reasons` are by field of `CaseResult`, for those that are None."""

    telemetry_items_per_second: float | None = None
    utilization_percent: float | None = None
    cpu_percent: float | None = None
    io_wait_percent: float | None = None
    power_mean_w: float | None = None
    energy_per_item_j: Estimate | None = None
    clock_drop_percent: float | None = None
    device_peak_bytes: int | None = None
    host_peak_bytes: int | None = None
    reasons: dict[str, str] = field(default_factory=dict)


NEEDS_GPU = ("utilization_percent", "power_mean_w", "energy_per_item_j", "clock_drop_percent")


def measure_telemetry(
    folder: Path, settings: TelemetrySettings, batch_size: int, work: Callable[[], list[int]]
) -> TelemetryFigures:
    """Run the work with the sampler running; the folder gets `telemetry.parquet`.

    `work` runs rounds for long enough and returns their ends, UTC ns; the device is idle when it returns.
    """
    uuids = settings.gpu_uuids
    period_ns = round(settings.interval_ms * 1e6)
    window, ends = None, list[int]()
    try:
        with sampling(folder / TELEMETRY_NAME, period_ns, uuids, idle_s=settings.idle_seconds) as sampler:
            sampler.follow(FollowedProcess(SUBJECT, os.getpid(), uuids[:1]))
            begin = time.time_ns()
            ends = work()
            window = begin, time.time_ns()
    except ResultError as error:
        rate = _rate(len(ends) * batch_size, window) if window is not None else None
        missing = NEEDS_GPU if window is not None else (*NEEDS_GPU, "telemetry_items_per_second")
        return TelemetryFigures(telemetry_items_per_second=rate, reasons=dict.fromkeys(missing, str(error)))
    return summarize(sampler.log, uuids, window, len(ends) * batch_size, ends)


def summarize(
    log: SampleLog, gpu_uuids: tuple[str, ...], window: Window, items: int, round_ends_ns: Sequence[int]
) -> TelemetryFigures:
    """Figures of a window of work, UTC ns.

    Energy is that of the whole GPU, including idle power, divided by all items of the window. The ends of the rounds
    show whether rounds and sensor updates are in step.
    """
    cpu, waits = (
        window_figures(log.get(subject, metric), window, since_last=True).mean
        for subject, metric in ((process_subject(SUBJECT), "cpu_percent"), (HOST, "io_wait_percent"))
    )
    common = TelemetryFigures(
        telemetry_items_per_second=_rate(items, window),
        cpu_percent=cpu,
        io_wait_percent=waits,
        host_peak_bytes=_peak(log, "rss_bytes", window),
    )
    if not gpu_uuids:
        return replace(common, reasons=dict.fromkeys(NEEDS_GPU, "the case has no GPU"))
    uuid, reasons = gpu_uuids[0], {}
    name = "gpu_utilization_percent"
    used = window_figures(log.get(uuid, name), window, period_ns=log.meta.update_period_ns(uuid, name))
    if used.mean is None:
        reasons["utilization_percent"] = used.reason or "not read"
    sensor = read_sensor(log, uuid)
    ends = [np.asarray(round_ends_ns, dtype=np.int64)]
    energy = Energy(None, reason=sensor) if isinstance(sensor, str) else sensor.total([window], ends)
    per_item = None
    if energy.joules is None or energy.error_j is None:
        reasons |= dict.fromkeys(("energy_per_item_j", "power_mean_w"), energy.reason or "no sensor was read")
    else:
        low, high = (max(0.0, (energy.joules + sign * energy.error_j) / items) for sign in (-1, 1))
        per_item = Estimate(value=energy.joules / items, low=low, high=high)
    hold = clock_hold(log.get(uuid, "sm_clock_mhz"), window, work=window)
    if hold.drop_percent is None:
        reasons["clock_drop_percent"] = hold.reason or "clock not read"
    return replace(
        common,
        utilization_percent=used.mean,
        power_mean_w=None if energy.joules is None else energy.joules * 1e9 / (window[1] - window[0]),
        energy_per_item_j=per_item,
        clock_drop_percent=hold.drop_percent,
        device_peak_bytes=_peak(log, "process_memory_bytes"),
        reasons=reasons,
    )


def _peak(log: SampleLog, name: str, window: Window | None = None) -> int | None:
    """The largest value read for the process."""
    series = log.get(process_subject(SUBJECT), name)
    if series is None:
        return None
    read = series.select(series.is_read)
    inside = read if window is None else read.between(*window)
    return int(inside.value.max()) if len(inside) else None


def _rate(items: int, window: Window) -> float:
    return round(items * 1e9 / (window[1] - window[0]), 6)
