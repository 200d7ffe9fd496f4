"""A run folder by hand: what is written, what is left out, and what is said about it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from perfharness.cli.main import run
from perfharness.errors import ResultError
from perfharness.model import conventions
from perfharness.model.findings import Severity
from perfharness.model.manifest import (
    EnvironmentRecord,
    FindingRecord,
    GpuRecord,
    ProcessRecord,
    RunManifest,
    TracerRecord,
)
from perfharness.report.run import open_run
from perfharness.report.run_folder import ReadOptions, analyze_run, analyze_trace, read_manifest
from perfharness.testing.trace_builder import TraceBuilder

MS = 1_000_000
SCHEMAS = Path(__file__).parents[2] / "docs" / "schema"


def write_trace(folder: Path, batch_ms: int = 10, batches: int = 5) -> None:
    builder = TraceBuilder()
    builder.row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=1_700_000_000_000_000_000)
    builder.mark(conventions.MARK_RECORDER, 0, domain="perfharness", category="toy")
    for index in range(batches):
        start = 100 * index * MS
        builder.range("batch", start, start + batch_ms * MS, domain="perfharness", category="toy", payload=index)
        builder.range("infer", start, start + MS, domain="perfharness", category="toy")
        builder.kernel((start + 1, start + 2), (start + 10, start + 1010))
        at = start + batch_ms * MS - 1
        builder.mark(conventions.MARK_ITEMS, at, domain="perfharness", category="toy", payload=4)
    folder.mkdir(parents=True)
    builder.write(folder / "trace.sqlite")


def write_journal(folder: Path, **changes: Any) -> None:
    recorder = {
        "name": "toy",
        "domain": "perfharness",
        "args": {"batch_size": 4},
        "ranges": 10,
        "batches": 5,
        "items": 20,
    }
    recorder |= {"deleted_ranges": 0, "threads": 1, "finalized": True, "open_ranges": []}
    journal = {
        "schema_version": 1,
        "pid": 1,
        "nvtx_version": "0.2.11",
        "python_version": "3.12.1",
        "ended": "finalized",
    }
    journal["recorders"] = [recorder | changes]
    (folder / "recorder.json").write_text(json.dumps(journal))


def process(index: int, **changes: Any) -> ProcessRecord:
    record: dict[str, Any] = {
        "index": index, "gpu_index": 0, "gpu_uuid": "GPU-1", "folder": f"proc_{index}_gpu_0",
        "command": ["python", "toy.py"], "pid": 10 + index, "exit_code": 0, "ended": "ok", "trace": "trace.sqlite",
    }  # fmt: skip
    return ProcessRecord(**(record | changes))


def manifest_of(*processes: ProcessRecord, **changes: Any) -> RunManifest:
    record: dict[str, Any] = {
        "run_id": "r1", "created": "2026-01-01T00:00:00Z", "command": ["perfharness", "launch", "toy.py"],
        "script": "toy.py",
        "num_processes_per_gpu": len(processes), "warmup_batches": 1,
        "tracer": TracerRecord(kind="nsys", version="2025.3"),
        "environment": EnvironmentRecord(gpus=[GpuRecord(index=0, uuid="GPU-1", name="NVIDIA H200")]),
        "processes": list(processes),
    }  # fmt: skip
    return RunManifest(**(record | changes))


def load(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def whole_run(folder: Path) -> RunManifest:
    for index in (0, 1):
        write_trace(folder / f"proc_{index}_gpu_0", batch_ms=10 + 10 * index)
        write_journal(folder / f"proc_{index}_gpu_0")
    return manifest_of(process(0), process(1))


def test_both_files_fit_their_schemas_and_hold_the_numbers(tmp_path: Path) -> None:
    manifest = whole_run(tmp_path)
    summary = analyze_run(tmp_path, manifest)
    one, mean = load(tmp_path / "proc_1_gpu_0" / "benchmark.json"), load(tmp_path / "benchmark_mean.json")
    jsonschema.validate(one, load(SCHEMAS / "benchmark.schema.json"))
    jsonschema.validate(mean, load(SCHEMAS / "benchmark_mean.schema.json"))
    assert one["data"]["toy"]["batch_2"]["cpu_time"] == 20.0
    assert one["meta"]["device"] == {"id": 0, "uuid": "GPU-1", "name": "NVIDIA H200"}
    assert one["meta"]["args"] == {"toy": {"batch_size": 4}}
    assert one["meta"]["total_batches"] == {"toy/batch": 5}
    assert one["meta"]["total_batches_minus_warmup"] == {"toy/batch": 3}
    assert mean["mean_all_batches"]["toy"]["batch_2"]["cpu_time"] == 15.0
    assert mean["stats_minus_warmup"]["toy"]["batch"]["cpu_time"]["count"] == 6
    assert mean["throughput"]["items"] == 22  # in 100 ... 310 ms: 3 batches of one process, 2.5 of the other
    assert [
        (stage["path"], stage["verdicts"], stage["totals"]["batches"]) for stage in mean["diagnosis"]["stages"]
    ] == [(stage["path"], {stage["verdict"]["verdict"]: 2}, 6) for stage in one["diagnosis"]["stages"]]
    assert mean["diagnosis"]["stages"][0]["per_batch"]["cpu_ms"] == 15.0
    assert summary.findings == []


def test_every_number_can_be_traced_back(tmp_path: Path) -> None:
    analyze_run(tmp_path, whole_run(tmp_path))
    mean = load(tmp_path / "benchmark_mean.json")
    assert mean["meta"]["sources"]["traces"] == {"proc_0_gpu_0": "trace.sqlite", "proc_1_gpu_0": "trace.sqlite"}
    assert mean["meta"]["run_id"] == load(tmp_path / "proc_0_gpu_0" / "benchmark.json")["meta"]["run_id"] == "r1"


def test_another_warmup(tmp_path: Path) -> None:
    manifest = whole_run(tmp_path)
    (tmp_path / "manifest.json").write_text(manifest.model_dump_json())
    assert run(["analyze", str(tmp_path), "-w", "2"]) == 0
    assert load(tmp_path / "benchmark_mean.json")["stats_minus_warmup"]["toy"]["batch"]["cpu_time"]["count"] == 2
    assert run(["analyze", str(tmp_path)]) == 0
    assert load(tmp_path / "benchmark_mean.json")["meta"]["warmup_batches"] == 1


def test_a_failed_process_stays_out_of_the_mean(tmp_path: Path) -> None:
    whole_run(tmp_path)
    summary = analyze_run(tmp_path, manifest_of(process(0), process(1, ended="failed", exit_code=3)))
    mean = load(tmp_path / "benchmark_mean.json")
    assert mean["meta"]["processes"] == ["proc_0_gpu_0"]
    assert mean["mean_all_batches"]["toy"]["batch_2"]["cpu_time"] == 10.0
    assert (tmp_path / "proc_1_gpu_0" / "benchmark.json").exists()
    assert [finding.code for finding in summary.findings] == ["mean-without-failed"]


def test_an_unreadable_trace_is_named_and_the_rest_is_written(tmp_path: Path) -> None:
    manifest = whole_run(tmp_path)
    (tmp_path / "proc_0_gpu_0" / "trace.sqlite").write_bytes(b"")
    (tmp_path / "proc_0_gpu_0" / "benchmark.json").write_text("{}")  # of an earlier analysis
    summary = analyze_run(tmp_path, manifest)
    assert [(finding.code, finding.process) for finding in summary.findings] == [("trace-unreadable", "proc_0_gpu_0")]
    assert not (tmp_path / "proc_0_gpu_0" / "benchmark.json").exists()
    assert load(tmp_path / "benchmark_mean.json")["meta"]["processes"] == ["proc_1_gpu_0"]


def test_no_trace_where_there_should_be_one(tmp_path: Path) -> None:
    whole_run(tmp_path)
    summary = analyze_run(tmp_path, manifest_of(process(0), process(1, trace=None)))
    assert [finding.code for finding in summary.findings] == ["trace-missing"]
    said = FindingRecord(code="x", severity=Severity.ERROR, message="told by the launcher", process="proc_1_gpu_0")
    summary = analyze_run(tmp_path, manifest_of(process(0), process(1, trace=None), findings=[said]))
    assert [finding.code for finding in summary.findings] == ["x"]


def test_nothing_at_all(tmp_path: Path) -> None:
    summary = analyze_run(tmp_path, manifest_of(process(0, trace=None, ended="failed")))
    mean = load(tmp_path / "benchmark_mean.json")
    jsonschema.validate(mean, load(SCHEMAS / "benchmark_mean.schema.json"))
    assert mean["throughput"]["reason"] == "no process has a result"
    assert summary.results == {}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"ranges": 12}, "trace-missing-ranges"),
        ({"finalized": False}, "recorder-not-finalized"),
    ],
)
def test_the_trace_is_checked_against_the_recorder(tmp_path: Path, changes: dict[str, Any], code: str) -> None:
    write_trace(tmp_path / "proc_0_gpu_0")
    write_journal(tmp_path / "proc_0_gpu_0", **changes)
    summary = analyze_run(tmp_path, manifest_of(process(0)))
    assert [finding.code for finding in summary.findings] == [code]


def test_a_trace_without_any_range_names_the_pair_of_versions(tmp_path: Path) -> None:
    folder = tmp_path / "proc_0_gpu_0"
    folder.mkdir()
    builder = TraceBuilder()
    builder.row("META_DATA_EXPORT", name="EXPORT_PRODUCT_VERSION", value="2023.4.4.54")
    builder.write(folder / "trace.sqlite")
    write_journal(folder)
    journal = json.loads((folder / "recorder.json").read_text()) | {"nvtx_version": "0.2.17"}
    (folder / "recorder.json").write_text(json.dumps(journal))
    summary = analyze_run(tmp_path, manifest_of(process(0)))
    missing = next(finding for finding in summary.findings if finding.code == "trace-missing-ranges")
    assert "10" in missing.message
    assert "nvtx 0.2.17 is too new for nsys 2023.4.4.54" in missing.cure


def write_journals_of_workers(folder: Path, **ranges: int) -> None:
    """Journals of forked children; the parent is process 100, which the trace is of."""
    main = json.loads((folder / "recorder.json").read_text()) | {"pid": 100}
    (folder / "recorder.json").write_text(json.dumps(main))
    for pid, made in ranges.items():
        recorder = main["recorders"][0] | {"ranges": made, "finalized": False}
        worker = main | {"pid": int(pid[1:]), "parent_pid": 100, "startup": None, "recorders": [recorder]}
        (folder / f"recorder_{pid[1:]}.json").write_text(json.dumps(worker))


def findings_of_all_verbs(run_dir: Path) -> list[set[tuple[str, str]]]:
    """Code and severity of what `analyze`, `open_run` and a bare trace report."""
    trace = run_dir / "proc_0_gpu_0" / "trace.sqlite"
    return [
        {(finding.code, finding.severity.value) for finding in findings}
        for findings in (
            analyze_run(run_dir, read_manifest(run_dir)).findings,
            open_run(run_dir).findings,
            analyze_trace(trace, ReadOptions())[0].findings,
        )
    ]


def test_ranges_of_workers_that_are_in_no_trace(tmp_path: Path) -> None:
    """A child made ranges that are nowhere: an error, whatever reads the run."""
    folder = tmp_path / "proc_0_gpu_0"
    write_trace(folder)
    write_journal(folder, ranges=9)
    write_journals_of_workers(folder, p101=0, p102=1)
    (tmp_path / "manifest.json").write_text(manifest_of(process(0)).model_dump_json())
    assert findings_of_all_verbs(tmp_path) == [{("trace-missing-ranges", "error")}] * 3
    for verb in ("analyze", "diagnose"):
        assert run([verb, str(tmp_path)]) == 3
    assert run(["ranges", str(folder / "trace.sqlite")]) == 3
    assert run(["export", str(tmp_path), "-o", str(tmp_path / "timeline.json")]) == 3


def test_a_worker_s_journal_that_cannot_be_read(tmp_path: Path) -> None:
    folder = tmp_path / "proc_0_gpu_0"
    write_trace(folder)
    write_journal(folder)
    (folder / "recorder_101.json").write_text("{")
    (tmp_path / "manifest.json").write_text(manifest_of(process(0)).model_dump_json())
    assert findings_of_all_verbs(tmp_path) == [{("recorder-counts-unreadable", "warning")}] * 3


def test_a_damaged_journal_is_said(tmp_path: Path) -> None:
    write_trace(tmp_path / "proc_0_gpu_0")
    (tmp_path / "proc_0_gpu_0" / "recorder.json").write_text("{")
    summary = analyze_run(tmp_path, manifest_of(process(0)))
    assert [finding.code for finding in summary.findings] == ["recorder-counts-unreadable"]


def test_a_folder_that_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ResultError, match="not a run folder"):
        read_manifest(tmp_path)
    (tmp_path / "manifest.json").write_text("[]")
    with pytest.raises(ResultError, match="cannot be read"):
        read_manifest(tmp_path)
    assert run(["analyze", str(tmp_path)]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_bare_traces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    golden = Path(__file__).parents[1] / "golden" / "traces"
    assert run(["analyze", str(golden / "pipeline.sqlite"), "-w", "1", "-o", str(tmp_path / "out")]) == 0
    body = load(tmp_path / "out" / "pipeline" / "benchmark.json")
    jsonschema.validate(body, load(SCHEMAS / "benchmark.schema.json"))
    assert body["meta"]["device"]["name"] == "NVIDIA H200"
    assert "inference" in capsys.readouterr().out
    assert run(["analyze", str(golden / "old_partial.sqlite")]) == 3
    assert run(["analyze", str(golden / "none.sqlite")]) == 1
