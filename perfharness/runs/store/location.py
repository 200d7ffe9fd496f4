"""Where the run store is: an SQLite file, a PostgreSQL database by URL, or nowhere."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from perfharness.errors import ToolNotFoundError, UsageError
from perfharness.model.distribution import install_command
from perfharness.model.environment import STORE, STORE_OFF
from perfharness.model.secrets import mask_text

STORE_NAME = "runs.sqlite"
_URL = re.compile(r"(?P<kind>[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>.*)", re.DOTALL)
_POSTGRESQL = ("postgresql", "postgres", "postgresql+psycopg")


@dataclass(frozen=True)
class Location:
    """A place for a store: one of the two is set.

    Args:
        path: of an SQLite file, absolute.
        url: of a PostgreSQL database, for SQLAlchemy.
        asked: whether a user named it; otherwise it is the default.
    """

    path: Path | None = None
    url: str | None = None
    asked: bool = True

    def __str__(self) -> str:
        """For people: no password."""
        return str(self.path) if self.path is not None else mask_text(self.url or "").replace("+psycopg", "", 1)


def find_store(named: str | None = None, environ: Mapping[str, str] | None = None) -> Location | None:
    """The place that was named, else that of PERFHARNESS_STORE, else the default; None: switched off, or there is none.

    Raises `UsageError` where what is named is no place for a store.
    """
    environ = os.environ if environ is None else environ
    if named is not None:
        return parse_location(named, "--store")
    if (value := environ.get(STORE)) is not None:
        return parse_location(value, STORE)
    folder = data_home(environ)
    return None if folder is None else Location(path=folder / STORE_NAME, asked=False)


def data_home(environ: Mapping[str, str]) -> Path | None:
    """The folder of perfharness in the user's data; None: the user has no home."""
    return _home(environ, "XDG_DATA_HOME", ".local/share")


def cache_home(environ: Mapping[str, str]) -> Path | None:
    """The folder of perfharness in the user's cache; None: the user has no home."""
    return _home(environ, "XDG_CACHE_HOME", ".cache")


def _home(environ: Mapping[str, str], variable: str, default: str) -> Path | None:
    named, home = Path(environ.get(variable, "")), Path(environ.get("HOME", ""))
    if named.is_absolute():  # others are to be ignored
        return named / "perfharness"
    return home / default / "perfharness" if home.is_absolute() else None


def parse_location(text: str, what: str) -> Location | None:
    """A path or a URL; None: `off`, or empty. Raises `UsageError`."""
    if text.strip().lower() in (STORE_OFF, ""):
        return None
    match = _URL.fullmatch(text)
    if match is None:
        return Location(path=Path(text).expanduser().absolute())
    kind, rest = match["kind"].lower(), match["rest"]
    if kind == "sqlite":
        if not rest.startswith("/") or not rest[1:]:
            raise UsageError(f"{what} {text}: a file is sqlite:///relative/path or sqlite:////absolute/path, or a path")
        return Location(path=Path(rest[1:]).absolute())
    if kind in _POSTGRESQL:
        return Location(url=f"postgresql+psycopg://{rest}")
    raise UsageError(
        f"{what} {kind}://…: the run store is a path (an SQLite file) or a URL that begins with postgresql://"
    )


def require_store(location: Location) -> None:
    """Raise `ToolNotFoundError` where the libraries of this kind of store are not installed. Loads nothing."""
    missing = [name for name in ("sqlalchemy", "alembic") if importlib.util.find_spec(name) is None]
    if missing:
        raise ToolNotFoundError(
            f"the run store needs {' and '.join(missing)}, not installed here; {install_command('store')}"
        )
    if location.url is not None and importlib.util.find_spec("psycopg") is None:
        raise ToolNotFoundError(
            f"a run store in PostgreSQL needs psycopg, not installed here; {install_command('postgres')}"
        )
