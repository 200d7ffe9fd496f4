"""Suites of `bench` as sides of a comparison: a case is a stage, a suite is a launch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfharness.errors import ResultError
from perfharness.model.bench import MachineRecord
from perfharness.model.bench_suite import BenchSuiteResult
from perfharness.runs.compare import CompareOptions, compare_sides, read_side
from tests.unit.bench_results import made_up

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
    failed = BenchSuiteResult(
        created="2026-11-23T12:00:00+00:00", machine=MachineRecord(hostname="host"),
        cases=[made_up("torch", 8, status="failed", reason="out of memory"), made_up("onnxruntime", 8)],
    )  # fmt: skip
    path = tmp_path / "b" / "bench.json"
    path.parent.mkdir()
    path.write_text(failed.model_dump_json())
    (version,) = compare_sides(read_side(base), [read_side(str(path))], CompareOptions(stages=())).versions
    reasons = {(one.stage, one.metric): one.reason for one in version.not_compared}
    assert "out of memory" in reasons["net/torch/plain/fp32/cuda/batch 8", "latency_mean"]


def test_a_damaged_suite_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    path.write_text("{")
    with pytest.raises(ResultError, match="damaged"):
        read_side(str(tmp_path))
