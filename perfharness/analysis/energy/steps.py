"""What a sensor said of consecutive stretches of time, and the energy of one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfharness.model.result import Float64
from perfharness.model.trace import Int64

NS_PER_S = 1e9


@dataclass(frozen=True)
class Steps:
    """What a sensor said of consecutive stretches of time.

    `edge_ns` has one more entry than `energy_j`: stretch i runs from edge i to edge i + 1. `edge_error_ns` is the
    standard error of an edge's place; an error common to all edges is the sensor's lag and not in it.
    """

    edge_ns: Int64
    energy_j: Float64
    period_ns: float
    edge_error_ns: float
    window_ns: float
    """How much of the time before an edge its value speaks of: the period, or the time that it was averaged over."""
    drift_ns: float = 0.0
    """How far the last edge may lie from its place when the first is held, the others in proportion."""

    def __len__(self) -> int:
        return len(self.energy_j)

    @property
    def seconds(self) -> Float64:
        """Lengths of the stretches."""
        return np.diff(self.edge_ns) / NS_PER_S

    @property
    def power_w(self) -> Float64:
        """Mean power of each stretch."""
        return np.asarray(self.energy_j / self.seconds, dtype=np.float64)


@dataclass(frozen=True)
class Energy:
    """Energy of a stretch of time, with the half-width of its 95 % interval; None with the reason."""

    joules: float | None
    error_j: float | None = None
    seconds: float | None = None
    reason: str | None = None

    @property
    def mean_power_w(self) -> float | None:
        """Over the stretch."""
        return None if self.joules is None or not self.seconds else self.joules / self.seconds
