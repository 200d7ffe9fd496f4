"""Read a sqlite trace file into NumPy columns, through ADBC's driver and Arrow.

ADBC is used without its DB-API module, which imports pandas if installed (0.3 s).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import adbc_driver_manager
import adbc_driver_sqlite
import numpy as np
import pyarrow as pa
from typing_extensions import Self

from perfharness.errors import TraceFormatError, TraceNotFoundError
from perfharness.model import nsys_schema as schema
from perfharness.model.columns import Int64, Integers
from perfharness.trace.columns import MISSING, narrow

SQLITE_MAGIC = b"SQLite format 3\x00"
SQLITE_HEADER_BYTES = 100
WAL_VERSION = b"\x02\x02"
"""Bytes 18 and 19 in the header of a file in WAL mode (https://www.sqlite.org/fileformat.html, 1.3.3)."""

BATCH_ROWS = 1 << 14
BATCH_ROWS_OPTION = "adbc.sqlite.query.batch_rows"

WAIT_FOR_LOCKS = "PRAGMA busy_timeout = 5000"
"""A writer of the file may lock it for a moment."""

ROW_ID = "rowid"
"""Row number, a column of every table."""

WIDE = frozenset({"start", "end", "globalTid", "endGlobalTid", "globalPid"})
"""Event columns that need 64 bits; others are narrowed to their values."""


class TraceFile:
    """An open trace. Use as a context manager; several threads may read at the same time.

    Missing columns and tables are not errors. Every method raises `TraceFormatError` for a damaged file.
    """

    def __init__(self, path: Path) -> None:
        """Raise `TraceNotFoundError` if the file is missing, `TraceFormatError` if it is not a complete trace."""
        self.path = path
        _check_header(path)
        # Reading in WAL mode creates files next to it, unless it is opened as immutable, which requires no writer.
        mode = "mode=ro&immutable=1" if _is_idle_wal(path) else "mode=ro"
        self._database = adbc_driver_sqlite.connect(f"file:{quote(os.fsencode(path.resolve()))}?{mode}")
        self._columns: dict[str, set[str]] = {}
        layout = (
            "SELECT CAST(m.name AS BLOB) AS t, CAST(c.name AS BLOB) AS c "
            "FROM sqlite_master AS m, pragma_table_xinfo(m.name) AS c WHERE m.type = 'table'"
        )
        for batch in self._query(layout):
            for table, column in zip(_texts(batch["t"]), _texts(batch["c"]), strict=True):
                self._columns.setdefault(table, {ROW_ID}).add(column)
        if not self._columns.keys() & {schema.TABLE_STRINGS, schema.TABLE_NVTX, schema.TABLE_PERFHARNESS}:
            raise TraceFormatError(
                f"{path} is a sqlite file, but not a trace: it has neither {schema.TABLE_STRINGS} nor "
                f"{schema.TABLE_NVTX}; give a file written by `nsys export --type sqlite` or perfharness."
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(RuntimeError, adbc_driver_manager.Error):
            self._database.close()

    def has(self, table: str, *columns: str) -> bool:
        """Whether the table has these columns (nsys writes only tables with rows)."""
        return {ROW_ID, *columns} <= self._columns.get(table, set())

    def integers(
        self, table: str, columns: Sequence[str], first_of: Mapping[str, Sequence[str]] | None = None
    ) -> dict[str, Integers]:
        """Integer columns of a whole table; `MISSING` for NULL and missing columns.

        Args:
            first_of: name -> columns, of which the first non-NULL value counts.
        """
        parts = list(self.batches(table, columns, first_of or {}))
        for part in parts:
            part |= {name: narrow(part[name], np.int8, np.int16, np.int32) for name in part.keys() - WIDE}
        return {name: _joined([part.pop(name) for part in parts]) for name in (*columns, *(first_of or {}))}

    def batches(
        self, table: str, columns: Sequence[str], first_of: Mapping[str, Sequence[str]] | None = None
    ) -> Iterator[dict[str, Int64]]:
        """The same columns in parts, so that a long table need not fit in memory."""
        if not self.has(table):
            return
        wanted = {column: [column] for column in columns} | dict(first_of or {})
        expressions: dict[str, str] = {}
        for name, candidates in wanted.items():
            there = [f'"{column}"' for column in candidates if self.has(table, column)]
            if there:
                value = there[0] if len(there) == 1 else f"coalesce({', '.join(there)})"
                expressions[name] = f"{value} AS {name}"
        for batch in self._query(f"SELECT {', '.join(expressions.values()) or ROW_ID} FROM {table}"):
            missing = np.broadcast_to(np.int64(MISSING), batch.num_rows)
            yield {name: self._int64(batch, name, table) if name in expressions else missing for name in wanted}

    def texts(self, table: str, *columns: str) -> list[tuple[str, ...]]:
        """Text columns of a small table, one tuple per row; empty for NULL. No rows if a column is missing."""
        if not self.has(table, *columns):
            return []
        wanted = ", ".join(f"CAST(ifnull(\"{column}\", '') AS BLOB) AS {column}" for column in columns)
        batches = self._query(f"SELECT {wanted} FROM {table}")
        return [row for batch in batches for row in zip(*map(_texts, batch.columns), strict=True)]

    def strings(self, table: str, key: str, text: str, unless: str | None = None) -> tuple[Int64, Int64, list[str]]:
        """A text column without NULLs.

        Args:
            key: an integer column to return with it.
            unless: skip rows in which this column is not NULL.

        Returns the keys, the index of each key's text, and the distinct texts.
        """
        keys, places, place_of = [np.empty(0, np.int64)], [np.empty(0, np.int64)], dict[bytes, int]()
        if self.has(table, key, text):
            condition = f' AND "{unless}" IS NULL' if unless is not None and self.has(table, unless) else ""
            # As bytes, because sqlite does not check that text is UTF-8, and range names may use other encodings.
            columns = f'"{key}" AS {key}, CAST("{text}" AS BLOB) AS t'
            for batch in self._query(f'SELECT {columns} FROM {table} WHERE "{text}" IS NOT NULL{condition}'):
                new = [place_of.setdefault(value, len(place_of)) for value in batch["t"].to_pylist()]
                places.append(np.asarray(new, np.int64))
                keys.append(self._int64(batch, key, table))
        return np.concatenate(keys), np.concatenate(places), [_text(value) for value in place_of]

    def _query(self, sql: str) -> Iterator[pa.RecordBatch]:
        connection = statement = None
        try:
            connection = adbc_driver_manager.AdbcConnection(self._database)
            statement = adbc_driver_manager.AdbcStatement(connection)
            statement.set_sql_query(WAIT_FOR_LOCKS)
            statement.execute_query()
            statement.set_options(**{BATCH_ROWS_OPTION: str(BATCH_ROWS)})
            statement.set_sql_query(sql)
            stream, _ = statement.execute_query()
            with pa.RecordBatchReader.from_stream(stream) as reader:
                yield from reader
        except (adbc_driver_manager.Error, pa.ArrowException, OSError) as error:
            raise self._error(str(error)) from error
        finally:
            # Some driver versions cannot close after a damaged page.
            for opened in (statement, connection):
                with suppress(RuntimeError, adbc_driver_manager.Error):
                    if opened is not None:
                        opened.close()

    def _int64(self, batch: pa.RecordBatch, name: str, table: str) -> Int64:
        """A column of a result; `MISSING` for NULL, as one repeated value if all are NULL."""
        column = batch[name]
        # sqlite accepts any value in any column; the driver rejects only mixtures.
        if not column.type.equals(pa.int64()):
            raise self._error(f"column {name} of {table} has {column.type} instead of integers")
        if column.null_count == len(column):
            return np.broadcast_to(np.int64(MISSING), len(column))
        is_known, values = column.buffers()  # manually, because importing `pyarrow.compute` takes 0.08 s
        rows = slice(column.offset, column.offset + len(column))
        integers = np.frombuffer(values, np.int64)[rows]
        if not column.null_count:
            return integers
        bits = np.unpackbits(np.frombuffer(is_known, np.uint8), bitorder="little")[rows]
        return np.where(bits, integers, MISSING)

    def _error(self, reason: str) -> TraceFormatError:
        return TraceFormatError(
            f"{self.path} cannot be read as a trace: {reason.splitlines()[0]}. It may be truncated or still being "
            "written; export it again with `nsys export --type sqlite`."
        )


def _joined(parts: list[Integers]) -> Integers:
    """Concatenate; an all-missing column stays one repeated `MISSING`, which takes no memory."""
    if not parts:
        return np.empty(0, dtype=np.int64)
    if all(len(part) and part.strides == (0,) and part[0] == MISSING for part in parts):
        return np.broadcast_to(parts[0][0], sum(map(len, parts)))
    return np.concatenate(parts)


def _texts(column: pa.Array) -> list[str]:
    return [_text(value) for value in column.to_pylist()]


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")


def _check_header(path: Path) -> None:
    if not path.is_file():
        raise TraceNotFoundError(f"No trace file at {path}; give a .sqlite file from nsys or perfharness.")
    try:
        header = _header(path)
    except OSError as error:
        raise TraceFormatError(f"{path} cannot be opened: {error.strerror}; check its permissions.") from error
    if not header:
        raise TraceFormatError(f"{path} is empty because the tracer ended before it wrote anything; measure again.")
    if not header.startswith(SQLITE_MAGIC):
        raise TraceFormatError(
            f"{path} is not a sqlite trace; convert a .nsys-rep with `nsys export --type sqlite FILE.nsys-rep`."
        )
    if len(header) < SQLITE_HEADER_BYTES or path.stat().st_size < _size_by_header(header):
        raise TraceFormatError(
            f"{path} is truncated: it is shorter than its header states. Copy or export it again: `nsys export "
            "--type sqlite`."
        )


def _header(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(SQLITE_HEADER_BYTES)


def _size_by_header(header: bytes) -> int:
    """File size according to the header, 0 if missing (https://www.sqlite.org/fileformat.html, 1.3)."""
    page_bytes, changes, pages = struct.unpack_from(">H", header, 16)[0], header[24:28], header[28:32]
    if changes != header[92:96]:
        return 0
    return (65536 if page_bytes == 1 else int(page_bytes)) * int.from_bytes(pages, "big")


def _is_idle_wal(path: Path) -> bool:
    """Whether the file is in WAL mode without a write-ahead log; a log means an active or killed writer."""
    real = path.resolve()
    log = real.with_name(f"{real.name}-wal")
    return _header(path)[18:20] == WAL_VERSION and not (log.is_file() and log.stat().st_size)
