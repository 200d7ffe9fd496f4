"""A folder that `nsys export --type parquetdir` wrote, a file a table, asked for columns (`TraceSource`).

Facts read off exports of nsys 2023.4 and 2024.2: tables, columns and rows are those of the sqlite export, in its order,
so a row's number is its sqlite row id; ids and counts are unsigned 64-bit, NULL is NULL, enumerations are numbers. A
row group has 2,048 rows. 2023.4 leaves META_DATA_CAPTURE out.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from perfharness.errors import TraceFormatError, TraceNotFoundError
from perfharness.model import nsys_schema as schema
from perfharness.model.trace import Bool, Int64, Integers
from perfharness.trace.columns import int64_array
from perfharness.trace.source import MISSING, ROW_ID, Window, split_rows

SUFFIX = ".parquet"
EXPORT_TABLES = ("META_DATA_EXPORT", "EXPORT_META_DATA")
"""In every export, under one of these names; where it is missing, files of the folder were left behind."""

UNREADABLE = (pa.ArrowException, OSError, ValueError, MemoryError)
"""What pyarrow raises over damaged files."""


def is_parquet_trace(path: Path) -> bool:
    """Whether a folder is a trace in Parquet: it holds a file of a table that every trace has."""
    return any(_file(path, table).exists() for table in (schema.TABLE_STRINGS, schema.TABLE_NVTX, *EXPORT_TABLES))


class ParquetFolder:
    """An open folder. Files are opened when something is asked of them, and only the columns asked for are read.

    Raises `TraceNotFoundError` where no trace is in the folder, and `TraceFormatError` where it is not a whole one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not is_parquet_trace(path):
            raise TraceNotFoundError(
                f"{path} is a folder without a trace in it: it has neither {schema.TABLE_STRINGS}{SUFFIX} nor "
                f"{schema.TABLE_NVTX}{SUFFIX}; give the folder that `nsys export --type parquetdir` wrote, or a file."
            )
        if not any(self.has(table) for table in EXPORT_TABLES):
            raise TraceFormatError(
                f"{path} is not a whole trace: it has no {EXPORT_TABLES[0]}{SUFFIX}, which nsys always writes. Copy "
                "the folder again with all its files, or export it again with `nsys export --type parquetdir`."
            )
        self._opened = cache(self._open)

    def __enter__(self) -> ParquetFolder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._opened.cache_clear()

    def has(self, table: str) -> bool:
        """As `TraceSource` has it."""
        return _file(self.path, table).exists()

    def columns(self, table: str) -> frozenset[str]:
        """As `TraceSource` has it."""
        return frozenset(self._opened(table).schema_arrow.names) if self.has(table) else frozenset()

    def integers(
        self,
        table: str,
        columns: list[str],
        row_id: bool = False,
        first_of: dict[str, list[str]] | None = None,
        window: Window | None = None,
    ) -> dict[str, Integers]:
        """As `TraceSource` has it."""
        groups = self._groups_inside(table, window)
        wanted = _inside(self._row_ids(table, groups), window)
        found = {column: self._integers(table, column, groups) for column in columns}
        for name, candidates in (first_of or {}).items():
            found[name] = self._integers(table, candidates[0], groups)
            for candidate in candidates[1:]:
                found[name] = np.where(found[name] == MISSING, self._integers(table, candidate, groups), found[name])
        if row_id:
            found[ROW_ID] = self._row_ids(table, groups)
        return {name: values[wanted] for name, values in found.items()} if not wanted.all() else found

    def windows(self, table: str) -> list[Window]:
        """As `TraceSource` has it."""
        return split_rows(1, int(self._group_lengths(table).sum())) if self.has(table) else []

    def texts(self, table: str, columns: list[str]) -> list[tuple[str, ...]]:
        """As `TraceSource` has it."""
        there = self.columns(table)
        rows = self._opened(table).metadata.num_rows
        found = [self._texts(table, column).to_pylist() if column in there else [None] * rows for column in columns]
        return list(zip(*([text or "" for text in column] for column in found), strict=True))

    def strings(
        self, table: str, key: str, text: str, unless: str | None = None, window: Window | None = None
    ) -> tuple[Int64, pa.ChunkedArray]:
        """As `TraceSource` has it."""
        groups = self._groups_inside(table, window)
        texts = self._texts(table, text, groups)
        wanted = pc.is_valid(texts).to_numpy() & _inside(self._row_ids(table, groups), window)
        if unless is not None:
            wanted &= self._integers(table, unless, groups) == MISSING
        keys = self._row_ids(table, groups) if key == ROW_ID else self._integers(table, key, groups)
        return keys[wanted], texts.filter(pa.array(wanted))

    def _open(self, table: str) -> pq.ParquetFile:
        file = _file(self.path, table)
        try:
            if file.is_file() and not file.stat().st_size:
                raise pa.ArrowInvalid("it is empty")
            opened = pq.ParquetFile(pa.memory_map(os.fsencode(file)))  # Arrow takes no text that is no UTF-8
            rows = [opened.metadata.row_group(group).num_rows for group in range(opened.metadata.num_row_groups)]
            if min(rows, default=0) < 0 or sum(rows) != opened.metadata.num_rows:
                raise pa.ArrowInvalid(f"its row groups have {sum(rows)} of {opened.metadata.num_rows} rows")
            if sum(rows) > (size := file.stat().st_size):
                raise pa.ArrowInvalid(f"it claims {sum(rows)} rows in {size} bytes, less than one byte each")
            return opened
        except UNREADABLE as error:
            self._refuse(table, error)

    def _groups_inside(self, table: str, window: Window | None) -> list[int]:
        """The row groups that hold rows of the window."""
        lengths = self._group_lengths(table)
        if window is None:
            return list(range(len(lengths)))
        last = np.cumsum(lengths)
        found: list[int] = np.flatnonzero((last >= window[0]) & (last - lengths < window[1])).tolist()
        return found

    def _row_ids(self, table: str, groups: list[int]) -> Int64:
        lengths = self._group_lengths(table)
        first = 1 + np.cumsum(lengths) - lengths
        parts = [np.arange(first[group], first[group] + lengths[group], dtype=np.int64) for group in groups]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def _group_lengths(self, table: str) -> Int64:
        metadata = self._opened(table).metadata
        groups = range(metadata.num_row_groups)
        return np.asarray([metadata.row_group(group).num_rows for group in groups], dtype=np.int64)

    def _integers(self, table: str, column: str, groups: list[int] | None = None) -> Int64:
        found = self._column(table, column, groups)
        if found is None or pa.types.is_null(found.type):
            lengths = self._group_lengths(table)
            return np.full(int(lengths[slice(None) if groups is None else groups].sum()), MISSING, dtype=np.int64)
        if not pa.types.is_integer(found.type):
            self._refuse(table, f"column {column} holds {found.type} where integers belong")
        return int64_array(found)

    def _texts(self, table: str, column: str, groups: list[int] | None = None) -> pa.ChunkedArray:
        found = self._column(table, column, groups)
        if found is None:
            self._refuse(table, f"it has no column {column}")
        try:
            found = found.cast(pa.string())
            found.validate(full=True)
        except UNREADABLE as error:
            self._refuse(table, error)
        return found

    def _column(self, table: str, column: str, groups: list[int] | None) -> pa.ChunkedArray | None:
        """A column in these row groups, all of them where none are named; None where this version lacks it."""
        if column not in self.columns(table):
            return None
        opened, lengths = self._opened(table), self._group_lengths(table)
        wanted = range(len(lengths)) if groups is None else groups
        try:
            found = opened.read_row_groups(list(wanted), columns=[column], use_threads=False)[column]
        except UNREADABLE as error:
            self._refuse(table, error)
        if len(found) != (promised := int(lengths[list(wanted)].sum())):
            self._refuse(table, f"column {column} has {len(found)} of {promised} rows")
        return found

    def _refuse(self, table: str, error: Exception | str) -> NoReturn:
        reason = next(iter(str(error).splitlines()), type(error).__name__).rstrip(".")
        raise TraceFormatError(
            f"{_file(self.path, table)} cannot be read as a part of a trace: {reason}. It may be truncated or still "
            "being written; export it again with `nsys export --type parquetdir`."
        ) from (error if isinstance(error, Exception) else None)


def _inside(row_ids: Int64, window: Window | None) -> Bool:
    if window is None:
        return np.ones(len(row_ids), dtype=np.bool_)
    return (row_ids >= window[0]) & (row_ids <= window[1])


def _file(folder: Path, table: str) -> Path:
    return folder / f"{table}{SUFFIX}"
