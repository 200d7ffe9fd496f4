"""`cold_start.json`: start-ups of fresh processes, with a cold and a warm file cache."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from perfharness.model.base import Record
from perfharness.model.checks import MaskedArguments

COLD_START_NAME = "cold_start.json"
COLD_START_VERSION = 1

Cache = Literal["cold", "warm", "unknown"]


class ColdStartRow(Record):
    """One process."""

    cache: Cache  # `unknown`: the first one
    folder: str
    status: Literal["ok", "failed", "not_run"]
    reason: str | None = None
    startup: dict[str, Any] | None = None  # as in benchmark.json


class Spread(Record):
    """A figure over several processes; all None where none has it."""

    count: int
    median: float | None = None
    min: float | None = None
    max: float | None = None


class ColdStart(Record):
    """The file; times in milliseconds."""

    schema_version: int = COLD_START_VERSION
    created: str  # UTC, ISO 8601
    command: MaskedArguments
    script: str
    script_arguments: MaskedArguments = Field(default_factory=list)
    tracer: str
    rows: list[ColdStartRow]
    cold: dict[str, Spread]  # by name of the figure, as in `startup`
    warm: dict[str, Spread]
    cold_reason: str | None = None  # why there is nothing with a cold cache
