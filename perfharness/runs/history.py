"""The history: what each launch, load test and suite measured, in a database that outlives their folders."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from perfharness.model.findings import Finding, Severity
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
"""How long another writer is waited for."""

LISTED = 5
"""Names in a message."""

ADVISORY_LOCK = 7_236_511_902_448_016
"""Our own number: who holds it creates the tables in PostgreSQL."""

FACTS = ("created", "kind", "folder", "script", "model", "backend", "precision", "machine", "gpu", "driver", "commit")
ALIKE = ("kind", "script", "model", "machine", "gpu", "setup")
"""What runs of one series have in common. `setup`: digest of the arguments and settings that change the numbers."""

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
"""`stage` is empty for the run as a whole. What was not measured has no row."""

promise = sa.Table(
    "history_promise",
    metadata,
    *(sa.Column(name, sa.String) for name in ("run", "stage", "cause")),
    sa.Column("saves_ms", sa.Float),
)
"""What the advice said that mending a cause saves per batch, at most."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """A run and its rows of the other tables."""

    run: Row
    figures: Sequence[Row]
    promises: Sequence[Row] = ()


# ---- from a folder to an entry ----


def entries_of(folder: Path, suite_exit_code: Callable[[BenchSuiteResult], int]) -> list[Entry]:
    """What lies in a folder: one run, each launch of a repeat, or a suite of `bench`. Raises `ResultError`."""
    from perfharness.runs.comparison.suites import read_suite, suite_file

    if (file := suite_file(folder)) is not None:
        suite = read_suite(file)
        return [suite_entry(suite, file.parent, suite_exit_code(suite))]
    located = locate(folder)
    if located.process is not None or not located.runs:
        raise ResultError(f"{folder} is not a whole run; give the folder of a run, of a repeat or of a suite")
    return [launch_entry(run_dir) for run_dir in located.runs]


def launch_entry(folder: Path) -> Entry:
    """A launch or a load test, with the figures that `compare` reads. Raises `ResultError`."""
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
    """A suite of `bench`; its cases are stages."""
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
    """As the command ended."""
    if test is not None and test.exit_code:
        return test.exit_code
    manifest = read_manifest(folder)
    has_trace = manifest.tracer.kind != "none"
    if any(one.ended != "ok" or (has_trace and not one.left_traces) for one in manifest.processes):
        return 1
    return 3 if launch.errors else 0


# ---- the database ----


def find_place(environ: Mapping[str, str] = os.environ) -> sa.URL | None:
    """Where the history is; None: it is switched off, or there is no home folder."""
    named = environ.get(HISTORY, "")
    if named == HISTORY_OFF:
        return None
    if "://" in named:
        try:
            url = sa.make_url(named)
        except ArgumentError as error:
            raise UsageError(
                f"{HISTORY} is not the URL of a database; it is postgresql://USER@HOST/DATABASE"
            ) from error
        return url.set(drivername="postgresql+psycopg") if url.get_backend_name() == "postgresql" else url
    data, home = Path(environ.get("XDG_DATA_HOME", "")), Path(environ.get("HOME", ""))
    path = Path(named or (data if data.is_absolute() else home / ".local/share") / "perfharness/history.db")
    return sa.URL.create("sqlite", database=str(path.absolute())) if named or path.is_absolute() else None


def exists() -> bool:
    """Whether there is a history to read; a database on a server is taken to be one. Raises `UsageError`."""
    place = find_place()
    return place is not None and (place.get_backend_name() != "sqlite" or Path(str(place.database)).exists())


class History:
    """The open database; every method is one transaction. All raise `HistoryError`."""

    def __init__(self) -> None:
        self.place = mask_text(os.environ.get(HISTORY, ""))
        with self._as_sentences():
            place = find_place()
            if place is None:
                raise HistoryError(f"there is no history: {HISTORY} is {HISTORY_OFF}, or there is no home folder")
            self.place = self.place or str(place.database)
            self._engine = self._open(place)

    def add(self, entry: Entry) -> None:
        """Add a run, or replace it where it is known."""
        with self._transaction() as connection:
            _forget(connection, entry.run["id"])
            for table, rows in ((run, [entry.run]), (figure, entry.figures), (promise, entry.promises)):
                if rows:
                    connection.execute(sa.insert(table), list(rows))

    def runs(self, limit: int | None = None, script: str | None = None) -> list[Row]:
        """The newest runs first."""
        statement = _of_script(sa.select(run), script).order_by(run.c.created.desc(), run.c.id.desc()).limit(limit)
        with self._transaction() as connection:
            return _rows(connection.execute(statement))

    def entry(self, name: str) -> Entry:
        """A run with its numbers, by its id or a part of it that no other id has."""
        with self._transaction() as connection:
            found = self._find(connection, name)
            of_run = (sa.select(table).where(table.c.run == found["id"]) for table in (figure, promise))
            return Entry(found, *([dict(row) for row in connection.execute(one).mappings()] for one in of_run))

    def values(self, stage: str, metric: str) -> dict[str, Row]:
        """The value of a metric and its interval, by the run."""
        statement = sa.select(figure).where(figure.c.stage == stage, figure.c.metric == metric)
        with self._transaction() as connection:
            return {row["run"]: row for row in _rows(connection.execute(statement))}

    def measured(self, runs: Sequence[str]) -> set[tuple[str, str]]:
        """Stages and metrics that any of these runs has."""
        statement = sa.select(figure.c.stage, figure.c.metric).where(figure.c.run.in_(runs)).distinct()
        with self._transaction() as connection:
            return {(stage, metric) for stage, metric in connection.execute(statement)}

    def forget(self, name: str) -> str:
        """Remove a run; returns its id. Its folder stays."""
        with self._transaction() as connection:
            run_id = str(self._find(connection, name)["id"])
            _forget(connection, run_id)
        return run_id

    def series(self, stage: str, metric: str, script: str | None = None) -> Series:
        """A metric over the runs that can be compared with the newest one that has it.

        Args:
            stage: path or last name; empty: the run as a whole.
        """
        is_stage = figure.c.stage == stage
        if stage:
            is_stage |= figure.c.stage.endswith(f"/{stage}", autoescape=True)
        statement = sa.select(run, figure).join(figure, run.c.id == figure.c.run).where(figure.c.metric == metric)
        statement = _of_script(statement, script).order_by(run.c.created, run.c.id)
        with self._transaction() as connection:
            found = [dict(row) for row in connection.execute(statement.where(is_stage)).mappings()]
            if not found:
                stages = set(connection.execute(sa.select(figure.c.stage).where(figure.c.metric == metric)).scalars())
                metrics = set(connection.execute(sa.select(figure.c.metric)).scalars())
                there = f"stages with it: {_few(stages)}" if stages else f"metrics: {', '.join(sorted(metrics))}"
                raise HistoryError(f"the history {self.place} has no {metric} of {stage or 'a run'}; {there}")
        paths = {row["stage"] for row in found}
        if stage not in paths and len(paths) > 1:
            raise UsageError(f"several stages are called {stage}; give the path: {', '.join(sorted(paths))}")
        rows = [row for row in found if row["stage"] == stage or stage not in paths]
        usable = [row for row in rows if is_usable(row)]
        alike = [row for row in usable if all(row[key] == usable[-1][key] for key in ALIKE)]
        return Series(rows[0]["stage"], metric, alike, len(rows) - len(usable), len(usable) - len(alike))

    def _find(self, connection: sa.Connection, name: str) -> Row:
        of_part = sa.select(run).where(run.c.id.contains(name, autoescape=True))
        rows = [dict(row) for row in connection.execute(of_part).mappings()]
        rows = [row for row in rows if row["id"] == name] or rows
        if not rows:
            raise HistoryError(f"the history {self.place} has no run {name}; perfharness history lists them")
        if len(rows) > 1:
            raise HistoryError(f"{name} may be one of {len(rows)} runs: {_few(row['id'] for row in rows)}")
        return rows[0]

    def _open(self, place: sa.URL) -> sa.Engine:
        """Create what is missing; processes that open it at the same time take turns."""
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
                    f"the history {self.place} has version {known} and this perfharness reads {VERSION}; set {HISTORY}"
                    " to another place, and fill it with `perfharness history add FOLDER`"
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
            raise HistoryError(f"the history {self.place} cannot be used: {why}") from error


def _rows(result: sa.CursorResult[Any]) -> list[Row]:
    """All rows; `mappings()` takes four times as long, which shows with 10,000 runs."""
    names = list(result.keys())
    return [dict(zip(names, row, strict=True)) for row in result]


def _few(names: Iterable[str]) -> str:
    """The first few, and how many more."""
    known = sorted(names)
    more = f" and {len(known) - LISTED} more" if len(known) > LISTED else ""
    return ", ".join(known[:LISTED]) + more


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
"""Launches that scatter by up to 10 % without a change: at most 5 % of series are marked."""


@dataclass(frozen=True)
class Series:
    """A metric over runs, the oldest first."""

    stage: str
    metric: str
    points: Sequence[Row]  # of both tables
    failed: int  # runs left out because they ended with an error
    others: int  # because their script, machine or settings are not those of the newest


def is_usable(row: Row) -> bool:
    """Whether a run counts in a series: it did not end with an error."""
    return bool(row["kind"] == "bench" or row["exit"] == 0)


def change_of(values: Sequence[float]) -> tuple[float, float, bool] | None:
    """Median before, median after, and whether `RULE` calls that a change; None: there are too few runs."""
    if len(values) < 2 * WINDOW:
        return None
    windows = values[-2 * WINDOW : -WINDOW], values[-WINDOW:]
    before, after = map(statistics.median, windows)
    middles = zip(windows, (before, after), strict=True)
    noise = max(statistics.median(abs(value - middle) for value in window) for window, middle in middles)
    return before, after, abs(after - before) > max(LEAST_CHANGE * abs(before), LEAST_DEVIATIONS * noise)


@dataclass(frozen=True)
class Change:
    """A change in a series: the place of the first value after it, and the medians on both sides."""

    place: int
    before: float
    after: float


def changes_of(values: Sequence[float]) -> list[Change]:
    """The changes that `change_of` would have reported, run after run.

    A step is reported after the third run behind it, and until it has left the window; its place is the middle of that.
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
    """Add a run after it was measured; a history that fails is a warning, never a failed measurement."""
    try:
        if find_place() is not None:
            History().add(make())
    except Exception as error:  # whatever a driver does
        what = f"The run is not in the history: {error}."
        hint = "The results are complete. Add them later: perfharness history add FOLDER"
        return [Finding("run-not-in-history", Severity.WARNING, what, hint)]
    return []


def recorded_launch(name: str) -> LaunchFigures:
    """A launch or a suite by its id, from its folder. Raises `HistoryError` where that holds another one."""
    return launch_of(History().entry(name).run)


def launch_of(found: Row) -> LaunchFigures:
    """The launch or suite of a run, from its folder. Raises `HistoryError` where that holds another one."""
    from perfharness.runs.comparison.suites import figures_of_suite, read_suite

    folder, is_suite = Path(found["folder"]), found["kind"] == "bench"
    try:
        launch = figures_of_suite(read_suite(folder / BENCH_NAME), folder) if is_suite else read_launch(folder)
    except ResultError as error:
        raise HistoryError(f"the run {found['id']} is no longer in {folder}") from error
    if found["id"] != (_suite_id(launch) if is_suite else launch.run_id):
        raise HistoryError(f"{folder} holds another run than {found['id']} by now")
    return launch
