"""A case with a cold file cache: files that an earlier process of it had open or mapped are put out of the cache."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from perfharness.bench.spec import FILES_NAME
from perfharness.model.cold_start import CacheState
from perfharness_launcher.page_cache import drop_page_cache


def make_cold(warm_folder: Path, model: Path | None = None) -> CacheState:
    """Empty the file cache for the next process of a case; what was done, and what stayed, or why it could not be.

    Args:
        warm_folder: of the same case, run before: `files.json` has the files.
        model: file or folder, which is read and closed again, so that it is not among those.
    """
    try:
        names = json.loads((warm_folder / FILES_NAME).read_text())
    except (OSError, ValueError):
        return CacheState(reason=f"there is no {warm_folder / FILES_NAME}; run the case once with a warm cache first")
    return drop_page_cache({*map(Path, names), *_files(model)})


def _files(model: Path | None) -> Iterator[Path]:
    if model is not None and model.is_dir():
        yield from (entry for entry in model.rglob("*") if entry.is_file())
    elif model is not None and model.is_file():
        yield model
