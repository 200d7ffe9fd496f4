"""`series.json`: several launches, and what they come to together. Validated, because it is read back."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from perfharness.errors import ResultError
from perfharness.files import read_model
from perfharness.model.base import Record
from perfharness.model.checks import MaskedArguments
from perfharness.model.conditions import GpuWait
from perfharness.model.findings import Finding
from perfharness.model.manifest import MANIFEST_NAME, SERIES_NAME
from perfharness.runs.files.run_folder import read_manifest
from perfharness.runs.series.machine import MachineChange

FOLDER = re.compile(r"((traced|untraced|base|new(_\d{1,9})?)/)?((launch|np|cold|warm)_\d{1,9}|first)", re.ASCII)
COLD, TRACED, UNTRACED = "cold", "traced", "untraced"
"""Labels of launches of `--cold` and `--overhead`."""

Kind = Literal["repeat", "processes", "cold", "overhead"]
"""`launch --repeat`, `--np-sweep`, `--cold` and `--overhead`."""

Figures = dict[str, dict[str, float | None]]
"""By path of a stage, and metric; "" is the launch as a whole. None: not measured."""

WHOLE = ""


def _launch_folder(name: str) -> str:
    """Never outside of the folder of the series."""
    if not FOLDER.fullmatch(name):
        raise ValueError("must be launch_N, np_N, cold_N, warm_N or first")
    return name


class SeriesRow(Record):
    """One launch. `failed`: a process did not end well, or nothing was measured; its figures are left out."""

    label: str  # launches of one label are summarised together
    folder: Annotated[str, AfterValidator(_launch_folder)]  # of its run, next to the file
    place: int  # in the order of all launches, from 0
    num_processes: int = 1  # per GPU
    status: Literal["ok", "failed", "not_run"] = "ok"
    reason: str | None = None  # why it is not `ok`, or has no throughput
    run_id: str | None = None
    created: str | None = None  # UTC, ISO 8601
    exit_codes: list[int | None] = Field(default_factory=list)  # of its processes; None: a signal, or not known
    waits: list[GpuWait] = Field(default_factory=list)  # to cool down; with --cool-down, the manifest has them
    findings: list[str] = Field(default_factory=list)  # codes of the warnings and errors of its run
    figures: Figures = Field(default_factory=dict)

    @property
    def ended_well(self) -> bool:
        """Whether all of its processes ended with 0."""
        return bool(self.exit_codes) and not any(code != 0 for code in self.exit_codes)


class Summary(Record):
    """One figure over the launches of a label. None: not known; `reason` has the cause."""

    count: int  # launches that have it; median and range are over these
    mean: float | None
    std: float | None  # sample standard deviation
    low: float | None  # the 95 % interval of the mean, by Student's t over launches
    high: float | None
    median: float | None
    min: float | None
    max: float | None
    reason: str | None = None


class Overhead(Record):
    """What tracing adds to one figure. None: not known; `reason` has the cause."""

    overhead: float | None = None  # traced over untraced, less 1, of geometric means over launches
    low: float | None = None  # the 95 % interval, over launches (Welch's, of logarithms); of this figure alone
    high: float | None = None
    reason: str | None = None
    launches_needed: int | None = None  # of each kind, to decide whether it is above 10 %; None: decided, or not known


class Series(Record):
    """The file; times are in milliseconds."""

    schema_version: int = 1
    kind: Kind
    created: str  # UTC, ISO 8601
    command: MaskedArguments
    script: str
    script_arguments: MaskedArguments = Field(default_factory=list)
    seed: int | None = None  # of the order of launches in turns
    confidence: float  # at which an interval holds the mean
    rows: list[SeriesRow]
    summary: dict[str, dict[str, dict[str, Summary]]] = Field(default_factory=dict)  # by label, path and metric
    loops: list[str] = Field(default_factory=list)  # paths of the batches
    conclusion: str | None = None  # what follows, in a sentence
    knee: int | None = None  # processes per GPU beyond which a further one brings less than half of the first
    overhead: dict[str, dict[str, Overhead]] = Field(default_factory=dict)  # by path and metric
    machine: list[MachineChange] = Field(default_factory=list)  # between the launches, the largest change first
    findings: list[Finding] = Field(default_factory=list)

    def measured(self, label: str | None = None) -> list[SeriesRow]:
        """The launches that the summary is made of."""
        return [row for row in self.rows if row.status == "ok" and label in (None, row.label)]

    @property
    def not_measured(self) -> list[SeriesRow]:
        """The other launches; their `reason` says why."""
        return [row for row in self.rows if row.status != "ok"]


def read_series(folder: Path) -> Series | None:
    """`series.json` of a folder, or its part of that around it; None where there is none.

    Raises `ResultError` where it is damaged.
    """
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
    """The run folders of a series in their order: those with figures, or all there are if none has.

    Of `overhead`, the traced ones. Other launches in the folder, e.g. of an earlier series, are left out. Raises
    `ResultError` where a file is damaged, or the series is about several versions.
    """
    series = read_series(folder)
    if series is None:
        return ()
    if series.kind == "repeat" and len(names := {row.label for row in series.rows}) > 1:
        raise ResultError(f"{folder} holds launches of several versions; name one of them: {', '.join(sorted(names))}.")
    named = [row for row in series.rows if row.label == TRACED or series.kind != "overhead"]
    there = [row for row in named if row.run_id and (folder / row.folder / MANIFEST_NAME).is_file()]
    rows = [row for row in there if row.status == "ok"] or there
    for row in rows:
        if read_manifest(folder / row.folder).run_id != row.run_id:
            raise ResultError(
                f"{folder / row.folder} is not the launch that {folder / SERIES_NAME} lists: it was measured again. "
                "Name the launches one by one, or repeat them all."
            )
    return tuple(folder / row.folder for row in rows)
