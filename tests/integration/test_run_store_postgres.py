"""The run store in a real PostgreSQL."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from perfharness.errors import StoreError
from perfharness.runs.store.filters import RunFilter
from perfharness.runs.store.location import Location, parse_location
from perfharness.runs.store.records import CPU, StoredRun
from perfharness.runs.store.store import RunStore
from perfharness.runs.store.tables import VERSION_TABLE, metadata
from tests.integration.launches import perfharness
from tests.integration.postgres_server import postgres_server
from tests.integration.store_writers import crash_and_go_on, opened, run_of, write_together


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with postgres_server() as place:
        yield place


@pytest.fixture(autouse=True)
def empty(url: str) -> None:
    """Each test begins without a schema."""
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        for name in [*metadata.tables, VERSION_TABLE]:
            connection.execute(text(f"DROP TABLE IF EXISTS {name} CASCADE"))
    engine.dispose()


@pytest.mark.slow
def test_four_writers_at_once(url: str) -> None:
    write_together(url)


def test_a_killed_writer(url: str) -> None:
    crash_and_go_on(url)


def test_it_holds_what_sqlite_holds(url: str, tmp_path: Path) -> None:
    path = tmp_path / "runs.sqlite"
    stores = [opened(url), RunStore(Location(path=path), create=True)]
    for store in stores:
        for number in range(3):
            store.add(run_of(1, number))
        series = StoredRun(**{**run_of(2, 5).model_dump(), "kind": "sweep", "git_commit": "abc", "git_dirty": True})
        store.add(series, ["writer_1_0", "writer_1_2"])
        store.tag(["writer_1_0"], ["ä", "x%"], ["tag_1"])
        store.delete(["writer_1_1"])
    for which in (
        RunFilter(),
        RunFilter(top_level=False),
        RunFilter(tag="x%"),
        RunFilter(commit="AB"),
        RunFilter(script="line.py"),
    ):
        first, second = (store.runs(which, "all") for store in stores)
        assert first == second
    names, every = ("3", "rec/3", "ec/3"), RunFilter(top_level=False)
    found = [[store.values(CPU, every, name) for name in names] for store in stores]
    assert found[0] == found[1]
    assert [len(values) for values in found[0]] == [3, 3, 0]
    for store in stores:
        store.add(run_of(1, 0), files={"manifest.json": b"\x00\xff"})
        store.save_baseline("main", ["writer_1_0", "writer_1_2"])
        assert [run.run_id for run in store.baseline("main")] == ["writer_1_0", "writer_1_2"]
        assert store.documents("writer_1_0") == {"manifest.json": b"\x00\xff"}
        with pytest.raises(StoreError):
            store.delete(["writer_2_5"])
    assert stores[0].find("writer_2").git_dirty is True
    with closing(sqlite3.connect(path)) as connection, connection:
        assert connection.execute("SELECT count(*) FROM perfharness_run").fetchone() == (stores[0].count(),)


def test_the_verbs(url: str) -> None:
    opened(url).add(run_of(1, 1))
    listed = perfharness("runs", "list", "--format", "json", PERFHARNESS_STORE=url)
    assert (listed.returncode, "writer_1_1" in listed.stdout) == (0, True)


def test_a_newer_schema_is_refused(url: str) -> None:
    opened(url)
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'"))
    engine.dispose()
    with pytest.raises(StoreError):
        opened(url)


def test_no_server_is_one_sentence_without_the_password(tmp_path: Path) -> None:
    location = parse_location(f"postgresql://me:hunter2@/db?host={tmp_path}", "--store")
    assert location is not None
    with pytest.raises(StoreError) as caught:
        RunStore(location)
    assert "\n" not in str(caught.value)
    assert "hunter2" not in str(caught.value)
