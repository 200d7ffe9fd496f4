"""`cold_start.json`: start-ups of fresh processes, with a cold and a warm file cache."""

from __future__ import annotations

from typing import Any, Literal

from perfharness.model.base import Record
from perfharness.runs.series.file import SeriesFile, SeriesRow

COLD_START_NAME = "cold_start.json"

Cache = Literal["cold", "warm", "unknown"]


class ColdStartRow(SeriesRow):
    """One process."""

    cache: Cache  # `unknown`: the first one
    startup: dict[str, Any] | None = None  # as in benchmark.json


class Spread(Record):
    """A figure over several processes; all None where none has it."""

    count: int
    median: float | None = None
    min: float | None = None
    max: float | None = None


class ColdStart(SeriesFile):
    """The file; times in milliseconds."""

    tracer: str
    rows: list[ColdStartRow]
    cold: dict[str, Spread]  # by name of the figure, as in `startup`
    warm: dict[str, Spread]
    cold_reason: str | None = None  # why there is nothing with a cold cache
