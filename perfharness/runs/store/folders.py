"""Whether a stored run is still in its folder: the next launch with the same `-o` takes its place."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Literal

from perfharness.errors import ResultError
from perfharness.files import read_regular
from perfharness.model.bench_suite import BENCH_NAME, SWEEP_NAME
from perfharness.model.cold_start import COLD_START_NAME
from perfharness.model.manifest import MANIFEST_NAME
from perfharness.runs.comparison.trtexec import read_trtexec
from perfharness.runs.files.run_folder import read_manifest
from perfharness.runs.series.repeat_file import REPEAT_NAME
from perfharness.runs.series.scaling import SCALING_NAME
from perfharness.runs.store.records import LAUNCHED, StoredRun

FILES = {
    "repeat": REPEAT_NAME,
    "sweep": SCALING_NAME,
    "cold-start": COLD_START_NAME,
    "bench": BENCH_NAME,
    "bench-sweep": SWEEP_NAME,
}
"""The file of what is no launch; its `created` is that of the run."""


FolderState = Literal["there", "replaced", "gone"]
"""Whether the run is in its folder; or another one is; or nothing is, on this machine."""


def folder_state(run: StoredRun) -> FolderState:
    """What became of the folder of a run."""
    folder = Path(run.folder)
    if holds(folder, run):
        return "there"
    return (
        "replaced"
        if folder.is_file() or any((folder / name).is_file() for name in (MANIFEST_NAME, *FILES.values()))
        else "gone"
    )


def holds(folder: Path, run: StoredRun) -> bool:
    """Whether the folder holds this run."""
    with suppress(ResultError, OSError, ValueError, LookupError, TypeError, StopIteration):
        if run.kind == "trtexec":
            return read_trtexec(folder).run_id == run.run_id
        if run.kind in LAUNCHED:
            return folder.is_dir() and read_manifest(folder).run_id == run.run_id
        found = json.loads(read_regular(folder / FILES[run.kind]))
        if run.kind == "repeat":
            found = next(row for row in found["rows"] if row.get("created"))
        return bool(found["created"] == run.created)
    return False
