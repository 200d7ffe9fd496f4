"""`repeat.json`: the same launch several times, each number with its interval over launches. Validated, for it is read
back.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from perfharness.model.base import Record
from perfharness.model.conditions import GpuWait
from perfharness.model.findings import Finding
from perfharness.runs.series.file import SeriesFile, SeriesRow, read_series
from perfharness.runs.series.steadiness import Unsteadiness

REPEAT_NAME = "repeat.json"

LAUNCH_FOLDER = "launch_{}"
LAUNCH_OF_REPEAT = re.compile(r"launch_(\d{1,9})", re.ASCII)

DEFAULT_COUNT = 5
MOST_LAUNCHES = 10_000
"""Of a series: each is planned before the first begins."""

Scope = Literal["launches", "within-launch"]
"""What an interval is about: launches to come, or further batches of the one launch there is."""


def _launch_folder(name: str) -> str:
    """Never outside of the folder of the repeat."""
    if not LAUNCH_OF_REPEAT.fullmatch(name):
        raise ValueError("must be launch_N")
    return name


class RepeatRequest(Record):
    """What was asked for."""

    count: int
    """Of launches."""

    seed: int
    """Of the order."""


class RepeatRow(SeriesRow):
    """One launch."""

    folder: Annotated[str, AfterValidator(_launch_folder)]
    place: int
    """In the order of all launches of the measurement, those of other cases included, from 0."""

    run_id: str | None = None
    created: str | None = None
    """UTC, ISO 8601."""

    exit_codes: list[int | None] = Field(default_factory=list)
    """Of its processes; None: ended by a signal, or not known."""

    waits: list[GpuWait] = Field(default_factory=list)
    """For its GPUs; none before the first launch, and with --cool-down, which the launch's manifest has."""

    findings: list[str] = Field(default_factory=list)
    """Codes of the warnings and errors of its run."""


class OverLaunches(Record):
    """One number over launches. What is not known is None; `reason` has the reason."""

    values: list[float | None]
    """One for each launch whose status is `ok`, in their order."""

    mean: float | None
    std: float | None
    """Sample standard deviation of the launches."""

    low: float | None
    high: float | None
    """The 95 % interval of the mean."""

    scope: Scope | None
    """None: there is no interval."""

    reason: str | None = None


class OfLaunches(SeriesFile):
    """Launches in one order, and what is over them; times in milliseconds."""

    asked: RepeatRequest
    order: list[str]
    """Folders of all launches as they were planned, one after the other; of several cases, with the case's folder."""

    confidence: float
    """At which the intervals hold the mean, each by itself."""

    loops: list[str] = Field(default_factory=list)
    """Paths of the batches, of those in `stages`."""

    findings: list[Finding] = Field(default_factory=list)


class Repeat(OfLaunches):
    """The file."""

    rows: list[RepeatRow]
    stages: dict[str, dict[str, OverLaunches]]
    """By path and metric: `cpu_time`, `gpu_time`, `gpu_busy_time` of a batch, the same `_per_item`, and percentiles
    over batches, as `cpu_time_p95`. GPU times are left out where no launch had GPU work."""

    run: dict[str, OverLaunches]
    """`items_per_second`."""

    machine: Unsteadiness | None = None
    """What moved on the machine between the launches; None: fewer than two."""

    @property
    def measured(self) -> list[RepeatRow]:
        """The launches that the numbers are made of."""
        return [row for row in self.rows if row.status == "ok"]


def read_repeat(folder: Path) -> Repeat | None:
    """`repeat.json` of a folder; None where there is none. Raises `ResultError` where it is damaged."""
    return read_series(folder / REPEAT_NAME, Repeat)
