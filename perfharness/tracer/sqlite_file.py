"""A trace file being written or extended: tables are made with their first rows, strings are stored once."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from perfharness.model import nsys_schema as schema
from perfharness.tracer.tables import ENUMERATIONS, TABLES

ROWS_PER_INSERT = 100_000


class TraceFile:
    """A context: a normal exit commits; after an exception a new file is invalid, an existing one unchanged.

    Args:
        path: the file.
        new: whether to create it; otherwise rows are added to an existing trace.
    """

    def __init__(self, path: Path, *, new: bool = True) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._is_new = new
        if new:
            # The file is renamed when it is complete, so neither a journal nor waiting for the disk is needed.
            for pragma in ("journal_mode=OFF", "synchronous=OFF", "locking_mode=EXCLUSIVE"):
                self._connection.execute(f"PRAGMA {pragma}")
        self._connection.execute("BEGIN IMMEDIATE")
        self._made: set[str] = set()
        self._strings: dict[str, int] = {}
        self._strings_written = 0
        if not new:
            self._made = {name for (name,) in self._connection.execute("SELECT name FROM sqlite_master")}
            if schema.TABLE_STRINGS in self._made:
                query = f"SELECT value, id FROM {schema.TABLE_STRINGS} ORDER BY id"
                self._strings = dict(self._connection.execute(query))
            self._strings_written = len(self._strings)
        self.next_range_id = self.largest(schema.TABLE_NVTX, "rangeId") + 1

    def __enter__(self) -> TraceFile:
        for name, values in ENUMERATIONS.items() if self._is_new else ():
            self._connection.execute(f"CREATE TABLE {name} (id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT)")
            rows = [(number, *texts) for number, texts in values.items()]
            self._connection.executemany(f"INSERT INTO {name} VALUES (?, ?, ?)", rows)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._connection.execute("COMMIT")
        finally:
            self._connection.close()

    def string_id(self, text: str) -> int:
        """Id of a string in `StringIds`."""
        return self._strings.setdefault(text, len(self._strings) + 1)

    def make(self, table: str) -> None:
        """Make the table if it does not exist."""
        if table not in self._made:
            self._made.add(table)
            self._connection.execute(f"CREATE TABLE {table} ({TABLES[table]})")

    def insert(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Insert rows; without any, the table is not made."""
        rows = list(rows)
        if rows:
            self.make(table)
            self._connection.executemany(_statement(table, columns), rows)

    def insert_columns(self, table: str, columns: dict[str, Any], count: int) -> None:
        """Insert `count` rows given as columns: arrays, whose masked values are NULL, or one value for all."""
        if count == 0:
            return
        self.make(table)
        statement = _statement(table, list(columns))
        for start in range(0, count, ROWS_PER_INSERT):
            stop = min(start + ROWS_PER_INSERT, count)
            parts = [
                values[start:stop].tolist() if isinstance(values, np.ndarray) else [values] * (stop - start)
                for values in columns.values()
            ]
            self._connection.executemany(statement, zip(*parts, strict=True))

    def write_strings(self) -> None:
        """Write the new strings to `StringIds`."""
        new = itertools.islice(self._strings.items(), self._strings_written, None)
        self.insert(schema.TABLE_STRINGS, ("id", "value"), [(number, text) for text, number in new])
        self._strings_written = len(self._strings)

    def values(self, table: str, name: str) -> list[str]:
        """All values of a name in a table with the columns `name` and `value`."""
        if table not in self._made:
            return []
        return [value for (value,) in self._connection.execute(f"SELECT value FROM {table} WHERE name = ?", (name,))]

    def largest(self, table: str, column: str) -> int:
        """The largest value of an integer column, 0 where there is none."""
        if table not in self._made:
            return 0
        return int(self._connection.execute(f"SELECT max({column}) FROM {table}").fetchone()[0] or 0)


def _statement(table: str, columns: Sequence[str]) -> str:
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
