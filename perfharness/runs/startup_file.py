"""The start-up of a process, from the files of its run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from perfharness.analysis.startup import startup
from perfharness.files import read_regular
from perfharness.model.journal import JOURNAL_NAME, RecorderJournal
from perfharness.model.manifest import BENCHMARK_NAME, ProcessRecord


def startup_of(run_dir: Path, process: ProcessRecord) -> dict[str, Any] | None:
    """The start-up of a process of a run: as analysed, or of an untraced one from what the recorder noted."""
    folder = run_dir / process.folder
    try:
        analysed: dict[str, Any] | None = json.loads(read_regular(folder / BENCHMARK_NAME, follow=False)).get("startup")
    except (OSError, ValueError):
        analysed = None
    if analysed is not None or process.start_unix_ns is None:
        return analysed
    try:
        journal = RecorderJournal.model_validate_json(read_regular(folder / JOURNAL_NAME, follow=False))
    except (OSError, ValueError):
        return None
    return startup(process.start_unix_ns, journal).to_json()
