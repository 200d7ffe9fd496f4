"""MLPerf LoadGen on a real GPU: every scenario is valid by its own verdict, and its batches have GPU time.

`python3 -m pytest tests/gpu/test_mlperf_gpu.py -m gpu -s -q`; needs PyTorch with CUDA and mlcommons-loadgen. About four
minutes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import perfharness as api

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]
pytest.importorskip("torch")
pytest.importorskip("mlperf_loadgen")

MODEL = "samples.mobilenet_v3.factory:create"
SCENARIOS: dict[str, dict[str, Any]] = {
    "SingleStream": {},
    "MultiStream": {"min_queries": 700},
    "Server": {
        "target_qps": 100.0, "target_latency_ms": 1000.0, "min_queries": 600, "max_batch": 4,
    },
    "Offline": {"max_batch": 64},
}  # fmt: skip


@pytest.mark.parametrize("mode", ["eager", "cudagraph"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_each_scenario_is_valid(tmp_path: Path, scenario: str, mode: str) -> None:
    settings: dict[str, Any] = {"scenario": scenario, **SCENARIOS[scenario]}
    done = api.run_mlperf(
        MODEL, backend=f"torch/{mode}", min_duration_s=5, seed=3, output_dir=tmp_path / "out",
        history=False, **settings,
    )  # fmt: skip
    result = done.result
    print(scenario, mode, result.metric, result.percentiles, [one.message for one in done.findings])
    assert (result.validity, result.status) == ("VALID", "ok")
    assert result.sut is not None
    assert (result.sut.device, result.sut.errors) == ("cuda", {})
    batches = done.launch.open().batches().to_pydict()
    assert sum(batches["items"]) == result.sut.samples
    busy_ns = np.array(batches["gpu_busy_ns"], dtype=np.float64)
    assert (busy_ns > 0).mean() > 0.99
    if scenario == "SingleStream":
        p50_ms = next(one.latency_ms for one in result.percentiles if one.percent == 50)
        assert p50_ms == pytest.approx(np.median(batches["duration_ns"]) / 1e6, abs=0.2)
        assert p50_ms is not None
        assert np.median(busy_ns) / 1e6 < p50_ms
