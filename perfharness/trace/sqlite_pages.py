"""Integer columns straight from the pages of a sqlite file: in a third of the time that the driver takes.

Rows of a table mostly have the same few headers, so that rows with the same one are decoded together. Written from
https://www.sqlite.org/fileformat.html (1.6: b-trees; 2.1: records). Whatever tracers do not write, and whatever is
damaged, raises `UnusualPagesError`: the driver reads everything, and says what is wrong.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from perfharness.model.trace import Int64, Integers
from perfharness.trace.source import MISSING, Window

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]
Scalar = np.signedinteger[Any]

INTERIOR, LEAF = 5, 13
"""Types of the pages of a table."""

PAGE_HEADER_BYTES = {INTERIOR: 12, LEAF: 8}
RIGHTMOST_CHILD = slice(8, 12)
MAX_DEPTH = 20
"""Of a table's tree; sqlite's own limit."""

NOT_LOCAL_BYTES = 35
"""A record is whole in its leaf where the page has so many usable bytes more."""

MAX_HEADER_BYTES = 127
"""A longer header of a record has its length in more than one byte."""

MAX_HEADERS = 256
"""Different ones in a window; with more, the driver is not much slower."""

VARINT_BYTES = 8
"""Row ids that take nine are negative, or count more rows than there are."""

STORED_BYTES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}
"""Length of an integer by serial type."""

CONSTANTS: dict[int, Scalar] = {0: np.int64(MISSING), 8: np.int8(0), 9: np.int8(1)}
"""What a serial type without any bytes stands for."""

FLOAT, FIRST_BLOB = 7, 12


class UnusualPagesError(Exception):
    """Pages are damaged, or hold what tracers do not write."""


class SqlitePages:
    """A file that is not changed meanwhile, for one thread."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=0)
        header = self._file.read(100)
        size = int.from_bytes(header[16:18], "big")
        self._page_bytes = 1 << 16 if size == 1 else size
        self._page_count = os.fstat(self._file.fileno()).st_size // self._page_bytes
        self._max_local_bytes = self._page_bytes - header[20] - NOT_LOCAL_BYTES
        self._leaves: dict[int, tuple[Int64, Int64]] = {}
        self._buffer: Bytes = np.zeros(0, dtype=np.uint8)

    def close(self) -> None:
        """No more pages are read."""
        self._file.close()

    def integers(self, root: int, columns: Sequence[int], window: Window) -> tuple[Int64, list[Integers]]:
        """Row ids of a window of a table, and columns of it, as wide as they are stored; NULL is `MISSING`.

        Args:
            root: page of the table.
            columns: their numbers, from 0 on.
        """
        if root not in self._leaves:
            self._leaves[root] = self._find_leaves(root)
        leaves, last_row = self._leaves[root]
        first, last = np.searchsorted(last_row, window)
        cells = self._cells(self._read(leaves[first : last + 1]), LEAF)
        record_bytes, after = self._varints(cells)
        rows, record = self._varints(after)
        is_local = record_bytes <= self._max_local_bytes
        is_local &= (record + record_bytes - 1) // self._page_bytes == cells // self._page_bytes
        if not is_local.all() or (rows[1:] <= rows[:-1]).any():
            raise UnusualPagesError
        inside = slice(np.searchsorted(rows, window[0]), np.searchsorted(rows, window[1], "right"))
        return rows[inside], self._decode(record[inside], record_bytes[inside], columns)

    def _find_leaves(self, root: int) -> tuple[Int64, Int64]:
        """The leaves of a table in order, and of each a row id that it has none beyond."""
        pages, last_row = np.asarray([root]), np.asarray([np.iinfo(np.int64).max])
        for _ in range(MAX_DEPTH):
            if self._read(pages[:1])[0, 0] == LEAF:  # all are equally deep; their types are checked when they are read
                if (last_row[1:] <= last_row[:-1]).any():
                    raise UnusualPagesError
                return pages, last_row
            read = self._read(pages)
            cells = self._cells(read, INTERIOR)
            child = self._bytes(cells, 4).view(">u4").ravel().astype(np.int64)
            key, _ = self._varints(cells + 4)
            behind = np.cumsum(_cell_counts(read))
            rightmost = np.ascontiguousarray(read[:, RIGHTMOST_CHILD]).view(">u4").ravel()
            pages, last_row = np.insert(child, behind, rightmost), np.insert(key, behind, last_row)
            if len(pages) > self._page_count:  # a circle
                break
        raise UnusualPagesError

    def _read(self, numbers: Int64) -> Bytes:
        """Pages, one a row, in a buffer that the next call overwrites."""
        count, size = len(numbers), self._page_bytes
        needed = count * size + 2 * MAX_HEADER_BYTES  # reading may go beyond the last page, and ignore what is there
        if len(self._buffer) < needed:
            self._buffer = np.zeros(needed, dtype=np.uint8)
        begins = np.flatnonzero(np.diff(numbers, prepend=-2) != 1).tolist()
        for begin, stop in zip(begins, [*begins[1:], count], strict=True):
            part = self._buffer[begin * size : stop * size].data
            page = int(numbers[begin])
            # Page 1 begins with the file's header; no table is there but that of the tables.
            if page < 2 or os.preadv(self._file.fileno(), [part], (page - 1) * size) < len(part):
                raise UnusualPagesError
        return self._buffer[: count * size].reshape(count, size)

    def _cells(self, pages: Bytes, kind: int) -> Int64:
        """Where in the buffer the cells of pages begin, in order."""
        counts, head = _cell_counts(pages), PAGE_HEADER_BYTES[kind]
        most = int(counts.max(initial=0))
        if (pages[:, 0] != kind).any() or head + 2 * most > self._page_bytes:
            raise UnusualPagesError
        pointers = pages[:, head : head + 2 * most].view(">u2")
        at = pointers[np.arange(most) < counts[:, None]].astype(np.int64)
        if (at < head).any() or (at > self._page_bytes - 4).any():
            raise UnusualPagesError
        at += np.repeat(np.arange(len(pages)) * self._page_bytes, counts)
        return at

    def _bytes(self, at: Int64, count: int) -> Bytes:
        """So many bytes from each place on, a row each."""
        everywhere = np.ndarray(len(self._buffer) - count + 1, dtype=f"V{count}", buffer=self._buffer, strides=(1,))
        found: Bytes = everywhere[at].view(np.uint8).reshape(len(at), count)
        return found

    def _varints(self, at: Int64) -> tuple[Int64, Int64]:
        """Numbers of variable length, and where they end."""
        byte = self._buffer[at]
        values, after = (byte & 0x7F).astype(np.int64), at + 1
        longer = np.flatnonzero(byte & 0x80)
        for _ in range(VARINT_BYTES - 1):
            if not len(longer):
                break
            byte = self._buffer[after[longer]]
            values[longer] = values[longer] << 7 | byte & 0x7F
            after[longer] += 1
            longer = longer[byte >= 0x80]
        if len(longer):
            raise UnusualPagesError
        return values, after

    def _decode(self, record: Int64, record_bytes: Int64, columns: Sequence[int]) -> list[Integers]:
        """Columns of records."""
        if not len(record):
            return [np.empty(0, dtype=np.int64) for _ in columns]
        header_bytes = self._buffer[record]
        most = int(header_bytes.max())
        if most > MAX_HEADER_BYTES or (header_bytes < 1).any():
            raise UnusualPagesError
        headers = self._headers(record, header_bytes, most)
        groups = []
        for rows in _equal_rows(headers):
            header = headers[rows[0]].tobytes()[: int(header_bytes[rows[0]])]
            groups.append((rows, self._decode_group(record[rows], record_bytes[rows], header, columns)))
        return [_column([(rows, found[at]) for rows, found in groups], len(record)) for at in range(len(columns))]

    def _headers(self, record: Int64, header_bytes: Bytes, most: int) -> Words:
        """Headers of records as 64-bit words, a row each, the bytes behind them 0."""
        words = -(-most // 8)
        headers = self._bytes(record, 8 * words).view(np.uint64).reshape(len(record), words)
        is_header = np.arange(8 * words) < np.arange(most + 1)[:, None]
        headers &= np.where(is_header, np.uint8(0xFF), np.uint8(0)).view(np.uint64)[header_bytes]
        return headers

    def _decode_group(
        self, record: Int64, record_bytes: Int64, header: bytes, columns: Sequence[int]
    ) -> list[Integers | Scalar]:
        """Columns of records with this header; a scalar where all have one value that takes no bytes."""
        types = _serial_types(header[1:])
        begins = np.cumsum([len(header), *map(_bytes_of, types)]).tolist()
        if max(columns) >= len(types) or (record_bytes != begins[-1]).any():
            raise UnusualPagesError
        if any(types[column] not in STORED_BYTES and types[column] not in CONSTANTS for column in columns):
            raise UnusualPagesError
        stored = [column for column in columns if types[column] in STORED_BYTES]
        if not stored:
            return [CONSTANTS[types[column]] for column in columns]
        first = begins[min(stored)]
        body = self._bytes(record + first, begins[max(stored) + 1] - first)
        return [
            _signed(body[:, begins[column] - first : begins[column + 1] - first])
            if types[column] in STORED_BYTES
            else CONSTANTS[types[column]]
            for column in columns
        ]


def _cell_counts(pages: Bytes) -> Int64:
    return np.ascontiguousarray(pages[:, 3:5]).view(">u2").ravel().astype(np.int64)


def _equal_rows(headers: Words) -> list[Int64]:
    """The rows of each header."""
    factors = np.arange(1, 2 * headers.shape[1], 2, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed, rest = (headers * factors).sum(axis=1), np.arange(len(headers))
    found: list[Int64] = []
    while len(rest):
        is_same = mixed == mixed[0]
        rows = rest[is_same]
        if len(found) == MAX_HEADERS or (headers[rows] != headers[rows[0]]).any():
            raise UnusualPagesError
        found.append(rows)
        mixed, rest = mixed[~is_same], rest[~is_same]
    return found


def _serial_types(header: bytes) -> list[int]:
    types, value = [], 0
    for byte in header:
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            types.append(value)
            value = 0
    if header[-1:] >= b"\x80":
        raise UnusualPagesError
    return types


def _bytes_of(serial_type: int) -> int:
    if serial_type >= FIRST_BLOB:
        return (serial_type - FIRST_BLOB) // 2
    if serial_type == FLOAT:
        return 8
    if serial_type in CONSTANTS:
        return 0
    if serial_type not in STORED_BYTES:
        raise UnusualPagesError
    return STORED_BYTES[serial_type]


def _signed(stored: Bytes) -> Integers:
    """Big-endian integers of 1, 2, 3, 4, 6 or 8 bytes, a row each."""
    size = stored.shape[1]
    high: Integers
    if size == 3:
        high = stored[:, :1].view(np.int8).ravel().astype(np.int32)
        return np.asarray(high << 16 | stored[:, 1:].view(">u2").ravel())
    if size == 6:
        high = stored[:, :2].view(">i2").ravel().astype(np.int64)
        return np.asarray(high << 32 | stored[:, 2:].view(">u4").ravel())
    return stored.view(f">i{size}").ravel().astype(f"i{size}")


def _column(groups: list[tuple[Int64, Integers | Scalar]], count: int) -> Integers:
    """A column from those of its groups of rows."""
    values = [found for _, found in groups]
    if all(not found.ndim and found == values[0] for found in values):
        return np.broadcast_to(values[0], count)
    if isinstance(values[0], np.ndarray) and len(values) == 1:
        return values[0]
    column: Integers = np.empty(count, dtype=np.result_type(*(found.dtype for found in values)))
    for rows, found in groups:
        column[rows] = found
    return column
