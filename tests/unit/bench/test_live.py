"""Models of this process: what is measured of each kind, and what is said where it cannot be."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import perfharness
from perfharness.errors import BackendError, OutOfMemoryError, UsageError
from tests.contract.tiny_models import onnx_model

QUICK: dict[str, Any] = {"num_iterations": 20, "warmup": 2, "duration_sec": 0.05}
torch = pytest.importorskip("torch")


def network() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 3), torch.nn.BatchNorm1d(3))


def batches(count: int = 2, size: int = 4) -> list[tuple[Any, Any]]:
    torch.manual_seed(1)
    return [(torch.rand(size, 3, 4), torch.arange(size) % 3) for _ in range(count)]


def sleeping(values: Any) -> Any:
    if len(values) > 8:
        raise MemoryError("out of memory")
    return values


def test_a_suite_of_two_models(tmp_path: Path) -> None:
    model = network().train()
    weight = model[2].running_mean.clone()
    half = copy.deepcopy(model).bfloat16().eval()
    suite = perfharness.BenchmarkSuite({"fp32": model, "bf16": lambda x: half(x.bfloat16())})
    found = suite.run_all_benchmarks(batches(), batch_sizes=(1,), **QUICK)
    assert [(one.case.mode, one.case.batch_size, one.status) for one in found.cases] == [
        ("fp32", 1, "ok"), ("fp32", 4, "ok"), ("bf16", 1, "ok"), ("bf16", 4, "ok")
    ]  # fmt: skip
    first, last = (found.cases[place].model_dump() for place in (1, 3))
    assert first["memory"]["parameter_bytes"] == 4 * (12 * 3 + 3 + 4 * 3) + 8
    assert last["memory"]["parameter_bytes"] is None
    assert first["latency"]["iterations"] >= 20
    assert first["items_per_second"]["value"] == pytest.approx(4e3 / first["latency"]["mean"]["value"], rel=1e-6)
    assert (first["case"]["precision"], "precision" in first["reasons"]) == ("fp32", False)
    assert (last["case"]["precision"], bool(last["reasons"]["precision"])) == (None, True)
    assert (first["accuracy"]["against"], last["accuracy"]["against"]) == ("the labels", "fp32")
    assert (first["accuracy"]["samples"], "cosine" in first["accuracy"]["metrics"]) == (8, False)
    assert 0.99 < last["accuracy"]["metrics"]["cosine"] < 1
    assert {"top1", "f1_macro", "baseline_top1"} <= set(last["accuracy"]["metrics"])
    assert model.training
    assert torch.equal(model[2].running_mean, weight), "measured in evaluation mode"
    assert "bf16" in suite.generate_comparison_report(tmp_path / "r.md").read_text()


def test_what_a_suite_cannot_do() -> None:
    with pytest.raises(UsageError):
        perfharness.BenchmarkSuite({})
    suite = perfharness.BenchmarkSuite({"one": sleeping})
    for call in (suite.generate_comparison_report, lambda: suite.run_all_benchmarks([])):
        with pytest.raises(UsageError):
            call()
    with pytest.raises(UsageError):
        perfharness.LatencyBenchmark("a path").benchmark(np.zeros((1, 2)))


def test_an_onnx_session(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    file = tmp_path / "m.onnx"
    file.write_bytes(onnx_model("fp32"))
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    shapes = {one.name: [size if isinstance(size, int) else 2 for size in one.shape] for one in session.get_inputs()}
    named = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    placed = tuple(named.values())
    for inputs in (named, placed):
        assert perfharness.LatencyBenchmark(session).benchmark(inputs, 5, 1).iterations == 5
    measured, *_ = perfharness.BenchmarkSuite({"onnx": session}).run_all_benchmarks([named], **QUICK).cases
    assert measured.memory.model_file_bytes == file.stat().st_size
    stable = perfharness.AccuracyBenchmark().analyze_numerical_stability(session, [named])
    outputs = [one.name for one in session.get_outputs()]
    assert {stable.metrics[f"{name}.{figure}"] for name in outputs for figure in ("max_absolute", "nan_count")} == {0.0}
    with pytest.raises(BackendError):
        perfharness.LatencyBenchmark(session).profile_layers(named)


def test_layers_are_the_modules() -> None:
    found = perfharness.LatencyBenchmark(network()).profile_layers(torch.rand(2, 3, 4), rounds=2)
    assert [one.name for one in found] == ["0", "1", "2"]
    assert all(one.milliseconds > 0 for one in found)


def test_batch_sizes_end_where_memory_does() -> None:
    throughput = perfharness.ThroughputBenchmark(np.ones((2, 3)))
    found = throughput.benchmark_batch_sizes(sleeping, (1, 8, 16, 32), 0.01)
    assert [(one.case.batch_size, one.status) for one in found] == [(1, "ok"), (8, "ok"), (16, "out-of-memory")]
    best = throughput.find_optimal_batch_size(sleeping, 1e6, largest=64, duration_sec=0.01)
    assert (best.batch_size, best.ended_by, best.ended_at_batch) == (8, "out-of-memory", 9)


def test_a_baseline_with_another_output_and_nan() -> None:
    accuracy = perfharness.AccuracyBenchmark()
    with pytest.raises(UsageError, match="x"):
        accuracy.compare_outputs(lambda x: {"y": x}, lambda x: {"x": x}, [np.ones((2, 3))])
    found = accuracy.compare_outputs(lambda x: x, lambda x: np.where(x > 1, np.nan, x), [np.array([[1.0, 2.0]])])
    assert (found.metrics["mse"], found.metrics["nan_count"]) == (None, 1.0)
    assert found.reasons["mse"]


def test_what_cannot_be_launched_has_a_reason(tmp_path: Path) -> None:
    found = perfharness.GPUProfiler().profile_with_nsight(lambda x: x, np.ones((1, 2)), tmp_path / "out")
    assert (found.folder, bool(found.reason), list(tmp_path.iterdir())) == (None, True, [])


def test_utilisation_is_null_without_a_gpu() -> None:
    found = perfharness.GPUProfiler().analyze_gpu_utilization(sleeping, np.ones((4, 2)), 0.05)
    assert found.telemetry_items_per_second is not None
    assert (found.utilization_percent, bool(found.reasons["utilization_percent"])) == (None, True)


def test_a_failure_is_a_status_in_a_suite() -> None:
    def refuses(values: Any) -> Any:
        raise OutOfMemoryError("no") if len(values) > 1 else ValueError("no single item")

    found = perfharness.BenchmarkSuite({"it": refuses}).run_all_benchmarks([np.ones((2, 2))], **QUICK)
    assert [one.status for one in found.cases] == ["failed", "out-of-memory"]
    assert found.recommendations[0].best is None


def test_a_load_test_of_a_module() -> None:
    model = network().train()
    stress = perfharness.StressTest(torch.rand(2, 3, 4))
    found = stress.sustained_load_test(model, duration_minutes=0.01, concurrency=2)
    (phase,) = found.phases
    assert (found.status, phase.loop, model.training) == ("ok", "closed", True)
    assert phase.completed > 10
    assert phase.latency.p50.value is not None
    found = stress.variable_load_test(model, (50.0, 100.0), phase_sec=0.5, max_latency_ms=1000)
    assert [one.loop for one in found.phases] == ["open", "open"]
    assert (found.objective is not None, found.errors) == (True, [])
