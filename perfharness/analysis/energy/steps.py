"""What a sensor measured in successive stretches of time, from its readings: where its updates lie, and their sums.

The sensors are slow: an update lies somewhere between the reading that found it and the one before. Where updates keep
a rhythm, the line through all of them places each far better.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfharness.analysis.energy.results import IdlePower
from perfharness.model.result import Float64
from perfharness.model.rounding import figure
from perfharness.model.trace import Int64

NS_PER_S, NS_PER_MS = 1e9, 1e6


@dataclass(frozen=True)
class Steps:
    """What a sensor measured in consecutive stretches of time.

    `edge_ns` has one more entry than `energy_j`: stretch i runs from edge i to edge i + 1. `edge_error_ns` is the
    standard error of an edge's position; an error common to all edges is the sensor's lag and not in it.
    """

    edge_ns: Int64
    energy_j: Float64
    period_ns: float
    edge_error_ns: float
    window_ns: float
    """How much of the time before an edge its value speaks of: the period, or the time that it was averaged over."""
    drift_ns: float = 0.0
    """How far the last edge may lie from its position when the first is held, the others in proportion."""

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

    def inside(self, window: tuple[int, int]) -> Int64:
        """Positions of the stretches that lie wholly in a window."""
        return np.flatnonzero((self.edge_ns[:-1] >= window[0]) & (self.edge_ns[1:] <= window[1]))


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

    def as_power(self, source: str | None) -> IdlePower:
        """The power that follows, as it stands in the files."""
        if self.joules is None or self.error_j is None or not self.seconds:
            return IdlePower(None, None, None, None, self.reason)
        mean_w, error_w = (per(joules, self.seconds) for joules in (self.joules, self.error_j))
        return IdlePower(source, mean_w, error_w, rounded(self.seconds), None)


def rounded(value: float | None) -> float | None:
    """As figures stand in the files."""
    return None if value is None else figure(value)


def per(joules: float | None, count: float | None) -> float | None:
    """Energy of each, as it stands in the files."""
    return None if joules is None or not count else rounded(joules / count)


@dataclass(frozen=True)
class Readings:
    """Readings of one metric in order of time: failed ones left out, repeats kept.

    `is_new` marks those that found something new. `period_ns` is the source's update period, or None: not known.
    """

    time_ns: Int64
    value: Float64
    is_new: np.typing.NDArray[np.bool_]
    period_ns: float | None


def counter_steps(readings: Readings) -> Steps | str:
    """Steps of an energy counter in mJ; or why there are none.

    An update lies between the reading that found it and the one before. Where the updates keep a rhythm, that places
    them far better than the readings do: the line through all of them.
    """
    at = np.flatnonzero(readings.is_new)
    at = at[at > 0]  # what the first reading found was there before
    if len(at) < 3:
        return "the energy counter was not seen to move often enough"
    value = readings.value[at]
    if (np.diff(value) < 0).any():
        return "the energy counter ran backwards: the driver was reloaded during the run"
    lower, upper = readings.time_ns[at - 1], readings.time_ns[at]
    edge, error, drift = place_updates(lower, upper, readings.period_ns)
    period = readings.period_ns or float(np.median(np.diff(edge)))
    moves = np.diff(edge) > 0
    keep = np.r_[True, moves]
    return Steps(edge[keep], np.diff(value[keep]) / 1e3, period, error, period, drift)


def power_steps(readings: Readings, window_ns: float | None = None, edge_error_ns: float | None = None) -> Steps | str:
    """Power readings in mW as steps: each new value stands for the time since the one before; or why there are none.

    Args:
        readings: of one power metric.
        window_ns: what the driver averages over, where that is longer than the period.
        edge_error_ns: where the driver gives the time of its reading; else it is the polling's.
    """
    at = np.flatnonzero(readings.is_new)
    at = at[at > 0] if edge_error_ns is None else at
    if len(at) < 3:
        return "power was not seen to change often enough"
    time, value = readings.time_ns[at], readings.value[at]
    keep = np.r_[True, np.diff(time) > 0]
    time, value = time[keep], value[keep]
    seconds = np.diff(time) / NS_PER_S
    period = readings.period_ns or float(np.median(np.diff(time)))
    gap = float(np.median(np.diff(readings.time_ns)))
    error = min(gap, period) / np.sqrt(12) if edge_error_ns is None else edge_error_ns
    return Steps(time, value[1:] / 1e3 * seconds, period, error, window_ns or period)


MIN_FOR_RHYTHM = 10
"""Fewer updates do not show a rhythm."""

GRID_SLACK_NS = 5_000_000
"""How far an update may lie off its regular rhythm: scheduling of the sampler and of the driver."""


def place_updates(lower: Int64, upper: Int64, period_ns: float | None) -> tuple[Int64, float, float]:
    """When updates happened that were seen between two readings, the standard error of that, and their drift.

    Where readings and updates beat slowly, many lines go through all updates, and what one step of them has too long
    all have too long: that does not become less the more updates there are.
    """
    middle = (lower + upper) // 2
    gap = float(np.median(upper - lower))
    fit = rhythm(lower, upper, period_ns, always_new=True)
    if fit is None:
        return middle, gap / np.sqrt(12), 0.0
    outside = np.maximum(np.abs(fit.time_ns - middle) - (upper - lower) / 2, 0)
    placed = np.maximum.accumulate(np.clip(fit.time_ns, lower, upper))
    return placed, max(float(np.sqrt(np.mean(outside**2))), gap / np.sqrt(12 * len(middle))), fit.drift_ns


@dataclass(frozen=True)
class Rhythm:
    """Updates on a line.

    Args:
        time_ns: of each, on the line.
        period_ns: of the line.
        drift_ns: how far the last may lie from its position when the first is held, for other lines fit as well.
    """

    time_ns: Int64
    period_ns: float
    drift_ns: float


def rhythm(lower: Int64, upper: Int64, period_ns: float | None, *, always_new: bool) -> Rhythm | None:
    """Updates on a line through all of them; None where they keep none, or readings hide it.

    Readings as rare as the updates show the rhythm of the readings.

    Args:
        lower, upper: the readings between which each update came.
        period_ns: roughly.
        always_new: every update is seen, for it always changes the value, as it does a counter's.
    """
    if not period_ns or np.median(upper - lower) > 0.8 * period_ns or len(lower) <= MIN_FOR_RHYTHM:
        return None
    middle = (lower + upper) // 2
    elapsed = (middle - middle[0]).astype(np.float64)
    start, slope = _line(elapsed, period_ns)
    number = np.round((elapsed - start) / slope)
    if always_new:
        in_time = (upper - lower)[1:] < slope  # so soon after the reading before that it found no more than one
        number = np.r_[0.0, np.cumsum(np.where(in_time, 1.0, np.maximum(np.diff(number), 1.0)))]
        slope, start = (float(value) for value in np.polyfit(number, elapsed, 1))
    earliest, latest = ((each - middle[0]).astype(np.float64) for each in (lower, upper))
    through = _slopes_through(number, earliest, latest, slope)
    drift = 0.0
    if through is not None:
        slope = sum(through) / 2
        start = float((earliest - slope * number).max() + (latest - slope * number).min()) / 2
        drift = (through[1] - through[0]) / 2 * float(np.ptp(number))
    fitted = start + slope * number
    outside = np.abs(fitted - elapsed) - (upper - lower) / 2
    if (outside < GRID_SLACK_NS).mean() <= 0.98:
        return None
    return Rhythm(np.round(fitted).astype(np.int64) + middle[0], slope, drift)


HALVINGS = 60
"""Of 8 % of a period: what is left is far below a nanosecond."""


def _slopes_through(number: Float64, earliest: Float64, latest: Float64, near: float) -> tuple[float, float] | None:
    """The smallest and the largest slope of the lines that pass every update between its two readings.

    None where there are no such lines: the updates keep their rhythm less than exactly. The room that a slope leaves
    for the line's start is concave in the slope: its top is found by thirds, its zeros by halves.
    """

    def room(slope: float) -> float:
        return float((latest - slope * number).min() - (earliest - slope * number).max())

    low, high = near * (1 - OFF), near * (1 + OFF)
    for _ in range(HALVINGS):
        left, right = low + (high - low) / 3, high - (high - low) / 3
        low, high = (left, high) if room(left) < room(right) else (low, right)
    best = (low + high) / 2
    if room(best) < 0:
        return None
    ends = []
    for end in (near * (1 - OFF), near * (1 + OFF)):
        inside, beyond = best, end
        for _ in range(HALVINGS):
            half = (inside + beyond) / 2
            inside, beyond = (half, beyond) if room(half) >= 0 else (inside, half)
        ends.append(inside)
    return ends[0], ends[1]


FIRST_UPDATES = 64
OFF = 0.04
"""How far the rough figure of a period may be off."""


def _line(elapsed: Float64, period_ns: float) -> tuple[float, float]:
    """First update and period of a line through the updates, each of which is known to half a reading or so only.

    Counting from one to the next by their distance goes wrong where readings are more than three quarters of a period
    apart. So the first updates are numbered by the period under which their phases agree best (the peak of their
    periodogram), and the line through them numbers twice as many, until there are no more.
    """
    count = min(FIRST_UPDATES, len(elapsed))
    first = elapsed[:count]
    periods = 1 / np.linspace((1 - OFF) / period_ns, (1 + OFF) / period_ns, 8 * count + 1)
    phases = np.exp(2j * np.pi * first / periods[:, None]).mean(axis=1)
    best = int(np.abs(phases).argmax())
    slope = float(periods[best])
    start = float(np.angle(phases[best])) / (2 * np.pi) * slope
    while True:
        number = np.round((elapsed[:count] - start) / slope)
        slope, start = (float(value) for value in np.polyfit(number, elapsed[:count], 1))
        if count == len(elapsed):
            return start, slope
        count = min(2 * count, len(elapsed))
