"""What diagnosis says of real traces, beyond the figures in their snapshots."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from perfharness.cli.main import run

TRACES = Path(__file__).parent / "traces"


def diagnosis_of(name: str, folder: Path, *options: str) -> dict[str, Any]:
    assert run(["analyze", str(TRACES / f"{name}.sqlite"), "-o", str(folder), *options]) == 0
    return dict(json.loads((folder / name / "benchmark.json").read_text())["diagnosis"])


def stages_of(diagnosis: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {stage["path"][-1]: stage for stage in diagnosis["stages"]}


def test_a_wait_names_the_stage_whose_work_it_waits_for(tmp_path: Path) -> None:
    wait = stages_of(diagnosis_of("graphs_node", tmp_path, "-w", "1"))["sync"]["causes"][0]
    assert (wait["detail"], "replay" in wait["what"]) == ("stage", True)


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
