"""What kind of trace lies at a path: told by content, not by name."""

from __future__ import annotations

from pathlib import Path

from perfharness.trace.database import Database
from perfharness.trace.parquet_folder import ParquetFolder
from perfharness.trace.source import TraceSource


def open_source(path: Path) -> TraceSource:
    """Open a trace, a sqlite file or a folder of Parquet files.

    Raises `TraceNotFoundError` where there is nothing, `TraceFormatError` where it is no trace, or not a whole one.
    """
    return ParquetFolder(path) if path.is_dir() else Database(path)
