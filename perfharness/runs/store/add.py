"""Store what lies in folders: what was measured without a store, or on another machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfharness.errors import ResultError, UsageError
from perfharness.model.cold_start import COLD_START_NAME, ColdStart
from perfharness.model.findings import Finding
from perfharness.model.manifest import BENCHMARK_MEAN_NAME, FindingRecord
from perfharness.runs.comparison.trtexec import is_trtexec, read_trtexec
from perfharness.runs.files.inputs import locate
from perfharness.runs.files.json_files import read_results
from perfharness.runs.files.run_folder import read_manifest
from perfharness.runs.series.cold_start import cold_start_exit_code, cold_start_figures
from perfharness.runs.series.file import read_series
from perfharness.runs.series.repeat import repeat_series
from perfharness.runs.series.repeat_file import read_repeat
from perfharness.runs.series.scaling import SCALING_NAME, Scaling
from perfharness.runs.store.documents import documents_of, trtexec_documents
from perfharness.runs.store.gather import stored_launch, stored_trtexec
from perfharness.runs.store.records import StoredRun
from perfharness.runs.store.register import Series, add_series

if TYPE_CHECKING:
    from perfharness.runs.store.store import RunStore


def add_folder(store: RunStore, folder: Path) -> list[StoredRun]:
    """Store the run in a folder, or the launches of a series and the series; returns what was stored.

    Raises `ResultError` where there are no results, `UsageError` for a trace or one process, `StoreError`.
    """
    if folder.is_file() and is_trtexec(folder):
        return [_add_trtexec(store, folder)]
    located = locate(folder)
    if located.process is not None or not located.runs:
        raise UsageError(
            f"{folder} is no whole run; give the folder of a run, of a series of launches or of a suite, or a file of"
            " trtexec"
        )
    found, ids = [], []
    for run_dir in located.runs:
        manifest = read_manifest(run_dir)
        mean = _mean_of(run_dir)
        run = stored_launch(manifest, mean, _findings_of(mean), run_dir)
        store.add(run, files=documents_of(manifest, mean, run_dir))
        found.append(run)
        ids.append(manifest.run_id)
    series = _series_in(located.path, ids) if located.is_series else None
    return [*found, add_series(store, series)] if series is not None else found


def _add_trtexec(store: RunStore, path: Path) -> StoredRun:
    run = stored_trtexec(read_trtexec(path), path.stat().st_mtime_ns)
    store.add(run, files=trtexec_documents(path))
    return run


def _mean_of(run_dir: Path) -> dict[str, Any]:
    found = read_results(run_dir / BENCHMARK_MEAN_NAME)
    if found is None:
        raise ResultError(f"{run_dir} has no {BENCHMARK_MEAN_NAME}; `perfharness analyze {run_dir}` makes it")
    return found


def _findings_of(mean: dict[str, Any]) -> list[Finding]:
    return [FindingRecord.model_validate(one).to_finding() for one in mean.get("meta", {}).get("findings", [])]


def _series_in(folder: Path, ids: list[str]) -> Series | None:
    """The series whose file lies in the folder."""
    if (repeat := read_repeat(folder)) is not None:
        return repeat_series(folder, repeat)
    if (sweep := read_series(folder / SCALING_NAME, Scaling)) is not None:
        rows = [point.row for point in sweep.points]
        has_numbers = any(row.items_per_second is not None for row in rows)
        code = 0 if has_numbers and all(row.status == "ok" for row in rows) else 3
        return _series("sweep", folder, sweep, ids, code)
    if (cold := read_series(folder / COLD_START_NAME, ColdStart)) is not None:
        is_complete = all(row.status != "not_run" for row in cold.rows)
        made = _series("cold-start", folder, cold, ids, cold_start_exit_code(cold, is_complete=is_complete))
        return Series(**{**vars(made), "figures": cold_start_figures(cold)})
    return None


def _series(kind: Any, folder: Path, file: Scaling | ColdStart, ids: list[str], code: int) -> Series:
    return Series(kind, folder, file.created, file.command, file.script, file.script_arguments, ids, code)
