"""Files as they come: old and new columns, absent tables, text or textId, and files that are no traces."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfharness.analysis.analysis import Analysis, AnalysisOptions
from perfharness.analysis.stages.tabulate import tabulate
from perfharness.errors import TraceError, TraceFormatError, TraceNotFoundError
from perfharness.model import conventions
from perfharness.trace import open_trace
from tests.support.trace_builder import TraceBuilder

GOLDEN = Path(__file__).parents[2] / "golden" / "traces"
WHOLE = (GOLDEN / "pipeline.sqlite").read_bytes()


def of_people(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE people (name TEXT)")


def with_a_lost_name(path: Path) -> None:
    builder = TraceBuilder()
    builder.range("stage", 0, 10)
    builder.tables["StringIds"][0]["id"] = 77
    builder.write(path)


@pytest.mark.parametrize(
    ("made", "error"),
    [
        (None, TraceNotFoundError),
        (Path.mkdir, TraceNotFoundError),
        (b"", TraceFormatError),
        (b"not a database at all", TraceFormatError),
        (b"SQLite format 3\x00" + bytes(20), TraceFormatError),
        (b"SQLite format 3\x00" + bytes(84), TraceFormatError),
        *((WHOLE[: int(len(WHOLE) * part)], TraceFormatError) for part in (0.1, 0.5, 0.9, 0.99, 0.99999)),
        (of_people, TraceFormatError),
        (with_a_lost_name, TraceFormatError),
    ],
)
def test_what_is_no_trace(tmp_path: Path, made: bytes | Callable[[Path], None] | None, error: type[TraceError]) -> None:
    path = tmp_path / "t.sqlite"
    if isinstance(made, bytes):
        path.write_bytes(made)
    elif made is not None:
        made(path)
    with pytest.raises(error, match=r"t\.sqlite"):
        open_trace(path)


def test_a_path_with_odd_characters(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.range("stage", 0, 10)
    folder = tmp_path / "a b?c#d%20é"
    folder.mkdir()
    assert len(open_trace(builder.write(folder / "t.sqlite")).ranges) == 1


def test_the_name_stands_in_text_or_in_the_string_table(tmp_path: Path) -> None:
    """The first 3,000 rows have no text, so that a type guessed from them would be wrong."""
    builder = TraceBuilder()
    for index in range(3000):
        builder.range("registered", 10 * index, 10 * index + 5)
    builder.range("spelled out", 50_000, 50_010, text=True)
    trace = open_trace(builder.write(tmp_path / "t.sqlite"))
    assert trace.names[trace.ranges.name[-1]] == "spelled out"
    assert {trace.names[code] for code in trace.ranges.name[:-1]} == {"registered"}


def test_columns_that_a_version_lacks_are_no_error(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE NVTX_EVENTS (start, end, eventType, text, globalTid)")
        connection.execute("INSERT INTO NVTX_EVENTS VALUES (5, 9, 59, 'stage', 281474976710656)")
    trace = open_trace(path)
    assert trace.ranges.start_ns.tolist() == [5]
    assert not trace.ranges.has_payload.any()
    assert trace.meta.gpu_coverage == "untraced"


def test_domains_and_categories_belong_to_their_process(tmp_path: Path) -> None:
    """Two processes with the same domain and category ids and other names."""
    builder = TraceBuilder()
    builder.range("a", 0, 10, pid=1, domain="first", category="x")
    builder.range("b", 0, 10, pid=2, domain="second", category="y")
    for row in builder.tables["NVTX_EVENTS"]:
        row["domainId"] = 1
        row["category"] = 1
    trace = open_trace(builder.write(tmp_path / "t.sqlite"))
    assert [trace.names[code] for code in trace.ranges.domain] == ["first", "second"]
    assert [trace.names[code] for code in trace.ranges.category] == ["x", "y"]


def test_payloads_of_all_integer_types(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.range("none", 0, 1)
    for column, value in (("int64Value", -5), ("uint64Value", 7), ("int32Value", -9), ("uint32Value", 11)):
        builder.range(column, 10, 11)
        builder.tables["NVTX_EVENTS"][-1][column] = value
    ranges = open_trace(builder.write(tmp_path / "t.sqlite")).ranges
    assert ranges.has_payload.tolist() == [False, True, True, True, True]
    assert ranges.payload.tolist() == [0, -5, 7, -9, 11]


def test_nothing_is_left_beside_a_trace(tmp_path: Path) -> None:
    """A file in WAL mode, which sqlite cannot read without files of its own unless it is opened as immutable."""
    builder = TraceBuilder()
    builder.range("stage", 0, 10)
    path = builder.write(tmp_path / "t.sqlite")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("UPDATE NVTX_EVENTS SET end = 9 WHERE end = 10")
        connection.commit()
        assert open_trace(path).ranges.end_ns.tolist() == [9]  # from the log of whoever writes
    before = path.read_bytes()
    assert len(open_trace(path).ranges) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["t.sqlite"]
    assert path.read_bytes() == before


@pytest.mark.parametrize("text", [False, True])
def test_a_name_that_is_no_utf_8_is_escaped_and_the_others_stay(tmp_path: Path, text: bool) -> None:
    builder = TraceBuilder()
    for place, name in enumerate(("a", "b", "ü")):
        builder.range(name, 10 * place, 10 * place + 5, text=text)
    path = builder.write(tmp_path / "t.sqlite")
    table, column = ("NVTX_EVENTS", "text") if text else ("StringIds", "value")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"UPDATE {table} SET {column} = CAST(X'636166E9' AS TEXT) WHERE {column} = 'b'")
    trace = open_trace(path)
    assert [trace.names[code] for code in trace.ranges.name] == ["a", "caf\\xe9", "ü"]


@pytest.mark.parametrize(
    ("table", "column", "value", "counted"),
    [
        ("NVTX_EVENTS", "start", None, "1 of 2"),
        ("NVTX_EVENTS", "globalTid", None, "1 of 2"),
        ("NVTX_EVENTS", "end", 3, "1 of 2"),
        ("CUPTI_ACTIVITY_KIND_RUNTIME", "end", 1, "1 of 1"),
        ("CUPTI_ACTIVITY_KIND_KERNEL", "end", None, "1 of 1"),
    ],
)
def test_a_trace_that_contradicts_itself(
    tmp_path: Path, table: str, column: str, value: int | None, counted: str
) -> None:
    builder = TraceBuilder()
    builder.range("first", 0, 4)
    builder.range("second", 5, 9)
    builder.kernel((6, 7), (20, 30))
    builder.tables[table][-1][column] = value
    with pytest.raises(TraceFormatError, match=counted):
        open_trace(builder.write(tmp_path / "t.sqlite"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(100, 190_000), st.integers(0, 255)), min_size=1, max_size=40))
def test_flipped_bytes_never_end_in_a_traceback(tmp_path: Path, flips: list[tuple[int, int]]) -> None:
    content = bytearray((GOLDEN / "cpu.sqlite").read_bytes())
    for position, value in flips:
        content[position % len(content)] = value
    path = tmp_path / "t.sqlite"
    path.write_bytes(bytes(content))
    try:
        trace = open_trace(path)
    except TraceError:
        return
    tabulate(Analysis(trace, AnalysisOptions(1)))


@pytest.mark.parametrize(
    ("category", "expected"),
    [
        ("toy", ("toy", None, 0)),
        ("toy/io", ("toy", "io", 0)),
        ("toy/a/b", ("toy", "a/b", 0)),
        ("toy#2", ("toy", None, 2)),
        ("toy/io#12", ("toy", "io", 12)),
        ("toy/sub", ("toy/sub", None, 0)),
        ("toy/sub/io", ("toy/sub", "io", 0)),
        ("other", None),
        ("toys", None),
    ],
)
def test_categories_are_read_as_they_are_written(category: str, expected: tuple[str, str | None, int] | None) -> None:
    recorders = frozenset({"toy"} | ({"toy/sub"} if "sub" in category else set()))
    assert conventions.parse_category(category, recorders) == expected


NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=8)


@given(NAMES, st.none() | NAMES, st.integers(0, 99))
def test_every_category_survives(recorder: str, user: str | None, lane: int) -> None:
    written = conventions.category_name(recorder, user, lane)
    parsed = conventions.parse_category(written, frozenset({recorder}))
    assert parsed is not None
    assert conventions.category_name(*parsed) == written
