"""What the reader asks of a trace file, whatever its format: which tables there are, and columns of them by name."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol

import pyarrow as pa
from typing_extensions import Self

from perfharness.model.trace import Int64, Integers

MISSING = -(2**62)
"""Stands for NULL in an integer column; no time, id or payload in a trace is this small."""

WINDOW_ROWS = 1 << 17
"""Rows that are read at a time where a table is not read as a whole."""

MAX_WINDOWS = 1 << 14
"""Where row ids are so far apart that there would be more windows, they get longer."""

Window = tuple[int, int]
"""The first and the last row id of some rows of a table."""

ROW_ID = "row_id"
"""The number of a row in its table, from 1 on, where it is asked for like a column."""


class TraceSource(Protocol):
    """An open trace. Columns that a version lacks are no error, unknown tables are; every method may raise
    `TraceFormatError` where it meets what cannot be read.
    """

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...

    def has(self, table: str) -> bool:
        """Whether the table exists (nsys writes a table only when it has rows)."""

    def columns(self, table: str) -> frozenset[str]:
        """The table's columns; none where there is no such table."""

    def integers(
        self,
        table: str,
        columns: list[str],
        row_id: bool = False,
        first_of: dict[str, list[str]] | None = None,
        window: Window | None = None,
    ) -> dict[str, Integers]:
        """Integer columns by name, as wide as they are stored or wider; NULL, and a column that this version lacks, is
        `MISSING`.

        Args:
            row_id: with `row_id`, the row's number, as a column more.
            first_of: name -> columns of which the first that is not NULL is taken.
            window: only these rows.
        """

    def windows(self, table: str) -> list[Window]:
        """The whole table in windows of about `WINDOW_ROWS` rows, in order of row ids; none where it has no rows."""

    def texts(self, table: str, columns: list[str]) -> list[tuple[str, ...]]:
        """Columns of a small table as text, a tuple a row; NULL, and a column that this version lacks, is empty."""

    def strings(
        self, table: str, key: str, text: str, unless: str | None = None, window: Window | None = None
    ) -> tuple[Int64, pa.ChunkedArray]:
        """A text column where it is not NULL, and the integer column `key`, which may be `ROW_ID`, with it.

        Args:
            unless: only rows in which this column is NULL, or that this version lacks.
            window: only these rows.
        """


def split_rows(first: int, last: int) -> list[Window]:
    """Windows that hold all row ids from the first to the last; of one length, so that two readers end together."""
    count = last - first + 1
    if count <= 0:
        return []
    windows = min(-(-count // WINDOW_ROWS), MAX_WINDOWS)
    rows = -(-count // (windows + windows % 2 if windows > 1 else 1))
    return [(begin, min(begin + rows - 1, last)) for begin in range(first, last + 1, rows)]
