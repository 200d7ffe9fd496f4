"""Suites of `bench` as sides of a comparison: a case is a stage, a suite is a launch."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from perfharness.cli.main import run
from perfharness.model.bench import AccuracyRecord, CaseResult, MachineRecord, TensorSpec
from perfharness.model.bench_suite import BenchSuiteResult
from tests.unit.bench_results import made_up
from tests.unit.compared_runs import compared as compare

NOISE = (1.0, 1.002, 0.998, 1.001)
TORCH, ONNX = "net/torch/plain/fp32/cuda/batch 8", "net/onnxruntime/plain/fp32/cuda/batch 8"
CASE = f"'{TORCH}'"


def written(folder: Path, *cases: CaseResult, gpu: str = "NVIDIA H200", **more: Any) -> str:
    machine = MachineRecord(hostname="host", cpu="AMD EPYC", gpus=[gpu], driver="570")
    made = {"created": "2026-11-23T12:00:00+00:00", "seed": crc32(str(folder).encode()), **more}
    suite = BenchSuiteResult(machine=machine, cases=list(cases), **made)
    folder.mkdir(parents=True)
    (folder / "bench.json").write_text(suite.model_dump_json())
    return str(folder)


def suites(folder: Path, turn: int, slower: float = 1.0, **more: Any) -> str:
    paths = []
    for number, noise in enumerate(NOISE):
        start = 10**18 + 2 * number + turn
        cases = [
            made_up("torch", 8, latency_ms=10.0 * noise, energy_j=0.5 * noise, started_unix_ns=start),
            made_up("onnxruntime", 8, latency_ms=5.0 * noise * slower, memory_bytes=10**9, started_unix_ns=start),
        ]
        created = f"2026-11-23T12:0{number}:0{turn}+00:00"
        path = written(folder / f"suite_{number}", *cases, created=created, **more)
        paths.append(path if number % 2 else f"{path}/bench.json")
    return ",".join(paths)


def test_each_case_has_its_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    comparison = compare(capsys, suites(tmp_path / "a", 0), suites(tmp_path / "b", 1, slower=1.1))
    (version,) = comparison["versions"]
    verdicts = {(row["stage"], row["metric"]): row["verdict"] for row in version["rows"]}
    assert verdicts[TORCH, "mean"] == verdicts[TORCH, "energy_per_item"] == verdicts[ONNX, "gpu_memory"] == "same"
    assert verdicts[ONNX, "mean"] == verdicts[ONNX, "p50"] == verdicts[ONNX, "p95"] == "slower"
    assert (version["order"], version["differences"]) == ("in-turns", [])
    assert "10 % higher" in version["conclusion"]


def test_gpu_against_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Three machines: each against the first, where that is what is compared."""
    base = suites(tmp_path / "a", 0, settings={"latency.iterations": 10})
    others = [
        suites(tmp_path / name, 1, slower, gpu=f"NVIDIA {name}", settings={"latency.iterations": 20}, complete=False)
        for name, slower in (("H100", 1.5), ("B200", 0.5))
    ]
    found = compare(capsys, base, *others, code=3)
    assert [one["name"] for one in found["versions"][0]["differences"] if one["decides"]] == ["gpu", "reading"]
    found = compare(capsys, base, *others, "--allow", "gpu,reading")
    means = [
        next(row["verdict"] for row in version["rows"] if (row["stage"], row["metric"]) == (ONNX, "mean"))
        for version in found["versions"]
    ]
    assert means == ["slower", "faster"]
    assert any("suite-incomplete" in remark for remark in found["versions"][0]["remarks"])


def test_cases_of_several_gpus_are_stages_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A suite on one GPU is matched whatever its name; of several GPUs the name is part of the case."""
    one, other = (written(tmp_path / name, made_up("torch", 8, gpu=name)) for name in ("H100", "L4"))
    (version,) = compare(capsys, one, other, "--allow", "gpu")["versions"]
    assert {row["stage"] for row in version["rows"]} == {TORCH}
    both = written(tmp_path / "both", *(made_up("torch", 8, gpu=name) for name in ("H100", "L4")))
    (version,) = compare(capsys, both, both)["versions"]
    stages = {f"net/torch/plain/fp32/cuda/{name}/batch 8" for name in ("H100", "L4")}
    assert {row["stage"] for row in version["rows"]} == stages


def test_what_was_measured_is_compared_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = []
    for name, size, shape in (("a", 100, (8, 3)), ("b", 120, (8, 4))):
        case = made_up("torch", 8, inputs=[TensorSpec(name="x", dtype="float32", shape=shape)])
        memory = case.memory.model_copy(update={"model_file_bytes": size})
        cases = [case.model_copy(update={"memory": memory})]
        cases += [made_up("jax", 8, status="failed", reason="out of memory")] if name == "b" else [made_up("jax", 8)]
        paths.append(written(tmp_path / name, *cases))
    (version,) = compare(capsys, *paths)["versions"]
    found = {one["name"]: (one["base"], one["new"], one["decides"]) for one in version["differences"]}
    assert found["model net for torch"] == (["100 bytes"], ["120 bytes"], False)
    assert found["inputs of net for torch"] == (["x float32 (8, 3)"], ["x float32 (8, 4)"], False)
    (reason,) = {one["reason"] for one in version["not_compared"] if one["metric"] == "mean"}
    assert "out of memory" in reason


def test_what_cases_lie_in_can_be_mapped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The CPU of one machine and the GPU of another: every case below, by one option."""
    sides = [
        written(tmp_path / device, *(made_up("torch", size, latency_ms=1.0, device=device) for size in (1, 8)))
        for device in ("cpu", "cuda")
    ]
    assert compare(capsys, *sides, code=3)["versions"][0]["rows"] == []
    (version,) = compare(capsys, *sides, "--map", "net/torch/plain/fp32/cpu=net/torch/plain/fp32/cuda")["versions"]
    pairs = {(row["stage"], row["new_stage"]) for row in version["rows"]}
    cpu, cuda = (f"net/torch/plain/fp32/{device}" for device in ("cpu", "cuda"))
    assert pairs == {(f"{cpu}/batch {size}", f"{cuda}/batch {size}") for size in (1, 8)}
    assert version["unmatched"] == []
    assert run(["compare", *sides, "--map", "net/torch/cpu=net/torch/cuda"]) == 2


@pytest.mark.parametrize(
    ("limit", "code", "value"),
    [
        (f"{CASE}.accuracy.top1 < 0.75", 3, 0.7),
        (f"{CASE}.accuracy.top1 < 0.65", 0, 0.7),
        (f"{CASE}.accuracy.top1 < -10%", 3, -12.5),
        (f"{CASE}.accuracy.top1 < -13%", 0, -12.5),
        (f"{CASE}.accuracy.rmse > 3", 0, 2.0),
        (f"{CASE}.accuracy.f1 < 0", 3, None),
        ("accuracy.top1 < 1", 2, None),
        (f"{CASE}.accuracy.top5 < 1", 2, None),
        ("'batch 9'.accuracy.top1 < 1", 2, None),
        ("accuracy.top1 < 3ms", 2, None),
    ],
)
def test_accuracy_is_gated_and_a_change_of_it_is_named(
    tmp_path: Path, limit: str, code: int, value: float | None, capsys: pytest.CaptureFixture[str]
) -> None:
    def scored(name: str, top1: float) -> str:
        metrics: list[dict[str, float | None]] = [{"top1": top1, "rmse": 2.0, "f1": None}, {"top1": 0.5, "rmse": 2.0}]
        cases = [
            made_up(backend, 8, accuracy=AccuracyRecord(
                against="labels", samples=1000, metrics=one, reasons={"f1": "no labels"}
            ))
            for backend, one in zip(("torch", "onnxruntime"), metrics, strict=True)
        ]  # fmt: skip
        return written(tmp_path / name, *cases)

    words = (scored("a", 0.8), scored("b", 0.7), "--fail-if", limit)
    if code == 2:
        assert run(["compare", *words]) == 2
        return
    found = compare(capsys, *words, code=code)
    (result,) = found["limits"]
    assert result["value"] == (value if value is None else pytest.approx(value))
    assert result["reason"] == ("no labels" if value is None else None)
    (remark,) = [one for one in found["versions"][0]["remarks"] if "accuracy" in one]
    assert [word in remark for word in ("0.8", "0.7", "onnxruntime", "rmse")] == [True, True, False, False]
    assert not [row for row in found["versions"][0]["rows"] if "accuracy" in row["stage"]]
