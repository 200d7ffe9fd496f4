"""Runs for the dashboard: from the history and from folders given on the command line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from perfharness.bench.run import suite_exit_code
from perfharness.errors import HistoryError, PerfHarnessError
from perfharness.model.manifest import BENCH_NAME, BENCHMARK_MEAN_NAME, MANIFEST_NAME, SERIES_NAME
from perfharness.runs.figures import METRICS
from perfharness.runs.history import Entry, History, Row, entries_of, exists

NO_HISTORY = (
    "There is no history yet: every `perfharness launch`, `stress` and `bench` adds its run. "
    "Name run folders to see those: perfharness dashboard OUT…"
)
NAMED = 200
"""Number of newest runs whose stages and figures are offered."""


class KnownRuns:
    """Runs of the history and of folders, read again for each request.

    Methods raise `HistoryError` if the database cannot be read.

    Args:
        folders: runs, repeats and suites, or folders of these. They may not exist yet.
    """

    def __init__(self, folders: Sequence[Path] = ()) -> None:
        self.folders = {str(folder): folder.absolute() for folder in folders}
        """Folders by the text that was typed."""

        self._seen: list[Path] = []
        self._history: History | None = None

    @property
    def history(self) -> History | None:
        """The database, opened once; None if it does not exist yet."""
        if self._history is None and exists():
            self._history = History()
        return self._history

    def rows(self) -> list[Row]:
        """All runs, newest first."""
        rows = [] if self.history is None else self.history.runs()
        known = {row["id"] for row in rows}
        rows += [entry.run for run_id, entry in self._named().items() if run_id not in known]
        return sorted(rows, key=lambda row: str(row["created"]), reverse=True)

    def newest(self, count: int) -> list[Row]:
        """Newest runs of the history."""
        return [] if self.history is None else self.history.runs(count)

    def runs_in(self, folder: Path) -> list[str]:
        """Return the ids of the runs in a folder, and show them from now on."""
        found = _entries(folder, stamp_of(folder))
        if isinstance(found, str):
            return []
        self._seen.append(folder)
        return [entry.run["id"] for entry in found]

    def entry(self, run_id: str) -> Entry:
        """Return a run with its figures by its full id. Raises `HistoryError` if there is none."""
        found = self._named().get(run_id)
        if found is None and self.history is not None:
            found = self.history.entry(run_id)
        if found is None or found.run["id"] != run_id:
            raise HistoryError(f"There is no run {run_id}. Choose one from the list.")
        return found

    def measured(self, rows: Sequence[Row]) -> dict[str, list[str]]:
        """Metrics by stage, over the newest of these runs."""
        ids = [row["id"] for row in rows[:NAMED]]
        pairs = set() if self.history is None else self.history.measured(ids)
        named = self._named()
        pairs |= {(one["stage"], one["metric"]) for run_id in ids if run_id in named for one in named[run_id].figures}
        order = {name: place for place, name in enumerate(METRICS)}
        found: dict[str, list[str]] = {}
        for stage, metric in sorted(pairs, key=lambda pair: (pair[0], order.get(pair[1], len(order)), pair[1])):
            found.setdefault(stage, []).append(metric)
        return found

    def values(self, stage: str, metric: str) -> dict[str, Row]:
        """Value and interval of a metric, by run id."""
        rows = {} if self.history is None else self.history.values(stage, metric)
        for run_id, entry in self._named().items():
            for one in entry.figures:
                if (one["stage"], one["metric"]) == (stage, metric):
                    rows.setdefault(run_id, one)
        return rows

    def problems(self) -> list[str]:
        """Reasons why a given folder shows no run."""
        return [found for found in self._read() if isinstance(found, str)]

    def _named(self) -> Mapping[str, Entry]:
        return {entry.run["id"]: entry for found in self._read() if not isinstance(found, str) for entry in found}

    def _read(self) -> Iterator[list[Entry] | str]:
        """Runs of each folder, or the reason why it has none."""
        inside = (one for folder in self.folders.values() for one in _runs_below(folder))
        for folder in dict.fromkeys([*inside, *self._seen]):
            yield _entries(folder, stamp_of(folder))


def stamp_of(folder: Path) -> tuple[int, ...]:
    """Modification times of the results in a folder; all 0 if it has none."""
    files = (folder / name for name in (MANIFEST_NAME, SERIES_NAME, BENCH_NAME, BENCHMARK_MEAN_NAME))
    return tuple(file.stat().st_mtime_ns if file.is_file() else 0 for file in files)


def _runs_below(folder: Path) -> list[Path]:
    """The folder, or its subfolders with results if it has none itself."""
    if any(stamp_of(folder)) or not folder.is_dir():
        return [folder]
    return [one for one in sorted(folder.iterdir()) if not one.name.startswith(".") and any(stamp_of(one))] or [folder]


@lru_cache(maxsize=1024)
def _entries(folder: Path, stamp: tuple[int, ...]) -> list[Entry] | str:
    """Runs of a folder, or the reason why it has none."""
    del stamp
    try:
        return entries_of(folder, suite_exit_code)
    except PerfHarnessError as error:
        return str(error)
