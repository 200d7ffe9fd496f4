"""What a user may name as a trace: a sqlite file, or an `.nsys-rep`, which is exported first."""

from __future__ import annotations

import os
from pathlib import Path

from perfharness_launcher.discovery import find_nsys
from perfharness_launcher.report_export import REPORT_SUFFIX, sqlite_of


def trace_file(path: Path, nsys: Path | None = None) -> Path:
    """The sqlite file to read for this path; that of an `.nsys-rep` is made by nsys, and kept beside it."""
    if path.suffix != REPORT_SUFFIX:
        return path
    return sqlite_of(path, lambda: find_nsys(nsys, os.environ))
