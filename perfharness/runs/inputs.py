"""What a user may name: a run, a process of one, several runs, or a trace, as sqlite, Parquet or `.nsys-rep`."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from perfharness.errors import PerfHarnessError
from perfharness.files import is_plain
from perfharness.model.telemetry import TELEMETRY_NAME
from perfharness.telemetry.protocol import SPOOL_NAME
from perfharness.trace.database import SQLITE_MAGIC
from perfharness_launcher.interrupts import Interrupts
from perfharness_launcher.nsys.collect import collect
from perfharness_launcher.nsys.command_line import REPORT_STEM
from perfharness_launcher.nsys.export import REPORT_SUFFIX, sqlite_of
from perfharness_launcher.nsys.probe import find_nsys

if TYPE_CHECKING:
    from perfharness.runs.locate import Located
    from perfharness.runs.run import Run

REPORT_ENDS = (REPORT_SUFFIX, ".qdstrm")
REPORT_MAGIC = b"NVIDIA Tegra Profiler Report"
"""How an `.nsys-rep` begins (nsys 2023.4 to 2024.2)."""


def trace_file(path: Path, nsys: Path | None = None) -> Path:
    """The sqlite file or Parquet folder to read for this path; an `.nsys-rep` is exported by nsys, next to it.

    Raises what `sqlite_of` raises; whether the trace can be read is seen when it is read.
    """
    if not _is_report(path):
        return path
    return sqlite_of(path, lambda: find_nsys(nsys, os.environ))


def complete_cut_off(folder: Path, nsys: Path | None = None) -> None:
    """Of a run whose launcher was killed, make readable files of what its tracers and its sampler left.

    What cannot be made is skipped: the analysis reports processes without a trace.
    """
    from perfharness.runs.run_folder import read_manifest

    manifest = read_manifest(folder)
    if manifest.complete:
        return
    if manifest.tracer.kind == "nsys":
        left = [folder / process.folder for process in manifest.processes]
        reports = [place for place in left if any(is_plain(place / f"{REPORT_STEM}{end}") for end in REPORT_ENDS)]
        usable = [found for found in find_nsys(nsys, os.environ) if found.usable] if reports else []
        if usable:
            collect(usable[0], reports, Interrupts())
    spool = folder / SPOOL_NAME
    if is_plain(spool) and not os.path.lexists(folder / TELEMETRY_NAME):
        from perfharness.telemetry.spool import finish_spool

        with contextlib.suppress(PerfHarnessError, OSError):
            finish_spool(spool, folder / TELEMETRY_NAME)


def locate_readable(path: Path, nsys: Path | None = None) -> Located:
    """What the path names, a trace as one that can be read. Raises what `locate` and `trace_file` raise."""
    from perfharness.runs.locate import locate

    located = locate(path)
    return located if located.trace is None else replace(located, trace=trace_file(located.trace, nsys))


def open_run(
    path: str | Path,
    *,
    warmup_batches: int | None = None,
    domain: str | None = None,
    batch_pattern: str | None = None,
    nsys: str | Path | None = None,
) -> Run:
    """Open a run folder, the folder of one of its processes, several runs, or a trace. Needs no GPU or CUDA.

    Args:
        path: what `perfharness launch -o` wrote, of one run or of a sweep or cold starts, a `proc_X_gpu_Y` in it, or a
            trace: a sqlite file, a folder of nsys's Parquet export, or an `.nsys-rep`, which nsys exports first; the
            sqlite file is kept next to it.
        warmup_batches: batches marked as warm-up at the front and at the end; None: as in the launch, 0 for a trace.
        domain: read only this NVTX domain, as plain NVTX; `nvtx` is the default domain.
        batch_pattern: names of plain NVTX ranges that are batches, a regular expression.
        nsys: the nsys that exports; None: what is found.

    Raises `ResultError` where there is no run, `ToolNotFoundError` or `TraceFormatError` where an `.nsys-rep` cannot be
    exported, and, when a table is asked for, `TraceError` where a trace cannot be read.
    """
    # Imported here: verbs that read one trace need nothing of it, and it takes a third of a second.
    from perfharness.runs.run import open_located

    located = locate_readable(Path(path), None if nsys is None else Path(nsys))
    return open_located(located, warmup_batches=warmup_batches, domain=domain, batch_pattern=batch_pattern)


def _is_report(path: Path) -> bool:
    """By its content; by its name where there is no file, or an empty one."""
    if path.is_dir() or path.suffix == ".sqlite":
        return False
    try:
        with path.open("rb") as file:
            head = file.read(len(REPORT_MAGIC))
    except OSError:
        head = b""
    return head == REPORT_MAGIC or (path.suffix == REPORT_SUFFIX and not head.startswith(SQLITE_MAGIC))
