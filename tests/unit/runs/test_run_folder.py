"""A run folder by hand: what is written, what is left out, and what is said about it."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from perfharness.analysis.analysis import AnalysisOptions
from perfharness.analysis.stages.entries import entry_table
from perfharness.cli.main import run
from perfharness.files import locked
from perfharness.model import conventions
from perfharness.model.findings import Finding, Severity
from perfharness.model.manifest import (
    MANIFEST_NAME,
    MeasuredProcess,
    RunManifest,
    TracerRecord,
)
from perfharness.runs.files import json_files as files
from perfharness.runs.files import process_traces
from perfharness.runs.files.run_folder import analyze_run, analyze_trace, read_manifest
from perfharness.runs.run import open_run
from perfharness.trace import open_trace
from perfharness.tracer.range_log import OP_BITS, POP, RangeAttributes, RangeLog
from tests.schemas import valid
from tests.support.trace_builder import Recorded, TraceBuilder
from tests.unit.file_faults import fault
from tests.unit.run_records import manifest_of, process

MS = 1_000_000


def write_trace(folder: Path, batch_ms: int = 10, batches: int = 5, items: int = 4) -> None:
    builder = Recorded()
    builder.row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=1_700_000_000_000_000_000)
    for index in range(batches):
        start = 100 * index
        builder.batch(index, start, start + batch_ms, items=items)
        builder.stage("infer", start, start + 1)
        builder.kernel((start * MS + 1, start * MS + 2), (start * MS + 10, start * MS + 1010))
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


def load(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def whole_run(folder: Path) -> RunManifest:
    for index in (0, 1):
        write_trace(folder / f"proc_{index}_gpu_0", batch_ms=10 + 10 * index)
        write_journal(folder / f"proc_{index}_gpu_0")
    return manifest_of(process(0), process(1))


def test_a_table_too_long_for_json_is_a_parquet_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = whole_run(tmp_path)
    analyze_run(tmp_path, manifest)
    whole = load(tmp_path / "proc_1_gpu_0" / "benchmark.json")
    monkeypatch.setattr(files, "MAX_ENTRIES", 10)  # there are 11
    summary = analyze_run(tmp_path, manifest)
    for folder, key, name in (
        (tmp_path / "proc_1_gpu_0", "data", "benchmark"), (tmp_path, "mean_all_batches", "benchmark_mean"),
    ):  # fmt: skip
        body = valid(name, folder / f"{name}.json")
        assert key not in body
        assert body["meta"]["data_file"] == "ranges.parquet"
    rows = pq.read_table(tmp_path / "proc_1_gpu_0" / "ranges.parquet").to_pylist()
    assert [row["key"] for row in rows if row["parent"] == 0] == list(whole["data"]["toy"])[-5:]
    (batch,) = (row for row in rows if row["key"] == "batch_2")
    assert (batch["depth"], batch["cpu_time"], batch["total_items"], batch["warmup"]) == (1, 20.0, 4, False)
    assert files.entry_tree(entry_table(summary.results["proc_1_gpu_0"].entries)) == whole["data"]
    monkeypatch.undo()
    analyze_run(tmp_path, manifest)
    assert load(tmp_path / "proc_1_gpu_0" / "benchmark.json") == whole
    assert list(tmp_path.rglob("ranges.parquet")) == []


def test_both_files_fit_their_schemas_and_hold_the_numbers(tmp_path: Path) -> None:
    manifest = whole_run(tmp_path)
    summary = analyze_run(tmp_path, manifest)
    one = valid("benchmark", tmp_path / "proc_1_gpu_0" / "benchmark.json")
    mean = valid("benchmark_mean", tmp_path / "benchmark_mean.json")
    assert one["data"]["toy"]["batch_2"]["cpu_time"] == 20.0
    assert one["meta"]["device"] == {"id": 0, "uuid": "GPU-1", "name": "NVIDIA H200"}
    assert one["meta"]["args"] == {"toy": {"batch_size": 4}}
    assert one["meta"]["total_batches"] == {"toy/batch": 5}
    assert one["meta"]["total_batches_minus_warmup"] == {"toy/batch": 3}
    assert mean["mean_all_batches"]["toy"]["batch_2"]["cpu_time"] == 15.0
    assert mean["stats_minus_warmup"]["toy"]["batch"]["cpu_time"]["count"] == 6
    assert mean["throughput"]["items"] == 24  # in 100 ... 400 ms: 3 periods of each process, of 4 items
    assert [(stage["path"], stage["verdicts"]) for stage in mean["diagnosis"]["stages"]] == [
        (stage["path"], {stage["causes"][0]["code"]: 2}) for stage in one["diagnosis"]["stages"]
    ]
    longest = mean["diagnosis"]["stages"][0]
    assert (longest["process"], longest["wall_ms"]) == ("proc_1_gpu_0", 20.0)
    assert mean["meta"]["sources"]["traces"] == {"proc_0_gpu_0": "trace.sqlite", "proc_1_gpu_0": "trace.sqlite"}
    assert mean["meta"]["run_id"] == one["meta"]["run_id"] == "r1"
    assert summary.findings == []


def test_a_failed_process_stays_out_of_the_mean(tmp_path: Path) -> None:
    whole_run(tmp_path)
    summary = analyze_run(tmp_path, manifest_of(process(0), process(1, ended="failed", exit_code=3)))
    mean = load(tmp_path / "benchmark_mean.json")
    assert mean["meta"]["processes"] == ["proc_0_gpu_0"]
    assert mean["mean_all_batches"]["toy"]["batch_2"]["cpu_time"] == 10.0
    assert (tmp_path / "proc_1_gpu_0" / "benchmark.json").exists()
    assert [finding.code for finding in summary.findings] == ["mean-without-failed"]


@pytest.mark.parametrize("changes", [{"ended": "failed", "exit_code": 3}, {"ended": "timeout"}])
@pytest.mark.parametrize("left_a_trace", [True, False])
def test_a_run_in_which_a_process_did_not_end_well_has_no_throughput(
    tmp_path: Path, changes: dict[str, Any], left_a_trace: bool
) -> None:
    """What the others did was done beside it, or without it. That of each process alone is known."""
    whole_run(tmp_path)
    trace = "trace.sqlite" if left_a_trace else None
    summary = analyze_run(tmp_path, manifest_of(process(0), process(1, trace=trace, **changes)))
    rates = [summary.mean, *(summary.mean_of(f"proc_{index}_gpu_0") for index in (0, 1))]
    found = [rate["throughput"]["items_per_second"] if rate else None for rate in rates]
    assert found == [None, pytest.approx(40), None]
    assert summary.mean["throughput"]["processes"]["proc_0_gpu_0"]["items_per_second"] == pytest.approx(40)
    assert summary.mean["throughput"]["reason"].startswith("proc_1_gpu_0: ")


def test_workers_without_batches_have_no_part_in_the_throughput(tmp_path: Path) -> None:
    """Their stages are in the table, outside of the batches of the process that they work for."""
    folder = tmp_path / "proc_0_gpu_0"
    write_trace(folder)
    builder = TraceBuilder()
    builder.row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=1_700_000_000_000_000_000)
    builder.mark(conventions.MARK_RECORDER, 0, domain="perfharness", category="toy")
    for start_ms in (101, 102, 150):  # the second batch is from 100 to 110
        builder.range("decode", start_ms * MS, (start_ms + 2) * MS, domain="perfharness", category="toy")
    (folder / "child_0").mkdir()
    builder.write(folder / "child_0" / "trace.sqlite")
    measured = [
        MeasuredProcess(folder=folder.name, launched_index=0, pid=100, trace="trace.sqlite"),
        MeasuredProcess(folder=f"{folder.name}/child_0", launched_index=0, pid=100, trace="child_0/trace.sqlite"),
    ]
    manifest = manifest_of(process(0, measured=measured))
    (tmp_path / MANIFEST_NAME).write_text(manifest.model_dump_json())
    summary = analyze_run(tmp_path, manifest)
    mean = valid("benchmark_mean", tmp_path / "benchmark_mean.json")
    assert mean["throughput"]["items_per_second"] == pytest.approx(40)
    assert [(stage["path"], stage["count"]) for stage in mean["outside_batches"]] == [(["toy", "decode"], 3)]
    assert load(folder / "child_0" / "benchmark.json")["outside_batches"] == []
    assert summary.findings == []
    assert summary.mean_of(f"{folder.name}/child_0")["throughput"]["items_per_second"] is None

    assert [one.findings for one in open_run(tmp_path).processes] == [[], []]
    assert open_run(folder / "child_0").findings == []
    alone = manifest_of(process(0, measured=measured[1:]))
    assert [finding.code for finding in analyze_run(tmp_path, alone).findings] == ["no-batches"]


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
    said = Finding(code="x", severity=Severity.ERROR, message="told by the launcher", process="proc_1_gpu_0")
    summary = analyze_run(tmp_path, manifest_of(process(0), process(1, trace=None), findings=[said]))
    assert [finding.code for finding in summary.findings] == ["x"]


def test_nothing_at_all(tmp_path: Path) -> None:
    summary = analyze_run(tmp_path, manifest_of(process(0, trace=None, ended="failed")))
    mean = valid("benchmark_mean", tmp_path / "benchmark_mean.json")
    assert mean["throughput"]["reason"]
    assert summary.results == {}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"ranges": 12}, "trace-missing-ranges"),
        ({"items": 1000}, "trace-missing-items"),
        ({"finalized": False}, "recorder-not-finalized"),
    ],
)
def test_the_trace_is_checked_against_the_recorder(tmp_path: Path, changes: dict[str, Any], code: str) -> None:
    write_trace(tmp_path / "proc_0_gpu_0")
    write_journal(tmp_path / "proc_0_gpu_0", **changes)
    summary = analyze_run(tmp_path, manifest_of(process(0)))
    assert [finding.code for finding in summary.findings] == [code]


@pytest.mark.parametrize(("lost", "codes"), [(0, []), (1, ["trace-missing-items"])])
def test_items_are_checked_to_the_last_one(tmp_path: Path, lost: int, codes: list[str]) -> None:
    """Their sum leaves 64 bits, and what a float holds exactly."""
    write_trace(tmp_path / "proc_0_gpu_0", items=2**62 + 1)
    write_journal(tmp_path / "proc_0_gpu_0", items=5 * (2**62 + 1) + lost)
    summary = analyze_run(tmp_path, manifest_of(process(0)))
    assert [finding.code for finding in summary.findings] == codes


@pytest.mark.parametrize("of_process", [{}, {"startup": None, "parent_pid": 1}])
def test_a_trace_without_any_range_names_the_pair_of_versions(tmp_path: Path, of_process: dict[str, Any]) -> None:
    """Of a forked child too, whatever else may be why ranges of forked children are lost."""
    folder = tmp_path / "proc_0_gpu_0"
    folder.mkdir()
    builder = TraceBuilder()
    builder.row("META_DATA_EXPORT", name="EXPORT_PRODUCT_VERSION", value="2023.4.4.54")
    builder.write(folder / "trace.sqlite")
    write_journal(folder)
    journal = json.loads((folder / "recorder.json").read_text()) | {"nvtx_version": "0.2.17"} | of_process
    (folder / "recorder.json").write_text(json.dumps(journal))
    summary = analyze_run(tmp_path, manifest_of(process(0)))
    (missing,) = summary.findings  # and nobody is told to annotate the script
    assert missing.code == "trace-missing-ranges"
    assert "10" in missing.message
    assert "0.2.17" in missing.hint


def write_journals_of_workers(folder: Path, **ranges: int) -> None:
    """Journals of forked children; the parent is process 100, which the trace is of."""
    main = json.loads((folder / "recorder.json").read_text()) | {"pid": 100}
    (folder / "recorder.json").write_text(json.dumps(main))
    for pid, made in ranges.items():
        recorder = main["recorders"][0] | {"ranges": made, "items": 0, "finalized": False}
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
            analyze_trace(trace, AnalysisOptions()).result.findings,
        )
    ]


@pytest.mark.parametrize("ended", ["ok", "failed"])
def test_what_a_failure_left_behind_is_said_by_no_verb(tmp_path: Path, ended: str) -> None:
    folder = tmp_path / "proc_0_gpu_0"
    folder.mkdir()
    builder = TraceBuilder()
    builder.range("warm-up", 0, MS)
    builder.write(folder / "trace.sqlite")
    changes: dict[str, Any] = {} if ended == "ok" else {"ended": ended, "exit_code": 1}
    (tmp_path / "manifest.json").write_text(manifest_of(process(0, **changes)).model_dump_json())
    said = [
        [one.code for one in findings if one.process]
        for findings in (analyze_run(tmp_path, read_manifest(tmp_path)).findings, open_run(tmp_path).findings)
    ]
    assert said == [["no-batches"] if ended == "ok" else []] * 2


def test_ranges_of_workers_that_are_in_no_trace(tmp_path: Path) -> None:
    """A child made ranges that are nowhere: an error, whatever reads the run."""
    folder = tmp_path / "proc_0_gpu_0"
    write_trace(folder)
    write_journal(folder, ranges=9)
    write_journals_of_workers(folder, p101=0, p102=1)
    (tmp_path / "manifest.json").write_text(manifest_of(process(0)).model_dump_json())
    assert findings_of_all_verbs(tmp_path) == [{("trace-missing-ranges", "error")}] * 3
    assert run(["analyze", str(tmp_path)]) == 3
    assert run(["export", str(folder / "trace.sqlite"), "--table", "ranges"]) == 3
    assert run(["export", str(tmp_path), "-o", str(tmp_path / "timeline.json")]) == 3


@pytest.mark.parametrize("name", ["recorder.json", "recorder_101.json"])
def test_a_journal_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "proc_0_gpu_0"
    write_trace(folder)
    write_journal(folder)
    (folder / name).write_text("{")
    (tmp_path / "manifest.json").write_text(manifest_of(process(0)).model_dump_json())
    assert findings_of_all_verbs(tmp_path) == [{("recorder-counts-unreadable", "warning")}] * 3


def test_bare_traces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    golden = Path(__file__).parents[2] / "golden" / "traces"
    assert run(["analyze", str(golden / "pipeline.sqlite"), "-w", "1", "-o", str(tmp_path / "out")]) == 0
    body = valid("benchmark", tmp_path / "out" / "pipeline" / "benchmark.json")
    assert body["meta"]["device"]["name"] == "NVIDIA H200"
    assert "inference" in capsys.readouterr().out
    assert run(["analyze", str(golden / "old_partial.sqlite")]) == 3
    assert run(["analyze", str(golden / "none.sqlite")]) == 1


RECORDS: dict[str, dict[str, Any]] = {
    "parent": {"folder": "../outside"},
    "absolute": {"folder": "{outside}"},
    "here": {"folder": "."},
    "deeper": {"folder": "proc_0_gpu_0/../../outside"},
    "nul": {"folder": "proc_0_gpu_0\0"},
    "trace with a path": {"trace": "../../outside/trace.sqlite"},
    "absolute trace": {"trace": "/dev/zero"},
    "no name": {"trace": ".."},
    "huge": {"start_unix_ns": 10**30},
    "huge pid": {"pid": 1 << 70},
}
"""Records of a process that lead out of the run folder, or hold what no launch writes."""


@pytest.mark.parametrize("name", RECORDS)
def test_what_leads_out_of_a_run_folder_is_refused(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out, outside = tmp_path / "out", tmp_path / "outside"
    write_trace(outside)
    (outside / "benchmark.json").write_text("mine")
    write_trace(out / "proc_0_gpu_0")
    tree = json.loads(manifest_of(process(0)).model_dump_json())
    changes = RECORDS[name]
    tree["processes"][0] |= {key: str(outside) if value == "{outside}" else value for key, value in changes.items()}
    (out / "manifest.json").write_text(json.dumps(tree))
    before = sorted(tmp_path.rglob("*"))
    for verb in (
        ["analyze", str(out)],
        ["analyze", str(out), "--slowest", "1"],
        ["export", str(out), "-o", str(tmp_path / "made")],
    ):
        assert run(verb) == 1
        assert len(capsys.readouterr().err.splitlines()) == 1
        assert sorted(tmp_path.rglob("*")) == before
    assert (outside / "benchmark.json").read_text() == "mine"


@pytest.mark.parametrize(
    "text",
    ["", "[]", "[" * 100_000, '{"a":' * 100_000, "\xff\xfe", '{"run_id": ' + "9" * 10_000 + "}", "NaN", "null"],
)
def test_a_manifest_that_is_none(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "manifest.json").write_bytes(text.encode("latin-1"))
    assert run(["analyze", str(tmp_path)]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_two_analyses_of_one_folder(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(whole_run(tmp_path).model_dump_json())
    with locked(tmp_path):
        assert run(["analyze", str(tmp_path)]) == 1
    assert not (tmp_path / "benchmark_mean.json").exists()
    assert run(["analyze", str(tmp_path)]) == 0


def test_a_folder_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "manifest.json").write_text(whole_run(tmp_path).model_dump_json())
    with fault(tmp_path, 1, errno.EROFS):
        assert run(["analyze", str(tmp_path)]) == 1
    assert "infer" in capsys.readouterr().out  # the results


ENDED_PID = (1 << 22) + 1
"""Of no process: larger than Linux gives."""


def write_log(folder: Path, *, running: bool = False) -> None:
    """The range log of a process, with one batch; it has ended, unless it is running."""
    log = RangeLog(str(folder))
    head = log.key(RangeAttributes(None, "batch 0")) << OP_BITS
    log.writer().event(head)
    log.writer().event(head | POP)
    for path in [] if running else list(folder.glob(".ranges_*")):
        if path.suffix == ".names":
            path.write_text(path.read_text().replace(f'"pid": {os.getpid()}', f'"pid": {ENDED_PID}'))
        path.rename(path.with_name(path.name.replace(f"_{os.getpid()}_", f"_{ENDED_PID}_")))


def test_what_killed_processes_left_is_read_after_the_launcher_was_killed(tmp_path: Path) -> None:
    """The range log of a process that ended becomes its trace; that of one that still runs stays."""
    out = tmp_path / ".perfharness-run-1"
    pids = ENDED_PID, os.getpid()
    records = [process(index, ended="cut_off", trace=None, exit_code=None, pid=pid) for index, pid in enumerate(pids)]
    manifest = manifest_of(*records, complete=False)
    write_log(out / records[0].folder)
    write_log(out / records[1].folder, running=True)
    manifest = manifest.model_copy(update={"tracer": TracerRecord(kind="embedded")})
    (out / "manifest.json").write_text(manifest.model_dump_json())
    assert run(["analyze", str(out)]) == 3
    assert (out / records[0].folder / "trace.sqlite").exists()
    assert load(out / records[0].folder / "benchmark.json")["data"]["nvtx"]["batch_0"]["count"] == 1
    assert [path.suffix for path in sorted((out / records[1].folder).glob(".ranges_*"))] == [".log", ".names"]


def test_logs_for_which_the_disk_had_no_room_are_read_later(tmp_path: Path) -> None:
    record = process(0, trace=None, pid=ENDED_PID)
    missing = Finding(code="trace-missing", severity=Severity.ERROR, message="m", process=record.folder)
    manifest = manifest_of(record).model_copy(update={"tracer": TracerRecord(kind="embedded"), "findings": [missing]})
    write_log(tmp_path / record.folder)
    (tmp_path / "manifest.json").write_text(manifest.model_dump_json())
    run(["analyze", str(tmp_path)])
    assert load(tmp_path / record.folder / "benchmark.json")["data"]["nvtx"]["batch_0"]["count"] == 1
    found = {finding["code"] for finding in load(tmp_path / "benchmark_mean.json")["meta"]["findings"]}
    assert "trace-missing" not in found


def test_a_run_whose_launcher_was_killed(tmp_path: Path) -> None:
    """In its hidden folder, as it was when the launcher died: the first process has a trace, the second none."""
    out = tmp_path / ".perfharness-run-1"
    write_trace(out / "proc_0_gpu_0")
    records = [process(index, ended="cut_off", trace=None, exit_code=None) for index in (0, 1)]
    manifest = manifest_of(*records, complete=False)
    (out / "manifest.json").write_text(manifest.model_dump_json())
    assert run(["analyze", str(out)]) == 3
    mean = load(out / "benchmark_mean.json")
    assert mean["mean_all_batches"]["toy"]["batch_2"]["cpu_time"] == 10.0
    assert {finding["code"] for finding in mean["meta"]["findings"]} >= {"run-cut-off", "trace-missing"}


@pytest.mark.parametrize("other", [0, 1 << 70, "caf\udce9"])
def test_what_was_not_measured_is_null_next_to_any_value(other: object) -> None:
    """Integers beyond 64 bits, and text that is no UTF-8, are written by another encoder."""
    content = {"other": other, "time": float("nan"), "mean": np.float64("nan"), "count": np.int64(3)}
    text = files.json_bytes(content).decode()
    assert "NaN" not in text
    assert json.loads(text) == {"other": other, "time": None, "mean": None, "count": 3}


def test_results_stay_while_traces_are_read_and_where_none_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "manifest.json").write_text(whole_run(tmp_path).model_dump_json())
    assert run(["analyze", str(tmp_path)]) == 0
    traces = sorted(tmp_path.glob("proc_*/trace.sqlite"))

    def results() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in tmp_path.rglob("benchmark*.json")}

    before, read = results(), []

    def interrupted(path: Path, *args: Any, **kwargs: Any) -> Any:
        read.append(path)
        if len(read) == 2:
            raise KeyboardInterrupt
        return open_trace(path, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(process_traces, "open_trace", interrupted)
        assert run(["analyze", str(tmp_path), "-w", "2"]) == 1
    assert results() == before
    traces[1].unlink()
    assert run(["analyze", str(tmp_path)]) == 3
    assert set(before) - set(results()) == {traces[1].with_name("benchmark.json")}
    left = results()
    traces[0].write_bytes(b"")
    assert run(["analyze", str(tmp_path)]) == 3
    assert results() == left
