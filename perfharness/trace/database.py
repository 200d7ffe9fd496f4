"""A read-only sqlite file, asked for columns: ADBC's driver into Arrow, Arrow into NumPy.

Every column is coalesced in SQL, so that its type does not depend on the rows that come first.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

import adbc_driver_manager
import adbc_driver_sqlite.dbapi
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfharness.errors import TraceFormatError, TraceNotFoundError
from perfharness.model.trace import Int64

MISSING = -(2**62)
"""Stands for NULL in an integer column; no time, id or payload in a trace is this small."""

SQLITE_MAGIC = b"SQLite format 3\x00"
SQLITE_HEADER_BYTES = 100


class Database:
    """An open trace file. Use as a context manager.

    Raises `TraceNotFoundError` where there is no file and `TraceFormatError` where it is not a whole sqlite file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        _check_header(path)
        self._connection = adbc_driver_sqlite.dbapi.connect(f"file:{quote(str(path.resolve()))}?mode=ro")
        self._is_damaged = False
        try:
            self.columns = self._read_layout()
        except TraceFormatError:
            self._close()
            raise

    def __enter__(self) -> Database:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._close()

    def _close(self) -> None:
        if not self._is_damaged:
            self._connection.close()
            return
        with suppress(RuntimeError, adbc_driver_manager.Error):
            self._connection.close()
        self._connection._closed = True

    def has(self, table: str) -> bool:
        """Whether the table exists (nsys writes a table only when it has rows)."""
        return table in self.columns

    def query(self, sql: str) -> pa.Table:
        """The answer as an Arrow table."""
        cursor = self._connection.cursor()
        try:
            cursor.execute(sql)
            answer = cursor.fetch_arrow_table()
            for column in answer.columns:
                if pa.types.is_string(column.type):
                    column.validate(full=True)  # sqlite does not check that text is UTF-8
            cursor.close()
        except (adbc_driver_manager.Error, pa.ArrowException, OSError) as error:
            # Some drivers cannot close a statement that met a damaged page: it fails again whenever it is tried, even
            # by the garbage collector, which prints a traceback. So nobody is to try.
            self._is_damaged = cursor._closed = True
            raise self._format_error(error) from error
        return answer

    def integers(
        self,
        table: str,
        columns: list[str],
        where: str = "",
        row_id: bool = False,
        first_of: dict[str, list[str]] | None = None,
    ) -> dict[str, Int64]:
        """Integer columns by name; NULL, and a column that this version lacks, is `MISSING`.

        Args:
            first_of: name -> columns of which the first that is not NULL is taken.
        """
        wanted = [self._integer_expression(table, column) for column in columns]
        for name, candidates in (first_of or {}).items():
            there = [f'"{column}"' for column in candidates if column in self.columns[table]]
            wanted.append(f"coalesce({', '.join([*there, str(MISSING), str(MISSING)])}) AS {name}")
        if row_id:
            wanted.append("rowid AS row_id")
        answer = self.query(f"SELECT {', '.join(wanted)} FROM {table} {where}")
        for name in answer.column_names:
            # sqlite takes any value in any column; the driver refuses a mixture, and this what is all of another kind.
            if not pa.types.is_integer(answer[name].type):
                raise self._format_error(f"column {name} of {table} holds {answer[name].type} where integers belong")
        return {name: int64_array(answer[name]) for name in answer.column_names}

    def texts(self, sql: str) -> list[tuple[str, ...]]:
        """Small answers whose every column is text."""
        answer = self.query(sql)
        return list(zip(*(column.to_pylist() for column in answer.columns), strict=True)) if answer.num_rows else []

    def _integer_expression(self, table: str, column: str) -> str:
        if column not in self.columns[table]:
            return f"{MISSING} AS {column}"
        return f'ifnull("{column}", {MISSING}) AS {column}'

    def _read_layout(self) -> dict[str, frozenset[str]]:
        rows = self.query(
            "SELECT CAST(m.name AS TEXT) AS t, CAST(c.name AS TEXT) AS c "
            "FROM sqlite_master AS m, pragma_table_info(m.name) AS c WHERE m.type = 'table'"
        )
        layout: dict[str, set[str]] = {}
        for table, column in zip(rows["t"].to_pylist(), rows["c"].to_pylist(), strict=True):
            layout.setdefault(table, set()).add(column)
        return {table: frozenset(columns) for table, columns in layout.items()}

    def _format_error(self, error: Exception | str) -> TraceFormatError:
        reason = str(error).splitlines()[0]
        return TraceFormatError(
            f"{self.path} cannot be read as a trace: {reason}. It may be truncated or still being written; "
            "export it again with `nsys export --type sqlite`."
        )


def int64_array(column: pa.ChunkedArray) -> Int64:
    """A NumPy array of an Arrow integer column without NULLs."""
    if column.null_count:
        column = pc.fill_null(column.cast(pa.int64()), MISSING)
    return np.asarray(column.to_numpy(), dtype=np.int64)


def _size_by_header(header: bytes) -> int:
    """File size that the header promises, 0 where it does not tell (https://www.sqlite.org/fileformat.html, 1.3)."""
    page_bytes, changes, pages = struct.unpack_from(">H", header, 16)[0], header[24:28], header[28:32]
    if changes != header[92:96]:
        return 0
    return (65536 if page_bytes == 1 else int(page_bytes)) * int.from_bytes(pages, "big")


def _check_header(path: Path) -> None:
    if not path.is_file():
        raise TraceNotFoundError(f"There is no trace file at {path}; give a .sqlite that nsys or perfharness wrote.")
    try:
        with path.open("rb") as file:
            header = file.read(SQLITE_HEADER_BYTES)
    except OSError as error:
        raise TraceFormatError(f"{path} cannot be opened: {error.strerror}; check its permissions.") from error
    if not header:
        raise TraceFormatError(f"{path} is empty; the tracer ended before it wrote anything, so measure again.")
    if not header.startswith(SQLITE_MAGIC):
        raise TraceFormatError(
            f"{path} is not a sqlite trace; turn a .nsys-rep into one with `nsys export --type sqlite FILE.nsys-rep`."
        )
    if len(header) < SQLITE_HEADER_BYTES or path.stat().st_size < _size_by_header(header):
        raise TraceFormatError(
            f"{path} is truncated: it is shorter than its own header says. Copy it again, or export it again with "
            "`nsys export --type sqlite`."
        )
