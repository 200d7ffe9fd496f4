"""Run folders made by hand: what `analyze` writes, leaves out and reports."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import perfharness
from perfharness.cli.main import run
from perfharness.model import conventions
from perfharness.model.findings import Finding, Severity
from perfharness.model.manifest import MeasuredProcess, ProcessRecord, TracerRecord
from perfharness.runs.analyze import AnalyzedRuns
from perfharness.runs.files.run_folder import RunSummary
from perfharness.tracer.range_log import OP_BITS, POP, RangeAttributes, RangeLog
from tests.schemas import valid
from tests.support.trace_builder import MS, Recorded, TraceBuilder
from tests.unit.file_faults import fault, locked
from tests.unit.run_records import manifest_of, process

UTC = 1_700_000_000_000_000_000
FIRST, SECOND = "proc_0_gpu_0", "proc_1_gpu_0"


def write_trace(folder: Path, batch_ms: int = 10, batches: int = 5, items: int | None = 4) -> None:
    """Batches every 100 ms, with a stage that starts a kernel."""
    builder = Recorded()
    builder.row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=UTC)
    for index in range(batches):
        start = 100 * index
        builder.batch(index, start, start + batch_ms, items=items)
        builder.stage("infer", start, start + 1)
        builder.kernel((start * MS + 1, start * MS + 2), (start * MS + 10, start * MS + 1010))
    folder.mkdir(parents=True, exist_ok=True)
    builder.write(folder / "trace.sqlite")


def write_journal(folder: Path, *, of_process: dict[str, Any] | None = None, **changes: Any) -> None:
    """What the recorder of `write_trace` counted."""
    recorder = {
        "name": "toy", "domain": "perfharness", "args": {"batch_size": 4}, "ranges": 10, "batches": 5, "items": 20,
        "deleted_ranges": 0, "threads": 1, "finalized": True, "open_ranges": [],
    }  # fmt: skip
    journal = {"schema_version": 1, "pid": 100, "nvtx_version": "0.2.11", "ended": "finalized"}
    folder.mkdir(parents=True, exist_ok=True)
    content = {**journal, "recorders": [recorder | changes], **(of_process or {})}
    (folder / "recorder.json").write_text(json.dumps(content))


def load(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def analyzed(folder: Path, *processes: ProcessRecord, **changes: Any) -> RunSummary:
    """Write the manifest of these processes, and analyse the run."""
    (folder / "manifest.json").write_text(manifest_of(*processes, **changes).model_dump_json())
    found = perfharness.analyze(folder)
    assert isinstance(found, AnalyzedRuns)
    return found.summaries[0]


def codes(summary: RunSummary) -> list[tuple[str, str | None]]:
    return [(one.code, one.process) for one in summary.findings if one.severity is not Severity.NOTE]


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A run of two processes, whose batches take 10 and 20 ms."""
    for index, folder in enumerate((FIRST, SECOND)):
        write_trace(tmp_path / folder, batch_ms=10 + 10 * index)
        write_journal(tmp_path / folder)
    (tmp_path / "manifest.json").write_text(manifest_of(process(0), process(1)).model_dump_json())
    return tmp_path


def test_both_files_fit_their_schemas_and_hold_the_numbers(whole: Path) -> None:
    summary = analyzed(whole, process(0), process(1))
    one = valid("benchmark", whole / SECOND / "benchmark.json")
    mean = valid("benchmark_mean", whole / "benchmark_mean.json")
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
    assert (longest["process"], longest["wall_ms"]) == (SECOND, 20.0)
    assert mean["meta"]["sources"]["traces"] == {FIRST: "trace.sqlite", SECOND: "trace.sqlite"}
    assert mean["meta"]["run_id"] == one["meta"]["run_id"] == "r1"
    assert summary.findings == []


@pytest.mark.parametrize(("batches", "is_found"), [(40, False), (41, True)])
def test_names_that_contain_ids_are_one_finding_and_one_row(
    batches: int, is_found: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in (FIRST, SECOND):
        builder = Recorded()
        for index in range(batches):
            builder.batch(index, 100 * index, 100 * index + 10, items=4)
            builder.stage(f"request_{index}", 100 * index, 100 * index + 5)
        (tmp_path / folder).mkdir()
        builder.write(tmp_path / folder / "trace.sqlite")
    summary = analyzed(tmp_path, process(0), process(1), warmup_batches=0)
    assert (("names-differ-by-batch", None) in codes(summary)) == is_found
    run(["analyze", str(tmp_path)])
    assert ("request_7 " in capsys.readouterr().out) != is_found


def test_more_than_20000_entries_are_a_parquet_file(tmp_path: Path) -> None:
    folder = tmp_path / FIRST
    write_trace(folder, batches=10_001, items=None)
    analyzed(tmp_path, process(0))
    for path, key in ((folder / "benchmark.json", "data"), (tmp_path / "benchmark_mean.json", "mean_all_batches")):
        body = valid(path.stem, path)
        assert key not in body
        assert body["meta"]["data_file"] == "ranges.parquet"
    rows = pq.read_table(folder / "ranges.parquet").to_pylist()
    (place,) = (index for index, row in enumerate(rows) if row["key"] == "batch_2")
    batch, stage = rows[place : place + 2]
    assert (batch["depth"], batch["parent"], batch["cpu_time"], batch["warmup"]) == (1, 0, 10.0, False)
    assert (stage["key"], stage["parent"], stage["gpu_busy_time"]) == ("infer", place, 0.001)
    write_trace(folder)
    analyzed(tmp_path, process(0))
    assert list(tmp_path.rglob("ranges.parquet")) == []


@pytest.mark.parametrize("changes", [{"ended": "failed", "exit_code": 3}, {"ended": "timeout"}])
@pytest.mark.parametrize("left_a_trace", [True, False])
def test_a_process_that_did_not_end_well_is_not_in_the_mean(
    whole: Path, changes: dict[str, Any], left_a_trace: bool
) -> None:
    """What the others did was done beside it, or without it: the run has no throughput, they have their own."""
    summary = analyzed(whole, process(0), process(1, trace="trace.sqlite" if left_a_trace else None, **changes))
    mean = load(whole / "benchmark_mean.json")
    assert mean["meta"]["processes"] == [FIRST]
    assert mean["mean_all_batches"]["toy"]["batch_2"]["cpu_time"] == 10.0
    assert (whole / SECOND / "benchmark.json").exists() is left_a_trace
    assert codes(summary) == ([("processes-failed", None)] if left_a_trace else [])
    rates = [summary.mean, summary.mean_of(FIRST), summary.mean_of(SECOND)]
    found = [rate["throughput"]["items_per_second"] if rate else None for rate in rates]
    assert found == [None, pytest.approx(40), None]
    assert mean["throughput"]["processes"][FIRST]["items_per_second"] == pytest.approx(40)
    assert mean["throughput"]["reason"].startswith(SECOND)


def test_workers_without_batches_have_no_part_in_the_throughput(tmp_path: Path) -> None:
    """Their stages are in the table, outside of the batches of the process that they work for."""
    folder, worker = tmp_path / FIRST, tmp_path / FIRST / "child_0"
    write_trace(folder)
    builder = TraceBuilder()
    builder.row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=UTC)
    builder.mark(conventions.MARK_RECORDER, 0, domain="perfharness", category="toy")
    for start_ms in (101, 102, 150):  # the second batch is from 100 to 110
        builder.range("decode", start_ms * MS, (start_ms + 2) * MS, domain="perfharness", category="toy")
    worker.mkdir()
    builder.write(worker / "trace.sqlite")
    measured = [
        MeasuredProcess(folder=FIRST, launched_index=0, pid=100, trace="trace.sqlite"),
        MeasuredProcess(folder=f"{FIRST}/child_0", launched_index=0, pid=100, trace="child_0/trace.sqlite"),
    ]
    summary = analyzed(tmp_path, process(0, measured=measured))
    mean = valid("benchmark_mean", tmp_path / "benchmark_mean.json")
    assert mean["throughput"]["items_per_second"] == pytest.approx(40)
    assert [(stage["path"], stage["count"]) for stage in mean["outside_batches"]] == [(["toy", "decode"], 3)]
    assert load(worker / "benchmark.json")["outside_batches"] == []
    assert summary.mean_of(f"{FIRST}/child_0")["throughput"]["items_per_second"] is None
    assert summary.findings == []
    assert perfharness.open_run(tmp_path).findings == []
    assert perfharness.open_run(worker).findings == []
    alone = process(0, measured=measured[1:])
    assert codes(analyzed(tmp_path, alone)) == [("no-batches", f"{FIRST}/child_0")]
    assert [finding.code for finding in perfharness.open_run(tmp_path).findings] == ["no-batches"]


def test_a_process_without_a_trace_that_can_be_read(whole: Path) -> None:
    """The others are written; of the process nothing stays."""
    (whole / SECOND / "benchmark.json").write_text("{}")  # of an earlier analysis
    (whole / SECOND / "trace.sqlite").write_bytes(b"")
    assert codes(analyzed(whole, process(0), process(1))) == [("trace-unreadable", SECOND)]
    assert not (whole / SECOND / "benchmark.json").exists()
    assert load(whole / "benchmark_mean.json")["meta"]["processes"] == [FIRST]
    assert codes(analyzed(whole, process(0), process(1, trace=None))) == [("trace-missing", SECOND)]
    reported = Finding("x", Severity.ERROR, "found by the launcher", process=SECOND)
    assert codes(analyzed(whole, process(0), process(1, trace=None), findings=[reported])) == [("x", SECOND)]
    tracer = TracerRecord(kind="none")
    assert codes(analyzed(whole, process(0, trace=None), tracer=tracer)) == [("not-traced", FIRST)]


def test_nothing_at_all(tmp_path: Path) -> None:
    summary = analyzed(tmp_path, process(0, trace=None, ended="failed"))
    assert valid("benchmark_mean", tmp_path / "benchmark_mean.json")["throughput"]["reason"]
    assert summary.results == {}


TOO_MANY_ITEMS = 2**62 + 1
CHECKED: dict[str, tuple[dict[str, Any], int, list[str]]] = {
    "ranges": ({"ranges": 12}, 4, ["trace-missing-ranges"]),
    "items": ({"items": 1000}, 4, ["trace-incomplete"]),
    "not finalized": ({"finalized": False}, 4, ["recorder-not-finalized"]),
    "a sum beyond 64 bits": ({"items": 5 * TOO_MANY_ITEMS}, TOO_MANY_ITEMS, []),
    "its last item": ({"items": 5 * TOO_MANY_ITEMS + 1}, TOO_MANY_ITEMS, ["trace-incomplete"]),
}


@pytest.mark.parametrize("name", CHECKED)
def test_the_trace_is_checked_against_the_recorder(tmp_path: Path, name: str) -> None:
    """By `analyze`, `open_run`, and where the trace is read without its run."""
    changes, items, expected = CHECKED[name]
    write_trace(tmp_path / FIRST, items=items)
    write_journal(tmp_path / FIRST, **changes)
    assert [finding.code for finding in analyzed(tmp_path, process(0)).findings] == expected
    for path in (tmp_path, tmp_path / FIRST / "trace.sqlite"):
        assert [finding.code for finding in perfharness.open_run(path).findings] == expected


def test_a_child_whose_ranges_are_in_no_trace(tmp_path: Path) -> None:
    folder = tmp_path / FIRST
    write_trace(folder)
    write_journal(folder)
    write_journal(folder / "child_0", of_process={"pid": 102, "parent_pid": 100})
    children = [
        MeasuredProcess(folder=f"{FIRST}{below}", launched_index=0, pid=pid, trace="trace.sqlite")
        for below, pid in (("", 100), ("/child_0", 102))
    ]
    missing = ("trace-missing-ranges", f"{FIRST}/child_0")
    assert missing in codes(analyzed(tmp_path, process(0, measured=children)))
    assert [code for code, of in codes(analyzed(tmp_path, process(0, measured=children))) if of == FIRST] == []
    assert missing in [(finding.code, finding.process) for finding in perfharness.open_run(tmp_path).findings]
    assert run(["analyze", str(tmp_path)]) == 3
    assert run(["export", str(tmp_path), "-o", str(tmp_path / "timeline.json")]) == 3


def test_a_journal_that_cannot_be_read(whole: Path) -> None:
    (whole / FIRST / "recorder.json").write_text("{")
    assert codes(analyzed(whole, process(0))) == [("recorder-counts-unreadable", FIRST)]
    assert [finding.code for finding in perfharness.open_run(whole).findings] == ["recorder-counts-unreadable"]


@pytest.mark.parametrize("of_process", [{}, {"startup": None, "parent_pid": 1}])
def test_a_trace_without_any_range_names_the_pair_of_versions(tmp_path: Path, of_process: dict[str, Any]) -> None:
    """Of a forked child too, whatever else may be why ranges of forked children are lost."""
    builder = TraceBuilder()
    builder.row("META_DATA_EXPORT", name="EXPORT_PRODUCT_VERSION", value="2023.4.4.54")
    write_journal(tmp_path / FIRST, of_process={"nvtx_version": "0.2.17", **of_process})
    builder.write(tmp_path / FIRST / "trace.sqlite")
    (missing,) = analyzed(tmp_path, process(0)).findings  # and nobody is told to annotate the script
    assert missing.code == "trace-missing-ranges"
    assert "10" in missing.message
    assert "0.2.17" in missing.hint


@pytest.mark.parametrize(("ended", "expected"), [("ok", ["no-batches"]), ("failed", [])])
def test_consequences_of_a_failure_are_not_reported(tmp_path: Path, ended: str, expected: list[str]) -> None:
    builder = TraceBuilder()
    builder.range("warm-up", 0, MS)
    (tmp_path / FIRST).mkdir()
    builder.write(tmp_path / FIRST / "trace.sqlite")
    summary = analyzed(tmp_path, process(0, ended=ended, exit_code=int(ended != "ok")))
    for findings in (summary.findings, perfharness.open_run(tmp_path).findings):
        assert [finding.code for finding in findings if finding.process] == expected


# ---- manifests that are damaged, or lead out of the run ----

RECORDS: dict[str, dict[str, Any]] = {
    "parent": {"folder": "../outside"},
    "here": {"folder": "."},
    "deeper": {"folder": f"{FIRST}/../../outside"},
    "nul": {"folder": f"{FIRST}\0"},
    "trace with a path": {"trace": "../../outside/trace.sqlite"},
    "absolute trace": {"trace": "/dev/zero"},
    "huge": {"start_unix_ns": 10**30},
}
"""Records of a process that lead out of the run folder, or hold what no launch writes."""


def errors_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Messages without the steps, which begin with their time."""
    return [line for line in capsys.readouterr().err.splitlines() if not line.startswith("[")]


@pytest.mark.parametrize("name", RECORDS)
def test_what_leads_out_of_a_run_folder_is_refused(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out, outside = tmp_path / "out", tmp_path / "outside"
    write_trace(outside)
    (outside / "benchmark.json").write_text("mine")
    write_trace(out / FIRST)
    tree = json.loads(manifest_of(process(0)).model_dump_json())
    tree["processes"][0] |= RECORDS[name]
    (out / "manifest.json").write_text(json.dumps(tree))
    before = sorted(tmp_path.rglob("*"))
    for verb in (["analyze"], ["analyze", "--slowest", "1"], ["export", "-o", str(tmp_path / "made")]):
        assert run([*verb, str(out)]) == 1
        assert len(errors_of(capsys)) == 1
        assert sorted(tmp_path.rglob("*")) == before
    assert (outside / "benchmark.json").read_text() == "mine"


@pytest.mark.parametrize("text", ["", "[]", "[" * 100_000, "\xff\xfe", "null"])
def test_a_manifest_that_is_none(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "manifest.json").write_bytes(text.encode("latin-1"))
    assert run(["analyze", str(tmp_path)]) == 1
    assert len(errors_of(capsys)) == 1


# ---- who else writes, and what cannot be written ----


def test_two_analyses_of_one_folder(whole: Path) -> None:
    with locked(whole):
        assert run(["analyze", str(whole)]) == 1
    assert not (whole / "benchmark_mean.json").exists()
    assert run(["analyze", str(whole)]) == 0


@pytest.mark.parametrize("at", [1, 4])
def test_a_folder_that_cannot_be_written(whole: Path, at: int, capsys: pytest.CaptureFixture[str]) -> None:
    """The results are printed all the same; those that are there stay."""
    assert run(["analyze", str(whole)]) == 0
    expected, before = capsys.readouterr().out, {path: path.read_bytes() for path in whole.rglob("*.json")}
    with fault(whole, at, errno.EROFS):
        assert run(["analyze", str(whole)]) == 1
    assert capsys.readouterr().out == expected
    assert {path: path.read_bytes() for path in whole.rglob("*.json")} == before


def test_results_stay_where_no_trace_can_be_read(whole: Path) -> None:
    def results() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in whole.rglob("benchmark*.json")}

    assert run(["analyze", str(whole)]) == 0
    before = results()
    (whole / SECOND / "trace.sqlite").unlink()
    assert run(["analyze", str(whole)]) == 3
    assert set(before) - set(results()) == {whole / SECOND / "benchmark.json"}
    left = results()
    (whole / FIRST / "trace.sqlite").write_bytes(b"")
    assert run(["analyze", str(whole)]) == 3
    assert results() == left


# ---- what a killed launcher, or a full disk, left ----

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


def cut_off(index: int, pid: int) -> ProcessRecord:
    return process(index, ended="cut_off", trace=None, exit_code=None, pid=pid)


def test_logs_of_ended_processes_become_traces(tmp_path: Path) -> None:
    """That of a process that still runs stays."""
    write_log(tmp_path / FIRST)
    write_log(tmp_path / SECOND, running=True)
    records, tracer = (cut_off(0, ENDED_PID), cut_off(1, os.getpid())), TracerRecord(kind="embedded")
    for _ in range(2):
        summary = analyzed(tmp_path, *records, complete=False, tracer=tracer)
        assert {("run-cut-off", None), ("trace-missing", SECOND)} <= set(codes(summary))
        assert load(tmp_path / FIRST / "benchmark.json")["data"]["nvtx"]["batch_0"]["count"] == 1
        assert [path.suffix for path in sorted((tmp_path / SECOND).glob(".ranges_*"))] == [".log", ".names"]
    assert perfharness.open_run(tmp_path).ranges().num_rows == 1  # the manifest lists the trace now


def test_logs_for_which_the_disk_had_no_room_are_read_later(tmp_path: Path) -> None:
    missing = Finding(code="trace-missing", severity=Severity.ERROR, message="m", process=FIRST)
    write_log(tmp_path / FIRST)
    record, tracer = process(0, trace=None, pid=ENDED_PID), TracerRecord(kind="embedded")
    summary = analyzed(tmp_path, record, tracer=tracer, findings=[missing])
    assert load(tmp_path / FIRST / "benchmark.json")["data"]["nvtx"]["batch_0"]["count"] == 1
    assert ("trace-missing", FIRST) not in codes(summary)


def test_a_run_whose_launcher_was_killed(tmp_path: Path) -> None:
    """As it was when the launcher died: the first process has a trace, the second none."""
    write_trace(tmp_path / FIRST)
    summary = analyzed(tmp_path, cut_off(0, 100), cut_off(1, 101), complete=False)
    assert load(tmp_path / "benchmark_mean.json")["mean_all_batches"]["toy"]["batch_2"]["cpu_time"] == 10.0
    assert {("run-cut-off", None), ("trace-missing", SECOND)} <= set(codes(summary))
