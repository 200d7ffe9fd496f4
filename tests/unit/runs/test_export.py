"""`perfharness export`: tables in every format, the file that is written, schemas, and what is refused."""

from __future__ import annotations

import csv
import io
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import perfharness
from perfharness.cli.main import run
from tests.support.trace_builder import TraceBuilder
from tests.unit.export_runs import recorded_trace, two_processes
from tests.unit.file_faults import fault

GOLDEN = Path(__file__).parents[2] / "golden" / "traces"
TABLES = ("ranges", "batches", "stages", "kernels", "copies", "memsets", "graphs")
Captured = pytest.CaptureFixture[str]


def exported(source: Path, target: Path, *options: str, code: int = 0) -> Any:
    """The table in the file, as rows."""
    assert run(["export", str(source), *options, "-o", str(target)]) == code
    match target.suffix:
        case ".json":
            return json.loads(target.read_text())
        case ".csv":
            return list(csv.DictReader(io.StringIO(target.read_text())))
        case ".parquet":
            return pq.read_table(target).to_pylist()
        case _:
            with pa.memory_map(str(target)) as file:
                return pa.ipc.open_file(file).read_all().to_pylist()


# ---- tables ----


def test_every_format_holds_the_same_rows(tmp_path: Path, capsys: Captured) -> None:
    folder = two_processes(tmp_path / "run")
    for ending in ("csv", "json", "parquet", "arrow"):
        assert run(["export", str(folder), "--format", ending, "-o", str(tmp_path / ending)]) == 0
        assert capsys.readouterr().out.split() == [str(tmp_path / ending / f"{name}.{ending}") for name in TABLES]
        for name in TABLES:
            rows = perfharness.open_run(folder).table(name).to_pylist()
            assert rows or name in ("memsets", "graphs")
            found = exported(folder, tmp_path / f"{name}.{ending}", "--table", name)
            assert (tmp_path / ending / f"{name}.{ending}").read_bytes() == (tmp_path / f"{name}.{ending}").read_bytes()
            assert found == (
                [{key: as_text(value) for key, value in row.items()} for row in rows] if ending == "csv" else rows
            )
            capsys.readouterr()


def as_text(value: object) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value).removesuffix(".0")


def test_the_columns_of_ranges(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    builder = TraceBuilder()
    builder.range("outer", 0, 100, pid=2, tid=9)
    builder.range("inner", 10, 40, pid=2, tid=9, domain="lib", category="io", payload=7)
    builder.range('odd, "name"', 10, 20, pid=1, tid=30, start_end=True, text=True)
    builder.kernel((11, 12), (200, 230), pid=2, tid=9)
    trace = builder.write(tmp_path / "t.sqlite")
    odd, outer, inner = exported(trace, tmp_path / "r.json", "--table", "ranges")
    assert inner == {
        "process": "t", "range_id": inner["range_id"], "parent_id": outer["range_id"], "name": "inner", "domain": "lib",
        "category": "io", "style": "push_pop", "pid": 2, "tid": 9, "level": 1, "start_ns": 10,
        "start_unix_ns": inner["start_unix_ns"], "duration_ns": 30, "gpu_start_ns": 200, "gpu_duration_ns": 30,
        "gpu_busy_ns": 30, "gpu_op_count": 1, "payload": 7,
    }  # fmt: skip
    assert (odd["name"], odd["style"], odd["gpu_busy_ns"], odd["gpu_op_count"]) == ('odd, "name"', "start_end", None, 0)
    capfd.readouterr()
    assert run(["export", str(trace), "--table", "ranges", "-o", "-"]) == 0
    rows = list(csv.DictReader(io.StringIO(capfd.readouterr().out)))
    assert [row["name"] for row in rows] == ['odd, "name"', "outer", "inner"]
    assert run(["export", str(trace), "--table", "ranges"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert [line.strip().split("  ")[0] for line in lines[-3:]] == ['odd, "name"', "outer", "lib:inner"]


def test_options_of_reading(tmp_path: Path) -> None:
    kernels = exported(recorded_trace(tmp_path / "t.sqlite"), tmp_path / "k.parquet", "--table", "kernels", "-w", "1")
    assert [row["warmup"] for row in kernels] == [True, False, True, True]
    options = ("--table", "batches", "--domain", "nvtx", "--batch-pattern", "worker_(\\d)")
    batches = exported(GOLDEN / "threads.sqlite", tmp_path / "b.parquet", *options)
    assert [row["batch_index"] for row in batches] == [0, 1, 2]
    partial = exported(GOLDEN / "old_partial.sqlite", tmp_path / "p.parquet", code=3)
    assert sum(row["gpu_op_count"] is None for row in partial) == 48
    (tmp_path / "t").mkdir()
    assert (
        run(["export", str(tmp_path / "t.sqlite"), "--table", "copies", "--format", "csv", "-o", str(tmp_path / "t")])
        == 0
    )
    assert (tmp_path / "t" / "copies.csv").is_file()


def test_a_process_whose_trace_is_damaged_does_not_take_the_others_with_it(tmp_path: Path) -> None:
    folder = two_processes(tmp_path / "run")
    (folder / "proc_0_gpu_0" / "trace.sqlite").write_bytes(b"hello")
    timeline = exported(folder, tmp_path / "t.json", code=3)
    assert list(timeline["otherData"]["processes"]) == ["proc_1_gpu_0"]
    batches = exported(folder, tmp_path / "b.parquet", "--table", "batches", code=3)
    assert [row["process"] for row in batches] == ["proc_1_gpu_0"] * 3
    (folder / "proc_1_gpu_0" / "trace.sqlite").write_bytes(b"hello")
    assert run(["export", str(folder), "--table", "batches", "-o", str(tmp_path / "c.parquet")]) == 1


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (["missing", "-o", "x.json"], 1, "missing"),
        (["empty_folder", "-o", "x.json"], 1, "empty_folder"),
        (["bad.sqlite", "-o", "x.json"], 1, "bad.sqlite"),
        (["t.sqlite", "-o", "no/x.json"], 1, "no/x.json"),
        (["t.sqlite", "-o", "loop"], 1, "loop"),
        (["t.sqlite", "-o", "fifo"], 1, "fifo"),
        (["t.sqlite", "--format", "csv", "-o", "bad.sqlite"], 1, "bad.sqlite"),
        (["t.sqlite", "--format", "csv", "--table", "rows", "-o", "x"], 2, "rows"),
        (["t.sqlite", "--table", "kernels", "-o", "x.txt"], 2, "--format"),
        (["t.sqlite", "-o", "x.docx"], 2, ".parquet"),
        (["t.sqlite", "-o", "x.txt"], 3, "stack"),
        (["t.sqlite", "--table", "kernels", "--table", "ranges", "-o", "x.csv"], 2, "--format"),
        (["t.sqlite", "--table", "kernels", "-o", "empty_folder"], 2, "--format"),
        (["t.sqlite", "--table", "kernels"], 2, "-o"),
        (["t.sqlite"], 2, "-o"),
        ([], 2, "RUN_OR_TRACE"),
        (["--schema", "nothing"], 2, "benchmark"),
    ],
)
def test_what_is_refused(
    arguments: list[str], code: int, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.chdir(tmp_path)
    recorded_trace(tmp_path / "t.sqlite")
    (tmp_path / "bad.sqlite").write_bytes(b"hello")
    (tmp_path / "empty_folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "fifo")
    before = sorted(tmp_path.iterdir())
    assert run(["export", *arguments]) == code
    out, err = capsys.readouterr()
    assert (out, named in err) == ("", True)
    assert sorted(tmp_path.iterdir()) == before
    assert stat.S_ISFIFO((tmp_path / "fifo").stat().st_mode)


@pytest.mark.parametrize(
    ("kind", "key"),
    [("benchmark", "data"), ("benchmark_mean", "mean_data"), ("manifest", "processes"), ("recorder", "recorders")],
)
def test_a_schema_is_printed(kind: str, key: str, capsys: Captured) -> None:
    assert run(["export", "--schema", kind]) == 0
    schema = json.loads(capsys.readouterr().out)
    jsonschema.validators.validator_for(schema).check_schema(schema)
    assert key in schema["properties"]


# ---- the file ----


def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    trace, link = recorded_trace(tmp_path / "t.sqlite"), tmp_path / "link.json"
    (tmp_path / "there").mkdir()
    link.symlink_to(Path("there") / "target")
    for _ in range(2):
        assert exported(trace, link)["traceEvents"]
        assert link.is_symlink()
        assert [path.name for path in (tmp_path / "there").iterdir()] == ["target"]
        (tmp_path / "there" / "target").write_text("old")


def test_the_umask_holds_and_a_mode_that_is_there_stays(tmp_path: Path) -> None:
    trace, path = recorded_trace(tmp_path / "t.sqlite"), tmp_path / "t.json"
    before = os.umask(0o027)
    try:
        exported(trace, path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        path.chmod(0o604)
        exported(trace, path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o604
    finally:
        os.umask(before)


def test_an_error_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    path = tmp_path / "out" / "t.json"
    path.write_text("old")
    for at in (2, 3, 4):
        with fault(tmp_path / "out", at, 28) as faults:
            assert run(["export", str(GOLDEN / "cpu.sqlite"), "-o", str(path)]) == 1
        assert faults.count >= at
        assert [one.name for one in (tmp_path / "out").iterdir()] == ["t.json"]
        assert path.read_text() == "old"


def test_the_standard_output_gets_the_file_and_nothing_else(tmp_path: Path) -> None:
    words = ["export", str(recorded_trace(tmp_path / "t.sqlite")), "-o"]
    assert run([*words, str(tmp_path / "plain")]) == 0
    done = subprocess.run([sys.executable, "-m", "perfharness", *words, "-"], capture_output=True, check=True)
    assert done.stdout == (tmp_path / "plain").read_bytes()
