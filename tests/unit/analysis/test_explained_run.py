"""A run folder with its profiling pass inside, made by hand: what is read of both, and what a folder may hold."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfharness.analysis.diagnosis import diagnosis_findings
from perfharness.model.activity import Activity
from perfharness.model.diagnosis import Cause, Code, Diagnosis, StageDiagnosis, WarmupDiagnosis
from perfharness.model.findings import Finding, Severity
from perfharness.model.manifest import RunManifest
from perfharness.runs.files.run_folder import analyze_run, read_manifest
from tests.schemas import valid
from tests.support.trace_builder import Recorded
from tests.unit.export_runs import RUN_START, process_record, run_folder


def trace(folder: Path, load_ms: int, infer_ms: int) -> None:
    """Six batches of two items."""
    whole = load_ms + infer_ms
    builder = Recorded()
    builder.row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=RUN_START)
    builder.add(f"pipeline 0..{7 * whole}")
    builder.add(f"batch#* 1..{1 + whole} items=2 x6+{whole}")
    builder.add(f"load 1..{1 + load_ms} x6+{whole}; infer {1 + load_ms}..{1 + whole} x6+{whole}")
    folder.mkdir(parents=True, exist_ok=True)
    builder.write(folder / "trace.sqlite")


def make(out: Path, **second: Any) -> Path:
    """Two processes; the second of them did other work in the profiling pass."""
    for folder, times in ((out, (4, 6)), (out / "explain", (5, 7))):
        trace(folder / "proc_0_gpu_0", *times)
        trace(folder / "proc_1_gpu_0", *((4, 6) if folder == out else (19, 6)))
        run_folder(folder, process_record(0), process_record(1, **(second if folder != out else {})))
    change(out / "explain", explaining=True)
    return out


def change(folder: Path, **values: Any) -> None:
    manifest = RunManifest.model_validate_json((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(manifest.model_copy(update=values).model_dump_json())


Stages = dict[str, dict[str, Any]]


def analyzed(out: Path) -> tuple[dict[str, Stages], list[str]]:
    """Each stage of the diagnosis by process, and the codes of the findings."""
    summary = analyze_run(out, read_manifest(out))
    found = {}
    for process in summary.results:
        tree = valid("benchmark", out / process / "benchmark.json")
        found[process] = {stage["path"][-1]: stage for stage in tree["diagnosis"]["stages"]}
    return found, [finding.code for finding in summary.findings]


def slowdowns(found: dict[str, Stages]) -> list[set[float | None]]:
    """Those of each process."""
    return [{stage["slowdown"] for stage in stages.values()} for stages in found.values()]


def test_each_process_is_explained_by_its_own_second_pass(tmp_path: Path) -> None:
    out = make(tmp_path)
    found, codes = analyzed(out)
    first, second = found.values()
    times = {"batch": 10.0, "load": 4.0, "infer": 6.0}
    slower = {"batch": 1.2, "load": 1.25, "infer": 7 / 6}
    assert {name: one["slowdown"] for name, one in first.items()} == pytest.approx(slower)
    assert {name: one["wall_ms"] for name, one in first.items()} == times
    assert [name for name, one in first.items() if one["is_changed"]] == []
    assert [name for name, one in second.items() if one["is_changed"]] == ["load", "infer"]
    assert codes.count("profiling-pass-differs") == 1
    mean = valid("benchmark_mean", out / "benchmark_mean.json")
    assert mean["mean_data"]["toy"]["pipeline"]["batch"]["cpu_time"] == 10.0
    assert {one["path"][-1]: one["wall_ms"] for one in mean["diagnosis"]["stages"]} == times
    explained = valid("benchmark", out / "explain" / "proc_0_gpu_0" / "benchmark.json")
    assert explained["mean_data"]["toy"]["pipeline"]["batch"]["cpu_time"] == 12.0


@pytest.mark.parametrize(
    "second", [{"ended": "failed", "exit_code": 3}, {"trace": None}, "gone", "damaged", "no manifest"]
)
def test_a_process_whose_second_pass_is_not_whole(tmp_path: Path, second: dict[str, Any] | str) -> None:
    out = make(tmp_path, **(second if isinstance(second, dict) else {}))
    path = out / "explain" / "proc_1_gpu_0" / "trace.sqlite"
    if second == "gone":
        path.unlink()
    elif second == "damaged":
        path.write_bytes(b"no trace")
    elif second == "no manifest":
        (out / "explain" / "manifest.json").write_text("{")
    found, codes = analyzed(out)
    whole, other = slowdowns(found)
    assert (whole == {None}) is (second == "no manifest")
    assert other == {None}
    assert codes.count("explaining-pass-failed") == 1


@pytest.mark.parametrize("kind", ["link", "file", "of the user"])
def test_what_is_no_explaining_pass_is_left_alone(tmp_path: Path, kind: str) -> None:
    out = make(tmp_path / "out")
    (out / "explain").rename(tmp_path / "elsewhere")
    if kind == "link":
        (out / "explain").symlink_to(tmp_path / "elsewhere")
    elif kind == "file":
        (out / "explain").write_text("why")
    else:
        (out / "explain").mkdir()
        (out / "explain" / "notes.txt").write_text("why")
    found, codes = analyzed(out)
    assert slowdowns(found) == [{None}, {None}]
    assert not [code for code in codes if code.startswith("explaining")]
    assert not os.path.lexists(tmp_path / "elsewhere" / "benchmark_mean.json")


def test_what_the_launcher_found_in_the_second_pass_only(tmp_path: Path) -> None:
    out = make(tmp_path)
    both = Finding(code="gpu-shared", severity=Severity.WARNING, message="shared")
    new = Finding(code="gpu-metrics-unavailable", severity=Severity.NOTE, message="no counters")
    change(out, findings=[both])
    change(out / "explain", findings=[both, new, replace(new, code="x-y", severity=Severity.ERROR)])
    _, codes = analyzed(out)
    assert (codes.count("gpu-shared"), codes.count("gpu-metrics-unavailable"), codes.count("x-y")) == (1, 1, 0)


def test_a_failure_that_was_mended_since_is_not_reported(tmp_path: Path) -> None:
    out = make(tmp_path)
    change(out, findings=[Finding("explaining-pass-failed", Severity.ERROR, "it could not start")])
    assert "explaining-pass-failed" not in analyzed(out)[1]
    (out / "explain" / "manifest.json").unlink()
    assert "explaining-pass-failed" in analyzed(out)[1]


def test_an_explaining_pass_that_is_gone(tmp_path: Path) -> None:
    out = make(tmp_path)
    change(out, explained=True)
    assert "profiling-pass-missing" not in analyzed(out)[1]
    shutil.rmtree(out / "explain")
    for _ in range(2):  # results that know nothing of it any more make it no less gone
        found, codes = analyzed(out)
        assert slowdowns(found) == [{None}, {None}]
        assert codes.count("profiling-pass-missing") == 1
    findings = valid("benchmark_mean", out / "benchmark_mean.json")["meta"]["findings"]
    assert [one["severity"] for one in findings if one["code"] == "profiling-pass-missing"] == ["warning"]


@pytest.mark.parametrize(
    ("no_cpu", "code", "found"),
    [(0.5, Code.CPU_BOUND, []), (0.51, Code.CPU_BOUND, ["cpu-shared"]), (0.8, Code.CPU_CONTENTION, [])],
)
def test_cpus_that_others_had(no_cpu: float, code: Code, found: list[str]) -> None:
    def stage(*path: str, share: float) -> StageDiagnosis:
        cause = Cause(code, 1.0, None, "what", "step", 0.5)
        return StageDiagnosis(path, 10, 20.0, None, {Activity.NO_CPU: share}, 100, [cause], slowdown=1.0)

    loop = WarmupDiagnosis(("r", "batch"), 12, 1, 0, "enough", 20.0, 1.0, None)
    stages = [stage("r", "batch", share=no_cpu), stage("r", "batch", "short", share=1.0)]
    assert [one.code for one in diagnosis_findings(Diagnosis(stages, [loop]), None)] == found
