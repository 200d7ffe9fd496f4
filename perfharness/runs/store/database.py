"""The connection to a store: transactions that several writers can hold in turn, migrations, errors as sentences."""

from __future__ import annotations

import contextlib
import sqlite3
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import Connection, Engine, create_engine, event, inspect, make_url, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from perfharness.errors import StoreError, UsageError
from perfharness.files import reason_of
from perfharness.runs.store.location import Location
from perfharness.runs.store.tables import VERSION_TABLE

SCHEMAS = ("0001", "0002", "0003")
"""Revisions of the schema, the newest last; each is a file in `migrations/versions`."""

NEWEST = SCHEMAS[-1]
PATIENCE_S = 30.0
"""How long another writer is waited for."""

CONNECT_S = 10
ADVISORY_LOCK = 7_236_511_902_448_015
"""A number of our own: who holds it migrates a PostgreSQL store."""

PERIOD_S = 0.02
_WRITES = "perfharness_writes"


class Database:
    """A store's database; one that does not exist is made, an older one migrated.

    Args:
        location: where it is.
        create: make an SQLite file that does not exist.
        patience_s: how long a writer waits for others.

    Raises `StoreError`, `UsageError`.
    """

    def __init__(self, location: Location, *, create: bool = True, patience_s: float = PATIENCE_S) -> None:
        self.location = location
        self._patience_s = patience_s
        if location.path is not None:
            _check_file(location.path, create=create)
        with self._as_sentences():
            self._engine = self._make_engine()
            self._prepare()

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that sees one state. Raises `StoreError`."""
        with self._as_sentences(), self._engine.connect() as connection, connection.begin():
            yield connection

    @contextlib.contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that no other writer is in at the same time on SQLite; all of it is kept, or nothing.

        Raises `StoreError`.
        """
        with self._as_sentences(), self._engine.connect() as plain:
            connection = plain.execution_options(**{_WRITES: True})
            with connection.begin():
                yield connection

    def close(self) -> None:
        """Close it."""
        self._engine.dispose()

    def _make_engine(self) -> Engine:
        if self.location.path is not None:
            url = URL.create("sqlite", database=str(self.location.path))
            engine = create_engine(url, poolclass=NullPool, connect_args={"timeout": self._patience_s})
            event.listen(engine, "connect", _set_up_sqlite)
            event.listen(engine, "begin", _begin_sqlite)
            return engine
        try:
            url = make_url(self.location.url or "")
        except (ArgumentError, ValueError) as error:
            raise UsageError(
                f"{self.location} is no URL of a database; it is postgresql://USER@HOST/DATABASE"
            ) from error
        patience_ms = int(self._patience_s * 1000)
        arguments = {
            "connect_timeout": CONNECT_S,
            "options": f"-c lock_timeout={patience_ms} -c statement_timeout={2 * patience_ms}",
        }
        return create_engine(url, poolclass=NullPool, connect_args=arguments)

    def _write_ahead(self) -> None:
        """Let readers and a writer of an SQLite file not wait for each other; once in the life of a file."""
        connection = sqlite3.connect(str(self.location.path), timeout=self._patience_s, isolation_level=None)
        deadline = time.monotonic() + self._patience_s
        with contextlib.closing(connection):
            while not _is_write_ahead(connection, is_last_try=time.monotonic() > deadline):
                time.sleep(PERIOD_S)

    def _prepare(self) -> None:
        """Bring the schema to the newest version."""
        with self.reading() as connection:
            schema = self._schema(connection)
        if schema == NEWEST:
            return
        if self.location.path is not None and not is_on_network(self.location.path):
            self._write_ahead()
        with self.writing() as connection:
            if self.location.url is not None:
                connection.execute(text(f"SELECT pg_advisory_xact_lock({ADVISORY_LOCK})"))
            schema = self._schema(connection)  # another process may have been faster
            if schema != NEWEST:
                _migrate(connection)

    def _schema(self, connection: Connection) -> str | None:
        """The version of the schema; None: there is none yet. Raises `StoreError` where it cannot be used."""
        names = inspect(connection).get_table_names()
        if VERSION_TABLE not in names:
            if names and self.location.path is not None:
                raise StoreError(
                    f"{self.location} is a database of something else; name another file for the run store"
                )
            return None
        schema = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()
        if schema is not None and schema not in SCHEMAS:
            raise StoreError(
                f"the run store {self.location} has schema {schema}, of a newer perfharness; this one knows up to"
                f" {NEWEST}: update perfharness, or name another store"
            )
        return None if schema is None else str(schema)

    @contextlib.contextmanager
    def _as_sentences(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            raise StoreError(f"the run store {self.location} {_why(error)}") from error
        except sqlite3.Error as error:  # from what is done when a connection is made
            raise StoreError(f"the run store {self.location} {_why_sqlite(error)}") from error


NETWORK_FILE_SYSTEMS = frozenset(
    {
        "9p", "afs", "beegfs", "ceph", "cifs", "fuse.glusterfs", "fuse.sshfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4",
        "panfs", "pvfs2", "smb3", "smbfs", "virtiofs", "wekafs",
    }
)  # fmt: skip
"""Where a write-ahead log, which needs memory that all writers share, would be damaged by two machines."""


def is_on_network(path: Path) -> bool:
    """Whether the file is on a file system of several machines."""
    folder = path.parent.resolve()
    mounts = {Path(part.mountpoint): part.fstype for part in psutil.disk_partitions(all=True)}
    nearest = next((mounts[place] for place in (folder, *folder.parents) if place in mounts), "")
    return nearest.lower() in NETWORK_FILE_SYSTEMS


def _is_write_ahead(connection: sqlite3.Connection, *, is_last_try: bool) -> bool:
    """Try to switch it on; False: another process has the file open, for which SQLite does not wait here by itself.

    A file system without shared memory keeps another mode, in which SQLite locks as safely.
    """
    try:
        connection.execute("PRAGMA journal_mode = WAL")
    except sqlite3.OperationalError as error:
        if "locked" not in str(error) or is_last_try:
            raise
        return False
    return True


def _set_up_sqlite(connection: sqlite3.Connection, record: object) -> None:
    """Transactions begin when `_begin_sqlite` says so, and last for a power failure too."""
    del record
    connection.isolation_level = None
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = FULL")


def _begin_sqlite(connection: Connection) -> None:
    """A writer takes the lock at once: had it read first, it could not write after another writer had."""
    writes = connection.get_execution_options().get(_WRITES)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _migrate(connection: Connection) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _check_file(path: Path, *, create: bool) -> None:
    """Raises `StoreError` where there is no SQLite file and none can be made."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if not create:
            raise StoreError(
                f"there is no run store at {path}; a launch makes one, or name another with --store"
            ) from None
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"the run store {path} cannot be made: {reason_of(error)}") from error
        return
    except OSError as error:
        raise StoreError(f"the run store {path} cannot be read: {reason_of(error)}") from error
    if not stat.S_ISREG(mode):
        raise StoreError(f"the run store {path} is no file; name an SQLite file, or a postgresql:// URL")


def _why(error: SQLAlchemyError) -> str:
    cause: Any = error.orig if isinstance(error, DBAPIError) else None
    if isinstance(cause, sqlite3.Error):
        return _why_sqlite(cause)
    lines = [line.strip() for line in str(cause or error).splitlines() if line.strip()]
    return f"cannot be used: {lines[0] if lines else type(error).__name__}"


SQLITE_REASONS = {
    "locked": "is locked by another program ({}); try again when that is done",
    "not a database": "is damaged, or no SQLite file ({}); move it away, and a new one is made",
    "malformed": "is damaged ({}); move it away, and a new one is made",
    "readonly": "cannot be written ({}); check the permissions of the file and of its folder, or name another store",
    "unable to open": "cannot be opened ({}); check the permissions of the file and of its folder",
    "full": "cannot be written ({}); free some space",
    "I/O": "cannot be written or read ({}); check the disk",
}
"""By what SQLite says: Python 3.10 has no error codes."""


def _why_sqlite(error: sqlite3.Error) -> str:
    form = next((form for word, form in SQLITE_REASONS.items() if word in str(error)), "cannot be used: {}")
    return form.format(error)
