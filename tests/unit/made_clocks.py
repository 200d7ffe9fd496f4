"""A GPU at its power limit, moment by moment: its clock follows the load; its counters are read as those of an H200."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfharness.analysis.counters.clocks import Clocks
from perfharness.analysis.counters.delay import placed
from perfharness.analysis.counters.fits import Estimate, WorkInWindows
from perfharness.analysis.counters.readings import GpmReadings
from perfharness.analysis.energy.kinds import BusyShares
from perfharness.model.result import Float64

MS = 1_000_000
STEP_MS = 0.25
HIGHEST_MHZ = 1965.0
PERIOD_MS, POLLED_MS = 100.0, 100.144
OF_CYCLES = ("tensor", "sm_occupancy", "sm_active", "fp32")


@dataclass(frozen=True)
class Stage:
    """How long it takes (ms), to which clock it pulls the GPU (MHz), and its counters."""

    shortest_ms: float
    longest_ms: float
    clock_mhz: float
    counters: dict[str, float]


STAGES = (
    Stage(30, 80, 1510, {"tensor": 0.94, "sm_occupancy": 0.145, "sm_active": 0.966, "dram": 0.18, "fp32": 0.0}),
    Stage(30, 90, 1690, {"tensor": 0.0, "sm_occupancy": 0.12, "sm_active": 0.97, "dram": 0.04, "fp32": 0.78}),
    Stage(15, 45, 1965, {"tensor": 0.0, "sm_occupancy": 0.81, "sm_active": 0.994, "dram": 0.88, "fp32": 0.0}),
    Stage(15, 45, 1965, {"tensor": 0.0, "sm_occupancy": 0.84, "sm_active": 0.997, "dram": 0.88, "fp32": 0.01}),
)


@dataclass
class MadeClocks:
    """What the readings are, and what is true.

    Args:
        lag_ms: time constant with which the clock follows; `react_ms`: it begins to up to so much later.
        jitter: relative deviation of the clock of each visit to a stage.
        structure: of the counters, so much more in the first half of a stage than in the mean, and less in the second.
    """

    seed: int
    lag_ms: float = 20.0
    react_ms: float = 0.0
    jitter: float = 0.03
    structure: float = 0.0
    seconds: float = 10.0
    noise: float = 0.003

    def __post_init__(self) -> None:
        random = np.random.default_rng(self.seed)
        count = round((1e3 * self.seconds + 900) / STEP_MS)
        self._stage = np.full(count, -1)
        target, rest = np.full(count, HIGHEST_MHZ), np.ones(count)
        spans: list[list[tuple[int, int]]] = [[] for _ in STAGES]
        now = 300.0
        while now < 1e3 * self.seconds + 300:
            for which, stage in enumerate(STAGES):
                first = round(now / STEP_MS)
                last = first + round(random.uniform(stage.shortest_ms, stage.longest_ms) / STEP_MS)
                late = round(random.uniform(0, self.react_ms) / STEP_MS)
                clock = stage.clock_mhz * (1 + self.jitter * random.standard_normal())
                self._stage[first:last] = which
                target[first + late : last] = min(clock, HIGHEST_MHZ)
                rest[first:last] = np.where(
                    np.arange(last - first) < (last - first) / 2, 1 + self.structure, 1 - self.structure
                )[: len(rest[first:last])]
                spans[which].append((round(first * STEP_MS * MS), round(min(last, count) * STEP_MS * MS)))
                now = last * STEP_MS + 0.1
            now += random.uniform(0, 50)
        self._clock, weight, at = np.empty(count), 1 - np.exp(-STEP_MS / self.lag_ms), HIGHEST_MHZ
        for moment in range(count):
            at += weight * (target[moment] - at)
            self._clock[moment] = at
        self.work = BusyShares(
            [(np.array([first for first, _ in each]), np.array([last for _, last in each])) for each in spans]
        )
        self.window = min(each[0][0] for each in spans), max(each[-1][1] for each in spans)
        self._read(random, rest)

    def _read(self, random: np.random.Generator, rest: Float64) -> None:
        count = len(self._stage)
        self.phase_ms = float(random.uniform(0, PERIOD_MS))
        polled = np.arange(random.uniform(0, PERIOD_MS), count * STEP_MS - 200, POLLED_MS)
        polled = polled + random.uniform(0, 1.2, len(polled))
        ends = self.phase_ms + np.floor((polled - self.phase_ms) / PERIOD_MS) * PERIOD_MS
        inside = (ends[:-1] > 0) & (ends[1:] > ends[:-1])
        start, end = ends[:-1][inside], ends[1:][inside]
        seen = polled + random.uniform(-0.3, 0.3, len(polled))
        moments = np.arange(count + 1) * STEP_MS
        values: dict[str, Float64] = {}
        self.truth: dict[str, list[float]] = {}
        for name in (*OF_CYCLES, "dram"):
            value = np.array([*(stage.counters[name] for stage in STAGES), 0.0])[self._stage]
            value = np.clip(value * (rest if name != "sm_active" else 1.0), 0, 1)
            weight = self._clock if name in OF_CYCLES else np.ones(count)
            done, whole = (np.r_[0.0, np.cumsum(each)] for each in (value * weight, weight))
            mean = (np.interp(end, moments, done) - np.interp(start, moments, done)) / (
                np.interp(end, moments, whole) - np.interp(start, moments, whole)
            )
            mean += self.noise * random.standard_normal(len(mean))
            values[f"gpm_{name}_percent"] = np.clip(mean, 0, 1)
            self.truth[name] = [
                float(np.average(value[mine], weights=weight[mine])) for mine in self._masks(len(STAGES))
            ]
        self.clock_mhz = [float(self._clock[mine].mean()) for mine in self._masks(len(STAGES))]
        clock = self._clock[np.clip(np.round((end - 30) / STEP_MS).astype(np.int64), 0, count - 1)]
        self.readings = GpmReadings(
            (MS * seen[:-1][inside]).astype(np.int64), (MS * seen[1:][inside]).astype(np.int64), values,
            15.0 * np.floor(clock / 15), {}, 600_000,
        )  # fmt: skip

    def _masks(self, count: int) -> list[np.ndarray[tuple[int], np.dtype[np.bool_]]]:
        return [self._stage == which for which in range(count)]


@dataclass(frozen=True)
class Attributed:
    """What the readings were found to say of each class of work."""

    estimates: dict[str, list[Estimate]]
    clocks: Clocks
    clock_mhz: list[float]
    placed: GpmReadings


def attributed(
    readings: GpmReadings, work: BusyShares, window: tuple[int, int], of_cycles: Sequence[str], of_time: Sequence[str]
) -> Attributed:
    """As `StageCounters` does it."""
    found = placed(readings, work)
    found = found.select((found.start_ns >= window[0]) & (found.end_ns <= window[1]))
    nothing = np.empty(0, dtype=np.int64)
    every = WorkInWindows(found.start_ns, found.end_ns, work, (nothing, nothing), found.edge_error_ns)
    values = {name: found.values[f"gpm_{name}_percent"] for name in (*of_cycles, *of_time)}
    clocks = every.find_clocks([values[name] for name in of_cycles], found.clock_ratio)
    estimates = {}
    for name, value in values.items():
        fits = every.fit(value, clocks=clocks if name in of_cycles else None)
        estimates[name] = [fits.of([which]) for which in range(len(work))]
    mhz = [every.clock_while([which], found.sm_clock_mhz, clocks) or 0.0 for which in range(len(work))]
    return Attributed(estimates, clocks, mhz, found)
