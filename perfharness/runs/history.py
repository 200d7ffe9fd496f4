"""The history: a database of all launches, load tests and suites, which outlives their folders."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from perfharness.distribution import install_command
from perfharness.errors import HistoryError, ResultError, ToolNotFoundError, UsageError
from perfharness.files import locked
from perfharness.model.environment import HISTORY, HISTORY_OFF
from perfharness.model.findings import Finding, Severity, listed
from perfharness.model.manifest import BENCH_NAME
from perfharness.model.result import path_text
from perfharness.runs.comparison.launches import DECIDING, VALIDITY, LaunchFigures, promises_of, read_launch
from perfharness.runs.comparison.load_tests import LoadTest, read_load_test
from perfharness.runs.files.inputs import locate
from perfharness.runs.files.run_folder import read_manifest
from perfharness.secrets import mask_text

if TYPE_CHECKING:
    from perfharness.model.bench_suite import BenchSuiteResult

VERSION = 1
PATIENCE_S = 10
"""Longest wait for another writer."""

ADVISORY_LOCK = 7_236_511_902_448_016
"""Number of our lock in PostgreSQL for creating the tables."""

FACTS = ("created", "kind", "folder", "script", "model", "backend", "precision", "machine", "gpu", "driver", "commit")
ALIKE = ("kind", "script", "model", "machine", "gpu", "setup")
"""Equal in all runs of a series. `setup` is a digest of arguments and settings that change the numbers."""

metadata = sa.MetaData()
version = sa.Table("history_version", metadata, sa.Column("version", sa.Integer, primary_key=True))
run = sa.Table(
    "history_run",
    metadata,
    sa.Column("id", sa.String, primary_key=True),
    *(sa.Column(name, sa.String) for name in (*FACTS, "setup")),
    sa.Column("exit", sa.Integer),
)
figure = sa.Table(
    "history_figure",
    metadata,
    *(sa.Column(name, sa.String, primary_key=True) for name in ("run", "stage", "metric")),
    *(sa.Column(name, sa.Float) for name in ("value", "low", "high")),
    sa.Column("count", sa.Integer),
)
"""`stage` is empty for the run. Figures that were not measured have no row."""

promise = sa.Table(
    "history_promise",
    metadata,
    *(sa.Column(name, sa.String) for name in ("run", "stage", "cause")),
    sa.Column("saves_ms", sa.Float),
)
"""Largest saving per batch, by cause."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """A run and its rows in other tables."""

    run: Row
    figures: Sequence[Row]
    promises: Sequence[Row] = ()


# ---- from a folder to an entry ----


def entries_of(folder: Path, suite_exit_code: Callable[[BenchSuiteResult], int]) -> list[Entry]:
    """Entries of a run, of each launch of a series, or of a suite of `bench`. Raises `ResultError`."""
    from perfharness.runs.comparison.suites import read_suite, suite_file

    if (file := suite_file(folder)) is not None:
        suite = read_suite(file)
        return [suite_entry(suite, file.parent, suite_exit_code(suite))]
    located = locate(folder)
    if located.process is not None or not located.runs:
        raise ResultError(f"{folder} is not a complete run; name the folder of a run, series or suite")
    return [launch_entry(run_dir) for run_dir in located.runs]


def launch_entry(folder: Path) -> Entry:
    """Entry of a launch or load test, with the figures of `compare`. Raises `ResultError`."""
    launch, test = read_launch(folder), read_load_test(folder)
    target = {} if test is None else dict(part.split("=", 1) for part in test.arguments if "=" in part)
    script = launch.environment["script"]
    facts = {
        "id": launch.run_id,
        "kind": "launch" if test is None else test.kind,
        "script": script,
        "model": script if "backend" in target else None,
        "backend": target.get("backend"),
        "precision": target.get("precision"),
        "exit": _exit_code(folder, launch, test),
    }
    promises = [
        {"stage": path_text(one.path), "cause": one.cause.code.value, "saves_ms": one.cause.saves_ms}
        for one in promises_of(folder)
    ]
    return _entry(launch, facts, promises)


def suite_entry(suite: BenchSuiteResult, folder: Path, exit_code: int) -> Entry:
    """Entry of a suite of `bench`; its cases are stages."""
    from perfharness.runs.comparison.suites import figures_of_suite

    launch = figures_of_suite(suite, folder)
    names = ("model", "backend", "precision")
    facts = {name: ", ".join(dict.fromkeys(getattr(case.case, name) for case in suite.cases)) for name in names}
    return _entry(launch, {"id": _suite_id(launch), "kind": "bench", "exit": exit_code, **facts})


def _entry(launch: LaunchFigures, facts: Row, promises: Sequence[Row] = ()) -> Entry:
    known = launch.environment
    deciding = {name: known.get(name) for name in ("arguments", *DECIDING) if name not in ("gpu", VALIDITY)}
    row = {
        **dict.fromkeys(FACTS),
        "created": launch.created,
        "folder": str(launch.folder.absolute()),
        "machine": known.get("host"),
        "gpu": known.get("gpu"),
        "driver": known.get("driver"),
        "commit": known.get("git commit"),
        "setup": sha256(orjson.dumps(deciding, option=orjson.OPT_SORT_KEYS)).hexdigest()[:8],
        **facts,
    }
    figures = []
    for of, one in launch.figures.items():
        if one.value is not None and math.isfinite(one.value):
            key = {"run": row["id"], "stage": of.stage, "metric": of.metric}
            figures.append({**key, "value": one.value, "low": one.low, "high": one.high, "count": one.count})
    return Entry(row, figures, [{"run": row["id"], **one} for one in promises])


def _suite_id(launch: LaunchFigures) -> str:
    return f"bench-{sha256(launch.run_id.encode()).hexdigest()[:12]}"


def _exit_code(folder: Path, launch: LaunchFigures, test: LoadTest | None) -> int:
    if test is not None and test.exit_code:
        return test.exit_code
    return 1 if not read_manifest(folder).all_processes_well else 3 if launch.errors else 0


# ---- the database ----


def find_place() -> sa.URL | None:
    """Location of the history, or None if switched off or without a home folder."""
    environ = os.environ
    named = environ.get(HISTORY, "")
    if named == HISTORY_OFF:
        return None
    if "://" in named:
        try:
            url = sa.make_url(named)
        except ArgumentError as error:
            raise UsageError(f"{HISTORY} is not the URL of a database; use postgresql://USER@HOST/DATABASE") from error
        return url.set(drivername="postgresql+psycopg") if url.get_backend_name() == "postgresql" else url
    data, home = Path(environ.get("XDG_DATA_HOME", "")), Path(environ.get("HOME", ""))
    path = Path(named or (data if data.is_absolute() else home / ".local/share") / "perfharness/history.db")
    return sa.URL.create("sqlite", database=str(path.absolute())) if named or path.is_absolute() else None


def exists() -> bool:
    """Whether a history exists; assumed for a database on a server. Raises `UsageError`."""
    place = find_place()
    return place is not None and (place.get_backend_name() != "sqlite" or Path(str(place.database)).exists())


class History:
    """The open database; every method is one transaction. All raise `HistoryError`."""

    def __init__(self) -> None:
        self.place = mask_text(os.environ.get(HISTORY, ""))
        with self._as_sentences():
            place = find_place()
            if place is None:
                raise HistoryError(f"no history: {HISTORY} is {HISTORY_OFF}, or the user has no home folder")
            self.place = self.place or str(place.database)
            self._engine = self._open(place)

    def add(self, entry: Entry) -> None:
        """Add or replace a run."""
        with self._transaction() as connection:
            _forget(connection, entry.run["id"])
            for table, rows in ((run, [entry.run]), (figure, entry.figures), (promise, entry.promises)):
                if rows:
                    connection.execute(sa.insert(table), list(rows))

    def runs(self, limit: int | None = None, script: str | None = None) -> list[Row]:
        """Runs, newest first."""
        statement = _of_script(sa.select(run), script).order_by(run.c.created.desc(), run.c.id.desc()).limit(limit)
        with self._transaction() as connection:
            return _rows(connection, statement)

    def entry(self, name: str) -> Entry:
        """Run with its numbers, by its id or a unique part of it."""
        with self._transaction() as connection:
            found = self._find(connection, name)
            of_run = (sa.select(table).where(table.c.run == found["id"]) for table in (figure, promise))
            return Entry(found, *(_rows(connection, one) for one in of_run))

    def values(self, stage: str, metric: str) -> dict[str, Row]:
        """Value and interval of a metric, by run."""
        statement = sa.select(figure).where(figure.c.stage == stage, figure.c.metric == metric)
        with self._transaction() as connection:
            return {row["run"]: row for row in _rows(connection, statement)}

    def measured(self, runs: Sequence[str]) -> set[tuple[str, str]]:
        """Stages and metrics of these runs."""
        statement = sa.select(figure.c.stage, figure.c.metric).where(figure.c.run.in_(runs)).distinct()
        with self._transaction() as connection:
            return {(stage, metric) for stage, metric in connection.execute(statement)}

    def forget(self, name: str) -> str:
        """Remove a run, but not its folder; return its id."""
        with self._transaction() as connection:
            run_id = str(self._find(connection, name)["id"])
            _forget(connection, run_id)
        return run_id

    def series(self, stage: str, metric: str, script: str | None = None) -> Series:
        """Metric of a stage (path or last name) or the run (""), over runs comparable with the newest one."""
        is_stage = figure.c.stage == stage
        if stage:
            is_stage |= figure.c.stage.endswith(f"/{stage}", autoescape=True)
        statement = sa.select(run, figure).join(figure, run.c.id == figure.c.run).where(figure.c.metric == metric)
        statement = _of_script(statement, script).order_by(run.c.created, run.c.id)
        with self._transaction() as connection:
            found = _rows(connection, statement.where(is_stage))
            if not found:
                stages = set(connection.execute(sa.select(figure.c.stage).where(figure.c.metric == metric)).scalars())
                metrics = set(connection.execute(sa.select(figure.c.metric)).scalars())
                few = listed(sorted(stages), most=5)
                there = f"stages with it: {few}" if stages else f"metrics: {', '.join(sorted(metrics))}"
                raise HistoryError(f"the history {self.place} has no {metric} of {stage or 'a run'}; {there}")
        paths = {row["stage"] for row in found}
        if stage not in paths and len(paths) > 1:
            raise UsageError(f"several stages are called {stage}; name the path: {', '.join(sorted(paths))}")
        rows = [row for row in found if row["stage"] == stage or stage not in paths]
        usable = [row for row in rows if is_usable(row)]
        alike = [row for row in usable if all(row[key] == usable[-1][key] for key in ALIKE)]
        return Series(rows[0]["stage"], metric, alike, len(rows) - len(usable), len(usable) - len(alike))

    def _find(self, connection: sa.Connection, name: str) -> Row:
        of_part = sa.select(run).where(run.c.id.contains(name, autoescape=True))
        rows = _rows(connection, of_part)
        rows = [row for row in rows if row["id"] == name] or rows
        if not rows:
            raise HistoryError(f"the history {self.place} has no run {name}; perfharness history lists them")
        if len(rows) > 1:
            few = listed(sorted(row["id"] for row in rows), most=5)
            raise HistoryError(f"{name} matches {len(rows)} runs: {few}")
        return rows[0]

    def _open(self, place: sa.URL) -> sa.Engine:
        """Open the database and create missing tables, under a lock."""
        is_file, folder = place.get_backend_name() == "sqlite", Path(place.database or "").parent
        if is_file:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        arguments = {"timeout" if is_file else "connect_timeout": PATIENCE_S}
        engine = sa.create_engine(place, poolclass=sa.NullPool, connect_args=arguments)
        with locked(folder, PATIENCE_S) if is_file else nullcontext(), engine.begin() as connection:
            if is_file:
                connection.exec_driver_sql("PRAGMA journal_mode = WAL")
            else:
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(ADVISORY_LOCK)))
            metadata.create_all(connection)
            known = connection.execute(sa.select(version.c.version)).scalar()
            if known is None:
                connection.execute(sa.insert(version), {"version": VERSION})
            elif known != VERSION:
                raise HistoryError(
                    f"the history {self.place} has version {known}, but this perfharness needs {VERSION}; set {HISTORY}"
                    " to a new file, and fill it with `perfharness history add FOLDER`"
                )
        return engine

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        with self._as_sentences(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def _as_sentences(self) -> Iterator[None]:
        try:
            yield
        except ModuleNotFoundError as error:
            raise ToolNotFoundError(
                f"the history {self.place} needs {error.name}; {install_command('postgres')}"
            ) from error
        except (SQLAlchemyError, OSError) as error:
            why = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
            raise HistoryError(
                f"the history {self.place} cannot be used: {why}; name a file or postgresql://…"
            ) from error


def _rows(connection: sa.Connection, statement: sa.Select[Any]) -> list[Row]:
    """All rows; `mappings()` takes four times as long."""
    result = connection.execute(statement)
    names = list(result.keys())
    return [dict(zip(names, row, strict=True)) for row in result]


def _forget(connection: sa.Connection, run_id: str) -> None:
    for column in (promise.c.run, figure.c.run, run.c.id):
        connection.execute(sa.delete(column.table).where(column == run_id))


def _of_script(statement: sa.Select[Any], script: str | None) -> sa.Select[Any]:
    return statement if script is None else statement.where(run.c.script == script)


# ---- a series ----

WINDOW = 5
LEAST_CHANGE = 0.05
LEAST_DEVIATIONS = 3
RULE = (
    f"median of the last {WINDOW} runs against the {WINDOW} before; a change is more than {100 * LEAST_CHANGE:.0f} %"
    f" and more than {LEAST_DEVIATIONS} times the larger median absolute deviation"
)
"""At most 5 % of series without a change are marked if launches vary by up to 10 %."""


@dataclass(frozen=True)
class Series:
    """A metric over runs, oldest first.

    Args:
        points: rows of both tables.
        failed: number of runs excluded because they ended with an error.
        others: number of runs excluded because script, machine or settings differ from the newest run.
    """

    stage: str
    metric: str
    points: Sequence[Row]
    failed: int
    others: int


def is_usable(row: Row) -> bool:
    """Whether a run ended without an error, and so counts in a series."""
    return bool(row["kind"] == "bench" or row["exit"] == 0)


def change_of(values: Sequence[float]) -> tuple[float, float, bool] | None:
    """Median before, median after, and whether it is a change by `RULE`; None with too few runs."""
    if len(values) < 2 * WINDOW:
        return None
    windows = values[-2 * WINDOW : -WINDOW], values[-WINDOW:]
    before, after = map(statistics.median, windows)
    middles = zip(windows, (before, after), strict=True)
    noise = max(statistics.median(abs(value - middle) for value in window) for window, middle in middles)
    return before, after, abs(after - before) > max(LEAST_CHANGE * abs(before), LEAST_DEVIATIONS * noise)


@dataclass(frozen=True)
class Change:
    """A change in a series: index of the first value after it, and medians before and after."""

    place: int
    before: float
    after: float


def changes_of(values: Sequence[float]) -> list[Change]:
    """Changes that `change_of` would have reported after each run.

    A step is reported from its third run on, until it leaves the window; its place is the middle of these reports.
    """
    found: list[Change] = []
    windows = ((end, values[end - 2 * WINDOW : end]) for end in range(2 * WINDOW, len(values) + 1))
    reports = [(end, report) for end, window in windows if (report := change_of(window)) is not None]
    for has_changed, streak in groupby(reports, lambda one: one[1][2]):
        if has_changed:
            same = list(streak)
            end, (before, after, _) = same[len(same) // 2]
            found.append(Change(end - WINDOW, before, after))
    return found


# ---- for commands ----


def record(make: Callable[[], Entry]) -> list[Finding]:
    """Add a run after its measurement; a failure is only a warning."""
    try:
        if find_place() is not None:
            History().add(make())
    except Exception as error:  # of any database driver
        what = f"The run was not added to the history: {error}."
        hint = "The results are complete. Add them later: perfharness history add FOLDER"
        return [Finding("run-not-in-history", Severity.WARNING, what, hint)]
    return []


def launch_of(found: Row) -> LaunchFigures:
    """Read the launch or suite of a run from its folder. Raises `HistoryError` if that has another run."""
    from perfharness.runs.comparison.suites import figures_of_suite, read_suite

    folder, is_suite = Path(found["folder"]), found["kind"] == "bench"
    try:
        launch = figures_of_suite(read_suite(folder / BENCH_NAME), folder) if is_suite else read_launch(folder)
    except ResultError as error:
        raise HistoryError(f"the run {found['id']} is no longer in {folder}") from error
    if found["id"] != (_suite_id(launch) if is_suite else launch.run_id):
        raise HistoryError(f"{folder} now has another run than {found['id']}")
    return launch
