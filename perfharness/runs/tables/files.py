"""Write tables as CSV, JSON, Parquet or Arrow files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import BinaryIO

import orjson
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from perfharness.errors import ResultError
from perfharness.files import replacing
from perfharness.model.findings import Finding
from perfharness.runs.run import Run, join

ROWS_AT_A_TIME = 1 << 14


def _write_arrow(table: pa.Table, file: BinaryIO) -> None:
    """Write the IPC file format, uncompressed so that it can be mapped into memory."""
    with pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def _write_json(table: pa.Table, file: BinaryIO) -> None:
    """Write a list, one object per line."""
    separator = b"\n"
    file.write(b"[")
    for rows in table.to_batches(ROWS_AT_A_TIME):
        for row in rows.to_pylist():
            file.write(separator + orjson.dumps(row))
            separator = b",\n"
    file.write(b"\n]\n")


WRITERS: dict[str, Callable[[pa.Table, BinaryIO], None]] = {
    "csv": pa.csv.write_csv,
    "json": _write_json,
    "parquet": pa.parquet.write_table,
    "arrow": _write_arrow,
}
"""By format, which is also the suffix of files."""


def read_tables(run: Run, names: Iterable[str]) -> tuple[dict[str, pa.Table], list[Finding]]:
    """Read tables of a run by name, and findings. Traces are read one at a time.

    A process with an unreadable trace is skipped, with a finding. Raises `ResultError` if no trace can be read, and
    `TraceError` if the only trace cannot be read.
    """
    findings = run.launch_findings
    parts: dict[str, list[pa.Table]] = {name: [] for name in names}
    for process, analysis in run.read_processes(findings):
        del analysis
        for name, found in parts.items():
            found.append(process.table(name))
    return {name: join(found) for name, found in parts.items()}, findings


def write_tables(tables: Mapping[str, pa.Table], table_format: str, output: Path) -> list[Path]:
    """Write one table to a file, or several as `NAME.FORMAT` into a folder; return the files.

    Raises `ResultError` if a file cannot be written.
    """
    in_folder = len(tables) > 1 or output.is_dir()
    if in_folder:
        try:
            output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ResultError(f"Folder {output} cannot be created ({error.strerror}); choose another -o.") from error
    written = []
    for name, table in tables.items():
        path = output / f"{name}.{table_format}" if in_folder else output
        with replacing(path) as temporary, temporary.open("wb") as file:  # Arrow needs UTF-8 paths
            WRITERS[table_format](table, file)
        written.append(path)
    return written
