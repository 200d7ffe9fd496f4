"""Shares of cycles where the clock follows the load: made-up GPUs, and an H200 at its power limit beside arithmetic."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from perfharness.analysis.counters.clocks import find_clocks, of_cycles
from perfharness.analysis.counters.readings import GpmReadings
from perfharness.analysis.diagnosis.gpu.roofline import FLOPS_PER_CLOCK
from perfharness.analysis.energy.kinds import BusyShares
from tests.unit.made_clocks import OF_CYCLES, MadeClocks, attributed

US = 1_000
RECORDED = json.loads((Path(__file__).parents[2] / "data" / "gpm_at_power_limit_h200.json").read_text(encoding="utf-8"))
"""Eight seconds of tests/gpu/counters_pipeline.py on an H200 at its power limit (driver 580): what ran, GPM's readings,
and the operations or bytes per second that its counts and the kernels' times come to."""


@pytest.mark.parametrize(
    "made",
    [
        {"lag_ms": 5.0},
        {"lag_ms": 50.0},
        {"lag_ms": 20.0, "structure": 0.1},
    ],
    ids=str,
)
def test_intervals_hold_the_truth_whatever_the_lag_of_the_clock(made: dict[str, float]) -> None:
    """60 values each; a twentieth may lie outside, none far."""
    outside, off, count = 0, [], 0
    for seed in range(3):
        gpu = MadeClocks(seed, **made)
        found = attributed(gpu.readings, gpu.work, gpu.window, OF_CYCLES, ["dram"])
        assert found.placed.edge_error_ns <= 1_000_000
        for name, truths in gpu.truth.items():
            for truth, one in zip(truths, found.estimates[name], strict=True):
                count += 1
                assert one.error <= max(0.05, 0.1 * one.value), "useful"
                far = max(one.low - truth, truth - one.high)
                outside += far > 0.001
                off.append(one.value - truth)
                assert far <= 0.01, name
        for mhz, found_mhz in zip(gpu.clock_mhz, found.clock_mhz, strict=True):
            assert found_mhz == pytest.approx(mhz, rel=0.07)
    assert outside <= 0.05 * count
    assert np.sqrt(np.mean(np.square(off))) <= 0.012
    assert abs(np.mean(off)) <= 0.004


def test_time_alone_would_be_wrong() -> None:
    """That the test above can fail: with one clock for all, tensor cores have seven points too few."""
    gpu = MadeClocks(0, lag_ms=5.0)
    steady = GpmReadings(**{**vars(gpu.readings), "sm_clock_mhz": np.full(len(gpu.readings), 1965.0)})
    found = attributed(steady, gpu.work, gpu.window, OF_CYCLES, ["dram"])
    assert found.clocks.is_steady
    assert found.estimates["tensor"][0].value < gpu.truth["tensor"][0] - 0.04
    assert found.estimates["dram"][2].value == pytest.approx(gpu.truth["dram"][2], abs=0.01)


def test_an_h200_at_its_power_limit_and_arithmetic_agree_within_5_percent() -> None:
    end = np.array(RECORDED["window_end_us"]) * US
    readings = GpmReadings(
        end - np.array(RECORDED["window_us"]) * US,
        end,
        {f"gpm_{name}_percent": np.array(column) / 100 for name, column in RECORDED["gpm_percent"].items()},
        np.array(RECORDED["sm_clock_mhz"], dtype=np.float64),
        {},
        RECORDED["edge_error_us"] * US,
    )
    spans = [np.array(spans) * US for spans in RECORDED["kernels_us"].values()]
    work = BusyShares([(span[:, 0], span[:, 1]) for span in spans])
    first, last = RECORDED["measured_us"]
    cycles = [name for name in RECORDED["gpm_percent"] if name != "dram"]
    found = attributed(readings, work, (first * US, last * US), cycles, ["dram"])
    stages = list(RECORDED["kernels_us"])
    assert found.clock_mhz[stages.index("bf16_product")] == pytest.approx(1560, abs=60)
    assert max(found.clock_mhz) <= 1980
    assert found.placed.edge_error_ns <= 1_000_000
    for stage, name in {
        "bf16_product": "tensor",
        "fp32_product": "fp32",
        "copy": "dram",
        "elementwise": "dram",
    }.items():
        which = stages.index(stage)
        peak = RECORDED["memory_bytes_per_s"]
        if name != "dram":
            peak = RECORDED["sm_count"] * 1e6 * found.clock_mhz[which] * FLOPS_PER_CLOCK[9, 0][name]
        one = found.estimates[name][which]
        assert one.value == pytest.approx(RECORDED["per_second"][stage] / peak, rel=0.05), stage
        assert one.error <= max(0.05, 0.1 * one.value), stage
    for other in ("fp32_product", "copy", "elementwise"):
        assert found.estimates["tensor"][stages.index(other)].value <= 0.02


def test_clocks_by_hand() -> None:
    """Two classes at 0.8 and 0.9 times the clock of the rest; counters without noise."""
    random = np.random.default_rng(1)
    share = random.dirichlet([1, 1, 1], 80).T[:2]
    truth = np.array([0.8, 0.9, 1.0])
    cycles = of_cycles(share, truth, [0, 1])
    assert cycles[:, 0] == pytest.approx(
        share[:, 0] * truth[:2] / (share[:, 0] @ truth[:2] + 1 - share[:, 0].sum()), rel=1e-12
    )
    values = [0.9 * cycles[0], 0.6 * cycles[1], 1.0 * cycles[0] + 0.95 * cycles[1]]
    found = find_clocks(share, values, 1.3)
    assert found.ratio[:2] / found.ratio[2] == pytest.approx(truth[:2], rel=0.01)
    assert found.error(np.array([1.0, 0.0, -1.0])) < 0.02
    assert find_clocks(share, values, 1.0).is_steady
