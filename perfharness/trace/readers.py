"""Columns of whole tables, read by two threads: a file is read as fast as one core can by each."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Container
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
from typing_extensions import Self

from perfharness.model.trace import Int64, Integers
from perfharness.trace.columns import narrow
from perfharness.trace.database import Database
from perfharness.trace.parquet_folder import ParquetFolder
from perfharness.trace.source import MISSING, ROW_ID, TraceSource, Window

READERS = 2
NARROW = (np.int8, np.int16, np.int32)

_Answer = TypeVar("_Answer")


def open_source(path: Path) -> TraceSource:
    """Open a trace, a sqlite file or a folder of Parquet files.

    Raises `TraceNotFoundError` where there is nothing, `TraceFormatError` where it is no trace, or not a whole one.
    """
    return ParquetFolder(path) if path.is_dir() else Database(path)


def _joined(parts: list[Integers]) -> Integers:
    """One behind the other. A column without any value stays one `MISSING`, repeated; so it takes no memory."""
    if all(len(part) and part.strides == (0,) and part[0] == MISSING for part in parts):
        return np.broadcast_to(parts[0][0], sum(len(part) for part in parts))
    return np.concatenate(parts)


class Readers:
    """Threads that each have the trace open for themselves. Use as a context manager.

    What is asked for is read in that order; each question is answered by a function that waits for the answer, so that
    the threads can read on meanwhile.

    Attributes:
        source: the trace, for questions that are small.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._opened = ExitStack()
        self.source = self._opened.enter_context(open_source(path))
        self._pool = ThreadPoolExecutor(max_workers=READERS)
        self._own = threading.local()
        self._opening = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._opened.close()
        # What threads that have ended freed would stay in their arenas (glibc).
        pa.default_memory_pool().release_unused()
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)

    def integers(
        self,
        table: str,
        columns: list[str],
        *,
        row_id: bool = False,
        first_of: dict[str, list[str]] | None = None,
        wide: Container[str] | None = None,
    ) -> Callable[[], dict[str, Integers]]:
        """`TraceSource.integers` of a whole table; no rows where there is no such table.

        Args:
            wide: columns that keep their 64 bits, None: all; the others are as narrow as their values allow.
        """
        names = [*columns, *(first_of or {}), *([ROW_ID] if row_id else [])]

        def part(source: TraceSource, window: Window) -> dict[str, Integers]:
            found = source.integers(table, columns, row_id, first_of, window)
            return {
                name: found[name].astype(np.int64, copy=False)
                if wide is None or name in wide
                else narrow(found[name], *NARROW)
                for name in names
            }

        read = self._read(table, part)

        def answer() -> dict[str, Integers]:
            parts = read() or [dict.fromkeys(names, np.empty(0, dtype=np.int64))]
            return {name: _joined([part.pop(name) for part in parts]) for name in names}

        return answer

    def strings(
        self, table: str, key: str, text: str, unless: str | None = None
    ) -> Callable[[], tuple[Int64, pa.ChunkedArray]]:
        """`TraceSource.strings` of a whole table; no rows where it has no such text."""
        wanted = text in self.source.columns(table)
        read = self._read(table, lambda source, window: source.strings(table, key, text, unless, window), wanted)

        def answer() -> tuple[Int64, pa.ChunkedArray]:
            parts = read()
            keys = np.concatenate([np.empty(0, dtype=np.int64), *(keys for keys, _ in parts)])
            return keys, pa.chunked_array([chunk for _, texts in parts for chunk in texts.chunks], pa.string())

        return answer

    def each(self, table: str, read: Callable[[TraceSource, Window], _Answer]) -> Callable[[], list[_Answer]]:
        """What `read` makes of each window of a table, in order, so that no table has to be held as a whole."""
        return self._read(table, read)

    def _read(
        self, table: str, read: Callable[[TraceSource, Window], _Answer], wanted: bool = True
    ) -> Callable[[], list[_Answer]]:
        windows = self.source.windows(table) if wanted else []

        def part(window: Window) -> _Answer:
            return read(self._source(), window)

        parts = [self._pool.submit(part, window) for window in windows]
        return lambda: [parts.pop(0).result() for _ in windows]

    def _source(self) -> TraceSource:
        """The calling thread's own."""
        source: TraceSource | None = getattr(self._own, "source", None)
        if source is None:
            source = open_source(self._path)
            with self._opening:
                self._own.source = self._opened.enter_context(source)
        return source
