"""A case of ONNX Runtime on the CPU in a real process: its figures hang together, and its outputs are right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perfharness.bench.process import read_arrays
from perfharness.bench.spec import OUTPUTS_NAME, CaseSpec, LatencySettings, TelemetrySettings
from perfharness.model.bench import BenchCase
from tests.contract import tiny_models
from tests.integration.case_process import run_case
from tests.unit.bench_results import known


@pytest.mark.slow
def test_a_case_of_onnxruntime(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    features = np.linspace(-1, 1, 3 * 6, dtype=np.float32).reshape(3, 6)
    shift = np.asarray([[0.5], [0.0], [-0.5]], np.float32)
    np.savez(tmp_path / "inputs.npz", features=features, shift=shift)
    spec = CaseSpec(
        case=BenchCase(
            case_id="tiny", model="tiny", backend="onnxruntime", mode="", precision="fp32", device="cpu", batch_size=3
        ),
        model="tests.contract.tiny_models:create",
        threads=1,
        input_file=tmp_path / "inputs.npz",
        passes=("latency", "telemetry", "outputs"),
        latency=LatencySettings(warmup=20, iterations=500, max_iterations=5000),
        telemetry=TelemetrySettings(seconds=0.3),
    )
    found, _ = run_case(tmp_path, spec)
    assert (found.status, found.reason) == ("ok", None)
    assert "onnxruntime" in found.versions
    assert found.settings["provider"] == "CPUExecutionProvider"
    assert [one.name for one in found.inputs] == ["features", "shift"]
    wall_ms = read_arrays(tmp_path)["wall_ns"] / 1e6
    latency = known(found.latency)
    assert (latency.iterations, latency.warmup_iterations) == (500, 20)
    assert latency.mean.value == pytest.approx(wall_ms.mean())
    assert known(latency.p99).value == pytest.approx(np.percentile(wall_ms, 99))
    if latency.median.low is None or latency.median.high is None:  # a busy machine's iterations are autocorrelated
        assert latency.median.reason
    else:
        assert latency.min <= latency.median.low <= latency.median.value <= latency.median.high <= latency.max
    assert None not in (found.startup.first_inference_ms, found.startup.import_ms)
    expected = tiny_models.reference(features, shift)
    with np.load(tmp_path / OUTPUTS_NAME) as outputs:
        for name, array in expected.items():
            np.testing.assert_allclose(outputs[name], array, atol=1e-5)
