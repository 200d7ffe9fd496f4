"""A trace file being written: tables are made when they get rows, strings are kept once."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from perfharness.model import nsys_schema as schema
from perfharness.tracer.tables import ENUMERATIONS, TABLES

ROWS_AT_ONCE = 100_000


class TraceFile:
    """A context: on a normal exit everything is committed, on an exception the file is worthless."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        # Nobody sees the file before it is whole, so neither a journal nor waiting for the disk protects anything.
        for pragma in ("journal_mode=OFF", "synchronous=OFF", "locking_mode=EXCLUSIVE"):
            self._connection.execute(f"PRAGMA {pragma}")
        self._connection.execute("BEGIN")
        self._made: set[str] = set()
        self._strings: dict[str, int] = {}

    def __enter__(self) -> TraceFile:
        for name, values in ENUMERATIONS.items():
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
        """Make the table, if it is not there yet."""
        if table not in self._made:
            self._made.add(table)
            self._connection.execute(f"CREATE TABLE {table} ({TABLES[table]})")

    def insert(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Insert rows; without any, the table stays out of the file."""
        rows = list(rows)
        if rows:
            self.make(table)
            self._connection.executemany(_statement(table, columns), rows)

    def insert_columns(self, table: str, columns: dict[str, Any], count: int) -> None:
        """Insert `count` rows given as columns: arrays, lists with None for NULL, or one value for all."""
        if count == 0:
            return
        self.make(table)
        statement = _statement(table, list(columns))
        for start in range(0, count, ROWS_AT_ONCE):
            stop = min(start + ROWS_AT_ONCE, count)
            parts = [_slice(values, start, stop) for values in columns.values()]
            self._connection.executemany(statement, zip(*parts, strict=True))

    def write_strings(self) -> None:
        """Write `StringIds`; nothing may ask for an id afterwards."""
        self.insert(schema.TABLE_STRINGS, ("id", "value"), [(number, text) for text, number in self._strings.items()])


def _slice(values: Any, start: int, stop: int) -> list[Any]:
    if isinstance(values, list):
        return values[start:stop]
    if hasattr(values, "tolist"):
        part: list[Any] = values[start:stop].tolist()
        return part
    return [values] * (stop - start)


def _statement(table: str, columns: Sequence[str]) -> str:
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
