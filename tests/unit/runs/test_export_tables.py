"""`perfharness export`: tables as CSV, JSON, Parquet and Arrow, where they go, and what is refused."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import jsonschema
import pyarrow as pa
import pyarrow.parquet
import pytest

from perfharness.cli.main import run
from perfharness.runs.run import TABLES, open_run
from tests.unit.export_runs import recorded_trace, two_processes

GOLDEN = Path(__file__).parents[2] / "golden" / "traces"


def read_arrow(path: Path) -> pa.Table:
    with pa.memory_map(str(path)) as file:
        return pa.ipc.open_file(file).read_all()


def test_every_format_holds_the_same_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = two_processes(tmp_path / "run")
    for table_format in ("csv", "json", "parquet", "arrow"):
        target = tmp_path / table_format
        assert run(["export", str(folder), "--format", table_format, "-o", str(target)]) == 0
        written = capsys.readouterr().out.split()
        assert written == [str(target / f"{name}.{table_format}") for name in TABLES]
    opened = open_run(folder)
    for name in TABLES:
        expected = opened.table(name)
        assert expected.num_rows > 0 or name in ("memsets", "graphs")
        arrow = read_arrow(tmp_path / "arrow" / f"{name}.arrow")
        assert arrow.schema == expected.schema
        assert arrow.to_pylist() == expected.to_pylist()
        parquet = pyarrow.parquet.read_table(tmp_path / "parquet" / f"{name}.parquet")
        assert parquet.to_pylist() == expected.to_pylist()
        assert json.loads((tmp_path / "json" / f"{name}.json").read_text()) == expected.to_pylist()
        with (tmp_path / "csv" / f"{name}.csv").open(newline="") as file:
            rows = list(csv.reader(file))
        assert rows[0] == expected.column_names
        assert len(rows) == 1 + expected.num_rows
        for text, row in zip(rows[1:], expected.to_pylist(), strict=True):
            for cell, value in zip(text, row.values(), strict=True):
                assert cell == _as_text(value) or float(cell) == value


def _as_text(value: object) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def test_one_table_goes_into_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = recorded_trace(tmp_path / "t.sqlite")
    command = ["export", str(trace), "--table", "kernels", "-w", "1"]
    assert run([*command, "-o", str(tmp_path / "k.parquet")]) == 0
    assert pyarrow.parquet.read_table(tmp_path / "k.parquet")["warmup"].to_pylist() == [True, False, True, True]
    assert run([*command, "--format", "parquet", "-o", str(tmp_path)]) == 0
    assert (tmp_path / "kernels.parquet").is_file()
    assert capsys.readouterr().out.split() == [str(tmp_path / "k.parquet"), str(tmp_path / "kernels.parquet")]


def test_an_arrow_file_can_be_mapped(tmp_path: Path) -> None:
    assert run(["export", str(GOLDEN / "long.sqlite"), "--table", "kernels",
                "-o", str(tmp_path / "k.arrow")]) == 0  # fmt: skip
    before = pa.total_allocated_bytes()
    table = read_arrow(tmp_path / "k.arrow")
    assert pa.total_allocated_bytes() - before < 1 << 20
    assert table.num_rows == 20001


def test_tables_of_plain_nvtx(tmp_path: Path) -> None:
    """A trace alone goes into a Parquet file of its ranges by the ending."""
    trace, options = str(GOLDEN / "threads.sqlite"), ["--domain", "nvtx", "--batch-pattern", "worker_(\\d)"]
    assert run(["export", trace, "--table", "batches", *options, "-o", str(tmp_path / "b.parquet")]) == 0
    assert pyarrow.parquet.read_table(tmp_path / "b.parquet")["batch_index"].to_pylist() == [0, 1, 2]
    assert run(["export", trace, "-o", str(tmp_path / "r.parquet")]) == 0
    assert "parent_id" in pyarrow.parquet.read_table(tmp_path / "r.parquet").column_names


def test_a_process_whose_trace_is_damaged_does_not_take_the_others_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = two_processes(tmp_path / "run")
    (folder / "proc_0_gpu_0" / "trace.sqlite").write_bytes(b"hello")
    assert run(["export", str(folder), "-o", str(tmp_path / "t.json")]) == 3
    assert list(json.loads((tmp_path / "t.json").read_text())["otherData"]["processes"]) == ["proc_1_gpu_0"]
    options = ["--format", "parquet", "--table", "batches"]
    assert run(["export", str(folder), *options, "-o", str(tmp_path / "b.parquet")]) == 3
    assert pyarrow.parquet.read_table(tmp_path / "b.parquet")["process"].to_pylist() == ["proc_1_gpu_0"] * 3
    (folder / "proc_1_gpu_0" / "trace.sqlite").write_bytes(b"hello")
    assert run(["export", str(folder), *options, "-o", str(tmp_path / "c.parquet")]) == 1


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (["missing", "-o", "x.json"], 1, "missing"),
        (["empty_folder", "-o", "x.json"], 1, "empty_folder"),
        (["bad.sqlite", "-o", "x.json"], 1, "bad.sqlite"),
        (["t.sqlite", "-o", "no/x.json"], 1, "no/x.json"),
        (["t.sqlite", "--format", "csv", "-o", "bad.sqlite"], 1, "bad.sqlite"),
        (["t.sqlite", "--format", "csv", "--table", "rows", "-o", "x"], 2, "rows"),
        (["t.sqlite", "--table", "kernels", "-o", "x.txt"], 2, "--format"),
        (["t.sqlite", "-o", "x.docx"], 2, ".parquet"),
        (["t.sqlite", "--table", "kernels", "--table", "ranges", "-o", "x.csv"], 2, "--format"),
        (["t.sqlite", "--table", "kernels", "-o", "empty_folder"], 2, "--format"),
        (["t.sqlite"], 2, "-o"),
    ],
)
def test_what_is_refused(
    arguments: list[str],
    code: int,
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    recorded_trace(tmp_path / "t.sqlite")
    (tmp_path / "bad.sqlite").write_bytes(b"hello")
    (tmp_path / "empty_folder").mkdir()
    assert run(["export", *arguments]) == code
    assert named in capsys.readouterr().err
    assert not (tmp_path / "x.json").exists()


@pytest.mark.parametrize(
    ("kind", "key"),
    [("benchmark", "data"), ("benchmark_mean", "mean_data"), ("manifest", "processes"), ("recorder", "recorders")],
)
def test_a_schema_is_printed(kind: str, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export", "--schema", kind]) == 0
    schema = json.loads(capsys.readouterr().out)
    jsonschema.validators.validator_for(schema).check_schema(schema)
    assert key in schema["properties"]


def test_a_schema_that_there_is_not_is_a_usage_error_with_the_kinds(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export", "--schema", "nothing"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert {"benchmark", "bench", "load"} <= set(re.findall(r"\w+", captured.err))
