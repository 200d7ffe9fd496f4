"""`compare-engines` on a real GPU: one network in PyTorch, eager and as a CUDA graph, with the sampler beside it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from perfharness.cli.main import run
from perfharness.model.telemetry import TELEMETRY_NAME
from perfharness.telemetry.store import read_sample_log

pytestmark = pytest.mark.gpu
pytest.importorskip("torch")
pytest.importorskip("vl_convert", reason="draws the charts")

NETS = f"{Path(__file__).with_name('depth_nets.py')}:create"


def test_two_modes_of_one_network(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "image.npy", np.random.default_rng(0).normal(size=(3, 518, 518)).astype(np.float32))
    np.save(tmp_path / "truth.npy", np.random.default_rng(1).uniform(1, 5, size=(518, 518)).astype(np.float32))
    code = run(
        ["compare-engines", "--engines", NETS, NETS, "--backends", "torch/eager", "torch/cudagraph", "--image",
         str(tmp_path / "image.npy"), "--gt", str(tmp_path / "truth.npy"), "--iterations", "400", "--gpu-id", "0",
         "--gpu-sample-interval", "0.1", "-o", str(tmp_path / "out")]
    )  # fmt: skip
    shown = "".join(capsys.readouterr())
    assert code == 0, shown
    found = json.loads((tmp_path / "out" / "compare_engines.json").read_text())
    assert found["gpu_uuid"].startswith("GPU-")
    for engine in found["engines"]:
        assert engine["device"] == "cuda"
        assert engine["latency"]["iterations"] == 400
        assert engine["device_latency"]["mean"]["value"] <= engine["latency"]["mean"]["value"]
        assert engine["gpu"]["utilization_percent"] > 20
        assert engine["gpu"]["power_mean_w"] > 0
        assert engine["image_accuracy"]["metrics"]["abs_rel"] > 0
        log = read_sample_log(tmp_path / "out" / engine["name"] / TELEMETRY_NAME)
        clock = log.get(found["gpu_uuid"], "sm_clock_mhz")
        assert clock is not None
        assert clock.is_read.sum() >= 5
    (pair,) = found["pairs"]
    assert pair["max"] < 0.01
    for name in ("depth_comparison.png", "speed_benchmark.png", "gpu_utilization.png"):
        assert (tmp_path / "out" / name).stat().st_size > 10_000
