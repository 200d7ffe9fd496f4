"""A record of what an NVML answered: every call with its arguments, and its answers with the times they changed.

`scripts/record_nvml` writes one from a real machine; `replayed_nvml` answers from it.
"""

from __future__ import annotations

import ctypes
import gzip
import json
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
    """The driver's own ring of samples (`nvmlDeviceGetSamples`), as much of it as went by.

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
    """Everything recorded on one machine. Devices stand in it by UUID."""

    schema_version: int = RECORD_VERSION
    about: dict[str, Any] = Field(default_factory=dict)
    """Where it comes from, in words and versions; nothing is decided by it."""

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
        """Put a call in, in the place of an older one."""
        self.calls = [call for call in self.calls if (call.function, call.arguments) != (function, arguments)]
        self.calls.append(
            RecordedCall(function=function, arguments=arguments, answers=list(answers), at_ns=at_ns or [0])
        )


def read_record(path: Path) -> NvmlRecord:
    """Read what `NvmlRecord.write` wrote."""
    data = path.read_bytes()
    return NvmlRecord.model_validate_json(gzip.decompress(data) if path.suffix == ".gz" else data)


def device(uuid: str) -> dict[str, str]:
    """A device as it stands in a record, among arguments or as a value."""
    return {"device": uuid}


def to_json(value: Any, name_of: Callable[[Any], str | None] = lambda _: None) -> Any:
    """A value of `pynvml` as JSON: structures by their members, arrays as lists, devices by UUID.

    Args:
        name_of: the UUID of a device handle; None for anything else.
    """
    if (uuid := name_of(value)) is not None:
        return device(uuid)
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, (ctypes.Structure, ctypes.Union)):
        members = [member[0] for member in value._fields_ or ()]
        return {"struct": {name: to_json(getattr(value, name), name_of) for name in members}}
    if isinstance(value, (list, tuple, ctypes.Array)):
        return [to_json(item, name_of) for item in value]
    if hasattr(value, "__dict__"):  # pynvml's friendly objects
        return {"struct": {name: to_json(item, name_of) for name, item in vars(value).items()}}
    return value


def from_json(value: Any, handle_of: Callable[[str], Any]) -> Any:
    """The other way: structures come back as objects with the same attributes."""
    if isinstance(value, list):
        return [from_json(item, handle_of) for item in value]
    if isinstance(value, dict):
        if "device" in value:
            return handle_of(value["device"])
        return SimpleNamespace(**{name: from_json(item, handle_of) for name, item in value["struct"].items()})
    return value


def argument_key(function: str, arguments: list[Any]) -> str:
    """What a call is found by."""
    return json.dumps([function, arguments], sort_keys=True)
