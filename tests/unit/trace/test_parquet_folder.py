"""Parquet folders as they come: copied in part, cut off, written by others; and what is read of them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import perfharness
from perfharness.analysis.analysis import Analysis, AnalysisOptions
from perfharness.analysis.stages.tabulate import tabulate
from perfharness.cli.main import run as run_cli
from perfharness.errors import ResultError, TraceError, TraceFormatError, TraceNotFoundError
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


def test_a_folder_of_something_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pq.write_table(pa.table({"name": ["a"]}), tmp_path / "people.parquet")
    with pytest.raises(TraceNotFoundError, match=r"a folder without a trace in it: it has neither StringIds\.parquet"):
        open_trace(tmp_path)
    with pytest.raises(ResultError, match=r"no manifest\.json, so it is not a run folder; give .* parquetdir"):
        perfharness.open_run(tmp_path)
    assert run_cli(["analyze", str(tmp_path)]) == 1
    assert "not a run folder" in capsys.readouterr().err


def test_a_run_folder_is_one_whatever_else_lies_in_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "manifest.json").write_text("{}")
    assert run_cli(["analyze", str(folder)]) == 1
    assert "manifest.json cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is empty"),
        (b"PAR1", "Parquet file size is 4 bytes"),
        (b"nothing of the kind", "Parquet magic bytes not found"),
    ],
)
@pytest.mark.parametrize("table", ["NVTX_EVENTS", "StringIds", "CUPTI_ACTIVITY_KIND_KERNEL", "META_DATA_EXPORT"])
def test_files_that_are_no_tables(folder: Path, table: str, content: bytes, reason: str) -> None:
    (folder / f"{table}.parquet").write_bytes(content)
    with pytest.raises(
        TraceFormatError, match=rf"^[^\n]*{table}.parquet cannot be read as a part[^\n]*{reason}[^\n]*$"
    ):
        open_trace(folder)


def test_a_folder_in_the_place_of_a_file(folder: Path) -> None:
    (folder / "NVTX_EVENTS.parquet").unlink()
    (folder / "NVTX_EVENTS.parquet").mkdir()
    with pytest.raises(TraceFormatError, match=r"NVTX_EVENTS.parquet cannot be read"):
        open_trace(folder)


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_table(tmp_path: Path, fraction: float) -> None:
    folder = export_parquet(GOLDEN / "pipeline.sqlite", tmp_path / "exported")
    table = folder / "CUPTI_ACTIVITY_KIND_RUNTIME.parquet"
    table.write_bytes(table.read_bytes()[: int(table.stat().st_size * fraction)])
    with pytest.raises(TraceFormatError, match=r"RUNTIME\.parquet cannot be read as a part of a trace"):
        open_trace(folder)


def test_files_left_behind(folder: Path) -> None:
    """Of what every export has, any missing file is named; of what has no rows, nsys writes none."""
    (folder / "META_DATA_EXPORT.parquet").unlink()
    with pytest.raises(TraceFormatError, match=r"not a whole trace: it has no META_DATA_EXPORT\.parquet"):
        open_trace(folder)


def test_kernels_left_behind(tmp_path: Path) -> None:
    folder = export_parquet(GOLDEN / "pipeline.sqlite", tmp_path / "exported")
    (folder / "CUPTI_ACTIVITY_KIND_KERNEL.parquet").unlink()
    trace = open_trace(folder)
    table = Analysis(trace).table
    assert {finding.severity.value for finding in table.findings} >= {"error"}
    assert not table.gpu_known.all()


def test_names_left_behind(folder: Path) -> None:
    (folder / "StringIds.parquet").unlink()
    with pytest.raises(TraceFormatError, match="2 NVTX events have names that are not in StringIds"):
        open_trace(folder)


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
    ("values", "sentence"),
    [
        (pa.array(["a", "b"]), "column start holds string where integers belong"),
        (pa.array([0.5, 1.5]), "column start holds double where integers belong"),
        (pa.array([True, False]), "column start holds bool where integers belong"),
        (pa.nulls(2), "2 of 2 NVTX ranges have no time or no thread"),
        (pa.array([3, None]), "1 of 2 NVTX ranges have no time or no thread"),
        (pa.array([5, 5]), "1 of 2 NVTX ranges end before they begin"),
    ],
)
def test_columns_that_cannot_be_true(folder: Path, values: pa.Array, sentence: str) -> None:
    replace_column(folder, "NVTX_EVENTS", "start", values)
    with pytest.raises(TraceFormatError, match=sentence):
        open_trace(folder)


def test_more_rows_than_a_file_can_hold(folder: Path) -> None:
    """Equal rows take next to nothing in Parquet, and all memory when they are read; no trace has so many."""
    path = folder / "NVTX_EVENTS.parquet"
    rows = pq.read_table(path)
    pq.write_table(rows.take(np.zeros(300_000, dtype=np.int64)), path)
    assert path.stat().st_size < 300_000
    with pytest.raises(TraceFormatError, match="300000 rows"):
        open_trace(folder)


@pytest.mark.parametrize("text", [pa.array([b"\xff\xfe", b"x", b"y"]), pa.array([[1], [2], [3]])])
def test_names_that_are_no_text(folder: Path, text: pa.Array) -> None:
    replace_column(folder, "StringIds", "value", text)
    with pytest.raises(TraceFormatError, match=r"StringIds\.parquet cannot be read"):
        open_trace(folder)


def test_unsigned_numbers_are_read_as_sqlite_has_them(folder: Path) -> None:
    replace_column(folder, "NVTX_EVENTS", "globalTid", pa.array([2**63 + 5, None], pa.uint64()))
    with ParquetFolder(folder) as source:
        assert source.integers("NVTX_EVENTS", ["globalTid", "none"]) == {
            "globalTid": pytest.approx(np.array([-(2**63) + 5, MISSING])), "none": pytest.approx([MISSING] * 2),
        }  # fmt: skip


DAMAGE_BYTES = """
import sys
from pathlib import Path
from perfharness.errors import TraceError
from perfharness.trace import open_trace
folder = Path(sys.argv[1])
step = int(sys.argv[2])
for table in ("StringIds", "CUPTI_ACTIVITY_KIND_RUNTIME"):
    file = folder / f"{table}.parquet"
    whole = file.read_bytes()
    for position in range(len(whole) - int.from_bytes(whole[-8:-4], "little") - 8, len(whole), step):
        file.write_bytes(whole[:position] + bytes([whole[position] ^ 0x1F]) + whole[position + 1 :])
        try:
            open_trace(folder)
        except TraceError:
            pass
    file.write_bytes(whole)
"""


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_no_damage_of_a_footer_ends_the_process(folder: Path, step: int) -> None:
    """One byte of it after the other: not all that is thrown in Arrow's C++ reaches Python."""
    done = subprocess.run(
        [sys.executable, "-c", DAMAGE_BYTES, folder, str(step)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.sampled_from(["NVTX_EVENTS", "StringIds", "META_DATA_EXPORT", "CUPTI_ACTIVITY_KIND_KERNEL"]),
    st.lists(st.tuples(st.integers(0, 190_000), st.integers(0, 255)), min_size=1, max_size=40),
)
def test_flipped_bytes_never_end_in_a_traceback(tmp_path: Path, table: str, flips: list[tuple[int, int]]) -> None:
    folder = tmp_path / "damaged"
    shutil.rmtree(folder, ignore_errors=True)
    file = export_parquet(GOLDEN / "pipeline.sqlite", folder) / f"{table}.parquet"
    content = bytearray(file.read_bytes())
    for position, value in flips:
        content[position % len(content)] = value
    file.write_bytes(bytes(content))
    try:
        trace = open_trace(folder)
    except TraceError:
        return
    tabulate(Analysis(trace, AnalysisOptions(1)))
