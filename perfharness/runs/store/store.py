"""The run store: add what was measured, find it again, tag it, delete it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError
from sqlalchemy import ColumnElement, Connection, Row, and_, delete, func, insert, or_, select, update

from perfharness.errors import ResultError, StoreError, UsageError
from perfharness.model.bench_suite import BENCH_NAME
from perfharness.model.conventions import printable
from perfharness.model.manifest import MANIFEST_NAME
from perfharness.runs.files.run_folder import read_manifest
from perfharness.runs.store.database import PATIENCE_S, Database
from perfharness.runs.store.documents import Documents
from perfharness.runs.store.filters import EVERYTHING, LATEST, RunFilter
from perfharness.runs.store.location import Location, require_store
from perfharness.runs.store.records import LAUNCHED, SERIES, WHOLE_RUN, Figure, StoredRun
from perfharness.runs.store.tables import baseline_runs, baselines, documents, figures, runs, tags

SHORTEST_PART = 4
"""Characters of a part of a run's id by which it can be named."""

AT_ONCE = 500
"""Values of one statement: SQLite has a limit."""


Figures = Literal["none", "whole", "all"]
"""Which figures are read: those of runs as a whole, or those of stages and cases too."""


class RunStore:
    """An open store; every method is one transaction.

    Args:
        location: where it is.
        create: make an SQLite file that does not exist.
        patience_s: how long other writers are waited for.

    Raises:
        ToolNotFoundError: its libraries are not installed.
        StoreError: it cannot be used; from every method.
    """

    def __init__(self, location: Location, *, create: bool = False, patience_s: float = PATIENCE_S) -> None:
        require_store(location)
        self.location = location
        self._database = Database(location, create=create, patience_s=patience_s)

    def add(self, run: StoredRun, launches: Sequence[str] = (), files: Documents | None = None) -> None:
        """Add a run, or store one again: its tags, and what it is a part of, stay.

        Args:
            launches: ids of the stored launches that it consists of, in order.
            files: of a launch, for comparisons; None: those in the store stay.
        """
        row = run.model_dump(mode="json", exclude={"tags", "figures"})
        numbers = [{"run_id": run.run_id, **figure.model_dump()} for figure in _unique(run.figures)]
        with self._database.writing() as connection:
            known = connection.execute(select(runs.c.run_id).where(runs.c.run_id == run.run_id)).first()
            if known is None:
                connection.execute(insert(runs), row)
            else:
                if run.series_id is None:
                    row = {name: value for name, value in row.items() if name not in ("series_id", "position")}
                connection.execute(update(runs).where(runs.c.run_id == run.run_id).values(**row))
                connection.execute(delete(figures).where(figures.c.run_id == run.run_id))
            if numbers:
                connection.execute(insert(figures), numbers)
            if files is not None:
                connection.execute(delete(documents).where(documents.c.run_id == run.run_id))
            for name, content in (files or {}).items():
                connection.execute(insert(documents), {"run_id": run.run_id, "name": name, "content": content})
            for position, launch in enumerate(launches):
                place = {"series_id": run.run_id, "position": position}
                connection.execute(update(runs).where(runs.c.run_id == launch).values(**place))
            _add_tags(connection, run.run_id, run.tags)

    def runs(self, which: RunFilter = EVERYTHING, with_figures: Figures = "none") -> list[StoredRun]:
        """The runs, the newest first."""
        statement = select(runs).where(and_(True, *_conditions(which)))
        statement = statement.order_by(runs.c.created_unix_ns.desc(), runs.c.run_id.desc()).limit(which.limit)
        with self._database.reading() as connection:
            return _read(connection, connection.execute(statement).all(), with_figures)

    def by_ids(self, ids: Sequence[str]) -> dict[str, StoredRun]:
        """Those of the runs that are in the store, without their figures."""
        with self._database.reading() as connection:
            rows = connection.execute(select(runs).where(runs.c.run_id.in_(ids))).all()
            return {run.run_id: run for run in _read(connection, rows)}

    def values(self, metric: str, which: RunFilter, stage: str) -> list[tuple[StoredRun, Figure]]:
        """A metric of a stage, by its path or its last name, in runs that have it; the oldest first."""
        name = printable(stage)
        is_stage = figures.c.path == name
        if name:
            is_stage = or_(is_stage, figures.c.path.endswith(f"/{name}", autoescape=True))
        with self._database.reading() as connection:
            have_it = select(figures.c.run_id).where(figures.c.metric == metric, is_stage)
            wanted = select(runs).where(runs.c.run_id.in_(have_it), *_conditions(which))
            wanted = wanted.order_by(runs.c.created_unix_ns, runs.c.run_id)
            found = _read(connection, connection.execute(wanted).all())
            by_run: dict[str, list[Figure]] = {}
            for part in _in_parts([run.run_id for run in found]):
                numbers = select(figures).where(figures.c.metric == metric, is_stage, figures.c.run_id.in_(part))
                for row in connection.execute(numbers.order_by(figures.c.path)):
                    values = dict(row._mapping)
                    by_run.setdefault(values.pop("run_id"), []).append(Figure(**values))
            return [(run, figure) for run in found for figure in by_run[run.run_id]]

    def figure_names(self, which: RunFilter) -> set[tuple[str, str]]:
        """Path and metric of each figure that any of these runs has."""
        with self._database.reading() as connection:
            of_these = select(runs.c.run_id).where(and_(True, *_conditions(which)))
            named = select(figures.c.path, figures.c.metric).where(figures.c.run_id.in_(of_these)).distinct()
            return {(row.path, row.metric) for row in connection.execute(named)}

    def kinds(self) -> dict[str, str]:
        """The kind of every series, by its id."""
        with self._database.reading() as connection:
            found = connection.execute(select(runs.c.run_id, runs.c.kind).where(runs.c.kind.in_(SERIES)))
            return {row.run_id: row.kind for row in found}

    def find(self, name: str) -> StoredRun:
        """A run with its figures: by its id, a part of that, its folder, or `latest`.

        Raises `StoreError` where there is none, or there are several.
        """
        with self._database.reading() as connection:
            return _read(connection, [self._find(connection, name)], "all")[0]

    def launches_of(self, run: StoredRun, with_figures: Figures = "all") -> list[StoredRun]:
        """The launches that a series consists of, in order; of anything else itself."""
        statement = select(runs).where(runs.c.series_id == run.run_id).order_by(runs.c.position)
        with self._database.reading() as connection:
            found = _read(connection, connection.execute(statement).all(), with_figures)
        return found if run.kind in SERIES else [run]

    def tag(self, names: Sequence[str], add: Sequence[str] = (), remove: Sequence[str] = ()) -> list[StoredRun]:
        """Add tags to runs, and remove others; returns the runs. Raises `StoreError`, `UsageError`."""
        for tag in add:
            check_name(tag, "tag")
        with self._database.writing() as connection:
            rows = [self._find(connection, name) for name in names]
            for row in rows:
                if remove:
                    gone = [printable(tag) for tag in remove]
                    connection.execute(delete(tags).where(tags.c.run_id == row.run_id, tags.c.tag.in_(gone)))
                _add_tags(connection, row.run_id, add)
            return _read(connection, rows)

    def documents(self, run_id: str) -> Documents:
        """The files of a launch, as far as comparisons read them; none where they were too large, or never stored."""
        with self._database.reading() as connection:
            rows = connection.execute(select(documents).where(documents.c.run_id == run_id))
            return {row.name: row.content for row in rows}

    def save_baseline(self, name: str, run_names: Sequence[str]) -> list[StoredRun]:
        """Give runs a name by which others are compared with them, in place of those that had it; returns the runs.

        Raises `StoreError`, `UsageError`.
        """
        check_name(name, "baseline")
        with self._database.writing() as connection:
            rows = {row.run_id: row for row in (self._find(connection, one) for one in run_names)}
            connection.execute(delete(baselines).where(baselines.c.name == name))
            connection.execute(insert(baselines), {"name": name, "saved_unix_ns": time.time_ns()})
            for position, run_id in enumerate(rows):
                row = {"name": name, "run_id": run_id, "position": position}
                connection.execute(insert(baseline_runs), row)
            return _read(connection, list(rows.values()))

    def baseline(self, name: str) -> list[StoredRun]:
        """The runs of a baseline. Raises `StoreError` where there is none of that name."""
        return self._baselines(name)[name]

    def baselines(self) -> dict[str, list[StoredRun]]:
        """The runs of all baselines, by name."""
        return self._baselines()

    def delete_baseline(self, name: str) -> None:
        """Remove a baseline; its runs stay. Raises `StoreError` where there is none of that name."""
        with self._database.writing() as connection:
            if connection.execute(delete(baselines).where(baselines.c.name == name)).rowcount == 0:
                raise StoreError(self._no_baseline(connection, name))

    def _baselines(self, name: str | None = None) -> dict[str, list[StoredRun]]:
        with self._database.reading() as connection:
            own = [] if name is None else [baselines.c.name == name]
            found: dict[str, list[StoredRun]] = {}
            for one in connection.execute(select(baselines.c.name).where(*own).order_by(baselines.c.name)).scalars():
                members = select(runs).join(baseline_runs).where(baseline_runs.c.name == one)
                found[one] = _read(connection, connection.execute(members.order_by(baseline_runs.c.position)).all())
            if name is not None and not found:
                raise StoreError(self._no_baseline(connection, name))
            return found

    def _no_baseline(self, connection: Connection, name: str) -> str:
        known = connection.execute(select(baselines.c.name).order_by(baselines.c.name)).scalars().all()
        there = f"there are: {', '.join(known)}" if known else "`perfharness baseline save` makes one"
        return f"the run store {self.location} has no baseline {name}; {there}"

    def delete(self, names: Sequence[str]) -> list[StoredRun]:
        """Remove runs from the store, with the launches that they consist of; returns them. Folders stay.

        Raises `StoreError` where one, or the series that it is a part of, belongs to a baseline.
        """
        with self._database.writing() as connection:
            rows = {row.run_id: row for row in (self._find(connection, name) for name in names)}
            gone = _read(connection, list(rows.values()))
            all_gone = or_(runs.c.run_id.in_(rows), runs.c.series_id.in_(rows))
            series = select(runs.c.series_id).where(runs.c.run_id.in_(rows), runs.c.series_id.is_not(None))
            used = select(baseline_runs.c.name).join(runs).where(or_(all_gone, runs.c.run_id.in_(series))).distinct()
            if (baseline := connection.execute(used).scalar()) is not None:
                raise StoreError(
                    f"the baseline {baseline} has one of these runs; `perfharness baseline delete` it first"
                )
            connection.execute(delete(runs).where(runs.c.series_id.in_(rows)))
            connection.execute(delete(runs).where(runs.c.run_id.in_(rows)))
        return gone

    def count(self) -> int:
        """How many runs there are."""
        with self._database.reading() as connection:
            return connection.execute(select(func.count()).select_from(runs)).scalar_one()

    def _find(self, connection: Connection, name: str) -> Row[Any]:
        """The row of a run that a user named. Raises `StoreError`."""
        if name == LATEST:
            newest = select(runs).where(runs.c.series_id.is_(None)).order_by(runs.c.created_unix_ns.desc()).limit(1)
            if (row := connection.execute(newest).first()) is None:
                raise StoreError(f"the run store {self.location} is empty")
            return row
        rows = connection.execute(select(runs).where(runs.c.run_id == printable(name))).all()
        if not rows and Path(name).exists():
            rows = connection.execute(select(runs).where(_in_folder(Path(name)))).all()
            if not rows:
                raise StoreError(
                    f"the run in {name} is not in the run store {self.location}; `perfharness runs add` adds it"
                )
        if not rows and len(name) >= SHORTEST_PART and "/" not in name:
            rows = connection.execute(
                select(runs).where(runs.c.run_id.contains(printable(name), autoescape=True))
            ).all()
        if len(rows) > 1:
            ids = ", ".join(sorted(row.run_id for row in rows)[:5])
            raise StoreError(f"{name} names {len(rows)} runs ({ids}, …); give more of the id")
        if not rows:
            raise StoreError(f"the run store {self.location} has no run {name}; `perfharness runs list` lists them")
        return rows[0]


def _conditions(which: RunFilter) -> list[ColumnElement[bool]]:
    """The filter as SQL."""
    found: list[ColumnElement[bool]] = []
    if which.script is not None:
        name, path = printable(which.script), printable(os.path.normpath(Path(which.script).absolute()))
        found.append(
            or_(
                runs.c.script == name,
                runs.c.script_path == path,
                runs.c.script.endswith(f"/{name}", autoescape=True),
            )
        )
    if which.tag is not None:
        found.append(runs.c.run_id.in_(select(tags.c.run_id).where(tags.c.tag == printable(which.tag))))
    if which.commit is not None:
        found.append(runs.c.git_commit.startswith(printable(which.commit).lower(), autoescape=True))
    if which.kind is not None:
        found.append(runs.c.kind == which.kind)
    if which.since_ns is not None:
        found.append(runs.c.created_unix_ns >= which.since_ns)
    if which.until_ns is not None:
        found.append(runs.c.created_unix_ns < which.until_ns)
    if which.top_level:
        found.append(runs.c.series_id.is_(None))
    return found


def _in_parts(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """As many as one statement takes."""
    return (ids[begin : begin + AT_ONCE] for begin in range(0, len(ids), AT_ONCE))


def _in_folder(folder: Path) -> ColumnElement[bool]:
    """The run that is in a folder now: its id is in the manifest; a series is known by its folder."""
    if folder.name == BENCH_NAME:
        folder = folder.absolute().parent
    if (folder / MANIFEST_NAME).is_file():
        try:
            return runs.c.run_id == read_manifest(folder).run_id
        except ResultError as error:
            raise StoreError(str(error)) from error
    newest = select(func.max(runs.c.created_unix_ns)).where(runs.c.folder == str(folder.absolute())).scalar_subquery()
    return and_(runs.c.folder == str(folder.absolute()), runs.c.kind.not_in(LAUNCHED), runs.c.created_unix_ns == newest)


def _unique(numbers: Iterable[Figure]) -> Iterable[Figure]:
    """Without a second one of the same path and metric."""
    return {(figure.path, figure.metric): figure for figure in numbers}.values()


def _add_tags(connection: Connection, run_id: str, names: Sequence[str]) -> None:
    known = set(connection.execute(select(tags.c.tag).where(tags.c.run_id == run_id)).scalars())
    for name in dict.fromkeys(map(printable, names)):
        if name not in known:
            connection.execute(insert(tags), {"run_id": run_id, "tag": name})


def check_name(name: str, what: str) -> None:
    """Raise `UsageError` where it is no name of a tag or a baseline."""
    if not name or len(name) > 200 or name != name.strip() or not name.isprintable():
        raise UsageError(f"{name!r} is no name of a {what}: 1 to 200 printable characters without blanks at the ends")


def _read(connection: Connection, rows: Sequence[Row[Any]], with_figures: Figures = "none") -> list[StoredRun]:
    ids = [row.run_id for row in rows]
    tags_of: dict[str, list[str]] = {}
    figures_of: dict[str, list[Mapping[str, Any]]] = {}
    for some in _in_parts(ids):
        for row in connection.execute(select(tags).where(tags.c.run_id.in_(some)).order_by(tags.c.tag)):
            tags_of.setdefault(row.run_id, []).append(row.tag)
        if with_figures != "none":
            wanted = [figures.c.run_id.in_(some), *([figures.c.path == WHOLE_RUN] if with_figures == "whole" else [])]
            for row in connection.execute(select(figures).where(*wanted).order_by(figures.c.path, figures.c.metric)):
                numbers = dict(row._mapping)
                figures_of.setdefault(numbers.pop("run_id"), []).append(numbers)
    try:
        return [
            StoredRun(**row._mapping, tags=tags_of.get(row.run_id, []), figures=figures_of.get(row.run_id, []))  # type: ignore[arg-type]
            for row in rows
        ]
    except ValidationError as error:
        raise StoreError(f"the run store has a row that cannot be read ({str(error).splitlines()[0]})") from error
