"""Every format that a trace comes in gives the same columns, and the verbs say the same of it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import perfharness
from perfharness.cli.main import run as run_cli
from perfharness.runs.run import TABLES
from perfharness.trace import open_trace
from perfharness.trace.readers import open_source
from tests.support.parquet_export import ROWS_A_GROUP, export_parquet
from tests.support.trace_builder import TraceBuilder

GOLDEN = Path(__file__).parents[1] / "golden" / "traces"
TRACES = sorted(path.stem for path in GOLDEN.glob("*.sqlite"))


def assert_same(one: Any, other: Any, where: str = "trace") -> None:
    if dataclasses.is_dataclass(one):
        for field in dataclasses.fields(one):
            assert_same(getattr(one, field.name), getattr(other, field.name), f"{where}.{field.name}")
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype, where
        np.testing.assert_array_equal(one, other, where)
    else:
        assert one == other, where


@pytest.mark.parametrize("name", TRACES)
def test_the_same_columns(name: str, tmp_path: Path) -> None:
    path = GOLDEN / f"{name}.sqlite"
    folder = export_parquet(path, tmp_path / "exported")
    assert_same(open_trace(path), open_trace(folder))


def test_rows_that_few_golden_traces_have(tmp_path: Path) -> None:
    """Names in the event itself and failed calls, far into a file of several row groups, and payloads of each type."""
    builder = TraceBuilder()
    for index in range(2 * ROWS_A_GROUP):
        builder.range("registered", 10 * index, 10 * index + 5)
        builder.call("cudaLaunchKernel_v7000", 10 * index + 1, 10 * index + 2)
    builder.range("spelled out", 50_000, 50_010, text=True, domain="lib", category="io", payload=3)
    builder.call("cudaStreamQuery_v3020", 50_001, 50_002, result=600)
    for column, value in (("uint64Value", 7), ("int32Value", -9), ("uint32Value", 11)):
        builder.range(column, 50_020, 50_030)
        builder.tables["NVTX_EVENTS"][-1][column] = value
    builder.row("META_DATA_EXPORT", name="EXPORT_PRODUCT_VERSION", value="2024.2.3.38")
    path = builder.write(tmp_path / "t.sqlite")
    read = open_trace(export_parquet(path, tmp_path / "exported"))
    assert_same(open_trace(path), read)
    assert [read.names[code] for code in read.ranges.name[-4:]] == [
        "spelled out", "uint64Value", "int32Value", "uint32Value",
    ]  # fmt: skip
    assert read.ranges.payload[-4:].tolist() == [3, 7, -9, 11]
    assert np.count_nonzero(read.api.return_value) == 1


@pytest.mark.parametrize("name", ["pipeline", "threads", "graphs", "cpu", "recorder_nsys_2023_4", "old_partial"])
def test_the_verbs_say_the_same(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database = tmp_path / "t.sqlite"
    database.write_bytes((GOLDEN / f"{name}.sqlite").read_bytes())
    folder = export_parquet(database, tmp_path / "t_pqtdir")
    said: dict[Path, list[Any]] = {}
    for source in (database, folder):
        output = tmp_path / f"out-{source.name}"
        output.mkdir()
        codes = [
            run_cli(["export", str(source), "--table", "ranges"]),
            run_cli(["analyze", str(source), "-w", "1", "-o", str(output)]),
            run_cli(["analyze", str(source), "-v"]),
            run_cli(["export", str(source), "-o", str(output / "timeline.json")]),
        ]
        text = capsys.readouterr()
        files = {str(path.relative_to(output)): path.read_text() for path in output.rglob("*.json")}
        assert sorted(files) == ["benchmark_mean.json", "t/benchmark.json", "timeline.json"]
        said[source] = [
            codes,
            *(value.replace(str(source), "SOURCE").replace(str(output), "OUTPUT") for value in (text.out, text.err)),
            {
                name: json.loads(content.replace(str(source), "SOURCE").replace(f'"{source.name}"', '"SOURCE"'))
                for name, content in files.items()
            },
        ]
    assert said[database] == said[folder]


def test_open_run_gives_the_same_tables(tmp_path: Path) -> None:
    path = GOLDEN / "pipeline.sqlite"
    folder = export_parquet(path, tmp_path / "pipeline_pqtdir")
    one, other = perfharness.open_run(path), perfharness.open_run(folder)
    for name in TABLES:
        assert one.table(name).equals(other.table(name)), name
    assert one.benchmark is other.benchmark is None


def test_texts_of_columns_that_a_version_lacks(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.row("TARGET_INFO_GPU", id=1, name=None)
    builder.row("META_DATA_EXPORT", name="EXPORT_PRODUCT_VERSION", value="2024.2.3.38")
    path = builder.write(tmp_path / "t.sqlite")
    for source in (path, export_parquet(path, tmp_path / "t_pqtdir")):
        with open_source(source) as opened:
            assert opened.texts("TARGET_INFO_GPU", ["name", "uuid"]) == [("Test GPU", ""), ("", "")]
