"""The energy of a stage, from sensor updates that lie wholly inside its GPU work, with bounds for the rest.

An estimate is given if most of a stage's work covers whole updates; otherwise only bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfharness.analysis.energy.results import StageEnergy
from perfharness.analysis.energy.sensor import COUNTER, Energy, Sensor
from perfharness.analysis.timeline.busy import BusyLine, Spans, Window, merge, stretches, union
from perfharness.model.rounding import figure
from perfharness.model.units import NS_PER_S

WAITING = "waiting"
"""All time without traced GPU work."""

BRIDGED_NS = 1_000_000
"""Pauses below this between operations of one stage count as work."""

IDLE_FLOOR = 0.9
"""Least power that a GPU draws, as a share of its idle power before the run."""

WIDEST = 2.0
"""Largest ratio of upper to lower bound with an estimate."""


@dataclass(frozen=True)
class Known:
    """Bounds on stages: energy of the windows, idle power before the run, highest power; None if unknown."""

    total: Energy
    idle_w: float | None
    limit_w: float | None


def stage_energies(
    sensor: Sensor, busy: dict[str, Spans], windows: Sequence[Window], known: Known, counts: tuple[int, float | None]
) -> list[StageEnergy]:
    """Energy of each stage in the windows (ordered, disjoint), `waiting` last. `busy`: each stage's GPU work; `counts`:
    batches and items in the windows.
    """
    spans = {}
    for name, parts in busy.items():
        start, end = merge(*parts)
        is_break = start[1:] - end[:-1] >= BRIDGED_NS
        joined = start[np.r_[True, is_break][: len(start)]], end[np.r_[is_break, True][: len(end)]]
        spans[name] = _inside(joined, windows)
    at_work, ends = union(list(spans.values())), np.iinfo(np.int64)
    spans[WAITING] = _inside((np.r_[ends.min, at_work[1]], np.r_[at_work[0], ends.max]), windows)
    seconds, floor_w = sum(end - start for start, end in windows) / NS_PER_S, IDLE_FLOOR * (known.idle_w or 0.0)
    found = []
    for name, work in spans.items():
        own, others = BusyLine(*work), BusyLine(*union([each for other, each in spans.items() if other != name]))
        busy_s = own.length / NS_PER_S
        shared_s = int(others.within(own.start, own.end).sum()) / NS_PER_S
        pure_j, least_s, most_s = _pure(sensor, own, others)
        low = pure_j + floor_w * max(busy_s - shared_s - most_s, 0.0)
        highs = []
        if known.limit_w is not None:
            highs.append(pure_j + known.limit_w * max(busy_s - least_s, 0.0))
        if known.total.joules is not None and known.total.error_j is not None:
            highs.append(known.total.joules + known.total.error_j - floor_w * (seconds - busy_s))
        high = max(min(highs), low) if highs else None
        joules = reason = None
        if not own.length:
            joules = low = high = 0.0
        elif high is not None and pure_j and high <= WIDEST * low:
            joules = min(max(2 * pure_j * busy_s / (least_s + most_s), low), high)
        else:
            reason = f"its GPU work is too short for the sensor, which updates every {sensor.period_ns / 1e6:.0f} ms"
        found.append(
            StageEnergy(
                stage=name,
                busy_s=figure(busy_s),
                energy_j=rounded(joules),
                energy_j_low=None if high is None else rounded(low),
                energy_j_high=rounded(high),
                power_mean_w=per(joules, busy_s),
                energy_per_batch_j=per(joules, counts[0]),
                energy_per_item_j=per(joules, counts[1]),
                reason=reason,
            )
        )
    return found


def _pure(sensor: Sensor, own: BusyLine, others: BusyLine) -> tuple[float, float, float]:
    """Energy of the updates wholly inside a stage's own work, and their least and longest duration, s. An update may
    cover up to one period before it. Smoothed power readings are not attributed to stages.
    """
    start, end = np.rint(sensor.early_ns[:-1] - sensor.period_ns).astype(np.int64), sensor.late_ns[1:]
    pure = (own.within(start, end) == end - start) & (others.within(start, end) == 0) & (sensor.source == COUNTER)
    first, after = stretches(pure)
    least = np.maximum(sensor.early_ns[after] - sensor.late_ns[first], 0)
    most = sensor.late_ns[after] - sensor.early_ns[first]
    joules = sensor.joules[after] - sensor.joules[first]
    return float(joules.sum()), int(least.sum()) / NS_PER_S, int(most.sum()) / NS_PER_S


def _inside(spans: Spans, windows: Sequence[Window]) -> Spans:
    """Intervals clipped to the windows."""
    return union([(np.maximum(spans[0], start), np.minimum(spans[1], end)) for start, end in windows])


def rounded(value: float | None) -> float | None:
    """Round a value for the result files."""
    return None if value is None else figure(value)


def per(joules: float | None, count: float | None) -> float | None:
    """Energy per unit, rounded for the result files."""
    return None if joules is None or not count else figure(joules / count)
