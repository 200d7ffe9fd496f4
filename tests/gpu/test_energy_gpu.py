"""Stages of known different load on a real GPU: numbers in the known order, and bounds that hold the total."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from perfharness.cli.main import run

pytestmark = pytest.mark.gpu

PIPELINE = Path(__file__).with_name("energy_pipeline.py")


@pytest.mark.timeout(200)
@pytest.mark.parametrize("tracer", ["embedded", "nsys"])
def test_energy_of_long_stages(tmp_path: Path, tracer: str) -> None:
    assert run(["launch", "--tracer", tracer, "-o", str(tmp_path / "out"), str(PIPELINE)]) == 0
    energy = json.loads((tmp_path / "out" / "benchmark_mean.json").read_text("utf-8"))["energy"]
    [gpu] = energy["gpus"]
    stages = {stage["stage"].rpartition("/")[2]: stage for stage in gpu["stages"]}
    print(json.dumps(energy, indent=1))
    assert gpu["source"] == "energy_total_mj"
    assert energy["error_j"] < 0.05 * energy["energy_j"]
    bounds = [math.fsum(stage[key] for stage in gpu["stages"]) for key in ("energy_j_low", "energy_j_high")]
    assert bounds[0] <= energy["energy_j"] + energy["error_j"]
    assert energy["energy_j"] - energy["error_j"] <= bounds[1]
    assert stages["matmul"]["power_mean_w"] > stages["elementwise"]["power_mean_w"] > gpu["idle"]["power_mean_w"]
    assert stages["sleep"]["energy_j"] == 0
    numbers = math.fsum(stages[name]["energy_j"] for name in ("matmul", "elementwise"))
    assert numbers < energy["energy_j"]
