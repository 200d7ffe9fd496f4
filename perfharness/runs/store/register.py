"""Store what was measured, after it was measured. A store that fails is a finding, never a failed measurement."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from perfharness.errors import PerfHarnessError, StoreError, ToolNotFoundError
from perfharness.model.findings import Finding, Severity
from perfharness.model.manifest import RunManifest
from perfharness.runs.store.location import Location, find_store, parse_location, require_store
from perfharness.runs.store.records import Figure, Kind, StoredRun

if TYPE_CHECKING:
    from perfharness.model.bench_suite import BenchSuiteResult, SweepFile
    from perfharness.model.result import Tree
    from perfharness.runs.store.store import RunStore

HINT = "What was measured is complete; `perfharness runs add FOLDER` stores it later"


@dataclass(frozen=True)
class StoreSettings:
    """Where a measurement is stored.

    Args:
        store: a path or a URL; None: that of the environment, or the default.
        stored: whether it is to be stored.
    """

    store: str | None = None
    stored: bool = True


DEFAULT_STORE = StoreSettings()


@dataclass(frozen=True)
class Series:
    """A series of launches.

    Args:
        launches: run ids of those that ran, in order.
        figures: of the series as a whole.
    """

    kind: Kind
    folder: Path
    created: str
    command: Sequence[str]
    script: str
    script_arguments: Sequence[str]
    launches: Sequence[str]
    exit_code: int = 0
    figures: Sequence[Figure] = ()


def check_store(store: str | None, *, stored: bool = True) -> None:
    """Whether there can be a store at the place that an option names, before anything starts.

    Raises `UsageError`, `ToolNotFoundError`.
    """
    if stored and store is not None and (location := parse_location(store, "--store")) is not None:
        require_store(location)


def register_launch(
    manifest: RunManifest, mean: Tree, findings: Iterable[Finding], folder: Path, settings: StoreSettings
) -> list[Finding]:
    """Store a launch; returns why that did not work, where it did not."""

    def add(store: RunStore) -> None:
        from perfharness.runs.store.documents import documents_of
        from perfharness.runs.store.gather import stored_launch

        store.add(stored_launch(manifest, mean, findings, folder), files=documents_of(manifest, mean, folder))

    return _register(add, settings)


def register_series(series: Series, settings: StoreSettings) -> list[Finding]:
    """Store a series whose launches were stored before; returns why that did not work, where it did not."""
    return _register(lambda store: add_series(store, series), settings)


def register_suite(
    result: BenchSuiteResult | SweepFile, folder: Path, exit_code: int, settings: StoreSettings
) -> list[Finding]:
    """Store a suite or a sweep of `bench`; returns why that did not work, where it did not."""

    def add(store: RunStore) -> None:
        from perfharness.runs.store.documents import suite_documents
        from perfharness.runs.store.gather import stored_suite

        run = stored_suite(result, folder, exit_code)
        store.add(run, files=suite_documents(result) if run.kind == "bench" else None)

    return _register(add, settings)


def add_series(store: RunStore, series: Series) -> StoredRun:
    """Store a series, and that its launches are parts of it. Raises `StoreError`."""
    from perfharness.runs.store.gather import stored_series

    ids = list(series.launches)
    by_id = store.by_ids(ids)
    run = stored_series(
        series.kind,
        folder=series.folder,
        created=series.created,
        command=series.command,
        script=series.script,
        script_arguments=series.script_arguments,
        launches=[by_id[run_id] for run_id in ids if run_id in by_id],
        exit_code=series.exit_code,
        figures=series.figures,
    )
    store.add(run, ids)
    return run


def open_store(named: str | None = None, *, create: bool = False) -> RunStore:
    """The store that was named, or that of the environment, or the default. Raises `StoreError`, `UsageError`,
    `ToolNotFoundError`.
    """
    location = find_store(named)
    if location is None:
        raise StoreError("the run store is switched off (PERFHARNESS_STORE=off, or no home); name one with --store")
    return _opened(location, create=create)


def _opened(location: Location, *, create: bool) -> RunStore:
    require_store(location)
    from perfharness.runs.store.store import RunStore

    return RunStore(location, create=create)


def _register(add: Callable[[RunStore], object], settings: StoreSettings) -> list[Finding]:
    if not settings.stored:
        return []
    location: Location | None = None
    try:
        location = find_store(settings.store)
        if location is not None:
            add(_opened(location, create=True))
    except ToolNotFoundError as error:
        if location is None or location.asked:
            return [_not_stored(str(error))]
        return [
            Finding(
                "run-store-missing", Severity.NOTE, f"The run is in no run store: {error}.", "--no-store leaves it out."
            )
        ]
    except PerfHarnessError as error:
        return [_not_stored(str(error))]
    except Exception as error:  # whatever a driver does: what was measured is kept
        return [_not_stored(f"{type(error).__name__}: {' '.join(str(error).split())}")]
    return []


def _not_stored(why: str) -> Finding:
    return Finding("run-not-stored", Severity.WARNING, f"The run is not in the run store: {why}.", HINT)
