"""A case of the benchmark on a real GPU: every pass has its figures, and a memory limit ends it.

`python3 -m pytest tests/gpu/test_bench_gpu.py -m gpu -s -q`; needs PyTorch with CUDA and NVML. About three minutes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfharness.backends.arrays import read_arrays
from perfharness.bench import load_suite, run_suite
from perfharness.bench.spec import ITERATIONS_NAME, CaseSpec, LatencySettings, TelemetrySettings
from perfharness.errors import ResultError
from perfharness.model.bench import BenchCase, CaseResult
from perfharness.telemetry.nvml import open_nvml
from tests.integration.case_process import run_case

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]
pytest.importorskip("torch")

MODEL = "samples.mobilenet_v3.factory:create"
QUICK = LatencySettings(warmup=50, iterations=300)


def gpu_uuid() -> str:
    with open_nvml() as nvml:
        if not nvml.gpus:
            pytest.skip("NVML knows no GPU")
        return nvml.gpus[0].uuid


def run(folder: Path, batch: int, mode: str = "eager", **fields: Any) -> CaseResult:
    """One case of MobileNetV3 in PyTorch, in a process of its own that sees one GPU."""
    uuid = gpu_uuid()
    case = BenchCase(
        case_id=folder.name, model="mobilenet_v3", backend="torch", mode=mode, precision="fp32", device="cuda",
        batch_size=batch,
    )  # fmt: skip
    told: dict[str, Any] = {
        "case": case, "model": MODEL, "latency": QUICK,
        "telemetry": TelemetrySettings(seconds=4, gpu_uuids=(uuid,)), **fields,
    }  # fmt: skip
    return run_case(folder, CaseSpec.model_validate(told), timeout_s=600, CUDA_VISIBLE_DEVICES=uuid)[0]


def test_every_pass_has_its_figures(tmp_path: Path) -> None:
    found = run(tmp_path / "all", 32, passes=("latency", "telemetry", "outputs"))
    assert (found.status, found.reason) == ("ok", None)
    print(found.model_dump_json(indent=1, exclude={"inputs", "outputs"}))
    assert found.latency is not None
    assert found.execute_latency is not None
    # The device's part of a round is less than the round, copies apart; a launch-bound model leaves gaps in both.
    assert 0 < found.execute_latency.median.value < found.latency.median.value * 1.05
    assert found.energy_per_item_j is not None, found.reasons
    assert found.power_mean_w is not None
    assert found.items_per_second is not None
    # Power over items a second is energy an item, up to the second pass's being another one.
    assert found.energy_per_item_j.value == pytest.approx(found.power_mean_w / found.items_per_second.value, rel=0.15)
    assert found.utilization_percent is not None
    assert 0 < found.utilization_percent <= 100
    assert found.clock_drop_percent is not None
    memory = found.memory
    assert memory.device_allocator_bytes
    assert memory.device_process_bytes, "of this process, or else of the whole GPU"
    assert memory.device_process_bytes > memory.device_allocator_bytes * 0.9
    assert len(read_arrays(tmp_path / "all" / ITERATIONS_NAME, ResultError)["device_ms"]) == 300


@pytest.mark.parametrize(("limits", "end"), [({"measure.memory_limit": "2GB"}, "memory-limit"), ({}, "latency")])
def test_a_search_ends_at_its_limit(tmp_path: Path, limits: dict[str, Any], end: str) -> None:
    """The memory limit, or twice the latency of a batch of 32."""
    options = {"models": [MODEL], "backends": ["torch/eager"], "device": "cuda", "latency.iterations": 50}
    if not limits:
        base = run(tmp_path / "base", 32)
        assert base.latency is not None
        limits = {"constraints.max_latency_ms": 2 * base.latency.median.value, "constraints.latency_percentile": "p50"}
    suite = load_suite(None, {**options, **limits, "batch_sizes": [16, 2048]})
    found = run_suite(suite, tmp_path / "out", find_batch=True, history=False)
    print(found.searches[0].model_dump_json(indent=1))
    assert (found.searches[0].ended_by, (found.searches[0].batch_size or 0) >= 32) == (end, True)
    limit = suite.measure.memory_limit
    measured = [case.memory.device_peak_bytes or 0 for case in found.cases if case.status == "ok"]
    assert limit is None or max(measured) <= limit
