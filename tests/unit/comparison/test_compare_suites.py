"""Suites of `bench` as sides of a comparison: a case is a stage, a suite is a launch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfharness.errors import UsageError
from perfharness.model.bench import AccuracyRecord, CaseResult, MachineRecord, TensorSpec
from perfharness.model.bench_suite import BenchSuiteResult
from perfharness.runs.comparison.compare import compare_sides, read_side
from perfharness.runs.comparison.limits import parse_limit
from perfharness.runs.comparison.matched_sides import CompareOptions
from tests.unit.bench_results import made_up, suite_of

NOISE = (1.0, 1.002, 0.998, 1.001)


def suites(folder: Path, turn: int, slower: float = 1.0, gpu: str = "NVIDIA H200", **more: Any) -> str:
    paths = []
    for number, noise in enumerate(NOISE):
        start = 10**18 + 2 * number + turn
        cases = [
            made_up("torch", 8, latency_ms=10.0 * noise, energy_j=0.5 * noise, started_unix_ns=start),
            made_up("onnxruntime", 8, latency_ms=5.0 * noise * slower, memory_bytes=10**9, started_unix_ns=start),
        ]
        suite = BenchSuiteResult(
            created=f"2026-11-23T12:0{number}:0{turn}+00:00", cases=cases, **more,
            machine=MachineRecord(hostname="host", cpu="AMD EPYC", gpus=[gpu], driver="570"),
        )  # fmt: skip
        path = folder / f"suite_{number}" / "bench.json"
        path.parent.mkdir(parents=True)
        path.write_text(suite.model_dump_json())
        paths.append(str(path if number % 2 else path.parent))
    return ",".join(paths)


def written(folder: Path, *cases: CaseResult, created: str = "2026-11-23T12:00:00+00:00") -> str:
    suite = BenchSuiteResult(created=created, machine=MachineRecord(hostname="host"), cases=list(cases))
    folder.mkdir()
    (folder / "bench.json").write_text(suite.model_dump_json())
    return str(folder / "bench.json")


def test_each_case_has_its_verdict(tmp_path: Path) -> None:
    base, new = suites(tmp_path / "a", 0), suites(tmp_path / "b", 1, slower=1.1)
    comparison = compare_sides(read_side(base), [read_side(new)], CompareOptions())
    (version,) = comparison.versions
    verdicts = {(row.stage, row.metric): row.verdict for row in version.rows}
    torch, onnx = "net/torch/plain/fp32/cuda/batch 8", "net/onnxruntime/plain/fp32/cuda/batch 8"
    assert version.order == "in-turns"
    assert verdicts[torch, "latency_mean"] == verdicts[torch, "energy_per_item"] == "same"
    assert verdicts[onnx, "latency_p50"] == verdicts[onnx, "latency_p95"] == "slower"
    assert verdicts[onnx, "gpu_memory"] == "same"
    assert version.differences == []


def test_other_gpus_and_settings_are_not_comparable(tmp_path: Path) -> None:
    base = suites(tmp_path / "a", 0, settings={"latency.iterations": 10})
    new = suites(tmp_path / "b", 1, gpu="NVIDIA H100", settings={"latency.iterations": 20}, complete=False)
    (version,) = compare_sides(read_side(base), [read_side(new)], CompareOptions()).versions
    assert [one.name for one in version.deciding] == ["gpu", "reading"]
    allowed = CompareOptions(allowed=frozenset({"gpu", "reading"}))
    (version,) = compare_sides(read_side(base), [read_side(new)], allowed).versions
    assert {row.verdict for row in version.rows} == {"same"}
    assert any("suite-incomplete" in remark for remark in version.remarks)


def test_a_case_that_failed_has_its_reason(tmp_path: Path) -> None:
    base = suites(tmp_path / "a", 0)
    path = written(
        tmp_path / "b", made_up("torch", 8, status="failed", reason="out of memory"), made_up("onnxruntime", 8)
    )
    (version,) = compare_sides(read_side(base), [read_side(path)], CompareOptions(stages=())).versions
    reasons = {(one.stage, one.metric): one.reason for one in version.not_compared}
    assert "out of memory" in reasons["net/torch/plain/fp32/cuda/batch 8", "latency_mean"]


def test_what_was_measured_is_compared_too(tmp_path: Path) -> None:
    paths = []
    for number, (size, shape) in enumerate([(100, (8, 3)), (120, (8, 4))]):
        case = made_up("torch", 8, inputs=[TensorSpec(name="x", dtype="float32", shape=shape)])
        memory = case.memory.model_copy(update={"model_file_bytes": size})
        case = case.model_copy(update={"memory": memory})
        paths.append(written(tmp_path / str(number), case, created=f"2026-11-23T12:0{number}:00+00:00"))
    (version,) = compare_sides(read_side(paths[0]), [read_side(paths[1])], CompareOptions()).versions
    assert {one.name: (one.base, one.new, one.decides) for one in version.differences} == {
        "model net for torch": (["100 bytes"], ["120 bytes"], False),
        "inputs of net for torch": (["x float32 (8, 3)"], ["x float32 (8, 4)"], False),
    }


def test_what_cases_lie_in_can_be_mapped(tmp_path: Path) -> None:
    """The CPU of one machine and the GPU of another: every case below, by one option."""
    sides = []
    for device in ("cpu", "cuda"):
        cases = [made_up("torch", size, latency_ms=1.0, device=device) for size in (1, 8)]
        sides.append(read_side(written(tmp_path / device, *cases, created=device)))
    nothing = compare_sides(sides[0], [sides[1]], CompareOptions())
    assert nothing.has_nothing
    renamed = {"net/torch/plain/fp32/cpu": "net/torch/plain/fp32/cuda"}
    (version,) = compare_sides(sides[0], [sides[1]], CompareOptions(renamed=renamed)).versions
    found = {(row.stage, row.new_stage) for row in version.rows}
    assert found == {
        (f"net/torch/plain/fp32/cpu/batch {size}", f"net/torch/plain/fp32/cuda/batch {size}") for size in (1, 8)
    }
    assert (version.only_in_base, version.only_in_new) == ([], [])
    with pytest.raises(UsageError):
        compare_sides(sides[0], [sides[1]], CompareOptions(renamed={"net/torch/cpu": "net/torch/cuda"}))


def scored(folder: Path, top1: float | None, other: float = 0.5, reasons: dict[str, str] | None = None) -> str:
    def accuracy(value: float | None) -> AccuracyRecord:
        return AccuracyRecord(
            against="labels", samples=1000, metrics={"top1": value, "rmse": 2.0}, reasons=reasons or {}
        )

    cases = [made_up("torch", 8, accuracy=accuracy(top1)), made_up("onnxruntime", 8, accuracy=accuracy(other))]
    folder.mkdir()
    (folder / "bench.json").write_text(suite_of(*cases).model_dump_json())
    return str(folder)


TORCH = "'net/torch/plain/fp32/cuda/batch 8'"


@pytest.mark.parametrize(
    ("limit", "failed", "value"),
    [
        (f"{TORCH}.accuracy.top1 < 0.75", True, 0.7),
        (f"{TORCH}.accuracy.top1 < 0.65", False, 0.7),
        (f"{TORCH}.accuracy.top1 < -10%", True, -12.5),
        (f"{TORCH}.accuracy.top1 < -13%", False, -12.5),
        (f"{TORCH}.accuracy.rmse > 3", False, 2.0),
    ],
)
def test_accuracy_is_gated_and_a_change_of_it_is_named(tmp_path: Path, limit: str, failed: bool, value: float) -> None:
    base, new = read_side(scored(tmp_path / "a", 0.8)), read_side(scored(tmp_path / "b", 0.7))
    comparison = compare_sides(base, [new], CompareOptions(limits=(parse_limit(limit),)))
    (result,) = comparison.limits
    assert result.failed == failed
    assert result.value == pytest.approx(value)
    (remark,) = [one for one in comparison.versions[0].remarks if "accuracy" in one]
    assert [word in remark for word in ("0.8", "0.7", "onnxruntime", "rmse")] == [True, True, False, False]
    assert not [row for row in comparison.versions[0].rows if "accuracy" in (row.stage or "")]


def test_accuracy_that_is_not_there(tmp_path: Path) -> None:
    side = read_side(scored(tmp_path / "a", None, reasons={"top1": "no labels"}))
    (result,) = compare_sides(side, [side], CompareOptions(limits=(parse_limit(f"{TORCH}.accuracy.top1 < 0"),))).limits
    assert (result.failed, result.value, result.reason) == (True, None, "no labels")
    for wrong in ("accuracy.top1 < 1", f"{TORCH}.accuracy.top5 < 1", "'batch 9'.accuracy.top1 < 1"):
        with pytest.raises(UsageError):
            compare_sides(side, [side], CompareOptions(limits=(parse_limit(wrong),)))
    with pytest.raises(UsageError):
        parse_limit("accuracy.top1 < 3ms")
