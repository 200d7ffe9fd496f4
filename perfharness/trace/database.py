"""A read-only sqlite file, asked for columns (`TraceSource`): ADBC's driver into Arrow, Arrow into NumPy.

Windows of integers, nearly all that there is to read, come straight from the pages of the file where these are as
tracers write them (`sqlite_pages`). The driver, which takes 50 ns a value, reads the rest. NULLs are left to Arrow: to
replace them in SQL costs a fifth of the time to read a column. ADBC is used without its DB-API module, which imports
pyarrow's data sets, and so pandas where that is installed: 0.3 s.
"""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

import adbc_driver_manager
import adbc_driver_sqlite
import numpy as np
import pyarrow as pa

from perfharness.errors import TraceFormatError, TraceNotFoundError
from perfharness.model import nsys_schema as schema
from perfharness.model.trace import Int64, Integers
from perfharness.trace.columns import int64_array
from perfharness.trace.source import MISSING, ROW_ID, WINDOW_ROWS, Window, split_rows
from perfharness.trace.sqlite_pages import SqlitePages, UnusualPagesError

SQLITE_MAGIC = b"SQLite format 3\x00"
SQLITE_HEADER_BYTES = 100
WAL_VERSION = b"\x02\x02"
"""Bytes 18 and 19 of the header of a file in WAL mode (https://www.sqlite.org/fileformat.html, 1.3.3)."""

BATCH_ROWS_OPTION = "adbc.sqlite.query.batch_rows"
"""How many rows the driver hands over at a time; the types of an answer are guessed from the first ones."""

FLOATING = ("REAL", "FLOA", "DOUB")
"""What the type of a column that holds floating point has in it (https://www.sqlite.org/datatype3.html, 3.1)."""


@dataclass
class _Table:
    """A table of the file: its first page, and its columns with their numbers in a record.

    `is_plain`: each record holds all columns, in this order. `floating`: columns whose integers sqlite returns as
    floating point.
    """

    root: int
    columns: dict[str, int] = field(default_factory=dict)
    is_plain: bool = True
    floating: set[str] = field(default_factory=set)


class Database:
    """An open trace file. Use as a context manager.

    Raises `TraceNotFoundError` where there is no file and `TraceFormatError` where it is not a whole sqlite file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        _check_header(path)
        mode = "mode=ro&immutable=1" if _would_leave_files(path) else "mode=ro"
        self._database = adbc_driver_sqlite.connect(f"file:{quote(os.fsencode(path.resolve()))}?{mode}")
        self._connection: adbc_driver_manager.AdbcConnection | None = None
        self._pages: SqlitePages | None = None
        try:
            self._connection = adbc_driver_manager.AdbcConnection(self._database)
            self._connection.set_autocommit(False)  # all questions see one state of the file
            self._layout = self._read_layout()
            self._check_layout()
            self._pages = None if _has_journal(path) else SqlitePages(path)
        except adbc_driver_manager.Error as error:
            self._close()
            raise self._format_error(error) from error
        except TraceFormatError:
            self._close()
            raise

    def __enter__(self) -> Database:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._close()

    def _close(self) -> None:
        # Neither closes while a statement is open, and some drivers cannot close one that met a damaged page.
        if self._pages is not None:
            self._pages.close()
        with suppress(RuntimeError, adbc_driver_manager.Error):
            if self._connection is not None:
                self._connection.close()
            self._database.close()

    def has(self, table: str) -> bool:
        """As `TraceSource` has it."""
        return table in self._layout

    def columns(self, table: str) -> frozenset[str]:
        """As `TraceSource` has it."""
        return frozenset(self._layout[table].columns) if table in self._layout else frozenset()

    def _query(self, sql: str) -> pa.Table:
        """The answer as an Arrow table."""
        try:
            statement = adbc_driver_manager.AdbcStatement(self._connection)
            statement.set_options(**{BATCH_ROWS_OPTION: str(WINDOW_ROWS)})
            statement.set_sql_query(sql)
            stream, _ = statement.execute_query()
            answer = pa.RecordBatchReader.from_stream(stream).read_all()
            for column in answer.columns:
                if pa.types.is_string(column.type):
                    column.validate(full=True)  # sqlite does not check that text is UTF-8
            statement.close()
        except (adbc_driver_manager.Error, pa.ArrowException, OSError) as error:
            raise self._format_error(error) from error
        return answer

    def integers(
        self,
        table: str,
        columns: list[str],
        row_id: bool = False,
        first_of: dict[str, list[str]] | None = None,
        window: Window | None = None,
    ) -> dict[str, Integers]:
        """As `TraceSource` has it."""
        if window is not None and self._pages is not None and self._layout[table].is_plain:
            with suppress(UnusualPagesError, OSError):
                return self._from_pages(self._pages, table, columns, row_id, first_of or {}, window)
        wanted = self._integer_expressions(table, columns)
        for name, candidates in (first_of or {}).items():
            there = [f'"{column}"' for column in candidates if column in self._layout[table].columns]
            wanted.append(f"coalesce({', '.join([*there, 'NULL', 'NULL'])}) AS {name}")
        if row_id:
            wanted.append(f"rowid AS {ROW_ID}")
        answer = self._query(f"SELECT {', '.join(wanted)} FROM {table}{_where(_inside(window))}")
        return self._integers_of(table, answer)

    def _from_pages(
        self,
        pages: SqlitePages,
        table: str,
        columns: list[str],
        row_id: bool,
        first_of: dict[str, list[str]],
        window: Window,
    ) -> dict[str, Integers]:
        """`integers` of a window. Raises `UnusualPagesError`."""
        layout = self._layout[table]
        wanted = [*columns, *(column for candidates in first_of.values() for column in candidates)]
        there = [column for column in dict.fromkeys(wanted) if column in layout.columns]
        if not layout.floating.isdisjoint(there):
            raise UnusualPagesError
        rows, values = pages.integers(layout.root, [layout.columns[column] for column in there], window)
        found = dict.fromkeys(wanted, np.broadcast_to(np.int64(MISSING), len(rows))) | dict(
            zip(there, values, strict=True)
        )
        answer = {column: found[column] for column in columns}
        for name, candidates in first_of.items():
            answer[name] = found[candidates[0]]
            for candidate in candidates[1:]:
                is_missing = answer[name] == MISSING
                if is_missing.any():
                    answer[name] = np.where(is_missing, found[candidate], answer[name])
        if row_id:
            answer[ROW_ID] = rows
        return answer

    def windows(self, table: str) -> list[Window]:
        """As `TraceSource` has it."""
        if not self.has(table):
            return []
        # Each alone is found at an end of the tree; both in one question would scan all rows.
        first, last = (
            int64_array(self._query(f"SELECT {which}(rowid) AS {ROW_ID} FROM {table}")[ROW_ID])[0]
            for which in ("min", "max")
        )
        return split_rows(int(first), int(last)) if first != MISSING else []

    def _integers_of(self, table: str, answer: pa.Table) -> dict[str, Int64]:
        for name in answer.column_names:
            # sqlite takes any value in any column; the driver refuses a mixture, and this what is all of another kind.
            if not pa.types.is_integer(answer[name].type):
                raise self._format_error(f"column {name} of {table} holds {answer[name].type} where integers belong")
        return {name: int64_array(answer[name]) for name in answer.column_names}

    def texts(self, table: str, columns: list[str]) -> list[tuple[str, ...]]:
        """As `TraceSource` has it."""
        # A name in quotes that is no column's is a literal to sqlite.
        there = self._layout[table].columns
        wanted = ", ".join(
            f"ifnull(CAST(\"{column}\" AS TEXT), '') AS {column}" if column in there else f"'' AS {column}"
            for column in columns
        )
        answer = self._query(f"SELECT {wanted} FROM {table}")
        return list(zip(*(column.to_pylist() for column in answer.columns), strict=True)) if answer.num_rows else []

    def strings(
        self, table: str, key: str, text: str, unless: str | None = None, window: Window | None = None
    ) -> tuple[Int64, pa.ChunkedArray]:
        """As `TraceSource` has it."""
        keys = f"rowid AS {ROW_ID}" if key == ROW_ID else f'CAST("{key}" AS INTEGER) AS {key}'
        conditions = [f'"{text}" IS NOT NULL', *_inside(window)]
        if unless in self._layout[table].columns:
            conditions.append(f'"{unless}" IS NULL')
        # As bytes: sqlite does not check that text is UTF-8, and programs name ranges in other encodings too.
        answer = self._query(f'SELECT {keys}, CAST("{text}" AS BLOB) AS text FROM {table}{_where(conditions)}')
        return int64_array(answer[key]), _decoded(answer["text"])

    def _integer_expressions(self, table: str, columns: list[str]) -> list[str]:
        there = self._layout[table].columns
        return [f'"{name}" AS {name}' if name in there else f"NULL AS {name}" for name in columns]

    def _read_layout(self) -> dict[str, _Table]:
        rows = self._query(
            "SELECT CAST(m.name AS TEXT) AS t, ifnull(CAST(m.rootpage AS INTEGER), 0) AS root, "
            "CAST(c.name AS TEXT) AS c, c.cid, c.pk, c.hidden, upper(CAST(c.type AS TEXT)) AS type "
            "FROM sqlite_master AS m, pragma_table_xinfo(m.name) AS c WHERE m.type = 'table'"
        )
        layout: dict[str, _Table] = {}
        for row in rows.to_pylist():
            table = layout.setdefault(row["t"], _Table(row["root"]))
            if not row["hidden"]:
                table.columns[row["c"]] = row["cid"]
            if any(part in row["type"] for part in FLOATING):
                table.floating.add(row["c"])
            # A primary key may be the row id, or the order of the rows; a hidden column may have no value in a record.
            table.is_plain &= not row["hidden"] and not row["pk"]
        return layout

    def _check_layout(self) -> None:
        if not any(self.has(table) for table in (schema.TABLE_STRINGS, schema.TABLE_NVTX, schema.TABLE_PERFHARNESS)):
            raise TraceFormatError(
                f"{self.path} is a sqlite file, but not a trace: it has neither {schema.TABLE_STRINGS} nor "
                f"{schema.TABLE_NVTX}; give the file that `nsys export --type sqlite` or perfharness wrote."
            )

    def _format_error(self, error: Exception | str) -> TraceFormatError:
        reason = str(error).splitlines()[0]
        return TraceFormatError(
            f"{self.path} cannot be read as a trace: {reason}. It may be truncated or still being written; "
            "export it again with `nsys export --type sqlite`."
        )


def _decoded(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Bytes as text; those that are no UTF-8 as escape sequences."""
    if not len(texts):
        return pa.chunked_array([], pa.string())
    try:
        return texts.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.chunked_array([[text.decode("utf-8", "backslashreplace") for text in texts.to_pylist()]], pa.string())


def _inside(window: Window | None) -> list[str]:
    return [f"rowid BETWEEN {window[0]} AND {window[1]}"] if window else []


def _where(conditions: list[str]) -> str:
    return f" WHERE {' AND '.join(conditions)}" if conditions else ""


def _size_by_header(header: bytes) -> int:
    """File size that the header promises, 0 where it is missing (https://www.sqlite.org/fileformat.html, 1.3)."""
    page_bytes, changes, pages = struct.unpack_from(">H", header, 16)[0], header[24:28], header[28:32]
    if changes != header[92:96]:
        return 0
    return (65536 if page_bytes == 1 else int(page_bytes)) * int.from_bytes(pages, "big")


def _would_leave_files(path: Path) -> bool:
    """Whether sqlite would make files next to this one to read it: one in WAL mode that no process has open.

    Where there is a write-ahead log, a writer is active or was killed, and the log must be read too.
    """
    with path.open("rb") as file:
        version = file.read(SQLITE_HEADER_BYTES)[18:20]
    return version == WAL_VERSION and not _has_beside(path, "wal")


def _has_journal(path: Path) -> bool:
    """Whether what was written last may stand in another file."""
    return _has_beside(path, "wal") or _has_beside(path, "journal")


def _has_beside(path: Path, kind: str) -> bool:
    """Whether sqlite's file of that kind is next to this one, and holds anything."""
    real = path.resolve()
    beside = real.with_name(f"{real.name}-{kind}")
    return beside.is_file() and beside.stat().st_size > 0


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
            f"{path} is truncated: it is shorter than its header states. Copy it again, or export it again with "
            "`nsys export --type sqlite`."
        )
