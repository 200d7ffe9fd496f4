"""`perfharness ranges`: the columns of the contract in every format."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pyarrow.csv
import pyarrow.parquet
import pytest

from perfharness.analysis.analysis import Analysis
from perfharness.cli.main import run
from perfharness.runs.tables import ranges as range_rows
from perfharness.trace import open_trace
from tests.support.trace_builder import TraceBuilder

GOLDEN = Path(__file__).parents[2] / "golden" / "traces"

COLUMNS = [
    "range_id", "parent_id", "name", "domain", "category", "style", "pid", "tid", "level", "start_ns", "duration_ns",
    "gpu_start_ns", "gpu_duration_ns", "gpu_busy_ns", "gpu_op_count", "payload",
]  # fmt: skip


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    builder = TraceBuilder()
    builder.range("outer", 0, 100, pid=2, tid=9)
    builder.range("inner", 10, 40, pid=2, tid=9, domain="lib", category="io", payload=7)
    builder.range('odd, "name"', 10, 20, pid=1, tid=30, start_end=True, text=True)
    builder.kernel((11, 12), (200, 230), pid=2, tid=9)
    return builder.write(tmp_path / "t.sqlite")


def test_json(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ranges", str(trace), "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [list(row) for row in rows] == [COLUMNS] * 3
    assert [row["name"] for row in rows] == ['odd, "name"', "outer", "inner"]
    outer = rows[1]["range_id"]
    assert rows[2] == {
        "range_id": rows[2]["range_id"], "parent_id": outer, "name": "inner", "domain": "lib", "category": "io",
        "style": "push_pop", "pid": 2, "tid": 9, "level": 1, "start_ns": 10, "duration_ns": 30, "gpu_start_ns": 200,
        "gpu_duration_ns": 30, "gpu_busy_ns": 30, "gpu_op_count": 1, "payload": 7,
    }  # fmt: skip
    assert (rows[0]["style"], rows[0]["gpu_busy_ns"], rows[0]["gpu_op_count"]) == ("start_end", None, 0)


def test_csv_and_parquet_say_the_same(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ranges", str(trace), "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert run(["ranges", str(trace), "--format", "parquet", "-o", str(tmp_path / "r.parquet")]) == 0
    table = pyarrow.parquet.read_table(tmp_path / "r.parquet").to_pylist()
    assert [{key: "" if value is None else str(value) for key, value in row.items()} for row in table] == rows


@pytest.mark.parametrize("rows_at_a_time", [1, 2, 1000])
@pytest.mark.parametrize("name", ["pipeline", "threads", "graphs", "cpu"])
def test_text_made_in_parts_is_what_json_and_csv_make_of_the_whole(
    name: str, rows_at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_rows, "ROWS_AT_A_TIME", rows_at_a_time)
    events = open_trace(GOLDEN / f"{name}.sqlite")
    table = Analysis(events).table
    rows = range_rows.range_rows(events, table)
    text = io.StringIO()
    range_rows.write_json_rows(range_rows.range_parts(events, table), text)
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows.to_pylist())
    assert text.getvalue() == f"[\n{lines}\n]\n"
    text = io.StringIO()
    range_rows.write_csv(range_rows.range_parts(events, table), text)
    sink = io.BytesIO()
    pyarrow.csv.write_csv(rows, sink)
    assert text.getvalue() == sink.getvalue().decode()


def test_an_incomplete_trace_says_so_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    golden = Path(__file__).parents[2] / "golden" / "traces" / "old_partial.sqlite"
    assert run(["ranges", str(golden), "--format", "json"]) == 3
    captured = capsys.readouterr()
    rows = json.loads(captured.out)
    assert sum(row["gpu_op_count"] is None for row in rows) == 48
