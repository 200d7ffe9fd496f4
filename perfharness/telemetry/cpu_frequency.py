"""Frequencies of the CPUs that are at work (cpufreq), and how often heat lowered them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil

from perfharness.model.telemetry import HOST
from perfharness.telemetry.host import GUESTS, IDLE
from perfharness.telemetry.source import Metric, SamplerContext, Source, Tape

CPUS = Path("/sys/devices/system/cpu")
AT_WORK_SHARE = 0.5
"""Of the time since the reading before: a CPU that was less busy may be idle, and therefore slow, when it is read."""

NO_FREQUENCY = "this machine shows no frequency of its CPUs (cpufreq)"
NO_BASE = "this machine does not report the base frequency of its CPUs"
NO_THROTTLING = "this machine does not count how often heat lowers the frequency of its CPUs"


class CpuFrequencySource(Source):
    """The machine's CPUs that are at work, weighted by how busy each was since the reading before: idle ones are slow,
    and need not be faster.

    Args:
        system: psutil, or what answers like it.
        cpus: the folder of the CPUs.
    """

    name = "frequency"
    metrics = (
        Metric("busy_frequency_mhz", "mean frequency of the CPUs that were at work", "host", computed=True),
        Metric(
            "busy_frequency_percent", "the same, of the base frequency that they reach under any load", "host",
            computed=True,
        ),
        Metric(
            "thermal_throttle_count", "times that heat lowered the frequency of a CPU", "host", counter=True,
            computed=True,
        ),
    )  # fmt: skip
    period_limits_ns = (1_000_000_000, 1_000_000_000)

    def __init__(self, context: SamplerContext, system: Any = psutil, cpus: Path = CPUS) -> None:
        super().__init__(context)
        self._system = system
        self._folders = [cpus / f"cpu{number}" for number in range(system.cpu_count() or 0)]
        self._base_khz = [_base_khz(folder) for folder in self._folders]
        self._before: list[tuple[float, float]] = []

    def read(self, tape: Tape) -> None:
        """One reading."""
        with tape.reading():
            spent = [
                (_without(times, *IDLE, *GUESTS), _without(times, *GUESTS))
                for times in self._system.cpu_times(percpu=True)
            ]
            khz = [_number(folder / "cpufreq/scaling_cur_freq") for folder in self._folders]
            heat = [_number(folder / "thermal_throttle/core_throttle_count") for folder in self._folders]
        before, self._before = self._before, spent
        counted = [count for count in heat if count is not None]
        if counted:
            tape.write(HOST, "thermal_throttle_count", sum(counted))
        else:
            tape.fail(HOST, "thermal_throttle_count", NO_THROTTLING)
        if all(one is None for one in khz):
            for metric in ("busy_frequency_mhz", "busy_frequency_percent"):
                tape.fail(HOST, metric, NO_FREQUENCY)
            return
        self._write(tape, [_at_work_s(*both) for both in zip(before, spent, strict=False)], khz)

    def _write(self, tape: Tape, spent: list[float], khz: list[int | None]) -> None:
        if not any(spent):
            return
        known = [(weight, one) for weight, one in zip(spent, khz, strict=False) if one is not None]
        mean = _mean(known)
        if mean is not None:
            tape.write(HOST, "busy_frequency_mhz", mean / 1e3)
        share = _mean(
            (weight, 100.0 * one / base)
            for weight, one, base in zip(spent, khz, self._base_khz, strict=False)
            if one is not None and base
        )
        if share is None:
            tape.fail(HOST, "busy_frequency_percent", NO_BASE)
        else:
            tape.write(HOST, "busy_frequency_percent", share)


def _at_work_s(before: tuple[float, float], now: tuple[float, float]) -> float:
    """CPU time between two readings; 0 of a CPU that was hardly busy."""
    busy, whole = (max(after - earlier, 0.0) for earlier, after in zip(before, now, strict=True))
    return busy if whole and busy >= AT_WORK_SHARE * whole else 0.0


def _mean(weighted: Iterable[tuple[float, float]]) -> float | None:
    pairs = list(weighted)
    total = sum(weight for weight, _ in pairs)
    return sum(weight * value for weight, value in pairs) / total if total > 0 else None


def _base_khz(folder: Path) -> int | None:
    """What a CPU reaches under any load: not the highest frequency, which it only has while others are idle."""
    base = _number(folder / "cpufreq/base_frequency")  # intel_pstate
    if base:
        return base
    nominal_mhz = _number(folder / "acpi_cppc/nominal_freq")  # amd-pstate, cppc_cpufreq
    return 1000 * nominal_mhz if nominal_mhz else None


def _without(times: Any, *names: str) -> float:
    return float(sum(times) - sum(getattr(times, name, 0.0) for name in names))


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
