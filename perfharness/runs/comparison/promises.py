"""What the advice of a run promises."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from perfharness.analysis.diagnosis import Advice, advise
from perfharness.model.diagnosis import Diagnosis
from perfharness.model.manifest import MANIFEST_NAME
from perfharness.model.result import BENCHMARK_NAME
from perfharness.runs.files.json_files import read_results
from perfharness.runs.files.run_folder import read_manifest


def promises_of(folder: Path, diagnoses: Mapping[str, Diagnosis] | None = None) -> list[Advice]:
    """The advice of a run that names a saving, the largest first.

    Args:
        diagnoses: by process; None: from its files.
    """
    if diagnoses is None:
        diagnoses = _diagnoses(folder) if (folder / MANIFEST_NAME).is_file() else {}
    return [one for one in advise(diagnoses) if one.cause.saves_ms is not None]


def _diagnoses(folder: Path) -> dict[str, Diagnosis]:
    adapter, diagnoses = TypeAdapter(Diagnosis), {}
    for process in read_manifest(folder).measured_processes:
        found = (read_results(folder / process.folder / BENCHMARK_NAME) or {}).get("diagnosis")
        with suppress(ValidationError):  # none, or that of another version
            diagnoses[process.folder] = adapter.validate_python({**(found or {}), "findings": []})
    return diagnoses
