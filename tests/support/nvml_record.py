"""A record of NVML's answers: every call with its arguments, and its answers with the times of their changes.

`scripts/record_nvml` writes one from a real machine; `replayed_nvml` answers from it.
"""

from __future__ import annotations

import ctypes
import gzip
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

RECORD_VERSION = 1


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Recorded(_Model):
    """One answer: a value in its JSON form (see `to_json`), or an NVML error code."""

    value: Any = None
    error: int | None = None


class _Changing(_Model):
    """`answers[i]` holds from `at_ns[i]` on, after the record's beginning."""

    at_ns: list[int] = Field(default_factory=lambda: [0])
    answers: list[Recorded] = Field(default_factory=list)

    def note(self, at_ns: int, answer: Recorded) -> None:
        """Add an answer if it differs from the last; the first counts from the beginning."""
        if not self.answers:
            self.answers = [answer]
        elif self.answers[-1] != answer:
            self.at_ns.append(at_ns)
            self.answers.append(answer)


class RecordedCall(_Changing):
    """One function with its arguments."""

    function: str
    arguments: list[Any] = Field(default_factory=list)


class RecordedField(_Changing):
    """One field value of a device; `answers` as in a call, the value a number."""

    device: str
    field: int
    scope: int = 0
    value_type: int = 3


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


class RecordedGpm(_Changing):
    """One GPM metric of a device: `answers[i]` is what it was from `at_ns[i]` on, a number in NVML's unit.

    A device without any has no GPM.
    """

    device: str
    metric: int


class NvmlRecord(_Model):
    """Everything recorded on one machine. Devices are identified by UUID."""

    schema_version: int = RECORD_VERSION
    about: dict[str, Any] = Field(default_factory=dict)
    """Its origin, as text and versions; for information only."""

    duration_ns: int = 0
    calls: list[RecordedCall] = Field(default_factory=list)
    fields: list[RecordedField] = Field(default_factory=list)
    samples: list[RecordedSamples] = Field(default_factory=list)
    gpm: list[RecordedGpm] = Field(default_factory=list)
    gpm_refresh_ns: int = 0
    """How often the driver refreshes what GPM samples; 0: at each sample."""

    def write(self, path: Path) -> Path:
        """Write as JSON, compressed where the name ends in `.gz`."""
        data = self.model_dump_json(exclude_defaults=True).encode()
        path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
        return path

    def call(self, function: str, *arguments: Any) -> RecordedCall | None:
        """The record of that call; devices are named as `device(uuid)`."""
        wanted = (function, list(arguments))
        return next((call for call in self.calls if (call.function, call.arguments) == wanted), None)

    def set_call(self, function: str, arguments: list[Any], *answers: Recorded, at_ns: list[int] | None = None) -> None:
        """Add or replace a call."""
        self.calls = [call for call in self.calls if (call.function, call.arguments) != (function, arguments)]
        made = RecordedCall(function=function, arguments=arguments, answers=list(answers), at_ns=at_ns or [0])
        self.calls.append(made)


def read_record(path: Path) -> NvmlRecord:
    """Read what `NvmlRecord.write` wrote."""
    data = path.read_bytes()
    return NvmlRecord.model_validate_json(gzip.decompress(data) if path.suffix == ".gz" else data)


def device(uuid: str) -> dict[str, str]:
    """A device in a record, as an argument or as a value."""
    return {"device": uuid}


def to_json(value: Any) -> Any:
    """A value of `pynvml` as JSON: structures by their members, arrays as lists."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, (ctypes.Structure, ctypes.Union)):
        return {"struct": {member[0]: to_json(getattr(value, member[0])) for member in value._fields_ or ()}}
    if isinstance(value, (list, tuple, ctypes.Array)):
        return [to_json(item) for item in value]
    if hasattr(value, "__dict__"):  # structures that pynvml converts to objects
        return {"struct": {name: to_json(item) for name, item in vars(value).items()}}
    return value


def from_json(value: Any, handle_of: Callable[[str], Any]) -> Any:
    """The inverse: structures become objects with the same attributes, devices handles."""
    if isinstance(value, list):
        return [from_json(item, handle_of) for item in value]
    if isinstance(value, dict):
        if "device" in value:
            return handle_of(value["device"])
        return SimpleNamespace(**{name: from_json(item, handle_of) for name, item in value["struct"].items()})
    return value
