"""Files as they come: of any version, in WAL mode, with any text, damaged, or no traces."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfharness.analysis.analysis import Analysis, AnalysisOptions
from perfharness.analysis.stages.tree import tabulate
from perfharness.errors import TraceError, TraceFormatError, TraceNotFoundError
from perfharness.trace import open_trace
from tests.support.trace_builder import TraceBuilder
from tests.unit.trace.conftest import Read

GOLDEN = Path(__file__).parents[2] / "golden" / "traces"
WHOLE = (GOLDEN / "pipeline.sqlite").read_bytes()


def statements(*statements: str) -> Callable[[Path], None]:
    """Make a database with these."""

    def make(path: Path) -> None:
        with closing(sqlite3.connect(path)) as connection, connection:
            for statement in statements:
                connection.execute(statement)

    return make


def content(content: bytes) -> Callable[[Path], object]:
    """Make a file of these bytes."""
    return lambda path: path.write_bytes(content)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda path: None, TraceNotFoundError),
        (Path.mkdir, TraceNotFoundError),
        (content(b""), TraceFormatError),
        (content(b"not a database at all"), TraceFormatError),
        (content(b"SQLite format 3\x00" + bytes(20)), TraceFormatError),
        (content(b"SQLite format 3\x00" + bytes(84)), TraceFormatError),
        *((content(WHOLE[: int(len(WHOLE) * part)]), TraceFormatError) for part in (0.1, 0.5, 0.99, 0.99999)),
        (statements("CREATE TABLE people (name TEXT)"), TraceFormatError),
        (statements("CREATE TABLE NVTX_EVENTS (start REAL)", "INSERT INTO NVTX_EVENTS VALUES (1)"), TraceFormatError),
    ],
)
def test_what_is_no_trace(tmp_path: Path, make: Callable[[Path], object], error: type[TraceError]) -> None:
    path = tmp_path / "t.sqlite"
    make(path)
    with pytest.raises(error, match=r"t\.sqlite"):
        open_trace(path)


@pytest.mark.parametrize(
    ("table", "column", "value", "counted"),
    [
        ("NVTX_EVENTS", "start", None, "1 of 2"),
        ("NVTX_EVENTS", "globalTid", None, "1 of 2"),
        ("NVTX_EVENTS", "end", 3, "1 of 2"),
        ("NVTX_EVENTS", "textId", 77, "1 NVTX events"),
        ("NVTX_EVENTS", "eventType", None, "1 have no type"),
        ("CUPTI_ACTIVITY_KIND_RUNTIME", "end", 1, "1 of 1"),
        ("CUPTI_ACTIVITY_KIND_KERNEL", "end", None, "1 of 1"),
    ],
)
def test_a_trace_that_contradicts_itself(read: Read, table: str, column: str, value: int | None, counted: str) -> None:
    builder = TraceBuilder()
    builder.range("first", 0, 4)
    builder.range("second", 5, 9)
    builder.kernel((6, 7), (20, 30))
    builder.tables[table][-1][column] = value
    with pytest.raises(TraceFormatError, match=counted):
        read(builder)


def test_columns_that_a_version_lacks_are_no_error(tmp_path: Path) -> None:
    path = tmp_path / "a b?c#d%20é.sqlite"
    statements(
        "CREATE TABLE NVTX_EVENTS (start, end, eventType, text, globalTid)",
        "INSERT INTO NVTX_EVENTS VALUES (5, 9, 59, 'stage', 281474976710656)",
    )(path)
    trace = open_trace(path)
    assert trace.ranges.start_ns.tolist() == [5]
    assert not trace.ranges.has_payload.any()
    assert trace.meta.gpu_coverage == "untraced"


def test_nothing_is_left_beside_a_trace_in_wal_mode(read: Read, tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.range("stage", 0, 10)
    read(builder)
    path = tmp_path / "t.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("UPDATE NVTX_EVENTS SET end = 9 WHERE end = 10")
        connection.commit()
        assert open_trace(path).ranges.end_ns.tolist() == [9]  # from the log of whoever writes
    before = path.read_bytes()
    assert len(open_trace(path).ranges) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["t.sqlite"]
    assert path.read_bytes() == before


@pytest.mark.parametrize(("text", "table", "column"), [(True, "NVTX_EVENTS", "text"), (False, "StringIds", "value")])
def test_a_name_that_is_not_utf_8_is_escaped(tmp_path: Path, text: bool, table: str, column: str) -> None:
    builder = TraceBuilder()
    for place, name in enumerate(("a", "b", "ü")):
        builder.range(name, 10 * place, 10 * place + 5, text=text)
    path = builder.write(tmp_path / "t.sqlite")
    statements(f"UPDATE {table} SET {column} = CAST(X'636166E9' AS TEXT) WHERE {column} = 'b'")(path)
    trace = open_trace(path)
    assert [trace.names[code] for code in trace.ranges.name] == ["a", "caf\\xe9", "ü"]


def test_what_only_the_end_of_a_long_table_has(read: Read) -> None:
    """40,000 rows without text or payload, so that a type guessed from the first ones would be wrong."""
    builder = TraceBuilder()
    for at in range(40_000):
        builder.range("registered", 10 * at, 10 * at + 5)
    for at, (column, value) in enumerate(
        {"int64Value": -5, "uint64Value": 7, "int32Value": -9, "uint32Value": 1 << 31}.items()
    ):
        builder.range(column, 500_000 + at, 500_001 + at, text=True, category="io")
        builder.tables["NVTX_EVENTS"][-1][column] = value
    trace = read(builder)
    ranges = trace.ranges
    assert ranges.start_ns[:-4].tolist() == list(range(0, 400_000, 10))
    assert [trace.names[code] for code in ranges.name[-5:]] == [
        "registered",
        "int64Value",
        "uint64Value",
        "int32Value",
        "uint32Value",
    ]
    assert ranges.has_payload[-5:].tolist() == [False, True, True, True, True]
    assert ranges.payload[-5:].tolist() == [0, -5, 7, -9, 1 << 31]
    assert [trace.names[code] for code in ranges.category[-4:]] == ["io"] * 4
    assert len(trace.names) == 7  # the empty name among them


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(100, 190_000), st.integers(0, 255)), min_size=1, max_size=40))
def test_flipped_bytes_never_end_in_a_traceback(tmp_path: Path, flips: list[tuple[int, int]]) -> None:
    damaged = bytearray((GOLDEN / "cpu.sqlite").read_bytes())
    for position, value in flips:
        damaged[position % len(damaged)] = value
    path = tmp_path / "t.sqlite"
    path.write_bytes(bytes(damaged))
    try:
        trace = open_trace(path)
    except TraceError:
        return
    tabulate(Analysis(trace, AnalysisOptions(1)))
