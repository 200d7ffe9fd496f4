"""A record of NVML's answers: every call with its arguments, and its answers with the times of their changes.

`scripts/record_nvml` writes one from a real machine; `replayed_nvml` answers from it.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

RECORD_VERSION = 1


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Recorded(_Model):
    """One answer: a value in its JSON form (see `to_json`), or an NVML error code."""

    value: Any = None
    error: int | None = None


class RecordedCall(_Model):
    """One function with its arguments; `answers[i]` holds from `at_ns[i]` on, after the record's beginning."""

    function: str
    arguments: list[Any] = Field(default_factory=list)
    at_ns: list[int] = Field(default_factory=lambda: [0])
    answers: list[Recorded]


class RecordedField(_Model):
    """One field value of a device; `answers` as in a call, the value a number."""

    device: str
    field: int
    scope: int = 0
    value_type: int = 3
    at_ns: list[int] = Field(default_factory=lambda: [0])
    answers: list[Recorded]


class RecordedSamples(_Model):
    """The driver's own ring of samples (`nvmlDeviceGetSamples`), as far as it was recorded.

    Args:
        at_us: when each was taken, after the record's beginning; negative: before.
        capacity: how many the ring keeps.
    """

    device: str
    kind: int
    value_type: int = 1
    capacity: int = 120
    at_us: list[int] = Field(default_factory=list)
    values: list[float | int] = Field(default_factory=list)
    error: int | None = None


class NvmlRecord(_Model):
    """Everything recorded on one machine. Devices are identified by UUID."""

    schema_version: int = RECORD_VERSION
    about: dict[str, Any] = Field(default_factory=dict)
    """Its origin, as text and versions; for information only."""

    duration_ns: int = 0
    calls: list[RecordedCall] = Field(default_factory=list)
    fields: list[RecordedField] = Field(default_factory=list)
    samples: list[RecordedSamples] = Field(default_factory=list)

    def write(self, path: Path) -> Path:
        """Write as JSON, compressed where the name ends in `.gz`."""
        data = self.model_dump_json(exclude_defaults=True).encode()
        path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
        return path

    def call(self, function: str, *arguments: Any) -> RecordedCall | None:
        """The record of that call; devices are named as `device(uuid)`."""
        return next(
            (call for call in self.calls if call.function == function and call.arguments == list(arguments)), None
        )

    def set_call(self, function: str, arguments: list[Any], *answers: Recorded, at_ns: list[int] | None = None) -> None:
        """Add or replace a call."""
        self.calls = [call for call in self.calls if (call.function, call.arguments) != (function, arguments)]
        self.calls.append(
            RecordedCall(function=function, arguments=arguments, answers=list(answers), at_ns=at_ns or [0])
        )


def read_record(path: Path) -> NvmlRecord:
    """Read what `NvmlRecord.write` wrote."""
    data = path.read_bytes()
    return NvmlRecord.model_validate_json(gzip.decompress(data) if path.suffix == ".gz" else data)
