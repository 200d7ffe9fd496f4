"""The start-up of a process, from the files of its run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perfharness.analysis.stages.startup import startup
from perfharness.errors import ResultError
from perfharness.model.journal import JOURNAL_NAME, RecorderJournal
from perfharness.model.manifest import BENCHMARK_NAME, ProcessRecord
from perfharness.runs.files.json_files import read_results
from perfharness.runs.files.process_traces import read_journal


def startup_of(run_dir: Path, process: ProcessRecord) -> dict[str, Any] | None:
    """The start-up of a process of a run: as analysed, or of an untraced one from what the recorder noted."""
    folder = run_dir / process.folder
    try:
        analysed: dict[str, Any] | None = (read_results(folder / BENCHMARK_NAME) or {}).get("startup")
    except ResultError:
        analysed = None
    if analysed is not None or process.start_unix_ns is None:
        return analysed
    journal = read_journal(folder / JOURNAL_NAME)
    return startup(process.start_unix_ns, journal).to_json() if isinstance(journal, RecorderJournal) else None
