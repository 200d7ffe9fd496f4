"""What an H200's sensors really said for a minute, idle and under bursts of matrix products: they agree as they say."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pynvml
import pytest

from perfharness.analysis.energy.attribution import attribute
from perfharness.analysis.energy.kinds import BusyShares
from perfharness.analysis.energy.sensors import disagreement, shown_within
from perfharness.analysis.energy.steps import Readings, Steps, counter_steps, power_steps
from tests.support.nvml_record import read_record

RECORD = Path(__file__).parents[2] / "nvml" / "h200.json.gz"
S = 1_000_000_000
WINDOWS = [(2, 9), (2, 13), (12, 58), (14, 45), (20, 30), (30, 45), (52, 58)]
"""Seconds: idle, ends in the middle of a burst, all of it, idle again."""


@cache
def sensors() -> tuple[Steps, Steps, Steps]:
    """Counter, the driver's buffer of power samples, instantaneous power."""
    record = read_record(RECORD)
    counter = next(call for call in record.calls if call.function == "nvmlDeviceGetTotalEnergyConsumption")
    ring = next(samples for samples in record.samples if samples.kind == pynvml.NVML_TOTAL_POWER_SAMPLES)
    field = next(one for one in record.fields if one.field == pynvml.NVML_FI_DEV_POWER_INSTANT and one.scope == 0)

    def readings(times_ns: list[int], values: list[float], period_ns: float) -> Readings:
        return Readings(
            np.asarray(times_ns, dtype=np.int64), np.asarray(values, dtype=np.float64),
            np.ones(len(times_ns), dtype=np.bool_), period_ns,
        )  # fmt: skip

    found = (
        counter_steps(readings(counter.at_ns, [answer.value for answer in counter.answers], 1e8)),
        power_steps(readings([us * 1000 for us in ring.at_us], [float(one) for one in ring.values], 2e7), None, 1e6),
        power_steps(readings(field.at_ns, [answer.value for answer in field.answers], 1e8)),
    )
    steps = tuple(one for one in found if isinstance(one, Steps))
    assert len(steps) == 3
    return steps[0], steps[1], steps[2]


@pytest.mark.parametrize("window", WINDOWS)
def test_the_counter_and_integrated_power_agree_within_their_errors(window: tuple[int, int]) -> None:
    bounds = (window[0] * S, window[1] * S)
    counter, samples, instant = (shown_within(steps, *bounds) for steps in sensors())
    assert disagreement(counter, samples) == 0
    assert disagreement(counter, instant) == 0
    assert counter.joules == pytest.approx(samples.joules, rel=0.003)
    assert counter.error_j is not None
    assert counter.joules is not None
    assert counter.error_j < 0.05 * counter.joules


def test_an_idle_h200_is_known_to_a_percent() -> None:
    counter, samples, _ = (shown_within(steps, 2 * S, 9 * S) for steps in sensors())
    assert counter.mean_power_w == pytest.approx(86, abs=0.5)
    assert samples.error_j is not None
    assert samples.joules is not None
    assert samples.error_j < 0.01 * samples.joules


def test_this_counter_is_the_sum_of_the_samples_and_looks_all_the_time() -> None:
    """Steps of the counter against what the 20 ms samples say of the last 100 ms, and of the last 25 ms."""
    counter, samples, _ = sensors()
    total = np.r_[0.0, np.cumsum(samples.energy_j)]
    edges = counter.edge_ns[1:]
    inside = (edges > samples.edge_ns[0] + S) & (edges < samples.edge_ns[-1] - S)

    def misfit(looked_ns: float) -> float:
        best = []
        for lag in range(-100, 101, 10):
            end = edges[inside] - lag * 1_000_000
            said = np.interp(end, samples.edge_ns, total) - np.interp(end - looked_ns, samples.edge_ns, total)
            best.append(float(np.sqrt(np.mean((said / looked_ns * S - counter.power_w[inside]) ** 2))))
        return min(best)

    assert misfit(1e8) < 0.7 * misfit(2.5e7)


RARELY_BUSY = Path(__file__).parents[2] / "nvml" / "h200_rarely_busy.json"
MS = 1_000_000
BETWEEN_W = 124.6
"""Samples above this hold some work of the pipeline; between kernels it is 122 to 124 W (the times of the real kernels
are not in this record)."""


def test_an_h200_awake_without_work_is_not_the_h200_asleep_before_the_run() -> None:
    """Power between kernels as it is found, against samples after CUDA was opened and before the first batch."""
    record = json.loads(RARELY_BUSY.read_text("utf-8"))
    at, power = np.asarray(record["at_us"], dtype=np.int64) * 1000, np.asarray(record["milliwatt"]) / 1e3
    awake_at = int(np.flatnonzero((power > 120) & (at > 7 * S))[0])
    asleep_w = float(power[(at > 4 * S) & (at < at[awake_at] - 2 * S // 10)].mean())
    opened = (at > at[awake_at] + 100 * MS) & (at < at[awake_at] + 360 * MS)
    opened_w = float(power[opened].mean())
    assert asleep_w == pytest.approx(80.8, abs=0.2)
    window = (int(at[awake_at]) + S, int(at[awake_at]) + 10 * S)
    working = np.flatnonzero(power > BETWEEN_W)
    middle = at[working] - np.random.default_rng(1).integers(MS, 19 * MS, len(working))
    busy = BusyShares([(middle - MS, middle), (middle, middle + MS // 3)])
    steps = power_steps(Readings(at, power * 1e3, np.ones(len(at), dtype=np.bool_), 2e7), None, 1e6)
    found = attribute(steps, ["preprocess", "inference"], busy, window, idle_w=asleep_w, limit_w=910.0)
    assert found.awake.power_mean_w == pytest.approx(opened_w, abs=1.0)
    waiting = found.stages[-1]
    assert waiting.energy_j_low is not None
    assert waiting.energy_j_high is not None
    assert waiting.energy_j_low <= opened_w * waiting.busy_s <= waiting.energy_j_high
    assert waiting.energy_j == pytest.approx(opened_w * waiting.busy_s, rel=0.03)
    for one in found.stages[:-1]:
        assert one.energy_j is None or one.energy_j < 0.99 * 910 * one.busy_s
