"""`perfharness.open_run`: the tables of runs, processes and traces, against built traces and benchmark.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import perfharness
from perfharness.cli.main import run as run_cli
from perfharness.errors import ResultError, TraceFormatError, UsageError
from perfharness.runs.analyze import AnalyzedTraces
from perfharness.runs.run import TABLES
from tests.support.trace_builder import TraceBuilder
from tests.unit.export_runs import ITEMS, MS, RUN_START, process_record, recorded_trace, run_folder, two_processes

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden" / "traces"


def rows(table: pa.Table, *columns: str) -> list[tuple[Any, ...]]:
    return list(zip(*(table[column].to_pylist() for column in columns), strict=True))


# ---- what the tables say ----


def test_one_row_a_batch(tmp_path: Path) -> None:
    run = perfharness.open_run(recorded_trace(tmp_path / "t.sqlite"), warmup_batches=1)
    table = run.batches()
    assert table.to_pylist()[2] == {
        "process": "t", "recorder": "toy", "path": "pipeline/batch", "batch_index": 2, "pid": 100, "tid": 100,
        "range_id": table["range_id"][2].as_py(), "start_ns": 21 * MS, "start_unix_ns": RUN_START + 21 * MS,
        "duration_ns": 9 * MS, "gpu_duration_ns": 3 * MS + 4000, "gpu_busy_ns": 8000, "gpu_op_count": 4, "items": 3,
        "duration_per_item_ns": 3.0 * MS, "gpu_duration_per_item_ns": (3 * MS + 4000) / 3,
        "gpu_busy_per_item_ns": 8000 / 3, "warmup": True,
    }  # fmt: skip
    assert rows(table, "batch_index", "items", "warmup") == [(0, 4, True), (1, 4, False), (2, 3, True)]


def test_one_row_for_each_stage_of_a_batch(tmp_path: Path) -> None:
    table = perfharness.open_run(recorded_trace(tmp_path / "t.sqlite")).stages()
    assert rows(table, "batch_index", "stage", "path", "count", "duration_ns", "gpu_busy_ns", "items") == [
        (0, "load", "pipeline/batch/load", 1, MS, 0, 4),
        (0, "infer", "pipeline/batch/infer", 1, 2 * MS, 4000, 4),
        (1, "load", "pipeline/batch/load", 1, MS, 0, 4),
        (1, "infer", "pipeline/batch/infer", 1, 2 * MS, 4000, 4),
        (2, "load", "pipeline/batch/load", 1, MS, 0, 3),
        (2, "infer", "pipeline/batch/infer", 2, 4 * MS, 8000, 3),
    ]


@pytest.mark.parametrize("name", ["pipeline", "threads", "graphs", "long", "old_partial", "recorder_nsys_2023_4"])
def test_stages_and_batches_agree_with_benchmark_json(name: str) -> None:
    """The means over the rows of a path are the numbers of `mean_data`."""
    path = GOLDEN / f"{name}.sqlite"
    analyzed = perfharness.analyze(path)
    assert isinstance(analyzed, AnalyzedTraces)
    (result,) = analyzed.results.values()
    run = perfharness.open_run(path)
    keys = {"cpu_time": "duration_ns", "gpu_time": "gpu_duration_ns", "gpu_busy_time": "gpu_busy_ns"}
    compared = 0
    for table in (run.batches(), run.stages()):
        grouped = table.group_by(["recorder", "path"]).aggregate(
            [(column, "mean") for column in keys.values()] + [(column, "count") for column in keys.values()]
            + [([], "count_all")]
        )  # fmt: skip
        for row in grouped.to_pylist():
            entry = result.mean_data[row["recorder"]]
            for part in row["path"].split("/"):
                entry = entry[part]
            assert entry["batches"] == row["count_all"]
            for key, column in keys.items():
                whole = row[f"{column}_count"] == row["count_all"]
                expected = row[f"{column}_mean"] / 1e6 if whole else None
                assert entry[key] == (None if expected is None else pytest.approx(expected, abs=2e-6)), (row, key)
                compared += 1
    assert compared >= 6


def test_kernels_know_their_call_and_their_stage(tmp_path: Path) -> None:
    run = perfharness.open_run(recorded_trace(tmp_path / "t.sqlite"), warmup_batches=1)
    kernels = run.kernels()
    at = 3 * MS
    first = kernels.to_pylist()[0]
    assert first == {
        "process": "t", "name": "gemm", "full_name": "void gemm<float>()", "grid_x": 12, "grid_y": 2, "grid_z": 1,
        "block_x": 128, "block_y": 1, "block_z": 1, "registers_per_thread": 32, "shared_memory_bytes": 1024,
        "graph_node": None, "pid": 100, "device": 0, "stream": 8, "start_ns": at + 2500,
        "start_unix_ns": RUN_START + at + 2500, "duration_ns": 2500, "correlation_id": first["correlation_id"],
        "call": "cudaLaunchKernel_v7000", "call_tid": 100, "call_start_ns": at + 30, "call_duration_ns": 10,
        "launch_latency_ns": 2470, "recorder": "toy", "path": "pipeline/batch/infer", "range_id": first["range_id"],
        "batch_index": 0, "warmup": True,
    }  # fmt: skip
    assert rows(kernels, "batch_index", "warmup") == [(0, True), (1, False), (2, True), (2, True)]
    infer = {row["range_id"] for row in run.ranges().to_pylist() if row["name"] == "infer"}
    assert set(kernels["range_id"].to_pylist()) == infer


def test_copies_have_bytes_and_rates(tmp_path: Path) -> None:
    copies = perfharness.open_run(recorded_trace(tmp_path / "t.sqlite")).copies()
    assert rows(copies.slice(0, 1), "direction", "source", "target", "bytes", "gb_per_s", "path") == [
        ("host_to_device", "pageable", "device", 8000, 4.0, "pipeline/batch/infer")
    ]


def test_the_counts_of_golden_traces() -> None:
    """Rows of the files' own tables: kernels, copies, memsets, graph replays."""
    for name, expected in {"graphs": (60, 14, 8, 8), "graphs_node": (172, 14, 24, 0), "cpu": (0, 0, 0, 0)}.items():
        run = perfharness.open_run(GOLDEN / f"{name}.sqlite")
        counts = (table.num_rows for table in (run.kernels(), run.copies(), run.memsets(), run.graphs()))
        assert tuple(counts) == expected


def test_operations_are_attributed_as_they_are_projected() -> None:
    """Operations of a stage and of what it holds, counted by the tables, against the projection's own count."""
    for name in ("pipeline", "threads", "graphs_node"):
        run = perfharness.open_run(GOLDEN / f"{name}.sqlite")
        counted: dict[tuple[str, int], set[int]] = {}
        for table in (run.kernels(), run.copies(), run.memsets()):
            for path, batch, call in rows(table, "path", "batch_index", "call_start_ns"):
                if batch is not None:
                    counted.setdefault((path.split("/")[0], batch), set()).add(call)
        expected = {
            (path.split("/")[0], batch): count
            for path, batch, count in rows(run.batches(), "path", "batch_index", "gpu_op_count")
        }
        assert {key: len(calls) for key, calls in counted.items()} == expected


def test_what_could_not_be_measured_is_null() -> None:
    run = perfharness.open_run(GOLDEN / "old_partial.sqlite")
    batches = run.batches()
    assert batches["gpu_busy_ns"].null_count == batches["gpu_op_count"].null_count == 12
    assert batches["duration_ns"].null_count == 0
    assert batches["items"].null_count == batches["duration_per_item_ns"].null_count == 12
    assert "trace-incomplete" in {finding.code for finding in run.findings}


def test_a_batch_of_no_items_has_no_time_per_item(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.mark("perfharness.recorder", 0, domain="perfharness", category="toy")
    builder.range("batch", 0, 100, domain="perfharness", category="toy", payload=0)
    builder.mark("perfharness.items", 90, domain="perfharness", category="toy", payload=0)
    batches = perfharness.open_run(builder.write(tmp_path / "t.sqlite")).batches()
    assert rows(batches, "items", "duration_per_item_ns", "gpu_duration_ns") == [(0, None, 0)]


def test_a_call_between_two_tasks_goes_to_the_one_that_began_last(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.mark("perfharness.recorder", 0, domain="perfharness", category="toy")
    for lane, (start, end) in enumerate([(0, 100), (50, 150)], start=1):
        builder.range(
            f"task{lane}", start, end, domain="perfharness", category=f"toy#{lane}", payload=lane, start_end=True
        )
    for call in ((10, 11), (60, 61), (120, 121), (160, 161), (99, 101)):
        builder.kernel(call, (call[0] + 200, call[0] + 201))
    kernels = perfharness.open_run(builder.write(tmp_path / "t.sqlite")).kernels()
    assert rows(kernels, "call_start_ns", "path") == [
        (10, "task1"), (60, "task2"), (99, "task2"), (120, "task2"), (160, None),
    ]  # fmt: skip


# ---- runs ----


def test_a_run_of_two_processes(tmp_path: Path) -> None:
    folder = two_processes(tmp_path / "run")
    run = perfharness.open_run(folder)
    assert [process.name for process in run.processes] == ["proc_0_gpu_0", "proc_1_gpu_0"]
    assert run.manifest is not None
    assert run.manifest.script == "toy.py"
    batches = run.batches()
    assert rows(batches, "process", "batch_index", "warmup", "items") == [
        (name, index, index != 1, items)
        for name in ("proc_0_gpu_0", "proc_1_gpu_0")
        for index, items in enumerate(ITEMS)
    ]
    assert batches["start_unix_ns"].to_pylist()[3] == RUN_START + 5 * MS + MS
    for name in TABLES:
        assert run.table(name).column_names[0] == "process"
    assert perfharness.open_run(folder, warmup_batches=0).batches()["warmup"].to_pylist() == [False] * 6


def test_benchmark_and_findings_of_a_run(tmp_path: Path) -> None:
    folder = two_processes(tmp_path / "run")
    assert perfharness.open_run(folder).benchmark is None
    assert run_cli(["analyze", str(folder)]) == 0
    run = perfharness.open_run(folder)
    assert run.benchmark == json.loads((folder / "benchmark_mean.json").read_text())
    assert run.processes[1].benchmark == json.loads((folder / "proc_1_gpu_0" / "benchmark.json").read_text())
    single = perfharness.open_run(folder / "proc_1_gpu_0")
    assert single.benchmark == run.processes[1].benchmark
    assert single.batches().equals(run.processes[1].table("batches"))
    assert run.benchmark is not None
    assert [finding.to_json() for finding in run.findings] == run.benchmark["meta"]["findings"]


def test_a_process_without_a_trace_has_no_tables(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    recorded_trace(folder / "proc_0_gpu_0" / "trace.sqlite")
    run_folder(folder, process_record(0), process_record(1, trace=None, ended="failed"))
    run = perfharness.open_run(folder)
    for name in TABLES:
        assert run.table(name).equals(run.processes[0].table(name))
    with pytest.raises(ResultError, match="proc_1_gpu_0"):
        run.processes[1].table("batches")
    assert run.processes[1].session_start_unix_ns is None


# ---- what is refused ----


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match="missing"):
        perfharness.open_run(tmp_path / "missing")
    with pytest.raises(ResultError):
        perfharness.open_run(tmp_path)
    bad = tmp_path / "bad.sqlite"
    bad.write_bytes(b"hello")
    with pytest.raises(TraceFormatError, match=r"bad\.sqlite"):
        perfharness.open_run(bad).ranges()
    good = perfharness.open_run(recorded_trace(tmp_path / "t.sqlite"))
    with pytest.raises(UsageError, match="rows"):
        good.table("rows")
    with pytest.raises(UsageError, match="warmup_batches"):
        perfharness.open_run(bad, warmup_batches=-1)
    with pytest.raises(ResultError):
        perfharness.open_run(run_folder(tmp_path / "empty")).ranges()
