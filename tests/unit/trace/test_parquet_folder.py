"""Parquet folders as they come: copied in part, cut off, written by others; and what is read of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from perfharness.analysis.analysis import Analysis
from perfharness.errors import TraceFormatError
from perfharness.trace import open_trace
from perfharness.trace.parquet_folder import ParquetFolder
from perfharness.trace.source import MISSING
from tests.support.parquet_export import export_parquet, write_table
from tests.support.trace_builder import TraceBuilder

GOLDEN = Path(__file__).parents[2] / "golden" / "traces"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    builder = TraceBuilder()
    builder.range("first", 0, 4)
    builder.range("second", 5, 9)
    builder.kernel((6, 7), (20, 30))
    builder.row("META_DATA_EXPORT", name="EXPORT_PRODUCT_VERSION", value="2024.2.3.38")
    return export_parquet(builder.write(tmp_path / "t.sqlite"), tmp_path / "t_pqtdir")


def replace_column(folder: Path, table: str, column: str, values: Any) -> None:
    rows = pq.read_table(folder / f"{table}.parquet")
    write_table(rows.set_column(rows.column_names.index(column), column, values), folder, table)


@pytest.mark.parametrize(
    ("table", "content"),
    [
        ("StringIds", None),
        ("META_DATA_EXPORT", None),
        *((table, content) for table in ("NVTX_EVENTS", "StringIds") for content in (b"", b"PAR1", b"no table")),
    ],
)
def test_files_that_are_missing_or_no_tables(folder: Path, table: str, content: bytes | None) -> None:
    path = folder / f"{table}.parquet"
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises(TraceFormatError):
        open_trace(folder)


def test_kernels_left_behind(tmp_path: Path) -> None:
    folder = export_parquet(GOLDEN / "pipeline.sqlite", tmp_path / "exported")
    (folder / "CUPTI_ACTIVITY_KIND_KERNEL.parquet").unlink()
    trace = open_trace(folder)
    table = Analysis(trace).table
    assert {finding.severity.value for finding in table.findings} >= {"error"}
    assert not table.gpu_known.all()


def test_no_capture_table_is_no_word_on_cuda(tmp_path: Path) -> None:
    """nsys 2023.4 leaves META_DATA_CAPTURE out of Parquet; then nothing says whether CUDA was traced."""
    builder = TraceBuilder()
    builder.range("stage", 0, 10)
    builder.row("META_DATA_EXPORT", name="EXPORT_PRODUCT_VERSION", value="2023.4.4.54")
    folder = export_parquet(builder.write(tmp_path / "t.sqlite"), tmp_path / "t_pqtdir")
    assert open_trace(folder).meta.gpu_coverage == "traced"
    (folder / "META_DATA_CAPTURE.parquet").unlink()
    meta = open_trace(folder).meta
    assert (meta.gpu_coverage, meta.gpu_coverage_reason) == (
        "untraced", "the trace does not say whether CUDA was traced",
    )  # fmt: skip


@pytest.mark.parametrize(
    "values",
    [
        pa.array(["a", "b"]),
        pa.array([0.5, 1.5]),
        pa.array([True, False]),
        pa.nulls(2),
        pa.array([3, None]),
        pa.array([5, 5]),  # one ends before it begins
    ],
)
def test_columns_that_cannot_be_true(folder: Path, values: pa.Array) -> None:
    replace_column(folder, "NVTX_EVENTS", "start", values)
    with pytest.raises(TraceFormatError):
        open_trace(folder)


def test_more_rows_than_a_file_can_hold(folder: Path) -> None:
    """Equal rows take next to nothing in Parquet, and all memory when they are read; no trace has so many."""
    path = folder / "NVTX_EVENTS.parquet"
    rows = pq.read_table(path)
    pq.write_table(rows.take(np.zeros(300_000, dtype=np.int64)), path)
    assert path.stat().st_size < 300_000
    with pytest.raises(TraceFormatError, match="300000 rows"):
        open_trace(folder)


def test_unsigned_numbers_are_read_as_sqlite_has_them(folder: Path) -> None:
    replace_column(folder, "NVTX_EVENTS", "globalTid", pa.array([2**63 + 5, None], pa.uint64()))
    with ParquetFolder(folder) as source:
        assert source.integers("NVTX_EVENTS", ["globalTid", "none"]) == {
            "globalTid": pytest.approx(np.array([-(2**63) + 5, MISSING])), "none": pytest.approx([MISSING] * 2),
        }  # fmt: skip
