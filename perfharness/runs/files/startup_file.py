"""The start-up of a process, from the files of its run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perfharness.analysis.stages.startup import startup
from perfharness.errors import ResultError
from perfharness.files import read_regular
from perfharness.model.journal import JOURNAL_NAME, RecorderJournal
from perfharness.model.manifest import BENCHMARK_NAME, ProcessRecord
from perfharness.runs.files.json_files import read_results


def startup_of(run_dir: Path, process: ProcessRecord) -> dict[str, Any] | None:
    """The start-up of a process of a run: as analysed, or of an untraced one from what the recorder noted."""
    folder = run_dir / process.folder
    try:
        analysed: dict[str, Any] | None = (read_results(folder / BENCHMARK_NAME) or {}).get("startup")
    except ResultError:
        analysed = None
    if analysed is not None or process.start_unix_ns is None:
        return analysed
    try:
        journal = RecorderJournal.model_validate_json(read_regular(folder / JOURNAL_NAME, follow=False))
    except (OSError, ValueError):
        return None
    return startup(process.start_unix_ns, journal).to_json()
