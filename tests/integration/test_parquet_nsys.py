"""Parquet folders that a real nsys wrote: read like its sqlite, and laid out as `export_parquet` lays them out.

The second is what makes the golden traces, exported by `export_parquet`, evidence for traces of GPUs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import perfharness
from perfharness.errors import ToolNotFoundError
from perfharness.model import nsys_schema as schema
from perfharness.runs.run import TABLES
from perfharness.trace import open_trace
from tests.contract.test_trace_sources import assert_same
from tests.integration.launches import NSYS, NVTX_SITE
from tests.integration.nsys_profile import nsys_profile
from tests.support.parquet_export import export_parquet

SCRIPT = """
import threading
import nvtx

def work():
    for index in range(1500):
        with nvtx.annotate("batch", domain="lib", category="io", payload=index):
            with nvtx.annotate("stage \\u00fc"):
                pass
        nvtx.mark("mark")
    nvtx.push_range("never closed")

thread = threading.Thread(target=work)
thread.start()
work()
thread.join()
"""
READ_TABLES = {
    schema.TABLE_NVTX, schema.TABLE_STRINGS, schema.TABLE_API, schema.TABLE_KERNEL, schema.TABLE_MEMCPY,
    schema.TABLE_MEMSET, schema.TABLE_GRAPH, schema.TABLE_SYNCHRONIZATION, "META_DATA_CAPTURE", "DIAGNOSTIC_EVENT",
    "TARGET_INFO_GPU", "TARGET_INFO_SYSTEM_ENV", "TARGET_INFO_SESSION_START_TIME",
}  # fmt: skip
"""All that the reader looks at, META_DATA_EXPORT apart, which tells of the export itself."""

pytestmark = pytest.mark.nsys


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("nsys") / "trace.nsys-rep"
    environment = os.environ | {"PYTHONPATH": NVTX_SITE}
    nsys_profile(NSYS, path, [sys.executable, "-c", SCRIPT], environment)
    return path


def export(report: Path, kind: str, name: str, *, lazy: bool = True) -> Path:
    target = report.parent / name
    options = [f"--type={kind}", f"--lazy={str(lazy).lower()}", "--quiet=true", f"--output={target}"]
    subprocess.run([NSYS, "export", *options, str(report)], capture_output=True, check=True)
    return target


@pytest.mark.parametrize("lazy", [True, False])
def test_a_folder_is_read_like_the_database(report: Path, lazy: bool) -> None:
    """Also where nsys writes every table that it knows, most of them without rows (`--lazy=false`)."""
    database = open_trace(export(report, "sqlite", f"read-{lazy}.sqlite", lazy=lazy))
    assert len(database.ranges) > 6000
    assert database.meta.gpu_coverage == "no_gpu_work"
    folder = open_trace(export(report, "parquetdir", f"read-{lazy}_pqtdir", lazy=lazy))
    assert_same(database, folder)


def test_the_layout_of_what_is_read(report: Path) -> None:
    """Names, types, whether NULL may be, row groups, and the rows, of each table that the reader looks at."""
    real = export(report, "parquetdir", "layout_pqtdir", lazy=False)
    database = export(report, "sqlite", "layout.sqlite", lazy=False)
    ours = export_parquet(database, report.parent / "ours")
    compared = set()
    for table in READ_TABLES:
        file = real / f"{table}.parquet"
        if file.exists():  # not all versions have all tables
            theirs, own = pq.ParquetFile(file), pq.ParquetFile(ours / f"{table}.parquet")
            assert own.schema_arrow.equals(theirs.schema_arrow), table
            assert own.metadata.num_row_groups == theirs.metadata.num_row_groups, table
            assert own.read().equals(theirs.read()), table
            compared.add(table)
    assert compared >= READ_TABLES - {"META_DATA_CAPTURE", schema.TABLE_GRAPH, "DIAGNOSTIC_EVENT"}
    assert pq.ParquetFile(real / "NVTX_EVENTS.parquet").metadata.num_row_groups > 3


def test_open_run_takes_a_report(report: Path) -> None:
    run = perfharness.open_run(report, nsys=NSYS)
    assert run.ranges().num_rows > 6000
    assert report.with_suffix(".sqlite").is_file()
    folder = perfharness.open_run(export(report, "parquetdir", "trace_pqtdir"))
    assert [process.name for process in folder.processes] == ["trace"]
    for name in TABLES:
        assert run.table(name).equals(folder.table(name)), name
    # Not exported again: the nsys that is named is not asked.
    assert perfharness.open_run(str(report), nsys="/no/such/nsys").ranges().equals(run.ranges())


def test_a_report_by_another_name(report: Path) -> None:
    renamed = report.with_name("renamed.report")
    renamed.write_bytes(report.read_bytes())
    assert perfharness.open_run(renamed, nsys=NSYS).ranges().num_rows > 6000


def test_open_run_without_an_nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfharness.runs.files.inputs.find_nsys", lambda *_: ())
    (tmp_path / "trace.nsys-rep").write_bytes(b"NVIDIA Tegra Profiler Report 2023@4")
    with pytest.raises(ToolNotFoundError, match="has to be exported first, and there is no nsys here"):
        perfharness.open_run(tmp_path / "trace.nsys-rep")
