"""What diagnosis says of real traces; their README tells how they came about."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from perfharness.cli.main import run

TRACES = Path(__file__).parent / "traces"

LONG = ("launch-bound", 0.89, 0.03)
EXPECTED: dict[str, dict[str, tuple[str, float, float]]] = {
    # stage: (verdict, its share of the stage, wall time in ms per batch)
    "pipeline": {
        "batch": ("unknown", 0.97, 10.47),
        "preprocess": ("unknown", 0.99, 9.58),
        "inference": ("launch-bound", 0.98, 0.73),
    },
    "graphs": {"batch": ("gpu-bound", 0.67, 0.15), "replay": ("gpu-bound", 1.0, 0.01), "sync": ("waiting", 0.86, 0.1)},
    "graphs_node": {
        "batch": ("gpu-bound", 0.61, 0.16), "replay": ("gpu-bound", 1.0, 0.02), "sync": ("waiting", 0.82, 0.11),
    },
    "long": {"batch": ("launch-bound", 0.97, 0.15), **dict.fromkeys(("decode", "resize", "infer", "nms"), LONG)},
    "cpu": {"batch": ("unknown", 1.0, 30.39), "stage_1": ("unknown", 1.0, 10.23)},
    "old_partial": {"batch": ("unknown", 1.0, 6.51), "inference": ("unknown", 1.0, 0.43)},
}  # fmt: skip
"""No trace says what threads do outside of CUDA calls: what is left is unknown."""


def diagnosis_of(name: str, folder: Path, *options: str, code: int = 0) -> dict[str, Any]:
    assert run(["analyze", str(TRACES / f"{name}.sqlite"), "-o", str(folder), *options]) == code
    return dict(json.loads((folder / name / "benchmark.json").read_text())["diagnosis"])


def stages_of(diagnosis: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {stage["path"][-1]: stage for stage in diagnosis["stages"]}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_verdict_and_its_figures(name: str, tmp_path: Path) -> None:
    found = stages_of(diagnosis_of(name, tmp_path, "-w", "1", code=3 if name == "old_partial" else 0))
    for stage, (verdict, share, wall_ms) in EXPECTED[name].items():
        first = found[stage]["causes"][0]
        assert (first["code"], first["share"]) == (verdict, pytest.approx(share, abs=0.01)), stage
        assert found[stage]["wall_ms"] == pytest.approx(wall_ms, abs=0.006), stage
        assert (found[stage]["gpu_busy_ms"] is None) is (name in ("cpu", "old_partial"))


def test_a_wait_names_the_stage_and_kernels_have_their_limits(tmp_path: Path) -> None:
    found = stages_of(diagnosis_of("graphs_node", tmp_path, "-w", "1"))
    wait = found["sync"]["causes"][0]
    assert (wait["detail"], "replay" in wait["what"]) == ("stage", True)
    assert found["replay"]["gpu_busy_ms"] == pytest.approx(0.09, abs=0.001)
    assert sum(kernel["count"] for kernel in found["replay"]["kernels"]) >= 5
    assert (found["copy_in"]["copies"][0]["direction"], found["copy_in"]["limits"]["limit"]) == (
        "device-to-device", "memory",
    )  # fmt: skip


def test_threads_have_a_diagnosis_each(tmp_path: Path) -> None:
    stages = diagnosis_of("threads", tmp_path, "-w", "1")["stages"]
    assert [stage["path"][1] for stage in stages if stage["path"][-1] == "batch"] == [
        "worker_0", "worker_1", "worker_2",
    ]  # fmt: skip


def test_a_warm_up_that_is_not_cut_off_is_found(tmp_path: Path) -> None:
    (loop,) = diagnosis_of("pipeline", tmp_path)["warmup"]
    assert (loop["steady_from"], loop["state"]) == (1, "too-short")
    meta = json.loads((tmp_path / "pipeline" / "benchmark.json").read_text())["meta"]
    assert "warmup-too-short" in [finding["code"] for finding in meta["findings"]]
    assert diagnosis_of("pipeline", tmp_path, "-w", "1")["warmup"][0]["state"] == "enough"


def test_one_stage_with_all_its_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["analyze", str(TRACES / "graphs.sqlite"), "-w", "1", "--stage", "sync"]) == 0
    said = capsys.readouterr().out
    assert "waiting (stage)" in said
    assert "copy_in" not in said


def test_a_stage_that_is_not_there_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["analyze", str(TRACES / "graphs.sqlite"), "--stage", "nowhere"]) == 2
    assert "replay" in capsys.readouterr().err


def test_a_recorded_run_with_and_without_its_profiling_pass(tmp_path: Path) -> None:
    walls = []
    for name in ("two", "one"):
        folder = tmp_path / name
        shutil.copytree(TRACES.parent / "runs" / "explained", folder)
        if name == "one":
            shutil.rmtree(folder / "explain")
        assert run(["analyze", str(folder)]) == 0
        (found,) = folder.glob("*/benchmark.json")
        stages = stages_of(json.loads(found.read_text())["diagnosis"])
        walls.append({stage: one["wall_ms"] for stage, one in stages.items()})
        if name == "two":
            waits = {stage: one["causes"][0]["detail"] for stage, one in stages.items() if stage in ("child", "lock")}
            assert waits == {"child": "process", "lock": "stage"}
        assert all((one["slowdown"] is not None, one["samples"] > 0) == (name == "two",) * 2 for one in stages.values())
    assert walls[0] == walls[1]
