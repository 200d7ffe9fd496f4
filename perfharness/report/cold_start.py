"""Start-ups of fresh processes side by side: figures of each, their median and range, the table."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich.console import Console

from perfharness.analysis.startup import startup
from perfharness.files import read_regular, write_text
from perfharness.model.cold_start import COLD_START_NAME, ColdStart, ColdStartRow, Spread
from perfharness.model.journal import JOURNAL_NAME, RecorderJournal
from perfharness.model.manifest import ProcessRecord
from perfharness.model.result import BENCHMARK_NAME
from perfharness.report.console import Column, print_table, say

FIGURES = {
    "process_to_first_batch_ms": "to the first batch",
    "interpreter_and_imports_ms": "  interpreter and imports",
    "cuda_context_ms": "  CUDA context",
    "model_load_ms": "  model load",
    "start_barrier_wait_ms": "  start barrier",
    "other_ms": "  other",
    "first_batch_ms": "first batch",
}


def startup_of(run_dir: Path, process: ProcessRecord) -> dict[str, Any] | None:
    """The start-up of a process of a run: as analysed, or of an untraced one from what the recorder noted."""
    folder = run_dir / process.folder
    try:
        told: dict[str, Any] | None = json.loads(read_regular(folder / BENCHMARK_NAME, follow=False)).get("startup")
    except (OSError, ValueError):
        told = None
    if told is not None or process.start_unix_ns is None:
        return told
    try:
        journal = RecorderJournal.model_validate_json(read_regular(folder / JOURNAL_NAME, follow=False))
    except (OSError, ValueError):
        return None
    return startup(process.start_unix_ns, journal).to_json()


def spreads(rows: Sequence[ColdStartRow], cache: str, figures: Mapping[str, str] = FIGURES) -> dict[str, Spread]:
    """Median and range of each figure over the processes of one kind that ended well."""
    told = [row.startup for row in rows if row.cache == cache and row.status == "ok" and row.startup is not None]
    return {name: _spread([one[name] for one in told if one.get(name) is not None]) for name in figures}


def _spread(values: Sequence[float]) -> Spread:
    if not values:
        return Spread(count=0)
    return Spread(count=len(values), median=statistics.median(values), min=min(values), max=max(values))


def write_cold_start(found: ColdStart, folder: Path) -> bool:
    """Write `cold_start.json`; not where it has no number and an earlier one has. Raises `ResultError`."""
    path = folder / COLD_START_NAME
    if not _has_numbers(found):
        with suppress(OSError, ValidationError):
            if _has_numbers(ColdStart.model_validate_json(read_regular(path))):
                return False
    write_text(path, lambda file: print(found.model_dump_json(indent=2), file=file))
    return True


def _has_numbers(found: ColdStart) -> bool:
    return any(row.startup is not None for row in found.rows)


def print_cold_start(console: Console, found: ColdStart, figures: Mapping[str, str] = FIGURES) -> None:
    """The table: each part with a cold and a warm file cache, median and range."""
    columns = [Column("ms, median (range)", is_text=True), Column("cold cache"), Column("warm cache")]
    rows = [[words, _shown(found.cold[name]), _shown(found.warm[name])] for name, words in figures.items()]
    print_table(console, columns, rows)
    if found.cold_reason is not None:
        say(console, f"cold cache: {found.cold_reason}")
    shares = [row.cache_state.resident_share for row in found.rows if row.cache == "cold" and row.cache_state]
    known = [share for share in shares if share is not None]
    if known:
        say(console, f"still in the cache when a cold process began: up to {max(known):.0%} of its files' bytes")
    for row in found.rows:
        if row.status != "ok":
            say(console, f"{row.folder}: {row.reason}")


def _shown(spread: Spread) -> str:
    if spread.median is None:
        return "-"
    return f"{spread.median:.1f} ({spread.min:.1f} … {spread.max:.1f})"
