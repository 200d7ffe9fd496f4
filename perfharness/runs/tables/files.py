"""Tables as files: CSV, Parquet, Arrow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from perfharness.errors import ResultError
from perfharness.files import replacing
from perfharness.model.findings import Finding
from perfharness.runs.run import Run, join


def _write_arrow(table: pa.Table, file: BinaryIO) -> None:
    """The IPC file format, not compressed, so that it can be mapped into memory."""
    with pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


WRITERS: dict[str, Callable[[pa.Table, BinaryIO], None]] = {
    "csv": pa.csv.write_csv,
    "parquet": pa.parquet.write_table,
    "arrow": _write_arrow,
}
"""By format, which is the ending of the file's name too."""


def write_tables(run: Run, names: list[str], table_format: str, output: Path) -> tuple[list[Finding], list[Path]]:
    """Write tables of a run; returns everything found, and the files.

    Args:
        run: traces are read one process at a time and released.
        names: which tables.
        table_format: one of `WRITERS`.
        output: a file, for one table; else a folder, made where it is missing, which gets `NAME.FORMAT` files.

    Of several processes, one whose trace cannot be read is left out, with a finding. Raises `ResultError` where a file
    cannot be written or no trace can be read, `TraceError` where the only trace cannot be read.
    """
    in_folder = len(names) > 1 or output.is_dir()
    if in_folder:
        try:
            output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ResultError(f"{output} cannot be made a folder ({error.strerror}); name another with -o.") from error
    findings = run.launch_findings
    parts: dict[str, list[pa.Table]] = {name: [] for name in names}
    for process in run.processes:
        if len(run.processes) > 1 and (problem := process.problem()) is not None:
            findings.append(problem)
            continue
        for name in names:
            parts[name].append(process.table(name))
        findings += process.findings
        process.release()
    written = []
    for name in names:
        path = output / f"{name}.{table_format}" if in_folder else output
        with replacing(path) as temporary, temporary.open("wb") as file:  # Arrow takes no path that is no UTF-8
            WRITERS[table_format](join(parts[name]), file)
        written.append(path)
    return findings, written
