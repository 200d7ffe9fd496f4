"""Integers straight from the pages of a sqlite file are those that sqlite reads."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfharness.errors import TraceFormatError
from perfharness.model import nsys_schema as schema
from perfharness.trace.database import Database
from perfharness.trace.source import MISSING, ROW_ID
from perfharness.trace.sqlite_pages import SqlitePages, UnusualPagesError

TABLE = schema.TABLE_NVTX
WIDTHS = (0, 7, 8, 15, 16, 23, 24, 31, 32, 47, 48, 61, 62)
EDGES = [sign * (1 << bits) + near for bits in WIDTHS for sign in (1, -1) for near in (-1, 0, 1) if bits]
INTEGERS = st.sampled_from([*(edge for edge in EDGES if edge > MISSING), 0, 1, 2**63 - 1, None])
OTHERS = st.one_of(st.floats(allow_nan=False), st.text(max_size=17), st.binary(max_size=70), INTEGERS)
SMALL_PAGE_BYTES = 512


@contextmanager
def made(path: Path, *statements: str, page_bytes: int = 4096) -> Iterator[sqlite3.Connection]:
    """A database with what these statements make, committed at the end."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"PRAGMA page_size = {page_bytes}")
        for statement in statements:
            connection.execute(statement)
        yield connection


def selected(path: Path, columns: Iterable[str], first: int, last: int) -> list[tuple[Any, ...]]:
    """What sqlite has in a window."""
    wanted = ", ".join(f"ifnull({column}, {MISSING})" for column in columns)
    with closing(sqlite3.connect(path)) as connection:
        question = f"SELECT rowid, {wanted} FROM {TABLE} WHERE rowid BETWEEN ? AND ? ORDER BY rowid"
        return connection.execute(question, (first, last)).fetchall()


def from_pages(path: Path, columns: Sequence[int], first: int, last: int) -> list[tuple[Any, ...]]:
    """The same from its pages."""
    with closing(sqlite3.connect(path)) as connection:
        (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (TABLE,)).fetchone()
    pages = SqlitePages(path)
    try:
        rows, values = pages.integers(root, columns, (first, last))
    finally:
        pages.close()
    return list(zip(rows.tolist(), *(column.tolist() for column in values), strict=True))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_rows(tmp_path: Path, data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from([INTEGERS, OTHERS]), min_size=1, max_size=30))
    kinds[data.draw(st.integers(0, len(kinds) - 1))] = INTEGERS
    row_ids = sorted(data.draw(st.sets(st.integers(1, 2**20), max_size=80)))
    rows = data.draw(st.lists(st.tuples(*kinds), min_size=len(row_ids), max_size=len(row_ids)))
    path, names = tmp_path / "t.sqlite", [f"c{number}" for number in range(len(kinds))]
    page_bytes = data.draw(st.sampled_from([SMALL_PAGE_BYTES, 4096, 65536]))
    with made(path, f"CREATE TABLE {TABLE} ({', '.join(names)})", page_bytes=page_bytes) as connection:
        marks = ", ".join("?" for _ in range(len(kinds) + 1))
        connection.executemany(
            f"INSERT INTO {TABLE} (rowid, {', '.join(names)}) VALUES ({marks})",
            ((row, *values) for row, values in zip(row_ids, rows, strict=True)),
        )
    wanted = [number for number, kind in enumerate(kinds) if kind is INTEGERS]
    first = data.draw(st.integers(1, 2**20))
    last = data.draw(st.integers(first, 2**20 + 1))
    expected = selected(path, [names[number] for number in wanted], first, last)
    try:
        assert from_pages(path, wanted, first, last) == expected
    except UnusualPagesError:  # a row of another or of this window that does not fit in a page
        assert page_bytes == SMALL_PAGE_BYTES


@pytest.mark.parametrize("page_bytes", [SMALL_PAGE_BYTES, 4096])
def test_windows_of_a_deep_tree(tmp_path: Path, page_bytes: int) -> None:
    """Of 512-byte pages, a tree with several levels above its leaves."""
    path, count = tmp_path / "t.sqlite", 70_000
    with made(path, f"CREATE TABLE {TABLE} (a INTEGER, b INTEGER)", page_bytes=page_bytes) as connection:
        numbers = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})"
        connection.execute(f"INSERT INTO {TABLE} {numbers} SELECT i * i * 997, nullif(i % 5, 3) FROM n")
        connection.execute(f"DELETE FROM {TABLE} WHERE rowid BETWEEN 500 AND 9000 OR rowid % 7 = 0")
    for first, last in (
        (1, count),
        (1, 1),
        (499, 9001),
        (600, 700),
        (9001, 9001),
        (33_333, 44_444),
        (count, 2 * count),
    ):
        assert from_pages(path, [0, 1], first, last) == selected(path, ["a", "b"], first, last)


UNUSUAL = {
    "primary key": [f"CREATE TABLE {TABLE} (a INTEGER PRIMARY KEY, b)", f"INSERT INTO {TABLE} VALUES (7, 1), (9, 2)"],
    "no row id": [
        f"CREATE TABLE {TABLE} (rowid INTEGER, a, b, PRIMARY KEY (a)) WITHOUT ROWID",
        f"INSERT INTO {TABLE} VALUES (1, 7, 1), (2, 9, 2)",
    ],
    "generated": [
        f"CREATE TABLE {TABLE} (g AS (b + 1), a INTEGER, b INTEGER)",
        f"INSERT INTO {TABLE} (a, b) VALUES (7, 1)",
    ],
    "added later": [
        f"CREATE TABLE {TABLE} (a INTEGER)",
        f"INSERT INTO {TABLE} VALUES (7), (9)",
        f"ALTER TABLE {TABLE} ADD COLUMN b INTEGER DEFAULT 5",
        f"INSERT INTO {TABLE} VALUES (8, 6)",
    ],
    "longer than a page": [
        f"CREATE TABLE {TABLE} (text TEXT, a INTEGER, b INTEGER)",
        f"INSERT INTO {TABLE} VALUES (hex(zeroblob(9000)), 7, 1), ('short', 9, 2)",
    ],
    "negative row id": [
        f"CREATE TABLE {TABLE} (a, b)",
        f"INSERT INTO {TABLE} (rowid, a, b) VALUES (-3, 7, 1), (5, 9, 2)",
    ],
    "many columns": [
        f"CREATE TABLE {TABLE} ({', '.join(f'c{number}' for number in range(140))}, a, b)",
        f"INSERT INTO {TABLE} (a, b) VALUES (7, 1)",
    ],
}


@pytest.mark.parametrize("statements", UNUSUAL.values(), ids=UNUSUAL.keys())
def test_what_tracers_do_not_write_is_read_too(tmp_path: Path, statements: list[str]) -> None:
    path = tmp_path / "t.sqlite"
    with made(path, *statements):
        pass
    with Database(path) as source:
        (window,) = source.windows(TABLE)
        found = source.integers(TABLE, ["a", "b"], row_id=True, window=window)
    rows = list(zip(*(found[name].tolist() for name in (ROW_ID, "a", "b")), strict=True))
    assert rows == selected(path, ["a", "b"], -9, 99)


@pytest.mark.parametrize(("kind", "value"), [("REAL", 3), ("INTEGER", 1.5), ("INTEGER", "text"), ("", b"\x01")])
def test_columns_of_no_integers_are_refused(tmp_path: Path, kind: str, value: object) -> None:
    path = tmp_path / "t.sqlite"
    with made(path, f"CREATE TABLE {TABLE} (a {kind}, b INTEGER)") as connection:
        connection.execute(f"INSERT INTO {TABLE} VALUES (?, 4)", (value,))
    with Database(path) as source:
        assert source.integers(TABLE, ["b"], window=(1, 1))["b"].tolist() == [4]
        with pytest.raises(TraceFormatError):
            source.integers(TABLE, ["a"], window=(1, 1))


ROOT = 2
"""Page of the only table."""


@pytest.mark.parametrize("child", [ROOT, 0, 1 << 31], ids=["a circle", "no page", "behind the end"])
def test_a_tree_that_leads_nowhere(tmp_path: Path, child: int) -> None:
    path = tmp_path / "t.sqlite"
    with made(path, f"CREATE TABLE {TABLE} (a INTEGER)", page_bytes=SMALL_PAGE_BYTES) as connection:
        connection.executemany(f"INSERT INTO {TABLE} VALUES (?)", ((number,) for number in range(1000)))
    content = bytearray(path.read_bytes())
    page = slice((ROOT - 1) * SMALL_PAGE_BYTES, ROOT * SMALL_PAGE_BYTES)
    inside = np.frombuffer(bytes(content[page]), dtype=np.uint8)
    cells = inside[12 : 12 + 2 * int(inside[4])].view(">u2")
    for at in (8, *cells.tolist()):
        content[page.start + at : page.start + at + 4] = child.to_bytes(4, "big")
    path.write_bytes(content)
    with pytest.raises(UnusualPagesError):
        from_pages(path, [0], 1, 1000)
    with Database(path) as source, pytest.raises(TraceFormatError):
        source.integers(TABLE, ["a"], window=(1, 1000))
