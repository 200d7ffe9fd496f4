"""What diagnosis says of real traces; their README tells how they came about."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfharness.analysis.analysis import Analysis, AnalysisOptions
from perfharness.analysis.diagnosis import Pass, diagnose
from perfharness.cli.main import run
from perfharness.runs.causes import causes_of_run
from perfharness.trace import open_trace

TRACES = Path(__file__).parent / "traces"

VERDICTS = {
    "pipeline": {"batch": "cpu-bound", "preprocess": "cpu-bound", "inference": "dispatch-bound"},
    "graphs": {"batch": "gpu-bound", "replay": "gpu-bound", "sync": "waiting-on-stage"},
    "graphs_node": {"batch": "gpu-bound", "replay": "gpu-bound", "sync": "waiting-on-stage"},
    "long": dict.fromkeys(("batch", "decode", "resize", "normalize", "infer", "nms"), "dispatch-bound"),
    "cpu": {"batch": "cpu-bound", "stage_1": "cpu-bound", "stage_2": "cpu-bound"},
    "old_partial": dict.fromkeys(("batch", "preprocess", "inference", "postprocess"), "cannot-tell"),
}


CAUSES = {
    "pipeline": {"batch": "unknown", "preprocess": "unknown", "inference": "launch-bound"},
    "graphs": {"batch": "gpu-bound", "replay": "gpu-bound", "sync": "waiting"},
    "graphs_node": {"batch": "gpu-bound", "replay": "gpu-bound", "sync": "waiting"},
    "long": dict.fromkeys(("batch", "decode", "resize", "normalize", "infer", "nms"), "launch-bound"),
    "cpu": dict.fromkeys(("batch", "stage_1", "stage_2"), "unknown"),
    "old_partial": dict.fromkeys(("batch", "preprocess", "inference", "postprocess"), "unknown"),
}
"""By the fourteen causes: no trace says what its threads do outside of CUDA calls."""


@pytest.mark.parametrize("name", CAUSES)
def test_causes_of_real_traces(name: str) -> None:
    causes = diagnose(Pass(Analysis(open_trace(TRACES / f"{name}.sqlite"), AnalysisOptions(1))))
    said = {stage.path[-1]: stage.verdict.code.value for stage in causes.stages}
    assert {stage: said[stage] for stage in CAUSES[name]} == CAUSES[name]


def diagnosis_of(name: str, folder: Path, *options: str, code: int = 0) -> dict[str, Any]:
    assert run(["analyze", str(TRACES / f"{name}.sqlite"), "-o", str(folder), *options]) == code
    return dict(json.loads((folder / name / "benchmark.json").read_text())["diagnosis"])


@pytest.mark.parametrize("name", VERDICTS)
def test_real_traces_get_a_sensible_verdict(name: str, tmp_path: Path) -> None:
    diagnosis = diagnosis_of(name, tmp_path, "-w", "1", code=3 if name == "old_partial" else 0)
    found = {stage["path"][-1]: stage["verdict"]["verdict"] for stage in diagnosis["stages"]}
    assert {stage: found[stage] for stage in VERDICTS[name]} == VERDICTS[name]


def test_threads_have_a_diagnosis_each(tmp_path: Path) -> None:
    diagnosis = diagnosis_of("threads", tmp_path, "-w", "1")
    batches = [stage for stage in diagnosis["stages"] if stage["path"][-1] == "batch"]
    assert [stage["path"][1] for stage in batches] == ["worker_0", "worker_1", "worker_2"]
    assert {stage["verdict"]["verdict"] for stage in batches} == {"cpu-bound"}


def test_a_lost_trace_says_what_is_missing(tmp_path: Path) -> None:
    diagnosis = diagnosis_of("old_partial", tmp_path, "-w", "1", code=3)
    for stage in diagnosis["stages"]:
        assert "lost" in stage["verdict"]["missing"][0]
        assert stage["gpu"] is None
        assert stage["cost"]["pipeline_ms"] is None


def test_without_a_cut_the_first_batch_is_first_use(tmp_path: Path) -> None:
    diagnosis = diagnosis_of("pipeline", tmp_path)
    assert diagnosis["stages"][0]["verdict"]["verdict"] == "first-use"
    assert diagnosis["warmup"][0]["steady_from"] == 1
    assert [finding["code"] for finding in diagnosis["findings"]] == ["warmup-too-short"]
    assert diagnosis_of("pipeline", tmp_path, "-w", "1")["findings"] == []


def test_one_stage_with_all_its_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["analyze", str(TRACES / "graphs.sqlite"), "-w", "1", "--stage", "sync"]) == 0
    said = capsys.readouterr().out
    assert "waited for graph of 'replay'" in said
    assert "copy_in" not in said


def test_a_stage_that_is_not_there_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["analyze", str(TRACES / "graphs.sqlite"), "--stage", "nowhere"]) == 2
    assert "replay" in capsys.readouterr().err


def test_the_causes_of_a_recorded_run() -> None:
    recorded = TRACES.parent / "runs" / "explained"
    (two,), (one,) = (causes_of_run(recorded, one_pass=one_pass).values() for one_pass in (False, True))
    said = {stage.path[-1]: (stage.verdict.code.value, stage.verdict.detail) for stage in two.stages}
    assert (said["child"], said["lock"]) == (("waiting", "process"), ("waiting", "stage"))
    assert all(stage.slowdown is not None and stage.samples for stage in two.stages)
    assert all(stage.slowdown is None and not stage.samples for stage in one.stages)
    assert [stage.wall_ms for stage in one.stages] == [stage.wall_ms for stage in two.stages]
