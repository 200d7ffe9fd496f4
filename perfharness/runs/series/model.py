"""`series.json`: launches of a series and their summary. Validated, because it is read back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from perfharness.errors import ResultError
from perfharness.files import read_model
from perfharness.model.base import Record
from perfharness.model.checks import MaskedArguments
from perfharness.model.conditions import GpuWait
from perfharness.model.findings import Finding
from perfharness.model.manifest import MANIFEST_NAME, SERIES_NAME
from perfharness.runs.files.run_folder import read_manifest
from perfharness.runs.series.machine import MachineChange

FOLDER = r"^((traced|untraced|base|new(_[0-9]{1,9})?)/)?((launch|np|cold|warm)_[0-9]{1,9}|first)$"
"""Folders of launches, which never lead out of the series."""

COLD, TRACED, UNTRACED = "cold", "traced", "untraced"
"""Labels of launches of `--cold` and `--overhead`."""

Kind = Literal["repeat", "processes", "cold", "overhead"]
"""`launch --repeat`, `--np-sweep`, `--cold` and `--overhead`."""

Figures = dict[str, dict[str, float | None]]
"""Values by path of a stage ("" for the launch) and metric; None if not measured."""

WHOLE = ""


class SeriesRow(Record):
    """One launch.

    Attributes:
        label: launches with the same label are summarised together.
        folder: folder of the run, relative to the file.
        place: position in the order of all launches, from 0.
        num_processes: processes per GPU.
        status: `failed` if a process failed or nothing was measured; then without figures.
        reason: why the launch is not `ok` or has no throughput.
        exit_codes: of processes; None for a signal or if unknown.
        waits: waits for cool GPUs (with --cool-down, they are in the manifest).
        findings: codes of warnings and errors of the run.
    """

    label: str
    folder: Annotated[str, Field(pattern=FOLDER)]
    place: int
    num_processes: int = 1
    status: Literal["ok", "failed", "not_run"] = "ok"
    reason: str | None = None
    run_id: str | None = None
    created: str | None = None
    exit_codes: list[int | None] = Field(default_factory=list)
    waits: list[GpuWait] = Field(default_factory=list)
    findings: list[str] = Field(default_factory=list)
    figures: Figures = Field(default_factory=dict)

    @property
    def ended_well(self) -> bool:
        """Whether all processes ended with 0."""
        return bool(self.exit_codes) and not any(code != 0 for code in self.exit_codes)


class Summary(Record):
    """One figure over the launches of a label; None with a `reason` if unknown.

    Attributes:
        count: number of launches with the figure, for median and range.
        std: sample standard deviation.
        low, high: 95 % interval of the mean, by Student's t over launches.
    """

    count: int
    mean: float | None
    std: float | None
    low: float | None
    high: float | None
    median: float | None
    min: float | None
    max: float | None
    reason: str | None = None


class Overhead(Record):
    """Overhead of tracing in one figure; None with a `reason` if unknown.

    Attributes:
        overhead: traced over untraced, minus 1, of geometric means over launches.
        low, high: 95 % interval of this figure alone, over launches (Welch's, of logarithms).
        launches_needed: launches of each kind to decide whether it is above 10 %; None if decided or unknown.
    """

    overhead: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str | None = None
    launches_needed: int | None = None


class Series(Record):
    """Content of `series.json`. Times are milliseconds.

    Attributes:
        seed: seed of the order of launches in turns.
        summary: by label, path and metric; `overhead` by path and metric.
        loops: paths of the batches.
        knee: processes per GPU after which another one adds less than half as much as the first.
        machine: changes between the launches, largest first.
    """

    schema_version: int = 1
    kind: Kind
    created: str
    command: MaskedArguments
    script: str
    script_arguments: MaskedArguments = Field(default_factory=list)
    seed: int | None = None
    confidence: float
    rows: list[SeriesRow]
    summary: dict[str, dict[str, dict[str, Summary]]] = Field(default_factory=dict)
    loops: list[str] = Field(default_factory=list)
    conclusion: str | None = None
    knee: int | None = None
    overhead: dict[str, dict[str, Overhead]] = Field(default_factory=dict)
    machine: list[MachineChange] = Field(default_factory=list)
    findings: list[Finding] = Field(default_factory=list)

    def measured(self, label: str | None = None) -> list[SeriesRow]:
        """Launches in the summary."""
        return [row for row in self.rows if row.status == "ok" and label in (None, row.label)]

    @property
    def not_measured(self) -> list[SeriesRow]:
        """Other launches, with a `reason`."""
        return [row for row in self.rows if row.status != "ok"]


def read_series(folder: Path) -> Series | None:
    """Read `series.json` of a folder, or its part in that of the parent; None if missing. Raises `ResultError`."""
    if (series := read_model(folder / SERIES_NAME, Series)) is not None:
        return series
    around, inside = read_model(folder.parent / SERIES_NAME, Series), f"{folder.name}/"
    rows = [] if around is None else [row for row in around.rows if row.folder.startswith(inside)]
    if around is None or not rows:
        return None
    update = {
        "kind": "repeat",
        "rows": [row.model_copy(update={"folder": row.folder.removeprefix(inside)}) for row in rows],
        "summary": {label: found for label, found in around.summary.items() if label == rows[0].label},
        "conclusion": None,
        "overhead": {},
        "machine": [],
        "findings": [],
    }
    return around.model_copy(update=update)


def runs_in(folder: Path) -> tuple[Path, ...]:
    """Run folders of a series in order: those with figures, or else all; for `overhead`, the traced ones.

    Launches of an earlier series are ignored. Raises `ResultError` if a file is damaged or the series has several
    versions.
    """
    series = read_series(folder)
    if series is None:
        return ()
    if series.kind == "repeat" and len(names := {row.label for row in series.rows}) > 1:
        raise ResultError(f"{folder} has launches of several versions; name one: {', '.join(sorted(names))}.")
    named = [row for row in series.rows if row.label == TRACED or series.kind != "overhead"]
    there = [row for row in named if row.run_id and (folder / row.folder / MANIFEST_NAME).is_file()]
    rows = [row for row in there if row.status == "ok"] or there
    for row in rows:
        if read_manifest(folder / row.folder).run_id != row.run_id:
            raise ResultError(
                f"{folder / row.folder} is not the launch in {folder / SERIES_NAME}, because it was measured again. "
                "Name the launches one by one, or repeat all."
            )
    return tuple(folder / row.folder for row in rows)
