"""Simulated power sensors like those of NVIDIA's data-centre GPUs, of a load with known true power.

They update periodically, may average only a part of each period, are delayed, noisy and quantised; the sampler reads
them at independent times. After Yang, Adamek, Armour: Part-time Power Measurements (arXiv:2312.02741).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfharness.model.columns import Float64, Int64

NS_PER_S = 1e9


@dataclass(frozen=True)
class Load:
    """True power: `power_w[i]` from `edge_ns[i]` to `edge_ns[i + 1]`; the first and last continue beyond the ends."""

    edge_ns: Int64
    power_w: Float64

    def energy_j(self, start_ns: Int64 | int, end_ns: Int64 | int) -> Float64:
        """True energy of each stretch."""
        return self._until(end_ns) - self._until(start_ns)

    def _until(self, moment_ns: Int64 | int) -> Float64:
        at = np.asarray(moment_ns, dtype=np.int64)
        edges = (self.edge_ns - self.edge_ns[0]) / NS_PER_S
        total = np.r_[0.0, np.cumsum(np.diff(edges) * self.power_w)]
        moment = (at - self.edge_ns[0]) / NS_PER_S
        before, beyond = np.minimum(moment, 0), np.maximum(moment - edges[-1], 0)
        inside = np.interp(moment, edges, total)
        return np.asarray(inside + before * self.power_w[0] + beyond * self.power_w[-1], dtype=np.float64)


@dataclass(frozen=True)
class Sensor:
    """A sensor.

    Args:
        period_ns: between two updates.
        duty: fraction of each period that it averages, at its end.
        lag_ns: delay.
        phase_ns: of the first update.
        noise: relative standard deviation of the average.
        jitter_ns: standard deviation of the update times.
        smoothed_ns: time constant of a low-pass filter over its values; 0: none.
    """

    period_ns: int = 100_000_000
    duty: float = 1.0
    lag_ns: int = 0
    phase_ns: int = 0
    noise: float = 0.0
    jitter_ns: int = 0
    smoothed_ns: int = 0
    seed: int = 0

    def counter_mj(self, load: Load, polls_ns: Int64) -> Float64:
        """Readings of an energy counter."""
        moment, power = self._updates(load, polls_ns)
        energy = np.cumsum(np.diff(moment, prepend=moment[0] - self.period_ns) / NS_PER_S * power)
        return np.asarray(np.floor(1e3 * self._held(moment, energy, polls_ns)), dtype=np.float64)

    def power_mw(self, load: Load, polls_ns: Int64) -> Float64:
        """Readings of the power."""
        moment, power = self._updates(load, polls_ns)
        return np.asarray(np.round(1e3 * self._held(moment, power, polls_ns)), dtype=np.float64)

    def _updates(self, load: Load, polls_ns: Int64) -> tuple[Int64, Float64]:
        random = np.random.default_rng(self.seed)
        first = int(polls_ns[0]) - 2 * self.period_ns + self.phase_ns % self.period_ns
        moment = np.arange(first, int(polls_ns[-1]) + 1, self.period_ns, dtype=np.int64)
        moment = np.sort(moment + np.round(random.normal(0, self.jitter_ns, len(moment))).astype(np.int64))
        looked = round(self.period_ns * self.duty)
        power = load.energy_j(moment - self.lag_ns - looked, moment - self.lag_ns) / (looked / NS_PER_S)
        return moment, self._smoothed(power * (1 + random.normal(0, self.noise, len(moment))))

    def _smoothed(self, power: Float64) -> Float64:
        if not self.smoothed_ns:
            return power
        part = 1 - np.exp(-self.period_ns / self.smoothed_ns)
        found: Float64 = power.copy()
        for at in range(1, len(power)):
            found[at] = found[at - 1] + part * (power[at] - found[at - 1])
        return found

    def _held(self, moment: Int64, value: Float64, polls_ns: Int64) -> Float64:
        return np.asarray(value[np.searchsorted(moment, polls_ns, side="right") - 1], dtype=np.float64)
