"""How late counters are: on an H200 beside nsys's own counters, and on GPUs whose every moment is known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfharness.analysis.counters.delay import Rhythm, find_delay, find_rhythm
from perfharness.analysis.counters.readings import GpmReadings
from perfharness.analysis.energy.kinds import BusyShares
from perfharness.model.result import Float64
from perfharness.model.trace import Bool
from tests.support.made_batches import stage_of
from tests.unit.made_counters import ELEMENTWISE, GEMM, Made, MadeUpGpu

US, MS = 1_000, 1_000_000
RECORDED = json.loads((Path(__file__).parents[2] / "data" / "gpm_beside_nsys_h200.json").read_text(encoding="utf-8"))
"""Five launches under nsys 2025.3 on an H200 (driver 580): what ran, GPM's readings, and nsys's SM activity."""


def readings_of(one: dict[str, Any]) -> GpmReadings:
    end = np.array(one["window_end_us"]) * US
    values = {f"gpm_{name}_percent": np.array(column) / 100 for name, column in one["gpm_percent"].items()}
    return GpmReadings(
        end - np.array(one["window_us"]) * US, end, values, np.full(len(end), 1980.0), {}, one["edge_error_us"] * US
    )


def delay_by_nsys_ms(one: dict[str, Any]) -> int:
    """At which GPM's SM activity is most like nsys's."""
    readings, begin = readings_of(one), one["nsys_start_us"] * US
    active = np.array(one["nsys_sm_active_percent_per_ms"]) / 100
    edges = begin + np.arange(len(active) + 1) * MS
    total = np.r_[0.0, np.cumsum(active)] * MS

    def off(delay_ms: int) -> float:
        start, end = readings.start_ns - delay_ms * MS, readings.end_ns - delay_ms * MS
        inside = (start >= edges[0]) & (end <= edges[-1])
        mean = (np.interp(end, edges, total) - np.interp(start, edges, total)) / (end - start)
        return float(((mean - readings.values["gpm_sm_active_percent"])[inside] ** 2).mean())

    return min(range(121), key=off)


@pytest.mark.parametrize("one", RECORDED, ids=[one["program"] for one in RECORDED])
def test_the_work_says_what_nsys_says(one: dict[str, Any]) -> None:
    spans = np.array(one["kernels_us"]) * US
    found = find_delay(readings_of(one), BusyShares([(spans[:, 0], spans[:, 1])]))
    by_nsys_ms = delay_by_nsys_ms(one)
    assert 10 <= by_nsys_ms <= 90
    assert abs(found.delay_ns / MS - by_nsys_ms) <= found.error_ns / MS + 1
    assert found.error_ns < 60 * MS


def mean_by_nsys(one: dict[str, Any], readings: GpmReadings) -> tuple[Float64, Bool]:
    """nsys's SM activity in each window, and which windows it was recorded in."""
    active = np.array(one["nsys_sm_active_percent_per_ms"]) / 100
    edges = one["nsys_start_us"] * US + np.arange(len(active) + 1) * MS
    total = np.r_[0.0, np.cumsum(active)] * MS
    start, end = readings.start_ns, readings.end_ns
    mean = (np.interp(end, edges, total) - np.interp(start, edges, total)) / (end - start)
    return mean, (start >= edges[0]) & (end <= edges[-1])


@pytest.mark.parametrize(("program", "within"), [("fp32_product", 0.004), ("layout_changes", 0.002)])
def test_an_h200_counts_in_a_rhythm_of_its_own(program: str, within: float) -> None:
    """At its right place each window has what nsys counted; moved by one delay they are off by 1.1 and 1.4 points."""
    [one] = [each for each in RECORDED if each["program"] == program]
    readings, spans = readings_of(one), np.array(one["kernels_us"]) * US
    work = BusyShares([(spans[:, 0], spans[:, 1])])
    rhythm = find_rhythm(readings, work)
    assert rhythm is not None
    assert rhythm.period_ns == 100 * MS
    start, end, sure = rhythm.windows(readings)
    there = replace(readings, start_ns=start, end_ns=end).select(sure)
    by_nsys, inside = mean_by_nsys(one, there)
    off = (there.values["gpm_sm_active_percent"] - by_nsys)[inside]
    assert inside.sum() >= 10
    assert float(np.sqrt((off**2).mean())) <= within


def test_the_windows_between_two_refreshes_by_hand() -> None:
    """A rhythm of 100 ms with ends at 30: a refresh at 129 hands out what ended at 30, one at 131 what ended at 130."""
    start, end = np.array([129, 229, 229, 200, 131]) * MS, np.array([229, 331, 428, 250, 181]) * MS
    readings = GpmReadings(start, end, {}, np.full(5, 1980.0), {}, 0)
    first, last, sure = Rhythm(100 * MS, 30 * MS, 0).windows(readings)
    assert sure.tolist() == [True, False, True, False, False]
    assert (first[sure] // MS).tolist() == [30, 130]
    assert (last[sure] // MS).tolist() == [130, 330]


@pytest.mark.parametrize("delay_ms", [0.0, 14.0, 51.0, 86.0])
def test_late_readings_are_put_where_they_belong(tmp_path: Path, delay_ms: float) -> None:
    gpu = MadeUpGpu(refresh_ms=100.0, delay_ms=delay_ms, noise=0.004)
    made = Made(tmp_path, gpu).batches(65, {"product": (60.0, [GEMM]), "add": (30.0, [ELEMENTWISE])}, gap_ms=26.0)
    found = made.diagnosed(warmup=1)
    for stage, truth in {"product": GEMM, "add": ELEMENTWISE}.items():
        [counters] = stage_of(found, stage).counters
        for name, value in truth.items():
            assert getattr(counters, name) == pytest.approx(value, abs=counters.errors[name] + 0.005), (stage, name)
            assert counters.errors[name] < 0.1


def test_work_that_never_changes_leaves_the_delay_open() -> None:
    """Any delay fits, and none matters."""
    end = np.arange(100, 3000, 100, dtype=np.int64) * MS
    steady = GpmReadings(
        end - 100 * MS, end, {"gpm_sm_active_percent": np.full(len(end), 0.9)}, np.full(len(end), 1980.0), {}, 0
    )
    work = BusyShares([(np.array([-(10**10)]), np.array([10**10]))])
    found = find_delay(steady, work)
    assert found.delay_ns - found.error_ns <= 0
    assert found.delay_ns + found.error_ns >= 100 * MS
    nothing = find_delay(steady.select(np.zeros(len(end), dtype=np.bool_)), work)
    assert (nothing.delay_ns, nothing.error_ns) == (0, 0)
