"""`perfharness export --table ranges`: the columns of the contract."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from perfharness.cli.main import run
from tests.support.trace_builder import TraceBuilder

GOLDEN = Path(__file__).parents[2] / "golden" / "traces"

COLUMNS = [
    "process", "range_id", "parent_id", "name", "domain", "category", "style", "pid", "tid", "level", "start_ns",
    "start_unix_ns", "duration_ns", "gpu_start_ns", "gpu_duration_ns", "gpu_busy_ns", "gpu_op_count", "payload",
]  # fmt: skip


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    builder = TraceBuilder()
    builder.range("outer", 0, 100, pid=2, tid=9)
    builder.range("inner", 10, 40, pid=2, tid=9, domain="lib", category="io", payload=7)
    builder.range('odd, "name"', 10, 20, pid=1, tid=30, start_end=True, text=True)
    builder.kernel((11, 12), (200, 230), pid=2, tid=9)
    return builder.write(tmp_path / "t.sqlite")


def rows_of(trace: Path, code: int = 0) -> list[dict[str, Any]]:
    """As JSON."""
    path = trace.parent / "ranges.json"
    assert run(["export", str(trace), "--table", "ranges", "-o", str(path)]) == code
    rows: list[dict[str, Any]] = json.loads(path.read_text())
    return rows


def test_json(trace: Path) -> None:
    rows = rows_of(trace)
    assert [list(row) for row in rows] == [COLUMNS] * 3
    assert [row["name"] for row in rows] == ['odd, "name"', "outer", "inner"]
    outer = rows[1]["range_id"]
    assert rows[2] == {
        "process": "t", "range_id": rows[2]["range_id"], "parent_id": outer, "name": "inner", "domain": "lib",
        "category": "io", "style": "push_pop", "pid": 2, "tid": 9, "level": 1, "start_ns": 10,
        "start_unix_ns": rows[2]["start_unix_ns"], "duration_ns": 30, "gpu_start_ns": 200, "gpu_duration_ns": 30,
        "gpu_busy_ns": 30, "gpu_op_count": 1, "payload": 7,
    }  # fmt: skip
    assert (rows[0]["style"], rows[0]["gpu_busy_ns"], rows[0]["gpu_op_count"]) == ("start_end", None, 0)


def test_on_the_standard_output_they_are_csv(trace: Path, capfd: pytest.CaptureFixture[str]) -> None:
    table = rows_of(trace)
    capfd.readouterr()
    assert run(["export", str(trace), "--table", "ranges", "-o", "-"]) == 0
    rows = list(csv.DictReader(io.StringIO(capfd.readouterr().out)))
    assert [{key: "" if value is None else str(value) for key, value in row.items()} for row in table] == rows


def test_without_a_file_they_are_printed(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export", str(trace), "--table", "ranges"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.strip().split("  ")[0] for line in lines[-3:]] == ['odd, "name"', "outer", "lib:inner"]
    assert run(["export", str(trace), "--table", "kernels"]) == 2


def test_of_an_incomplete_trace_what_was_not_traced_is_null(tmp_path: Path) -> None:
    trace = tmp_path / "t.sqlite"
    trace.write_bytes((GOLDEN / "old_partial.sqlite").read_bytes())
    assert sum(row["gpu_op_count"] is None for row in rows_of(trace, code=3)) == 48
